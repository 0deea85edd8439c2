"""Counting the tokens of a prompt with an engine's ``/tokenize``: what is sent there, and what comes back."""

from __future__ import annotations

from typing import Any

import msgspec

from services.gateway.core.json.fields import Json
from services.gateway.core.json.lossless import Number, encoded
from services.gateway.core.sse.events import BadStream

TOKENIZE, RENDER = "/tokenize", "/apply-template"

SPECIAL = 8
"""More tokens no model puts around a text."""
_KEPT = ("model", "messages", "tools", "chat_template_kwargs", "continue_final_message", "add_generation_prompt")


def request(chat: Json) -> bytes:
    """The question for a chat request: its prompt as the engine's template renders it, tools and all."""
    out = {name: chat[name] for name in _KEPT if name in chat}
    return encoded({"add_generation_prompt": True, **out})


def prompt(body: bytes) -> tuple[str, bytes] | None:
    """The question, path and body, how long the prompt of a request to an engine is; None where there is no text to
    be counted. Raises BadStream when the request is no JSON object."""
    asked = _fields(body)
    if "messages" in asked:
        return TOKENIZE, request(asked)
    text = asked.get("prompt")
    return of_text(asked.get("model"), text) if isinstance(text, str) else None


def of_text(model: Any, text: str) -> tuple[str, bytes]:
    """The question, path and body, how long a text is."""
    # vLLM reads the first two, llama.cpp the last two.
    return TOKENIZE, msgspec.json.encode({"model": model, "prompt": text, "content": text, "add_special": True})


def suspects(body: bytes, context: int) -> list[tuple[int, str | int]]:
    """The inputs of a request for embeddings that may be longer than ``context`` tokens: index, and the text, or how
    many token ids it is; the longest first. Raises BadStream when the request is no JSON object."""
    given = _fields(body).get("input")
    inputs = (
        given if isinstance(given, list) and not all(isinstance(given_input, int) for given_input in given) else [given]
    )
    too_long: list[tuple[int, str | int]] = []
    for index, given_input in enumerate(inputs):
        # No token is less than a byte.
        if isinstance(given_input, str) and len(given_input.encode("utf-8", "replace")) > context - SPECIAL:
            too_long.append((index, given_input))
        elif isinstance(given_input, list) and len(given_input) > context - SPECIAL:
            too_long.append((index, len(given_input)))
    return sorted(too_long, key=lambda each: -(each[1] if isinstance(each[1], int) else len(each[1])))


def further(path: str, body: bytes, payload: bytes) -> tuple[str, bytes] | None:
    """What an engine must be asked that does not count a chat at once: llama.cpp renders it first, then counts text.
    Raises BadStream."""
    asked, answered = _fields(body), _fields(payload)
    if path == RENDER:
        return TOKENIZE, msgspec.json.encode({"content": answered.get("prompt"), "add_special": True})
    if "messages" in asked and answered.get("count") is None:
        return RENDER, body
    return None


def _fields(payload: bytes) -> Json:
    try:
        return _object.decode(payload)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise BadStream(f"the answer is not a JSON object: {problem}") from None


_object = msgspec.json.Decoder(Json, float_hook=Number)


class _Answer(msgspec.Struct):
    count: int | None = None
    tokens: list[int] | None = None


_answer = msgspec.json.Decoder(_Answer)


def count(payload: bytes) -> int:
    """Tokens of the prompt. Raises BadStream when the answer has none."""
    try:
        read = _answer.decode(payload)
    except (msgspec.DecodeError, RecursionError) as problem:
        raise BadStream(f"the answer is not a list of tokens: {problem}") from None
    if read.count is not None:
        return read.count
    if read.tokens is None:
        raise BadStream("the answer has neither 'count' nor 'tokens'")
    return len(read.tokens)


def answer(tokens: int) -> bytes:
    """Anthropic's answer of ``/v1/messages/count_tokens``."""
    return msgspec.json.encode({"input_tokens": tokens})
