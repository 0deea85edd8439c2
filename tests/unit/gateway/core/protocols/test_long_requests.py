"""The time a request takes grows with its length and no faster, whatever stands in it how often."""

from __future__ import annotations

import time
from typing import Any

import pytest

from services.gateway.core.engine_errors import fault_in
from services.gateway.core.protocols.anthropic_messages import messages_to_chat
from services.gateway.core.protocols.openai_responses import responses_to_chat
from services.gateway.core.protocols.tool_arguments import value_of_cut

MANY = 20_000
LONG = "x" * 1_000_000
SYSTEM = {"role": "system", "content": "s"}
CUSTOM = [{"type": "custom", "name": f"t{n}"} for n in range(MANY)]
THOUGHTS = [{"type": "reasoning", "content": [{"text": said}]} for said in (LONG, *"x" * MANY)]
SPACES = [{"type": "namespace", "name": "n"}] * MANY


def many(one: dict[str, Any]) -> list[dict[str, Any]]:
    return [dict(one) for _ in range(MANY)]


@pytest.mark.parametrize(
    "body",
    [
        {"messages": many(SYSTEM)},
        {"messages": [{"role": "user", "content": "u"}, *many(SYSTEM)]},
        {"input": many({"role": "assistant", "content": "a"})},
        {"input": [{"role": "system", "content": LONG}, *many(SYSTEM)]},
        {"input": THOUGHTS},
        {"input": "a", "tools": [*CUSTOM, *CUSTOM]},
        {"input": "a", "tools": CUSTOM, "tool_choice": {"type": "allowed_tools", "tools": [*SPACES, CUSTOM[0]]}},
    ],
    ids=["system", "later system", "said", "instructions", "thoughts", "tools", "namespaces"],
)
def test_no_request_takes_the_time_of_many(body: dict[str, Any]) -> None:
    translate = messages_to_chat.request if "messages" in body else responses_to_chat.request
    began = time.process_time()
    translate({"model": "m", "max_tokens": 5, **body} if "messages" in body else {"model": "m", **body})
    assert time.process_time() - began < 1.5


def test_neither_do_arguments_that_open_and_open() -> None:
    began = time.process_time()
    assert value_of_cut('{"a":' + "[" * 100_000) == {}
    assert value_of_cut('{"a":[1,{"b":2},' + '"c') == {"a": [1, {"b": 2}]}
    assert time.process_time() - began < 1.5


def test_a_figure_of_very_many_digits_is_none() -> None:
    said = b'{"error":{"message":"exceeds the context window of %s tokens"}}' % (b"1" * 5000)
    assert fault_in(said, 400).code == "context_length_exceeded"
