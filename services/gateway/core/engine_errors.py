"""What an engine says when it does not answer, and what of it is the client's business."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from .context_window import ContextExceeded
from .faults import Fault, refused_unsaid, upstream_failed


class _UpstreamError(msgspec.Struct):
    message: str | None = None
    type: str | None = None
    code: str | int | float | None = None
    param: str | None = None
    n_prompt_tokens: int | None = None
    """llama.cpp's."""
    n_ctx: int | None = None


class _UpstreamBody(msgspec.Struct):
    error: _UpstreamError | str | None = None
    message: str | None = None
    object: str | None = None
    detail: Any = None


_upstream_body = msgspec.json.Decoder(_UpstreamBody)


_INTERNAL = re.compile(
    r"\[json\.exception|Traceback|terminate called|\bstd::|\.(?:py|cpp|cu|h)\b[:\"', ]|0x[0-9a-f]{6,}|"
    r"\bline [0-9]+\b|\b\w*(?:Exception|Error)\(|\b(?:Type|Key|Value|Index|Attribute|Runtime|Assertion)Error\b|"
    r"CUDA|<html|<!DOCTYPE",
    re.IGNORECASE,
)
"""Signs of text that was written for who made the engine."""
_CONTEXT = re.compile(
    r"exceed_context|context_length_exceeded|context (?:length|size|window)|longer than the model|max_model_len|"
    r"max_seq_len|maximum (?:input|sequence|model) length|"
    r"(?:prompt|input)(?: \([0-9]+ tokens\))? is too (?:long|large)|prompt length .{0,40}exceed",
    re.IGNORECASE,
)
_WINDOW = re.compile(
    r"context (?:length|size|window)(?: is only| is| of)? \(?([\d,]{1,20})|(?:maximum )?model length of ([\d,]{1,20})|"
    r"max_(?:model|seq)_len\D{0,5}([\d,]{1,20})",
    re.IGNORECASE,
)
_PROMPT = re.compile(
    r"\b([\d,]{1,20}) (?:input tokens|in the messages|tokens from the input)|request \(([\d,]{1,20}) tokens\)|"
    r"(?:prompt|input)(?: length)? \((?:length )?([\d,]{1,20})",
    re.IGNORECASE,
)
_ANSWER = re.compile(
    r"\b([\d,]{1,20}) (?:output tokens|in the completion|tokens for the completion)|is too large: ([\d,]{1,20})",
    re.IGNORECASE,
)
_NO_MEDIA = re.compile(
    r"(?:image|audio|video|multi-?modal).{0,40}not supported|not a multi-?modal|"
    r"not support .{0,20}(?:image|audio|video|multi-?modal)|at most 0 (?:image|audio|video)",
    re.IGNORECASE,
)
MESSAGE_CHARACTERS = 500
"""More of an engine's sentence is not passed on: validators put the whole request into theirs."""


def _figure(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.search(text)
    digits = next(filter(None, match.groups())).replace(",", "") if match is not None else ""
    return int(digits) if digits else None


def _too_long(text: str, error: _UpstreamError) -> ContextExceeded:
    message = "" if _INTERNAL.search(text) else text[:MESSAGE_CHARACTERS]
    prompt = error.n_prompt_tokens or _figure(_PROMPT, text)
    answer, window = _figure(_ANSWER, text), error.n_ctx or _figure(_WINDOW, text)
    if prompt is not None and answer and window is not None and prompt + answer == window + 1:
        # vLLM counts until it is too much, and no further.
        prompt = None
    return ContextExceeded(message, error.param, prompt, answer, window)


def fault_in(payload: bytes, status: int) -> Fault:
    """What an engine said about a request it would not take, in OpenAI's envelope.

    ``payload`` is an error body or an error event; ``status`` is used where it says none itself. Only what is
    about the request is passed on in the engine's words; a prompt that is too long and parts that are no text have
    a code of their own, whatever the engine calls them.
    """
    try:
        body = _upstream_body.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return _told(status, payload[:MESSAGE_CHARACTERS].decode("utf-8", "replace").strip(), _UpstreamError())
    error = body.error
    if isinstance(error, str) or error is None:
        detail = body.detail if isinstance(body.detail, str) else None
        text = error if isinstance(error, str) else body.message or detail
        return _told(status, text, _UpstreamError())
    if isinstance(error.code, (int, float)):
        # llama.cpp and vLLM put the HTTP status there.
        if 400 <= error.code <= 599:
            status = int(error.code)
        error.code = None
    return _told(status, error.message, error)


def _told(status: int, text: str | None, error: _UpstreamError) -> Fault:
    text = text or ""
    if status in (400, 413, 422, 500) and _CONTEXT.search(f"{text} {error.type} {error.code}"):
        return _too_long(text, error)
    if status in (400, 415, 422, 500, 501) and _NO_MEDIA.search(text):
        return Fault(
            400, "unsupported_content", "The model behind this name reads text only: leave out everything else."
        )
    if status >= 500:
        fault = upstream_failed(status)
        fault.status = status
        return fault
    if not text or _INTERNAL.search(text):
        return refused_unsaid(status)
    code = error.code if isinstance(error.code, str) else None
    kind = error.type or "invalid_request_error"
    return Fault(status, code, text[:MESSAGE_CHARACTERS], kind=kind, param=error.param)
