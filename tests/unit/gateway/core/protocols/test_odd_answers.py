"""What engines send that no decoder takes, or that another protocol has no place for: mended, never a failure."""

from __future__ import annotations

import json
from typing import Any

import pytest

from services.gateway.core.protocols.anthropic_messages import chat_to_message
from services.gateway.core.protocols.anthropic_messages.chat_to_message import MessageEvents, MessageShape
from services.gateway.core.protocols.anthropic_messages.message_to_chat import ChatOfMessageEvents
from services.gateway.core.protocols.openai_responses import chat_to_response
from services.gateway.core.protocols.openai_responses.chat_to_response import ResponseEvents, shape_of
from services.gateway.core.sse.events import BadStream, Events

from .conversations import Json, clock

SHAPE = MessageShape("t", "m", thinks=True)


def chunk(delta: str, finish: str = "null") -> bytes:
    return f'data: {{"choices":[{{"index":0,"delta":{delta},"finish_reason":{finish}}}]}}\n\n'.encode()


def parsed(stream: bytes) -> list[Json]:
    return [json.loads(event.data) for event in Events().feed(stream)]


def said(stream: bytes) -> tuple[str, str]:
    """The text that clients of Messages and of Responses put together."""
    message = parsed(MessageEvents(SHAPE).feed(stream))
    response = parsed(ResponseEvents(shape_of({"model": "m"}, "t", clock)).feed(stream))
    return (
        "".join(event["delta"].get("text", "") for event in message if event["type"] == "content_block_delta"),
        "".join(event["delta"] for event in response if event["type"] == "response.output_text.delta"),
    )


END = chunk("{}", '"stop"') + b"data: [DONE]\n\n"


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([r"half \ud83d end"], "half \ufffd end"),
        ([r"a\ud83d", r"\ude00b"], "a\U0001f600b"),
        ([r"a\ud83d", "b"], "a\ufffdb"),
        ([r"a\ude00"], "a\ufffd"),
        ([r"a\ud83d"], "a\ufffd"),
        ([r"\ud83d\ude00"], "\U0001f600"),
    ],
)
def test_half_a_character_in_a_stream(pieces: list[str], text: str) -> None:
    stream = b"".join(chunk(f'{{"content":"{piece}"}}') for piece in pieces) + END
    assert said(stream) == (text, text)


def test_events_that_are_no_part_of_an_answer_are_passed_over() -> None:
    odd = b'data: null\n\ndata: "ping"\n\ndata: [1]\n\ndata: 7\n\ndata: {}\n\ndata: {"type":"ping"}\n\n'
    assert said(odd + chunk('{"content":"a"}') + odd + END) == ("a", "a")


def whole(message: str, finish: str = "stop") -> bytes:
    return f'{{"choices":[{{"message":{message},"finish_reason":"{finish}"}}]}}'.encode()


def test_half_a_character_in_a_whole_answer() -> None:
    payload = whole(r'{"content":"half \ud83d end"}')
    assert json.loads(chat_to_message.message(payload, SHAPE))["content"][0]["text"] == "half \ufffd end"
    response = json.loads(chat_to_response.response(payload, shape_of({"model": "m"}, "t", clock)))
    assert response["output"][0]["content"][0]["text"] == "half \ufffd end"


def test_half_a_character_in_a_name_and_in_arguments() -> None:
    call = r'{"tool_calls":[{"id":"c","function":{"name":"f\ud83d","arguments":"{\"a\":\"\\ud83d\"}"}}]}'
    answer = json.loads(chat_to_message.message(whole(call), SHAPE))
    assert answer["content"][0]["input"] == {"a": "\ufffd"}
    stream = chunk(call) + END
    assert parsed(MessageEvents(SHAPE).feed(stream))[-1]["type"] == "message_stop"


@pytest.mark.parametrize("arguments", ['{"id":1,"x":1e400,"y":1.10}', '{"n":123456789012345678901234567890}'])
def test_arguments_keep_every_digit_whole_and_as_an_object(arguments: str) -> None:
    for given in (json.dumps(arguments), arguments):
        call = f'{{"tool_calls":[{{"id":"c","function":{{"name":"f","arguments":{given}}}}}]}}'
        assert f'"input":{arguments}' in chat_to_message.message(whole(call), SHAPE).decode()
        response = json.loads(chat_to_response.response(whole(call), shape_of({}, "t", clock)))
        assert response["output"][0]["arguments"] == arguments


def test_arguments_that_are_no_json_are_repaired_only_where_they_were_cut() -> None:
    call = r'{"tool_calls":[{"id":"c","function":{"name":"f","arguments":"{\"a\":1,\"b\":\"tw"}}]}'
    cut = json.loads(chat_to_message.message(whole(call, "length"), SHAPE))
    assert cut["content"][0]["input"] == {"a": 1}
    not_cut = json.loads(chat_to_message.message(whole(call, "tool_calls"), SHAPE))
    assert not_cut["content"][0]["input"] == {"INVALID_JSON": '{"a":1,"b":"tw'}


@pytest.mark.parametrize("deep", ['{"choices":%s}', '{"choices":[{"message":{"content":%s}}]}', '{"x":%s}'])
def test_what_is_nested_too_deeply_is_no_answer(deep: str) -> None:
    payload = (deep % ("[" * 100_000 + "]" * 100_000)).encode()
    with pytest.raises(BadStream):
        chat_to_message.message(payload, SHAPE)
    with pytest.raises(BadStream):
        MessageEvents(SHAPE).feed(b"data: " + payload + b"\n\n")


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def test_blocks_of_tools_that_run_elsewhere_do_not_break_the_stream() -> None:
    """Anthropic's own tools, citations and whatever comes next: the text around them is what a Chat client gets."""
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}
    stream = event("message_start", message={"id": "m", "model": "m", "content": [], "usage": {"input_tokens": 1}})
    stream += event("content_block_start", index=0, content_block=search)
    stream += event("content_block_delta", index=0, delta={"type": "input_json_delta", "partial_json": '{"q":1}'})
    stream += event("content_block_delta", index=7, delta={"type": "input_json_delta", "partial_json": "{}"})
    stream += event("content_block_stop", index=0)
    stream += event("content_block_start", index=1, content_block={"type": "web_search_tool_result", "content": []})
    stream += event("content_block_stop", index=1)
    stream += event("content_block_start", index=2, content_block={"type": "text", "text": ""})
    stream += event("content_block_delta", index=2, delta={"type": "citations_delta", "citation": {"url": "x"}})
    stream += event("content_block_delta", index=2, delta={"type": "text_delta", "text": "Found.", "citations": None})
    stream += event("content_block_delta", index=2, delta={"type": "compaction_delta", "content": None})
    stream += event("content_block_stop", index=2) + event("ping") + event("later.kind", thing=[1])
    stream += event("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 1})
    stream += event("message_stop")
    out = ChatOfMessageEvents("c", 1).feed(stream).decode()
    deltas = [json.loads(line[6:]) for line in out.split("\n\n") if line.startswith("data: {")]
    text = "".join(choice["delta"].get("content") or "" for one in deltas for choice in one["choices"])
    assert text == "Found."
    assert out.endswith("data: [DONE]\n\n")
    assert "tool_calls" not in out
