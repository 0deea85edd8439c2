"""Reranking, in the form vLLM, Jina and Cohere have in common: a query, documents, and their scores."""

from __future__ import annotations

from typing import Any

import msgspec

from services.gateway.core.json.fields import (
    Json,
    items,
    missing,
    number,
    text,
    wrong,
)
from services.gateway.core.json.lossless import encoded
from services.gateway.core.request.body import Body
from services.gateway.core.sse.events import BadStream
from services.gateway.core.usage.engine_usage import TokenUsage


def request(body: Body) -> Body:
    """The engine's body: documents as texts. Raises Fault naming the field that is wrong.

    Documents may be texts or objects with a ``text``; what else is sent travels untouched.
    """
    fields = body.tree
    changes: dict[str, bytes | None] = {name: None for name, value in fields.items() if value is None}
    text(fields.get("query"), "query")
    documents = items(fields.get("documents"), "documents")
    if not documents:
        raise missing("documents.0")
    texts = [_document(document, f"documents.{n}") for n, document in enumerate(documents)]
    if texts != documents:
        changes["documents"] = msgspec.json.encode(texts)
    top = fields.get("top_n")
    if top is not None and number(top, "top_n") < 1:
        raise wrong("top_n", top, "a whole number above 0")
    return body.edited(changes)


def _document(document: Any, at: str) -> str:
    return text(document.get("text"), f"{at}.text") if isinstance(document, dict) else text(document, at)


class _Result(msgspec.Struct):
    index: int
    relevance_score: float | None = None
    score: float | None = None


class _Usage(msgspec.Struct):
    total_tokens: int | None = None
    prompt_tokens: int | None = None


class _Units(msgspec.Struct):
    input_tokens: int | None = None


class _Meta(msgspec.Struct):
    tokens: _Units | None = None


class _Answer(msgspec.Struct):
    results: list[_Result] | None = None
    data: list[_Result] | None = None
    usage: _Usage | None = None
    meta: _Meta | None = None


_answer = msgspec.json.Decoder(_Answer | list[_Result])


def answer(payload: bytes, asked: Json, answer_id: str) -> bytes:
    """The engine's answer, ordered by score and cut to ``top_n``. Raises BadStream when it is none.

    ``asked`` is the client's request. ``return_documents`` false leaves the documents out, as Cohere and Jina do;
    they are the client's own, put in here.
    """
    read = _decoded(payload)
    listed = read if isinstance(read, list) else read.results if read.results is not None else read.data
    documents = asked["documents"]
    if listed is None or any(not 0 <= result_item.index < len(documents) for result_item in listed):
        raise BadStream("the answer has no scores of the documents that were sent")
    results: list[Json] = []
    for result_item in sorted(listed, key=lambda result_item: (-_score(result_item), result_item.index))[
        : asked.get("top_n")
    ]:
        result: Json = {"index": result_item.index, "relevance_score": _score(result_item)}
        if asked.get("return_documents") is not False:
            document = documents[result_item.index]
            result["document"] = document if isinstance(document, dict) else {"text": document}
        results.append(result)
    tokens = used_in(payload)
    total = tokens.prompt if tokens is not None else 0
    out = {"id": answer_id, "object": "list", "model": asked.get("model"), "results": results}
    return encoded(
        out | {"usage": {"prompt_tokens": total, "total_tokens": total}, "meta": {"tokens": {"input_tokens": total}}}
    )


def used_in(payload: bytes) -> TokenUsage | None:
    """Tokens an engine says it read; None where it does not say. Raises BadStream."""
    read = _decoded(payload)
    if isinstance(read, list):
        return None
    if read.usage is not None and (total := read.usage.prompt_tokens or read.usage.total_tokens) is not None:
        return TokenUsage(prompt=total)
    if read.meta is not None and read.meta.tokens is not None and read.meta.tokens.input_tokens is not None:
        return TokenUsage(prompt=read.meta.tokens.input_tokens)
    return None


def _score(result: _Result) -> float:
    score = result.relevance_score if result.relevance_score is not None else result.score
    if score is None:
        raise BadStream("a result of the answer has no score")
    return score


def _decoded(payload: bytes) -> _Answer | list[_Result]:
    try:
        return _answer.decode(payload)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise BadStream(f"the answer is not a ranking: {problem}") from None
