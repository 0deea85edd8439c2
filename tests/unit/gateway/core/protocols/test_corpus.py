"""Every conversation of the corpus, both ways, whole and streamed, against what was recorded and read."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from services.gateway.core.protocols.anthropic_messages import chat_to_message, messages_to_chat
from services.gateway.core.protocols.openai_responses import chat_to_response, responses_to_chat

from . import engines
from .conversations import CHAT, MESSAGES, RESPONSES, Json, assistant, clock, result, user
from .record import DATA, TOKEN, all_names, conversation, path_of, written


@pytest.mark.parametrize(("family", "name"), all_names())
def test_a_conversation_is_translated_as_recorded(family: str, name: str) -> None:
    assert written(conversation(family, name)) == path_of(family, name).read_text(encoding="utf-8")


def test_no_recorded_file_is_left_over() -> None:
    assert len(all_names()) >= 60
    assert {path.name for path in DATA.glob("*.json")} == {path_of(*one).name for one in all_names()}


LOSSY = {
    "result-error": "Chat has no mark for an error: the text says it",
    "result-error-list": "likewise",
    "citations": "a warning says so",
    "hints": "warnings say so",
    "engine-fields": "not Anthropic's",
    "thinking": "a budget becomes an effort",
    "thinking-adaptive": "max becomes high",
    "thinking-off": "a template's switch",
    "thinking-then-tool": "a budget becomes an effort",
    "thinking-returned": "likewise",
    "thinking-unsigned": "no Anthropic model would take it back",
    "system-one-of-array": "one text is a text",
    "document-text": "becomes text",
    "json-schema-beta": "the field's final name",
    "client-tools": "functions with a schema",
    "system-in-the-middle": "text of the user's turn",
    "tools-changed": "all tools are offered from the beginning",
    "ran-at-anthropic": "notes in the text",
}


@pytest.mark.parametrize("name", [name for name in MESSAGES if name not in LOSSY])
def test_messages_through_chat_and_back_are_the_same(name: str) -> None:
    """But for the ways to say one thing: content of one text is a text, an empty list is an empty text."""
    request, _ = MESSAGES[name]
    again = json.loads(path_of("messages", name).read_text())["golden"]["messages again"]["body"]
    assert _canonical(again) == _canonical(request)


@pytest.mark.parametrize("name", LOSSY)
def test_what_is_known_to_be_lost_is_not_more_than_that(name: str) -> None:
    request, _ = MESSAGES[name]
    again = json.loads(path_of("messages", name).read_text())["golden"]["messages again"]["body"]
    assert _canonical(again) != _canonical(request)


def _canonical(request: Json) -> Json:
    out = json.loads(json.dumps(request))
    out.pop("chat_template_kwargs", None)
    for message in out["messages"]:
        message["content"] = _blocks(message["content"])
        for block in message["content"]:
            if block["type"] == "tool_result":
                block["content"] = _blocks(block.get("content", ""))
            if block["type"] == "document":
                block.setdefault("title", "document")
    for tool in out.get("tools", ()):
        tool.pop("type", None)
    return out


def _blocks(content: object) -> list[Json]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    assert isinstance(content, list)
    return content


def _marks(value: object) -> Counter[str]:
    """How often each ``cache_control`` stands in a request."""
    found: Counter[str] = Counter()
    if isinstance(value, dict):
        if "cache_control" in value:
            found[json.dumps(value["cache_control"])] += 1
        for inner in value.values():
            found += _marks(inner)
    elif isinstance(value, list):
        for inner in value:
            found += _marks(inner)
    return found


@pytest.mark.parametrize("name", [name for name in MESSAGES if name != "hints"])
def test_cache_control_is_where_it_was(name: str) -> None:
    request, _ = MESSAGES[name]
    assert _marks(messages_to_chat.request(request).body) == _marks(request)


@pytest.mark.parametrize("name", [*MESSAGES])
def test_thinking_is_never_visible_text(name: str) -> None:
    request, answer = MESSAGES[name]
    thoughts = [piece["thinking"] for piece in answer["pieces"] if "thinking" in piece]
    shape = chat_to_message.shape_of(request, TOKEN)
    whole = json.loads(chat_to_message.message(engines.chat_whole(answer), shape))
    shown = "".join(block["text"] for block in whole["content"] if block["type"] == "text")
    assert not any(thought in shown for thought in thoughts)


@pytest.mark.parametrize("policy", ["pass", "reasoning", "drop"])
def test_ten_turns_of_tools_only_ever_grow(policy: messages_to_chat.Thinking) -> None:
    """Each turn's prompt begins with the bytes of the one before, or no prefix cache ever hits."""
    messages: list[Json] = [user("Count.")]
    body: Json = {"model": "m", "max_tokens": 9, "system": "Use the tool.", "messages": messages}
    before = b""
    for turn in range(10):
        now = messages_to_chat.request(body, policy).encoded()
        assert now == messages_to_chat.request(json.loads(json.dumps(body)), policy).encoded()
        start = now[: now.index(b'"messages":[')]
        listed = now[len(start) : now.rindex(b"]")]
        assert listed.startswith(before)
        before = listed
        calls = [{"id": f"c{turn}-{n}", "name": "add", "arguments": f'{{"n": {n}}}'} for n in range(2)]
        pieces = [{"thinking": f"Turn {turn}."}, {"text": f"I add {turn}."}, *calls]
        answer = {
            "pieces": pieces,
            "finish": "tool_calls",
            "usage": {"prompt": 1, "cached": 0, "completion": 1, "reasoning": 0},
        }
        shape = chat_to_message.shape_of(body | {"thinking": {"type": "adaptive"}}, f"t{turn}")
        whole = json.loads(chat_to_message.message(engines.chat_whole(answer), shape))
        messages += [assistant(whole["content"]), user([result(f"c{turn}-{n}", str(n)) for n in range(2)])]


def test_ten_turns_of_responses_only_ever_grow() -> None:
    listed: list[Json] = [user("Count.")]
    body: Json = {"model": "m", "instructions": "Use the tool.", "input": listed}
    before: list[Json] = []
    for turn in range(10):
        now = responses_to_chat.request(body).body["messages"]
        assert now[: len(before)] == before
        before = now
        call = {"id": f"c{turn}", "name": "add", "arguments": '{"n": 1}'}
        usage = {"prompt": 1, "cached": 0, "completion": 1, "reasoning": 0}
        answer = {"pieces": [{"thinking": "Hm."}, {"text": "I add."}, call], "finish": "tool_calls", "usage": usage}
        shape = chat_to_response.shape_of(body, f"t{turn}", clock)
        whole = json.loads(chat_to_response.response(engines.chat_whole(answer), shape))
        listed += [*whole["output"], {"type": "function_call_output", "call_id": f"c{turn}", "output": "1"}]


def test_every_family_has_its_share() -> None:
    assert min(len(MESSAGES), len(RESPONSES), len(CHAT)) >= 20
