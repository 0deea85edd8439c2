"""Events on their way through, cut anywhere, in every line ending."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.core.sse.event_stream import (
    MAX_EVENT_BYTES,
    EventStream,
    Overlong,
    data_of,
)
from services.gateway.core.usage.engine_usage import TokenUsage

USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "total_tokens": 12}


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices} | more


def sse(*events: dict[str, Any] | str, end: str = "\n") -> bytes:
    texts = [event if isinstance(event, str) else json.dumps(event, separators=(",", ":")) for event in events]
    return "".join(f"data: {text}{end}{end}" for text in texts).encode()


def parsed(data: bytes) -> list[Any]:
    found = [data_of(event) for event in data.split(b"\n\n") if event]
    return [text.decode() if text == b"[DONE]" else json.loads(text) for text in found if text is not None]


def through(stream: EventStream, data: bytes, cuts: list[int]) -> bytes:
    points = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return b"".join(stream.feed(data[a:b]) for a, b in pairwise(points))


ROLE = chunk({"role": "assistant", "content": ""})
WORDS = [chunk({"content": text}) for text in ("Grüße ", "🙂 an ", "alle")]
LAST = chunk({}, "stop")
ANSWER = (ROLE, *WORDS, LAST, chunk(usage=USAGE), "[DONE]")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@given(cuts=st.lists(st.integers(0, 2000), max_size=12))
def test_an_answer_is_the_same_however_it_was_cut(end: str, cuts: list[int]) -> None:
    stream = EventStream(wants_usage=False)
    out = through(stream, sse(*ANSWER, end=end), cuts)
    assert parsed(out) == [ROLE, *WORDS, LAST]
    assert stream.tokens == 3
    assert stream.finished
    assert stream.complete
    assert stream.usage is not None
    assert (stream.usage.prompt_tokens, stream.usage.completion_tokens) == (9, 3)
    assert stream.close(stream.usage.used()) == b"data: [DONE]\n\n"


def test_every_single_cut_gives_the_same() -> None:
    data = sse(*ANSWER, end="\r\n")
    for at in range(len(data)):
        stream = EventStream(wants_usage=True)
        out = stream.feed(data[:at]) + stream.feed(data[at:])
        assert parsed(out + stream.close(stream.used() or TokenUsage())) == [
            ROLE,
            *WORDS,
            LAST,
            chunk(usage=USAGE),
            "[DONE]",
        ]


def test_nothing_goes_out_before_the_first_content() -> None:
    stream = EventStream(wants_usage=False)
    assert stream.feed(sse(ROLE)) == b""
    assert not stream.started
    assert parsed(stream.feed(sse(WORDS[0]))) == [ROLE, WORDS[0]]
    assert stream.started
    assert stream.tokens == 1


def test_plain_events_pass_as_they_are() -> None:
    stream = EventStream(wants_usage=False)
    stream.feed(sse(ROLE, WORDS[0]))
    one = sse(WORDS[1])
    assert stream.feed(one) is one
    assert stream.tokens == 2
    assert not stream.complete
    block = sse(*WORDS, LAST)
    assert stream.feed(block) is block
    assert stream.tokens == 5
    assert stream.complete
    stream.feed(sse(chunk(usage=USAGE)))
    assert stream.complete


def test_events_with_quotes_other_choices_or_a_role_are_told_apart() -> None:
    odd = [
        chunk({"role": "assistant", "content": "a"}),
        chunk({"content": 'say "b"'}),
        chunk({"content": "c"}),
        chunk({"content": ""}),
        chunk({"content": "\\"}),
        chunk({"content": "d"}, usage=USAGE),
        chunk({"content": "e"}, "stop"),
    ]
    stream = EventStream(wants_usage=False)
    out = b"".join(stream.feed(sse(event)) for event in odd)
    assert parsed(out) == [{k: v for k, v in event.items() if k != "usage"} for event in odd]
    assert stream.tokens == 6
    assert stream.complete


@pytest.mark.parametrize(
    "empty",
    [
        chunk({}),
        chunk({"content": ""}, "stop"),
        chunk({"content": None}),
        {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]},
    ],
)
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
def test_events_without_content_are_not_counted(empty: dict[str, Any], separators: tuple[str, str]) -> None:
    stream = EventStream(wants_usage=False)
    stream.feed(sse(WORDS[0]))
    stream.feed(b"data: %s\n\n" % json.dumps(empty, separators=separators).encode())
    assert stream.tokens == 1


def test_tool_calls_count_and_keep_their_fields() -> None:
    call = {"index": 1, "id": "call-1", "type": "function", "function": {"name": "f", "arguments": ""}}
    more = {"index": 1, "function": {"arguments": '{"a":1}'}}
    events = [chunk({"role": "assistant", "content": None, "tool_calls": [call]}), chunk({"tool_calls": [more]})]
    stream = EventStream(wants_usage=False)
    assert parsed(stream.feed(sse(*events, chunk({}, "tool_calls")))) == [*events, chunk({}, "tool_calls")]
    assert stream.tokens == 2


def test_usage_is_read_from_a_chunk_with_choices_and_given_once_at_the_end() -> None:
    stream = EventStream(wants_usage=True)
    out = stream.feed(
        sse(ROLE, chunk({"content": "a"}, usage=None), chunk({"content": "b"}, "stop", usage=USAGE), "[DONE]")
    )
    assert parsed(out) == [ROLE, chunk({"content": "a"}), chunk({"content": "b"}, "stop")]
    assert stream.usage is not None
    last = parsed(stream.close(stream.usage.used()))
    assert last[-1] == "[DONE]"
    assert len(last) == 2
    assert last[0]["choices"] == []
    assert last[0]["usage"] == USAGE
    assert last[0]["id"] == "c-1"


def test_a_client_that_asked_gets_usage_even_when_the_engine_sends_none() -> None:
    stream = EventStream(wants_usage=True)
    stream.feed(sse(*WORDS, LAST, "[DONE]"))
    assert parsed(stream.close(TokenUsage(prompt=4, completion=3)))[0]["usage"] == {
        "prompt_tokens": 4,
        "completion_tokens": 3,
        "total_tokens": 7,
    }


def test_comments_retry_and_dataless_events_are_nobodys() -> None:
    stream = EventStream(wants_usage=False)
    noise = b": keep-alive\n\nretry: 3000\n\nevent: ping\n\nid: 7\n\n"
    out = stream.feed(noise + sse(WORDS[0]) + noise + sse(WORDS[1]) + b"\n\n" + noise + sse("[DONE]"))
    assert parsed(out) == WORDS[:2]
    assert stream.tokens == 2


def test_data_of_several_lines_stays_together() -> None:
    text = json.dumps(WORDS[0], indent=1)
    event = "".join(f"data: {line}\n" for line in text.split("\n")).encode() + b"\n"
    stream = EventStream(wants_usage=False)
    assert parsed(stream.feed(event)) == [WORDS[0]]
    assert parsed(stream.feed(event)) == [WORDS[0]]
    assert stream.tokens == 2


def test_a_byte_order_mark_is_not_part_of_the_first_line() -> None:
    for cut in range(4):
        stream = EventStream(wants_usage=False)
        data = b"\xef\xbb\xbf" + sse(WORDS[0])
        assert parsed(stream.feed(data[:cut]) + stream.feed(data[cut:])) == [WORDS[0]]


def test_a_line_of_a_megabyte_in_small_pieces() -> None:
    long = chunk({"content": "x" * 1_000_000})
    data = sse(long)
    stream = EventStream(wants_usage=False)
    out = b"".join(stream.feed(data[at : at + 4096]) for at in range(0, len(data), 4096))
    assert parsed(out) == [long]


def test_an_endless_event_is_refused() -> None:
    stream = EventStream(wants_usage=False)
    piece = b"x" * (1024 * 1024)
    for _ in range(MAX_EVENT_BYTES // len(piece)):
        stream.feed(piece)
    with pytest.raises(Overlong):
        stream.feed(piece)


def test_an_error_before_content_and_after_it() -> None:
    error = {"error": {"message": "out of memory", "code": 500}}
    stream = EventStream(wants_usage=False)
    assert stream.feed(sse(ROLE, error)) == b""
    assert stream.failure is not None
    assert not stream.started
    stream = EventStream(wants_usage=False)
    assert parsed(stream.feed(sse(ROLE, WORDS[0], error, WORDS[1]))) == [ROLE, WORDS[0]]
    assert stream.failure is not None
    assert json.loads(stream.failure) == error
    assert stream.feed(sse(WORDS[1])) == b""


def test_words_that_look_like_fields_are_only_words() -> None:
    words = [chunk({"content": text}) for text in ('"usage": {}', '"error"', "[DONE]", '"delta":{}', "data: \n\n")]
    stream = EventStream(wants_usage=False)
    assert parsed(stream.feed(sse(*words))) == words
    assert stream.tokens == len(words)
    assert not stream.finished
    assert parsed(stream.feed(sse(*words))) == words
    assert stream.tokens == 2 * len(words)


def test_an_answer_without_a_token_is_an_answer() -> None:
    stream = EventStream(wants_usage=False)
    assert parsed(stream.feed(sse(ROLE, chunk({}, "stop"), "[DONE]"))) == [ROLE, chunk({}, "stop")]
    assert stream.started
    assert stream.complete
    assert stream.tokens == 0


def test_a_stream_that_only_stops_is_not_complete() -> None:
    stream = EventStream(wants_usage=False)
    stream.feed(sse(ROLE, *WORDS))
    stream.feed(sse(WORDS[0]))
    assert not stream.complete


def test_what_is_no_json_passes_and_counts() -> None:
    stream = EventStream(wants_usage=False)
    assert stream.feed(b"data: hello\n\n") == b"data: hello\n\n"
    assert stream.tokens == 1


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=1, max_size=8), st.data())
def test_any_text_survives_any_cut(texts: list[str], data: st.DataObject) -> None:
    events = [chunk({"content": text}) for text in texts]
    raw = "".join(f"data: {json.dumps(e, ensure_ascii=False)}\n\n" for e in events).encode()
    stream = EventStream(wants_usage=False)
    out = through(stream, raw, data.draw(st.lists(st.integers(0, len(raw)), max_size=10)))
    assert parsed(out) == events
    assert stream.tokens == len(texts)
