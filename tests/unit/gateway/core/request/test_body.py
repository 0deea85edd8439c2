"""Reading a request, saying which field is wrong, and changing nothing but what must change."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.events.policy import Segment, Span
from services.gateway.admission.checks import fits
from services.gateway.core.admission.estimate import answers_in, longest
from services.gateway.core.faults import Fault
from services.gateway.core.request.body import Body, ParsedRequest, asking_usage, edited, parse, received
from services.gateway.core.request.policy_text import MAX_CHARACTERS, MAX_SEGMENTS, PolicyText

HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def read(data: bytes, content: str | None) -> ParsedRequest:
    return parse(received(data), content)


def readable(data: bytes) -> PolicyText:
    return PolicyText(Body(data))


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
        ({"model": 3}, "model", "expected text"),
        ({"stream": "yes"}, "stream", "expected true or false"),
        ({"max_tokens": -1}, "max_tokens", ">= 0"),
        ({"max_tokens": "many"}, "max_tokens", "expected an integer"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "expected true or false"),
        ({"messages": None}, "messages", "Missing required parameter"),
        ({"messages": "hi"}, "messages", "send an array"),
        ({"messages": []}, "messages", "at least one message"),
        ({"messages": [3]}, "messages.0", "expected an object"),
        ({"messages": [{"content": "x"}]}, "messages.0.role", "Missing required parameter"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content", "send text"),
        ({"messages": [{"role": "user", "content": {}}]}, "messages.0.content", "send text"),
        ({"messages": [{"role": "user", "content": [{"type": 1}]}]}, "messages.0.content.0.type", "expected text"),
        ({"messages": [{"role": "user", "content": [{"text": "x"}]}]}, "messages.0.content.0", "'type' is missing"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text", "needs a text"),
        ({"messages": [{"role": "assistant", "tool_calls": {}}]}, "messages.0.tool_calls", "expected an array"),
        ({"temperature": "hot"}, "temperature", "expected a number"),
        ({"temperature": -1}, "temperature", ">= 0"),
        ({"top_p": 1.5}, "top_p", "<= 1"),
        ({"n": 0}, "n", ">= 1"),
        ({"logprobs": 1_000_000_000}, "logprobs", "<= 20"),
        ({"logprobs": -1}, "logprobs", ">= 0"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "<= 20"),
        ({"n_probs": 21}, "n_probs", "<= 20"),
        ({"stop": 3}, "stop", "expected text"),
        ({"stop": ["a", 3]}, "stop.1", "expected text"),
        ({"seed": "x"}, "seed", "expected an integer"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools.0.function.name", "Missing required"),
        ({"tools": {}}, "tools", "expected an array"),
        ({"tool_choice": 3}, "tool_choice", "expected text"),
        ({"response_format": "json"}, "response_format", "expected an object"),
        ({"logit_bias": 3}, "logit_bias", "expected"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls", "expected true or false"),
        ({"user": 3}, "user", "expected text"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], param: str, words: str) -> None:
    fault = refused(json.dumps(HELLO | change).encode())
    assert fault.param == param
    assert words in fault.message
    assert param in fault.message
    assert "`" not in fault.message
    assert "null" not in fault.message


@pytest.mark.parametrize("body", [b"", b"{", b'{"model": "m"', b"\xff\xfe"])
def test_what_is_not_json(body: bytes) -> None:
    assert "not valid JSON" in refused(body).message


@pytest.mark.parametrize("text", [b"\xff", b"\\ud800", b"\xed\xa0\x80"])
def test_what_is_no_character_is_replaced(text: bytes) -> None:
    body = received(b'{"%s":1,"model":"m","messages":[{"role":"user","content":"%s"}]}' % (text, text))
    assert parse(body, "messages").model == "m"
    assert set(json.loads(body.data)["messages"][0]["content"]) == {"\ufffd"}
    assert body.tree == json.loads(body.data)


def test_missing_model_and_wrong_shape() -> None:
    assert refused(b'{"messages":[{}]}').param == "model"
    assert "object" in refused(b"[]").message
    assert refused(b'{"model":"m"}', "prompt").param == "prompt"


@pytest.mark.parametrize("depth", [1_000, 100_000])
def test_a_body_nested_too_deeply_is_the_clients_mistake(depth: int) -> None:
    for field in (b"messages", b"unknown"):
        body = b'{"model":"m","messages":[{}],"%s":%s%s}' % (field, b"[" * depth, b"]" * depth)
        assert "nested too deeply" in refused(body).message
        with pytest.raises(Fault, match="nested too deeply"):
            readable(body)


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
        assert json.loads(asking_usage(read(body, "messages"), Body(body))) == wanted


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
        Segment(path="/messages/1/content/1/image_url/url", text="u"),
        Segment(path="/messages/2/tool_calls/0/function/name", text="f"),
        Segment(path="/messages/2/tool_calls/0/function/arguments", text='{"a":"b"}'),
        Segment(path="/messages/3/tool_call_id", text="c"),
        Segment(path="/messages/3/content", text="result"),
        Segment(path="/messages/4", text="not a message"),
        Segment(path="/tools/0/function/name", text="f"),
        Segment(path="/tools/0/function/description", text="does"),
    )


HIDING_PLACES = (
    {"messages": [{"role": "user", "content": {"type": "text", "text": "x@y.z"}}]},
    {"messages": [{"role": "user", "content": ["x@y.z"]}]},
    {"messages": [{"role": "assistant", "function_call": {"name": "f", "arguments": "x@y.z"}}]},
    {"messages": [{"role": "x@y.z", "content": "a"}]},
    {"tools": [{"function": {"parameters": {"properties": {"file": {"description": "x@y.z"}}}}}]},
    {"tools": [{"function": {"parameters": {"properties": {"a/b~c": {"enum": ["x@y.z"]}}}}}]},
    {"functions": [{"name": "f", "description": "x@y.z"}]},
    {"response_format": {"type": "json_schema", "json_schema": {"description": "x@y.z"}}},
    {"documents": [{"title": "t", "text": "x@y.z"}]},
    {"prediction": {"type": "content", "content": "x@y.z"}},
    {"chat_template": "x@y.z"},
    {"chat_template_kwargs": {"persona": "x@y.z"}},
    {"guided_choice": ["x@y.z"]},
    {"guided_regex": "x@y.z"},
    {"grammar": "x@y.z"},
    {"structured_outputs": {"choice": ["x@y.z"]}},
    {"stop": ["x@y.z"]},
    {"what_an_engine_may_know": {"a": [["x@y.z"]]}},
    {"messages": [{"content": [{"type": "image_url", "image_url": {"url": "https://h/", "detail": "x@y.z"}}]}]},
)


@pytest.mark.parametrize("body", HIDING_PLACES, ids=lambda body: next(iter(body)))
def test_wherever_a_model_gets_text_from_it_is_read_and_can_be_redacted(body: dict[str, Any]) -> None:
    read_of = readable(json.dumps(body).encode())
    (found,) = (segment for segment in read_of.segments() if segment.text == "x@y.z")
    changes = read_of.edit([Span(path=found.path, start=0, end=5, replacement="[E]")])
    assert json.dumps(body).replace("x@y.z", "[E]") == json.dumps(
        {name: json.loads(value or b"") for name, value in changes.items()}
    )


def test_names_of_fields_are_read_too_and_changed_wherever_they_stand() -> None:
    fields = {"x@y.z": {"type": "string"}, "file": {"properties": {"x@y.z": {}, "[E]": {}}}}
    body = json.dumps({"tools": [{"function": {"parameters": {"properties": fields}}}], "x@y.z": 1}).encode()
    read_of = readable(body)
    (found,) = (segment for segment in read_of.segments() if segment.text == "x@y.z")
    changed = json.loads(edited(body, read_of.edit([Span(path=found.path, start=0, end=5, replacement="[E]")])))
    fields = {"[E]": {"type": "string"}, "file": {"properties": {"[E]": {}, "[E]_2": {}}}}
    assert changed == {"tools": [{"function": {"parameters": {"properties": fields}}}], "[E]": 1}


def test_very_many_names_that_become_one_are_told_apart_in_little_time() -> None:
    body = json.dumps({"extra": {f"a{n}@y.z": n for n in range(10_000)}}).encode()
    read_of = readable(body)
    spans = [Span(path=one.path, start=0, end=len(one.text), replacement="[E]") for one in read_of.segments()]
    began = time.process_time()
    changes = read_of.edit([span for span in spans if span.path != "#/extra"])
    assert time.process_time() - began < 5
    assert len(json.loads(changes["extra"] or b"")) == 10_000


def test_very_many_edits_of_a_long_text_take_little_time() -> None:
    body = json.dumps({"prompt": "a@y.z " * 200_000}).encode()
    spans = [Span(path="/prompt", start=6 * n, end=6 * n + 5, replacement="[E]") for n in range(200_000)]
    began = time.process_time()
    changes = readable(body).edit(reversed(spans))
    assert time.process_time() - began < 5
    assert json.loads(changes["prompt"] or b"") == "[E] " * 200_000


def test_a_long_name_above_very_many_values_takes_no_more_memory_than_may_be_looked_at() -> None:
    name = "n" * 1_000_000
    numbers = readable(json.dumps({name: [1] * 200_000}).encode()).segments()
    assert [segment.path for segment in numbers] == [f"#/{name}"]
    texts = readable(json.dumps({name: ["x@y.z"] * 1000}).encode()).segments()
    assert MAX_CHARACTERS < sum(len(segment.path + segment.text) for segment in texts) < MAX_CHARACTERS + 2_000_000
    assert not fits(texts), "what is left out is not let through unread"


def test_an_engines_own_names_for_how_much_it_answers_count_as_the_others_do() -> None:
    asked = read(json.dumps(HELLO | {"max_tokens": 1, "n_predict": 900, "n": 1, "n_cmpl": 4}).encode(), "messages")
    assert (longest(asked, 50), answers_in(asked)) == (900, 4)
    assert refused(json.dumps(HELLO | {"n_predict": -1}).encode()).param == "n_predict"


def test_long_numbers_are_text_and_decimals_keep_their_spelling() -> None:
    body = b'{"tools":[{"default":4111111111111111,"minimum":1.10,"most":1e400,"n":12}],"seed":4111111111111111}'
    read_of = readable(body)
    (found,) = (segment for segment in read_of.segments() if segment.text.startswith("4"))
    changed = edited(body, read_of.edit([Span(path=found.path, start=0, end=16, replacement="[C]")]))
    assert changed == body.replace(b"4111111111111111", b'"[C]"', 1)


def test_an_image_itself_is_no_text_and_where_it_is_to_be_had_is() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "image_url", "image_url": {"url": "https://h/?mail=x@y.z"}},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
    ]
    found = readable(json.dumps({"messages": [{"content": parts}]}).encode()).segments()
    assert [s.text for s in found if not s.path.startswith("#/") and s.path.count("/") > 5] == [
        "https://h/?mail=x@y.z",
        "wav",
    ]


def test_what_tells_people_apart_is_not_for_the_model() -> None:
    assert readable(b'{"user":"x@y.z","metadata":{"a":"x@y.z"},"model":"x@y.z"}').segments() == ()


def test_the_engine_gets_what_was_judged_where_a_name_stands_twice() -> None:
    body = b'{"messages":[{"content":"hidden"}],"messages":[{"content":"hidden","content":"seen"}]}'
    read_of = readable(body)
    assert [segment.text for segment in read_of.segments()] == ["seen"]
    assert b"hidden" not in edited(body, read_of.edit([]))


def test_of_a_body_in_many_pieces_only_so_many_are_found() -> None:
    body = b'{"prompt":[%s"a"]}' % (b'"a",' * 100_000)
    assert len(readable(body).segments()) == MAX_SEGMENTS + 1


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
    assert readable(b'{"prompt":{"prompt_string":"a"}}').unreadable == "prompt"
    assert readable(b'{"prompt":null}').unreadable is None


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
    assert json.loads(changes["messages"] or b"") == [
        {"content": "🙂 an [EMAIL_1] und [EMAIL_2]"},
        {"content": [{"text": "[E]"}]},
    ]


@pytest.mark.parametrize("path", ["", "/messages", "/messages/7/content", "/messages/0/role/x", "/other"])
def test_an_edit_that_fits_nowhere_is_an_error(path: str) -> None:
    read_of = readable(json.dumps(MIXED).encode())
    with pytest.raises((LookupError, ValueError, TypeError)):
        read_of.edit([Span(path=path, start=0, end=1, replacement="")])


PIXEL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, PIXEL]}]}, "messages.0.content.1"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "messages.0.content.0"),
        (
            {"messages": [{"content": [{"type": "tool_result", "content": [{"type": "image", "source": {}}]}]}]},
            "messages.0.content.0.content.0",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0"),
        ({"messages": [{"content": [{"type": "document", "source": {"type": "base64"}}]}]}, "messages.0.content.0"),
        ({"messages": [{"content": [{"type": "document", "source": {"type": "text"}}]}]}, None),
        ({"messages": [{"content": 'what is "type": "image"?'}]}, None),
        ({"messages": [{"content": [{"type": "text", "text": "x"}]}]}, None),
        ({"messages": 3, "input": [3, {"content": [3]}], "x": {"type": "image"}}, None),
    ],
)
def test_parts_that_are_no_text_are_found_in_every_protocol(body: dict[str, Any], found: str | None) -> None:
    where = received(json.dumps(body).encode()).media
    assert (where[0] if where else None) == found
