"""Errors in the client's protocol, and what an engine said of its own."""

from __future__ import annotations

import json

import pytest

from services.gateway.core import errors
from services.gateway.core.errors import body_of, event_of, fault_in


def test_the_envelope() -> None:
    fault = errors.unknown_model("gpt-9", ["b", "a"])
    assert fault.status == 404
    error = json.loads(body_of(fault))["error"]
    assert error["code"] == "model_not_found"
    assert "gpt-9" in error["message"]
    assert "a, b" in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert event_of(fault).endswith(b"data: [DONE]\n\n")


def test_many_models_are_not_all_named() -> None:
    message = errors.unknown_model("x", [f"m{n:03}" for n in range(50)]).message
    assert "m019" in message
    assert "m020" not in message
    assert "30 more" in message


def test_a_rule_is_named_and_nothing_of_the_text() -> None:
    message = errors.refused_by_policy("secrets.aws_access_key", "strict").message
    assert "secrets.aws_access_key" in message
    assert "strict" in message


@pytest.mark.parametrize(
    ("payload", "status", "message", "code"),
    [
        (b'{"error":{"code":400,"message":"too long","type":"exceed_context_size_error"}}', 400, "too long", None),
        (b'{"error":{"message":"no","type":"server_error","code":"x"}}', 502, "no", "x"),
        (b'{"error":"plain"}', 502, "plain", None),
        (b'{"object":"error","message":"vllm says","code":400}', 502, "vllm says", None),
        (b'{"detail":"starlette says"}', 502, "starlette says", None),
        (b"<html>", 502, "<html>", None),
        (b"", 502, "The engine said 502.", None),
    ],
)
def test_what_an_engine_said(payload: bytes, status: int, message: str, code: str | None) -> None:
    fault = fault_in(payload, 502)
    assert (fault.status, fault.message, fault.code) == (status, message, code)
