"""Errors in the client's protocol, and what an engine said of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.gateway.core import faults
from services.gateway.core.context_window import ContextExceeded
from services.gateway.core.engine_errors import fault_in
from services.gateway.core.errors import body_of, event_of
from services.gateway.core.protocols.anthropic_messages.errors import error_object


def test_the_envelope() -> None:
    fault = faults.unknown_model("gpt-9", ["b", "a"])
    assert fault.status == 404
    error = json.loads(body_of(fault))["error"]
    assert error["code"] == "model_not_found"
    assert "gpt-9" in error["message"]
    assert "a, b" in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert event_of(fault).endswith(b"data: [DONE]\n\n")


def test_many_models_are_not_all_named() -> None:
    message = faults.unknown_model("x", [f"m{n:03}" for n in range(50)]).message
    assert "m019" in message
    assert "m020" not in message
    assert "30 more" in message


def test_a_rule_is_named_and_nothing_of_the_text() -> None:
    message = faults.refused_by_policy("secrets.aws_access_key", "strict").message
    assert "secrets.aws_access_key" in message
    assert "strict" in message


LONG = "This model's maximum context length is 4096 tokens. However, you requested 5000."


@pytest.mark.parametrize(
    ("payload", "status", "words", "code"),
    [
        (
            b'{"error":{"message":"\'role\' is missing","type":"BadRequestError","param":"messages"}}',
            400,
            "'role'",
            None,
        ),
        (b'{"error":{"message":"no","type":"server_error","code":"x"}}', 502, "The engine failed", "upstream_error"),
        (b'{"error":"plain"}', 400, "plain", None),
        (b'{"object":"error","message":"vllm says","code":400}', 400, "vllm says", None),
        (b'{"detail":"starlette says"}', 422, "starlette says", None),
        (b"<html>", 400, "gave no reason", None),
        (b"", 400, "gave no reason", None),
        (b"", 502, "The engine failed", "upstream_error"),
    ],
)
def test_what_an_engine_said(payload: bytes, status: int, words: str, code: str | None) -> None:
    fault = fault_in(payload, status)
    assert (fault.status, fault.code) == (status, code)
    assert words in fault.message


@pytest.mark.parametrize("status", [400, 500])
@pytest.mark.parametrize(
    "said",
    [
        "[json.exception.type_error.302] type must be string, but is number",
        "Traceback (most recent call last): File",
        "1 validation error:\n {'type': 'int', 'loc': ('body')} File \"/opt/vllm/serving_chat.py\", line 12",
        "KeyError('content')",
        "CUDA error: device-side assert triggered",
        "terminate called after throwing an instance of std::runtime_error",
    ],
)
def test_an_engines_exceptions_are_no_clients_matter(said: str, status: int) -> None:
    fault = fault_in(json.dumps({"error": {"message": said, "code": status}}).encode(), status)
    assert fault.status == status
    assert not any(word in fault.message for word in said.split() if len(word) > 6)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"message": "request (9 tokens) exceeds", "type": "exceed_context_size_error", "code": 400}, 400),
        ({"message": LONG, "type": "BadRequestError", "code": 400}, 400),
        ({"message": "The input (5000 tokens) is longer than the model's context length (4096 tokens)."}, 400),
        ({"message": "the request exceeds the available context size. try increasing it"}, 500),
        ({"message": "Prompt length (5000) exceeds maximum input length (4096)"}, 500),
        ({"message": "prompt is too long: 5000 tokens > 4096 maximum", "type": "invalid_request_error"}, 400),
    ],
)
def test_a_prompt_over_the_context_has_one_code(error: dict[str, Any], status: int) -> None:
    fault = fault_in(json.dumps({"error": error}).encode(), status)
    assert (fault.status, fault.code) == (400, "context_length_exceeded")
    assert "prompt is too long" in fault.message
    assert str(error["message"])[1:20] in fault.message or "5000 tokens > 4096 maximum" in fault.message


@pytest.mark.parametrize(
    ("said", "figures"),
    [
        (
            "This model's maximum context length is 32768 tokens. However, you requested 32000 output tokens and your "
            "prompt contains 8000 input tokens, for a total of 40000 tokens.",
            (8000, 32000, 32768),
        ),
        (
            "This model's maximum context length is 32768 tokens. However, you requested 32000 output tokens and your "
            "prompt contains at least 769 input tokens, for a total of at least 32769 tokens.",
            (None, 32000, 32768),
        ),
        (
            "You passed 769 input tokens and requested 32000 output tokens. However, the model's context length is "
            "only 32768 tokens, resulting in a maximum input length of 768 tokens. Please reduce the length.",
            (None, 32000, 32768),
        ),
        (
            "'max_tokens' or 'max_completion_tokens' is too large: 32000. This model's maximum context length is 32768 "
            "tokens and your request has 8000 input tokens (32000 > 32768 - 8000).",
            (8000, 32000, 32768),
        ),
        (
            "This model's maximum context length is 32768 tokens. However, you requested 40000 tokens (8000 in the "
            "messages, 32000 in the completion). Please reduce the length of the messages or completion.",
            (8000, 32000, 32768),
        ),
        (
            "Requested token count exceeds the model's maximum context length of 32768 tokens. You requested a total "
            "of 40000 tokens: 8000 tokens from the input messages and 32000 tokens for the completion.",
            (8000, 32000, 32768),
        ),
    ],
)
def test_what_does_not_fit_is_told_in_figures(said: str, figures: tuple[int | None, int, int]) -> None:
    fault = fault_in(json.dumps({"error": {"message": said, "code": 400}}).encode(), 400)
    assert isinstance(fault, ContextExceeded)
    assert (fault.prompt, fault.answer, fault.window) == figures
    if figures[0] is not None:
        assert fault.message == (
            "input length and `max_tokens` exceed context limit: 8000 + 32000 > 32768, decrease input length or "
            "`max_tokens` and try again"
        )


@pytest.mark.parametrize(
    "said",
    [
        "Input length (37,184) exceeds model's maximum context length (32,768).",
        "You passed 37184 input tokens and requested 0 output tokens. However, the model's context length is only "
        "32768 tokens, resulting in a maximum input length of 32768 tokens.",
        "This model's maximum context length is 32768 tokens. However, your request has 37184 input tokens.",
        "The decoder prompt (length 37184) is longer than the maximum model length of 32768.",
    ],
)
def test_a_prompt_that_alone_is_too_long_is_told_in_figures(said: str) -> None:
    fault = fault_in(json.dumps({"error": {"message": said, "code": 400}}).encode(), 400)
    assert fault.message == "prompt is too long: 37184 tokens > 32768 maximum"


def test_llama_cpps_figures() -> None:
    said = "request (4024 tokens) exceeds the available context size (2048 tokens), try increasing it"
    error = {"code": 400, "message": said, "type": "exceed_context_size_error", "n_prompt_tokens": 4024, "n_ctx": 2048}
    fault = fault_in(json.dumps({"error": error}).encode(), 400)
    assert fault.message == "prompt is too long: 4024 tokens > 2048 maximum"
    assert error_object(fault)["error"]["message"] == fault.message


@pytest.mark.parametrize("said", ["image input is not supported - hint: mmproj", "m is not a multimodal model"])
def test_parts_that_are_no_text_are_the_requests_fault(said: str) -> None:
    fault = fault_in(json.dumps({"error": {"message": said, "code": 500}}).encode(), 500)
    assert (fault.status, fault.code) == (400, "unsupported_content")
