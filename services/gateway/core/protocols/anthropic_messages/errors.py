"""Anthropic's error envelope: the type follows the status."""

from __future__ import annotations

from typing import Any

from services.gateway.core.faults import Fault

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
"""Anthropic's reference of errors; 503 is what a gateway says where Anthropic says 529."""


def error_type(status: int) -> str:
    """Anthropic's word for an HTTP status."""
    return TYPES.get(status) or ("invalid_request_error" if status < 500 else "api_error")


def error_object(fault: Fault, request_id: str | None = None) -> dict[str, Any]:
    """The body of an error answer, and the data of an error event."""
    message = fault.message
    # Of a prompt that is too long clients know the whole sentence by heart.
    if fault.param and fault.param not in message and fault.code != "context_length_exceeded":
        message = f"{fault.param}: {message}"
    error: dict[str, Any] = {"type": "error", "error": {"type": error_type(fault.status), "message": message}}
    if request_id is not None:
        error["request_id"] = request_id
    return error
