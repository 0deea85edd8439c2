"""What cannot be translated is a 400 that names the field, never a traceback and never dropped without a word."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.core.faults import Fault
from services.gateway.core.json.fields import decoded
from services.gateway.core.protocols.anthropic_messages import chat_to_message, chat_to_messages, messages_to_chat
from services.gateway.core.protocols.openai_responses import chat_to_response, chat_to_responses, responses_to_chat

from .conversations import CHAT, MESSAGES, RESPONSES, WEATHER, Json, assistant, clock, said, user

HI = [user("Hi")]


def messages(**fields: Any) -> Json:
    return {"model": "m", "max_tokens": 9, "messages": HI} | fields


REFUSED_MESSAGES: list[tuple[str, Json]] = [
    ("model", messages(model=None)),
    ("max_tokens", messages(max_tokens=None)),
    ("max_tokens", messages(max_tokens="9")),
    ("max_tokens", messages(max_tokens=True)),
    ("messages", messages(messages="Hi")),
    ("messages.0", messages(messages=[])),
    ("messages.0", messages(messages=["Hi"])),
    ("messages.0.role", messages(messages=[{"content": "Hi"}])),
    ("messages.0.role", messages(messages=[{"role": "robot", "content": "Hi"}])),
    ("messages.0.content", messages(messages=[{"role": "user"}])),
    ("messages.0.content", messages(messages=[user(7)])),
    ("messages.0.content.0.type", messages(messages=[user([{"text": "Hi"}])])),
    ("messages.0.content.0.text", messages(messages=[user([{"type": "text"}])])),
    ("messages.0.content.0.type", messages(messages=[user([{"type": "container_upload"}])])),
    ("messages.0.content.0.content", messages(messages=[user([{"type": "search_result"}])])),
    ("messages.0.content.0.source", messages(messages=[user([{"type": "image"}])])),
    ("messages.0.content.0.source.type", messages(messages=[user([{"type": "image", "source": {"type": "file"}}])])),
    (
        "messages.0.content.0.source.type",
        messages(messages=[user([{"type": "document", "source": {"type": "url", "url": "https://x"}}])]),
    ),
    ("messages.0.content.0.tool_use_id", messages(messages=[user([{"type": "tool_result"}])])),
    ("messages.0.content.0.input", messages(messages=[assistant([{"type": "tool_use", "id": "a", "name": "f"}])])),
    ("tools.0.type", messages(tools=[{"type": "web_search_20250305", "name": "web_search"}])),
    ("tools.0.type", messages(tools=[{"type": "mcp_toolset"}, {"type": "web_fetch_20260318", "name": "f"}])),
    ("tools.0.name", messages(tools=[{"type": "bash_20250124"}])),
    (
        "tool_choice.name",
        messages(
            tools=[WEATHER, {"type": "web_search_20250305", "name": "web_search"}],
            tool_choice={"type": "tool", "name": "web_search"},
        ),
    ),
    ("tools.1.input_schema", messages(tools=[WEATHER, {"name": "f"}])),
    ("tool_choice.type", messages(tool_choice={"type": "some"})),
    ("tool_choice.name", messages(tool_choice={"type": "tool"})),
    ("thinking.budget_tokens", messages(thinking={"type": "enabled"})),
    ("thinking.type", messages(thinking={"type": "deep"})),
    ("output_config.format.type", messages(output_config={"format": {"type": "grammar"}})),
    ("container", messages(container="c-1")),
    ("mcp_servers", messages(mcp_servers=[{"url": "https://x"}])),
    ("n", messages(n=2)),
    ("response_format", messages(response_format={"type": "json_object"})),
]


@pytest.mark.parametrize(("field", "body"), REFUSED_MESSAGES)
def test_messages(field: str, body: Json) -> None:
    _refused(field, lambda: messages_to_chat.request(body))


def _offering(*tools: Json, **more: Any) -> Json:
    return {"model": "m", "input": "Hi", "tools": [*tools]} | more


REFUSED_RESPONSES: list[tuple[str, Json]] = [
    ("input", {"model": "m"}),
    ("input.0", {"model": "m", "input": []}),
    ("input.0.type", {"model": "m", "input": [{"type": "telepathy_call"}]}),
    ("input.0.input", {"model": "m", "input": [{"type": "custom_tool_call", "call_id": "c", "name": "f"}]}),
    ("input.0.action", {"model": "m", "input": [{"type": "local_shell_call", "call_id": "c"}]}),
    ("input.0.call_id", {"model": "m", "input": [{"type": "shell_call", "action": {"commands": ["ls"]}}]}),
    ("input.0.type", {"model": "m", "input": [{"type": "item_reference", "id": "msg_1"}]}),
    ("input.0.type", {"model": "m", "input": [{}]}),
    ("input.0.role", {"model": "m", "input": [said("robot", "Hi")]}),
    ("input.0.content.0.file_id", {"model": "m", "input": [user([{"type": "input_file", "file_id": "f"}])]}),
    ("input.0.content.0.type", {"model": "m", "input": [user([{"type": "input_audio"}])]}),
    ("input.0.call_id", {"model": "m", "input": [{"type": "function_call_output", "output": "x"}]}),
    ("input.0.arguments", {"model": "m", "input": [{"type": "function_call", "call_id": "c", "name": "f"}]}),
    ("previous_response_id", {"model": "m", "input": "Hi", "previous_response_id": "resp_1"}),
    ("conversation", {"model": "m", "input": "Hi", "conversation": {"id": "c"}}),
    ("background", {"model": "m", "input": "Hi", "background": True}),
    ("prompt", {"model": "m", "input": "Hi", "prompt": {"id": "p"}}),
    ("tools.0.type", {"model": "m", "input": "Hi", "tools": [{"type": "web_search"}]}),
    ("tools.0.tools.0.type", _offering({"type": "namespace", "name": "n", "tools": [{"type": "web_search"}]})),
    ("tools.0.tools", _offering({"type": "namespace", "name": "n"})),
    ("tools.0.name", _offering({"type": "custom"})),
    ("tools.0.format.type", _offering({"type": "custom", "name": "f", "format": {"type": "json"}})),
    ("tools.0.type", _offering({"type": "shell", "environment": {"type": "container_auto"}})),
    ("tools.0.type", _offering({"type": "telepathy"}, {"type": "web_search"})),
    ("tool_choice.type", _offering({"type": "local_shell"}, tool_choice={"type": "web_search"})),
    ("tool_choice.tools", _offering({"type": "local_shell"}, tool_choice={"type": "allowed_tools", "tools": []})),
    ("text.format.schema", {"model": "m", "input": "Hi", "text": {"format": {"type": "json_schema", "name": "x"}}}),
    ("text.format.name", {"model": "m", "input": "Hi", "text": {"format": {"type": "json_schema", "schema": {}}}}),
    ("tool_choice", {"model": "m", "input": "Hi", "tool_choice": "some"}),
    ("tool_choice.type", {"model": "m", "input": "Hi", "tool_choice": {"type": "file_search"}}),
    ("text.format.type", {"model": "m", "input": "Hi", "text": {"format": {"type": "grammar"}}}),
    ("messages", {"model": "m", "input": "Hi", "messages": HI}),
    ("top_logprobs", {"model": "m", "input": "Hi", "top_logprobs": 3}),
]


@pytest.mark.parametrize(("field", "body"), REFUSED_RESPONSES)
def test_responses(field: str, body: Json) -> None:
    _refused(field, lambda: responses_to_chat.request(body))


REFUSED_BY_BOTH: list[tuple[str, Json]] = [
    ("messages", {"model": "m"}),
    ("messages.0", {"model": "m", "messages": []}),
    ("messages.0.role", {"model": "m", "messages": [said("robot", "Hi")]}),
    ("messages.0.content.0.type", {"model": "m", "messages": [user([{"type": "input_audio"}])]}),
    ("n", {"model": "m", "messages": HI, "n": 2}),
    ("logprobs", {"model": "m", "messages": HI, "logprobs": True}),
    ("logit_bias", {"model": "m", "messages": HI, "logit_bias": {"1": 5}}),
    ("functions", {"model": "m", "messages": HI, "functions": [{}]}),
    ("tools.0.type", {"model": "m", "messages": HI, "tools": [{"type": "custom"}]}),
    ("min_p", {"model": "m", "messages": HI, "min_p": 0.1}),
    ("response_format.type", {"model": "m", "messages": HI, "response_format": {"type": "grammar"}}),
]


@pytest.mark.parametrize(("field", "body"), REFUSED_BY_BOTH)
def test_chat(field: str, body: Json) -> None:
    _refused(field, lambda: chat_to_messages.request(body, 9))
    _refused(field, lambda: chat_to_responses.request(body))


def test_chat_arguments_that_are_no_object() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[1"}}
    body = {"model": "m", "messages": [assistant(None, tool_calls=[call])]}
    _refused("messages.0.tool_calls.0.function.arguments", lambda: chat_to_messages.request(body, 9))


def _refused(field: str, translate: Any) -> None:
    with pytest.raises(Fault) as raised:
        translate()
    assert raised.value.status == 400
    assert raised.value.param == field
    assert raised.value.message.startswith(f"{field}: ")


def test_what_is_left_out_is_said_by_name() -> None:
    """Never what is empty, as SDKs send it."""
    block = {"type": "text", "text": "a", "citations": None, "transformations": {"x": 1}}
    tool = WEATHER | {"defer_loading": True, "input_examples": []}
    body = messages(messages=[user([block]) | {"name": "ann"}], tools=[tool], metadata={"team": "x"})
    body |= {"output_config": {"effort": "low", "task_budget": 5}}
    assert [warning.split()[0] for warning in messages_to_chat.request(body).warnings] == [
        *("messages.0.name", "messages.0.content.0.transformations", "tools.0.defer_loading"),
        *("output_config.task_budget", "metadata.team"),
    ]
    function = {"type": "function", "name": "f", "defer_loading": True}
    asked: Json = {"model": "m", "input": "x", "tools": [function], "text": {"tone": "dry"}, "reasoning": {"mode": "x"}}
    assert [warning.split()[0] for warning in responses_to_chat.request(asked).warnings] == [
        *("tools.0.defer_loading", "text.tone", "reasoning.mode"),
    ]
    legacy = assistant("a", function_call={"name": "f"}) | {"name": "ann", "audio": None}
    chat: Json = {"model": "m", "messages": [legacy]}
    for warnings in (chat_to_messages.request(chat, 9).warnings, chat_to_responses.request(chat).warnings):
        assert [warning.split()[0] for warning in warnings] == ["messages.0.function_call", "messages.0.name"]


@pytest.mark.parametrize("body", [b"", b"[]", b"7", b"{", b'{"model": "\xff"}', b'{"a": NaN}'])
def test_bodies_that_are_no_object(body: bytes) -> None:
    with pytest.raises(Fault) as raised:
        decoded(body)
    assert raised.value.status == 400


SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, child in inner for place in places(child, (*path, key)))]


def _requests() -> list[tuple[str, Json]]:
    families = {"messages": MESSAGES, "responses": RESPONSES, "chat": CHAT}
    return [(family, request) for family, listed in families.items() for request, _ in listed.values()]


@settings(max_examples=600, deadline=None)
@given(st.sampled_from(_requests()), st.lists(st.tuples(st.integers(0, 10_000), VALUES), min_size=1, max_size=3))
def test_a_request_with_anything_anywhere_is_translated_or_refused(
    chosen: tuple[str, Json], changes: list[tuple[int, Any]]
) -> None:
    family, request = chosen
    body = copy.deepcopy(request)
    for number, value in changes:
        found = places(body)[1:]
        if not found:
            break
        *way, last = found[number % len(found)]
        holder = body
        for key in way:
            holder = holder[key]
        holder[last] = value
    for translate in TRANSLATIONS[family]:
        try:
            translate(body)
        except Fault as fault:
            status, field = fault.status, fault.param
        else:
            continue
        assert (status, bool(field)) == (400, True)


def _from_messages(body: Json) -> None:
    messages_to_chat.request(body).encoded()
    chat_to_message.shape_of(body, "t")


def _from_responses(body: Json) -> None:
    responses_to_chat.request(body).encoded()
    chat_to_response.shape_of(body, "t", clock)


def _from_chat(body: Json) -> None:
    chat_to_messages.request(body, 9).encoded()


def _from_chat_too(body: Json) -> None:
    chat_to_responses.request(body).encoded()


TRANSLATIONS: dict[str, tuple[Callable[[Json], None], ...]] = {
    "messages": (_from_messages,),
    "responses": (_from_responses,),
    "chat": (_from_chat, _from_chat_too),
}
