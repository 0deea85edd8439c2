"""Streams as engines send them, cut anywhere: what comes out is the same, and framed as its protocol frames it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.core.protocols.anthropic_messages.chat_to_message import MessageEvents, MessageShape
from services.gateway.core.protocols.blocks import ChatStream
from services.gateway.core.protocols.openai_responses.chat_to_response import ResponseEvents, shape_of
from services.gateway.core.sse.events import BadStream, Events

from .conversations import CHAT, MESSAGES, RESPONSES, Json, clock
from .engines import chat_stream, dumped
from .streams import NAMES, golden, outcome, recorded, source


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_comes_out_as_recorded(name: str) -> None:
    assert {k: "".join(f"{e}\n\n" for e in v).encode() for k, v in recorded(name, source(name)).items()} == golden(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_cut_in_two_anywhere_comes_out_the_same(name: str) -> None:
    data, wanted = source(name), golden(name)
    for at in range(1, len(data)):
        assert outcome(name, [data[:at], data[at:]]) == wanted, f"cut at {at}"


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_of_single_bytes_comes_out_the_same(name: str) -> None:
    data = source(name)
    assert outcome(name, [data[at : at + 1] for at in range(len(data))]) == golden(name)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(NAMES), st.lists(st.integers(0, 5000), max_size=20), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_a_stream_cut_at_random_comes_out_the_same(name: str, cuts: list[int], end: bytes) -> None:
    data = source(name)
    if b"\r" not in data:
        data = data.replace(b"\n", end)
    points = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    assert outcome(name, [data[a:b] for a, b in pairwise(points)]) == golden(name)


def parsed(stream: bytes) -> list[Json]:
    return [json.loads(event.data) for event in Events().feed(stream)]


def check_message(listed: list[Json]) -> None:
    """Anthropic's framing: one block at a time, indices rise by one, one end each, then the end of the message."""
    kinds = [event["type"] for event in listed]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds.count("message_start") == kinds.count("message_delta") == kinds.count("message_stop") == 1
    open_: int | None = None
    count = 0
    for event in listed[1:-2]:
        match event["type"]:
            case "content_block_start":
                assert open_ is None
                assert event["index"] == count
                open_ = count
            case "content_block_delta":
                assert event["index"] == open_
            case "content_block_stop":
                assert event["index"] == open_
                open_, count = None, count + 1
            case kind:
                raise AssertionError(kind)
    assert open_ is None


def check_response(listed: list[Json]) -> None:
    """OpenAI's: sequence numbers rise by one, items begin and end in order, the last event holds them all."""
    assert [event["sequence_number"] for event in listed] == [*range(len(listed))]
    assert [event["type"] for event in listed[:2]] == ["response.created", "response.in_progress"]
    assert listed[-1]["type"] in ("response.completed", "response.incomplete")
    done = []
    open_: Json | None = None
    for event in listed[2:-1]:
        match event["type"]:
            case "response.output_item.added":
                assert open_ is None
                assert event["output_index"] == len(done)
                open_ = event["item"]
            case "response.output_item.done":
                assert open_ is not None
                assert event["item"]["id"] == open_["id"]
                done.append(event["item"])
                open_ = None
            case _:
                assert open_ is not None
                assert event["item_id"] == open_["id"]
                assert event["output_index"] == len(done)
    assert listed[-1]["response"]["output"] == done


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith(("error", "failed"))])
def test_events_are_framed_as_their_protocol_has_it(name: str) -> None:
    streams = golden(name)
    check_message(parsed(streams["messages"]))
    check_response(parsed(streams["responses"]))


def tool_streams() -> st.SearchStrategy[tuple[list[tuple[str, str]], list[int]]]:
    calls = st.lists(
        st.tuples(
            st.sampled_from(["weather", "clock"]), st.dictionaries(st.text(max_size=4), st.text(max_size=9), max_size=3)
        ),
        min_size=1,
        max_size=4,
    )
    return st.tuples(
        calls.map(lambda many: [(name, dumped(value)) for name, value in many]), st.lists(st.integers(0, 3))
    )


@settings(max_examples=150, deadline=None)
@given(tool_streams(), st.lists(st.integers(1, 6), min_size=1), st.booleans())
def test_parallel_calls_stay_apart_however_they_come(
    made: tuple[list[tuple[str, str]], list[int]], sizes: list[int], text_between: bool
) -> None:
    """Interleaved in any order and in pieces of any size: each call once, with its id, name and own arguments."""
    calls, order = made
    left = [arguments for _, arguments in calls]
    opened: set[int] = set()
    chunks: list[Json] = [{"role": "assistant"}]
    turn = 0
    while any(left) or len(opened) < len(calls):
        wanted = order[turn % len(order)] % len(calls) if order else turn % len(calls)
        index = (
            wanted
            if left[wanted] or wanted not in opened
            else next(i for i, rest in enumerate(left) if rest or i not in opened)
        )
        size = sizes[turn % len(sizes)]
        function: Json = {"arguments": left[index][:size]}
        call: Json = {"index": index, "function": function}
        if index not in opened:
            opened.add(index)
            call |= {"id": f"call_{index}", "type": "function"}
            function["name"] = calls[index][0]
        left[index] = left[index][size:]
        chunks.append({"tool_calls": [call]})
        if text_between and turn == 1:
            chunks.append({"content": "between"})
        turn += 1
    stream = _chat([*chunks], "tool_calls")
    order_of = {f"call_{index}": call for index, call in enumerate(calls)}
    message = parsed(MessageEvents(MessageShape("t", "m", False)).feed(stream))
    check_message(message)
    starts = {e["index"]: e["content_block"] for e in message if e["type"] == "content_block_start"}
    parts: dict[int, str] = {}
    for e in message:
        if e["type"] == "content_block_delta":
            parts[e["index"]] = parts.get(e["index"], "") + e["delta"].get("partial_json", "")
    tools = {
        block["id"]: (block["name"], parts.get(index, ""))
        for index, block in starts.items()
        if block["type"] == "tool_use"
    }
    assert tools == order_of
    assert len([block for block in starts.values() if block["type"] == "tool_use"]) == len(calls)
    response = parsed(ResponseEvents(shape_of({"model": "m"}, "t", clock)).feed(stream))
    check_response(response)
    items = [item for item in response[-1]["response"]["output"] if item["type"] == "function_call"]
    assert {item["call_id"]: (item["name"], item["arguments"]) for item in items} == order_of


def _chat(deltas: list[Json], finish: str) -> bytes:
    chunks: list[Json] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks).encode() + b"data: [DONE]\n\n"


def test_a_second_call_with_the_same_index_or_none_is_another_call() -> None:
    for more in ({"index": 0}, {}):
        calls = [{"id": f"c{n}", "function": {"name": "f", "arguments": f'{{"n":{n}}}'}, **more} for n in range(3)]
        stream = _chat([{"tool_calls": [call]} for call in calls], "tool_calls")
        message = parsed(MessageEvents(MessageShape("t", "m", False)).feed(stream))
        check_message(message)
        assert [e["content_block"]["id"] for e in message if e["type"] == "content_block_start"] == ["c0", "c1", "c2"]


def test_ids_and_names_that_are_repeated_are_given_once() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a":'}}
    again = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "1}"}}
    message = parsed(
        MessageEvents(MessageShape("t", "m", False)).feed(
            _chat([{"tool_calls": [call]}, {"tool_calls": [again]}], "stop")
        )
    )
    check_message(message)
    assert sum(e["type"] == "content_block_start" for e in message) == 1
    assert message[-2]["delta"]["stop_reason"] == "tool_use"


def test_nothing_waits_that_can_go() -> None:
    """A piece of the open block is out with the chunk it came in; one of a later block when the open one is whole."""
    events = MessageEvents(MessageShape("t", "m", False))

    def out(delta: Json) -> list[str]:
        data = f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n".encode()
        return [event["type"] for event in parsed(events.feed(data))]

    assert out({"role": "assistant"}) == ["message_start"]
    assert out({"content": "a"}) == ["content_block_start", "content_block_delta"]
    assert out({"content": "b"}) == ["content_block_delta"]
    first = {"index": 0, "id": "x", "function": {"name": "f", "arguments": "{"}}
    assert out({"tool_calls": [first]}) == ["content_block_stop", "content_block_start", "content_block_delta"]
    second = {"index": 1, "id": "y", "function": {"name": "g", "arguments": "{}"}}
    assert out({"tool_calls": [second]}) == []
    assert out({"tool_calls": [{"index": 0, "function": {"arguments": "}"}}]}) == [
        *("content_block_delta", "content_block_stop", "content_block_start", "content_block_delta"),
    ]


@pytest.mark.parametrize(
    "events", [MessageEvents(MessageShape("t", "m", False)), ResponseEvents(shape_of({}, "t", clock))]
)
def test_what_is_no_chunk_is_said(events: ChatStream) -> None:
    with pytest.raises(BadStream, match="cannot be read"):
        events.feed(b"data: <html>\n\n")


@pytest.mark.parametrize("answer", [answer for family in (MESSAGES, RESPONSES, CHAT) for _, answer in family.values()])
def test_every_answer_of_the_corpus_is_framed_right(answer: Any) -> None:
    stream = chat_stream(answer)
    check_message(parsed(MessageEvents(MessageShape("t", "m", True)).feed(stream)))
    check_response(parsed(ResponseEvents(shape_of({"model": "m"}, "t", clock)).feed(stream)))
