"""Embeddings bit for bit, rankings and counts in the shapes engines have for them, arguments that were cut off."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import jiter
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.core.faults import Fault
from services.gateway.core.json import lossless
from services.gateway.core.json.fields import decoded as decoded_request
from services.gateway.core.protocols import embeddings, rerank, tokenize
from services.gateway.core.protocols.embeddings import Wanted
from services.gateway.core.protocols.tool_arguments import value_of, value_of_cut
from services.gateway.core.request.body import Body
from services.gateway.core.sse.events import BadStream

FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def encoded(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def answer(*vectors: Any) -> bytes:
    data = [{"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)]
    usage = {"prompt_tokens": 3, "total_tokens": 3}
    return json.dumps({"object": "list", "data": data, "model": "m", "usage": usage}).encode()


@given(st.lists(FLOAT32, min_size=1))
def test_vectors_are_the_same_bits_as_numbers_and_as_base64(vector: list[float]) -> None:
    out = json.loads(embeddings.answer(answer(vector), Wanted("base64", None)))
    assert out["data"][0]["embedding"] == encoded(vector)
    back = json.loads(embeddings.answer(answer(encoded(vector)), Wanted("float", None)))
    numbers = back["data"][0]["embedding"]
    assert struct.pack(f"<{len(numbers)}f", *numbers) == struct.pack(f"<{len(vector)}f", *vector)
    assert {**out, "data": 0} == {**json.loads(answer(vector)), "data": 0}


@given(FLOAT32)
def test_a_number_gets_no_more_digits_than_it_needs(value: float) -> None:
    short = embeddings.shortest(value)
    assert struct.pack("<f", short) == struct.pack("<f", value) or short == value == 0
    assert len(repr(short)) <= len(repr(value))


def test_numbers_that_were_asked_for_pass_as_they_are() -> None:
    body = b'{"model": "m", "input": "x",  "encoding_format": "float", "new_field": 1}'
    asked, sent = embeddings.request(Body(body))
    assert sent.data is body
    payload = answer([0.1, 0.2])
    assert embeddings.answer(payload, asked) is payload


def test_an_engine_is_asked_for_numbers_and_never_sent_a_null() -> None:
    asked, sent = embeddings.request(Body(b'{"model":"m","input":["x"],"encoding_format":"base64","dimensions":null}'))
    assert asked == Wanted("base64", None)
    assert json.loads(sent.data) == {"model": "m", "input": ["x"], "encoding_format": "float"}
    _, sent = embeddings.request(Body(b'{"model":"m","input":["x"],"user":null}'))
    assert json.loads(sent.data) == {"model": "m", "input": ["x"]}


def test_dimensions_are_honoured_where_the_engine_did_not() -> None:
    payload = answer([3.0, 4.0, 9.0], [3.0, 4.0])
    out = json.loads(embeddings.answer(payload, Wanted("float", 2)))
    assert out["data"][0]["embedding"] == [0.6, 0.8]
    assert out["data"][1]["embedding"] == [3, 4]
    with pytest.raises(BadStream, match="3 dimensions and 4 were asked for"):
        embeddings.answer(answer([1.0, 2.0, 3.0]), Wanted("float", 4))


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("encoding_format", {"encoding_format": "int8"}),
        ("dimensions", {"dimensions": 0}),
        ("dimensions", {"dimensions": "2"}),
        ("input", {"input": []}),
        ("input", {"input": None}),
    ],
)
def test_wrong_embeddings_requests_name_the_field(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(Fault) as raised:
        embeddings.request(Body(json.dumps({"model": "m", "input": "x"} | fields).encode()))
    assert raised.value.param == field


@pytest.mark.parametrize("payload", [b"", b"[]", b'{"data": [{}]}', answer("!"), answer("AAA="), b'{"data": 7}'])
def test_answers_without_vectors_are_said_to_be_bad(payload: bytes) -> None:
    with pytest.raises(BadStream):
        embeddings.answer(payload, Wanted("base64", None))


ASKED = {"model": "m", "query": "q", "documents": ["a", {"text": "b", "id": 7}, "c"]}


@pytest.mark.parametrize(
    ("engine", "tokens"),
    [
        (  # vLLM and Jina
            {
                "id": "rerank-1",
                "model": "m",
                "usage": {"prompt_tokens": 9, "total_tokens": 9},
                "results": [
                    {"index": 1, "document": {"text": "b"}, "relevance_score": 0.9},
                    {"index": 0, "document": {"text": "a"}, "relevance_score": 0.25},
                    {"index": 2, "document": {"text": "c"}, "relevance_score": 0.1},
                ],
            },
            9,
        ),
        (  # Cohere, out of order
            {
                "results": [
                    {"index": 0, "relevance_score": 0.25},
                    {"index": 2, "relevance_score": 0.1},
                    {"index": 1, "relevance_score": 0.9},
                ],
                "meta": {"tokens": {"input_tokens": 9}},
            },
            9,
        ),
        # SGLang
        ([{"score": 0.9, "index": 1, "document": "b"}, {"score": 0.25, "index": 0}, {"score": 0.1, "index": 2}], 0),
    ],
)
def test_rankings_of_every_engine_have_one_shape(engine: Any, tokens: int) -> None:
    payload = json.dumps(engine).encode()
    body = json.dumps(ASKED).encode()
    out = json.loads(rerank.answer(payload, json.loads(body), "rerank-7"))
    assert out["results"] == [
        {"index": 1, "relevance_score": 0.9, "document": {"text": "b", "id": 7}},
        {"index": 0, "relevance_score": 0.25, "document": {"text": "a"}},
        {"index": 2, "relevance_score": 0.1, "document": {"text": "c"}},
    ]
    assert (out["id"], out["model"], out["usage"]["total_tokens"]) == ("rerank-7", "m", tokens)
    used = rerank.used_in(payload)
    assert (used.prompt if used is not None else 0) == tokens
    short = ASKED | {"top_n": 1, "return_documents": False}
    assert json.loads(rerank.answer(payload, short, "r"))["results"] == [{"index": 1, "relevance_score": 0.9}]


def test_documents_go_to_the_engine_as_texts() -> None:
    sent = json.loads(
        rerank.request(Body(json.dumps(ASKED | {"top_n": 2, "truncate_prompt_tokens": 5, "user": None}).encode())).data
    )
    assert sent == ASKED | {"documents": ["a", "b", "c"], "top_n": 2, "truncate_prompt_tokens": 5}


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("query", {"query": None}),
        ("documents", {"documents": None}),
        ("documents.0", {"documents": []}),
        ("documents.1", {"documents": ["a", 7]}),
        ("documents.0.text", {"documents": [{"title": "a"}]}),
        ("top_n", {"top_n": 0}),
    ],
)
def test_wrong_rerank_requests_name_the_field(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(Fault) as raised:
        rerank.request(Body(json.dumps(ASKED | fields).encode()))
    assert raised.value.param == field


@pytest.mark.parametrize("payload", [b"{}", b"7", b'{"results": [{"index": 9, "score": 1}]}', b'[{"index": 0}]'])
def test_rankings_that_are_none_are_said_to_be_bad(payload: bytes) -> None:
    with pytest.raises(BadStream):
        rerank.answer(payload, ASKED, "r")


def test_tokens_are_counted_of_the_prompt_as_it_is_rendered() -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "tools": [{}], "max_tokens": 5}
    sent = json.loads(tokenize.request(chat))
    assert sent == {"model": "m", "messages": chat["messages"], "tools": [{}], "add_generation_prompt": True}
    assert tokenize.count(b'{"count": 7, "max_model_len": 9, "tokens": [1]}') == 7
    assert tokenize.count(b'{"tokens": [1, 2]}') == 2
    for payload in (b"{}", b"[]", b"x"):
        with pytest.raises(BadStream):
            tokenize.count(payload)
    assert tokenize.answer(7) == b'{"input_tokens":7}'


def test_the_prompt_of_a_request_is_counted_whichever_it_is() -> None:
    chat = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}
    path, body = tokenize.prompt(json.dumps(chat).encode()) or ("", b"")
    assert (path, json.loads(body)) == ("/tokenize", json.loads(tokenize.request(chat)))
    path, body = tokenize.prompt(b'{"model": "m", "prompt": "Once", "stream": true}') or ("", b"")
    sent = json.loads(body)
    assert (path, sent["model"], sent["prompt"], sent["content"]) == ("/tokenize", "m", "Once", "Once")
    assert tokenize.further(path, body, b'{"tokens": [1]}') is None
    assert tokenize.prompt(b'{"model": "m", "prompt": [1, 2]}') is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
)


@given(st.dictionaries(st.text(max_size=6), JSON, max_size=4), st.integers(0, 400), st.booleans())
def test_arguments_that_were_cut_are_what_the_sdk_makes_of_them(value: dict[str, Any], at: int, spaced: bool) -> None:
    text = json.dumps(value, ensure_ascii=False, separators=(", ", ": ") if spaced else (",", ":"))
    cut = text[: 1 + at % len(text)]
    assert value_of(text) == value_of_cut(text) == value
    if cut[-1].isdigit() or cut[-1] == "-":
        return  # half a number: jiter leaves it out or not by what it is
    assert value_of_cut(cut) == jiter.from_json(cut.encode(), partial_mode=True)


def test_arguments_that_are_none() -> None:
    assert value_of("") == value_of("  ") == {}
    assert value_of_cut("garbage") == {}


@pytest.mark.parametrize("text", ["garbage", '{"a":NaN,"b":2}', '{"a": 1', "[1]", '"x"', "7", "[" * 5000])
def test_arguments_that_were_not_cut_are_never_shortened(text: str) -> None:
    assert value_of(text) == {"INVALID_JSON": text}


@pytest.mark.parametrize(
    "number", ["1e400", "-1E+400", "1.10", "0.30000000000000004441", "123456789012345678901234567890", "-0.0"]
)
def test_numbers_keep_their_spelling(number: str) -> None:
    text = f'{{"id":{number}}}'
    assert lossless.encoded(value_of(text)).decode() == text
    assert lossless.encoded(decoded_request(text.encode())).decode() == text
