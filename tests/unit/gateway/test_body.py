"""Reading a request, saying which field is wrong, and changing nothing but what must change."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.events.policy import Segment, Span
from services.gateway.core.body import asking_usage, edited, read, readable
from services.gateway.core.errors import Fault

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def refused(body: bytes, content: str = "messages") -> Fault:
    with pytest.raises(Fault) as caught:
        read(body, content)
    assert caught.value.status == 400
    return caught.value


def test_what_is_read() -> None:
    asked = read(json.dumps(HELLO | {"max_completion_tokens": 5, "stream": True, "unknown": 1}).encode(), "messages")
    assert (asked.model, asked.stream, asked.wants_usage) == ("m", True, False)
    assert list(asked.limits()) == [("max_completion_tokens", 5)]
    assert read(json.dumps(HELLO | {"stream": None, "stream_options": None}).encode(), "messages").stream is None


@pytest.mark.parametrize(
    ("change", "param", "words"),
    [
        ({"model": 3}, "model", "expected `str`"),
        ({"stream": "yes"}, "stream", "expected `bool"),
        ({"max_tokens": -1}, "max_tokens", ">= 0"),
        ({"max_tokens": "many"}, "max_tokens", "expected `int"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "expected `bool"),
        ({"messages": None}, "messages", "Missing required parameter"),
        ({"messages": "hi"}, "messages", "send an array"),
        ({"messages": []}, "messages", "at least one message"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], param: str, words: str) -> None:
    fault = refused(json.dumps(HELLO | change).encode())
    assert fault.param == param
    assert words in fault.message
    assert param in fault.message


@pytest.mark.parametrize("body", [b"", b"{", b'{"model": "m"', b"\xff\xfe", b'{"model":"\xff"}'])
def test_what_is_not_json(body: bytes) -> None:
    assert "not valid JSON" in refused(body).message


def test_missing_model_and_wrong_shape() -> None:
    assert refused(b'{"messages":[{}]}').param == "model"
    assert "object" in refused(b"[]").message
    assert refused(b'{"model":"m"}', "prompt").param == "prompt"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_an_edit_leaves_every_other_field_alone(unknown: dict[str, Any]) -> None:
    body = json.dumps(unknown | HELLO).encode()
    changed = json.loads(edited(body, {"model": b'"other"', "stream_options": b'{"include_usage":true}'}))
    assert changed == unknown | HELLO | {"model": "other", "stream_options": {"include_usage": True}}


def test_usage_is_asked_beside_what_the_client_asked() -> None:
    kept = {"x": 1, "include_usage": False}
    for options, wanted in ((kept, kept | {"include_usage": True}), (None, {"include_usage": True})):
        body = json.dumps(HELLO | {"stream_options": options}).encode()
        assert json.loads(asking_usage(read(body, "messages"), body)) == wanted


MIXED = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "be kind"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "u"}}],
        },
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": '{"a":"b"}'}}]},
        {"role": "tool", "tool_call_id": "c", "content": "result"},
        "not a message",
    ],
    "tools": [{"type": "function", "function": {"name": "f", "description": "does"}}],
}


def test_every_text_a_model_reads_is_found() -> None:
    assert readable(json.dumps(MIXED).encode()).segments() == (
        Segment(path="/messages/0/content", text="be kind"),
        Segment(path="/messages/1/content/0/text", text="look"),
        Segment(path="/messages/2/tool_calls/0/function/arguments", text='{"a":"b"}'),
        Segment(path="/messages/3/content", text="result"),
        Segment(path="/tools/0/function/description", text="does"),
    )


def test_prompts_of_every_form() -> None:
    assert readable(b'{"prompt":"a","suffix":"z"}').segments() == (
        Segment(path="/prompt", text="a"),
        Segment(path="/suffix", text="z"),
    )
    assert readable(b'{"prompt":["a","b"]}').segments()[1] == Segment(path="/prompt/1", text="b")
    assert readable(b'{"prompt":["a","b"]}').unreadable is None
    for ids in (b'{"prompt":[1,2]}', b'{"prompt":[[1],[2]]}'):
        assert readable(ids).unreadable == "prompt"
        assert readable(ids).segments() == ()


def test_edits_count_characters_not_bytes() -> None:
    body = {"messages": [{"content": "🙂 an a@b.de und c@d.de"}, {"content": [{"text": "x@y.z"}]}], "n": 1}
    read_of = readable(json.dumps(body).encode())
    changes = read_of.edit(
        [
            Span(path="/messages/0/content", start=5, end=11, replacement="[EMAIL_1]"),
            Span(path="/messages/0/content", start=16, end=22, replacement="[EMAIL_2]"),
            Span(path="/messages/1/content/0/text", start=0, end=5, replacement="[E]"),
        ]
    )
    assert list(changes) == ["messages"]
    assert json.loads(changes["messages"]) == [
        {"content": "🙂 an [EMAIL_1] und [EMAIL_2]"},
        {"content": [{"text": "[E]"}]},
    ]


@pytest.mark.parametrize("path", ["", "/messages", "/messages/7/content", "/messages/0/role/x", "/other"])
def test_an_edit_that_fits_nowhere_is_an_error(path: str) -> None:
    read_of = readable(json.dumps(MIXED).encode())
    with pytest.raises((LookupError, ValueError, TypeError)):
        read_of.edit([Span(path=path, start=0, end=1, replacement="")])
