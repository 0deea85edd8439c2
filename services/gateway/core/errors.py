"""Faults as clients read them: the error envelope of each protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from .faults import Fault
from .protocols.anthropic_messages.errors import error_object

Protocol = Literal["openai", "anthropic"]


def protocol_of(path: str) -> Protocol:
    """What a client speaks that asks for a path."""
    return "anthropic" if path.startswith("/v1/messages") else "openai"


def _openai(fault: Fault, request_id: str | None) -> dict[str, Any]:
    return {"error": {"message": fault.message, "type": fault.kind, "param": fault.param, "code": fault.code}}


ENVELOPES: dict[Protocol, Callable[[Fault, str | None], dict[str, Any]]] = {
    "openai": _openai,
    "anthropic": error_object,
}


def body_of(fault: Fault, protocol: Protocol = "openai", request_id: str | None = None) -> bytes:
    """The JSON body of an error answer."""
    return msgspec.json.encode(ENVELOPES[protocol](fault, request_id))


def event_of(fault: Fault) -> bytes:
    """The events that end a stream of Chat or of completions which already has content."""
    return b"data: %s\n\ndata: [DONE]\n\n" % body_of(fault)
