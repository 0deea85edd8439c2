"""What an engine says a request used, wherever it says it."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from services.gateway.core.json.lossless import ABSENT, present


class TokenUsage(msgspec.Struct):
    """Tokens of one answer. ``cached`` is inside ``prompt``, ``reasoning`` inside ``completion``."""

    prompt: int = 0
    cached: int = 0
    completion: int = 0
    reasoning: int = 0
    estimated: bool = False

    def within(self, most: tuple[int, int]) -> bool:
        """Whether an engine can have used so many prompt and completion tokens, of ``most`` each."""
        return 0 <= self.prompt <= most[0] and 0 <= self.completion <= most[1]


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class EngineUsage(msgspec.Struct):
    """The ``usage`` object of OpenAI's protocol; null and absent are the same."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    completion_tokens_details: _CompletionDetails | None = None
    reasoning_tokens: int | None = None
    """SGLang says it here."""

    def used(self) -> TokenUsage:
        """The same, as the gateway counts; parts are no larger than what they are parts of."""
        prompt = self.prompt_tokens or 0
        completion = self.completion_tokens or 0
        cached = self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None
        reasoning = self.reasoning_tokens
        if self.completion_tokens_details is not None and self.completion_tokens_details.reasoning_tokens is not None:
            reasoning = self.completion_tokens_details.reasoning_tokens
        return TokenUsage(
            prompt=prompt,
            cached=max(0, min(cached or 0, prompt)),
            completion=completion,
            reasoning=max(0, min(reasoning or 0, completion)),
        )


class Answer(msgspec.Struct):
    """What is read of an answer that does not stream; the rest travels as it is."""

    usage: EngineUsage | None = None
    error: msgspec.Raw = ABSENT
    choices: msgspec.Raw = ABSENT
    timings: msgspec.Raw = ABSENT
    """llama.cpp's."""


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    message: msgspec.Raw = ABSENT
    text: msgspec.Raw = ABSENT


_choices = msgspec.json.Decoder(list[_Choice])
_answer = msgspec.json.Decoder(Answer)


def answer_in(payload: bytes) -> Answer | None:
    """None: it is not the JSON object an engine should answer with."""
    try:
        return _answer.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return _odd_answer(payload)


def _odd_answer(payload: bytes) -> Answer | None:
    """Of an answer that is JSON to most, though not by the letter: half a surrogate pair, a NaN, a usage of its own."""
    try:
        fields = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    try:
        usage = msgspec.convert(fields.get("usage"), EngineUsage | None)
    except msgspec.ValidationError:
        usage = None
    error, choices = (ABSENT if fields.get(name) is None else msgspec.Raw(b"{}") for name in ("error", "choices"))
    return Answer(usage=usage, error=error, choices=choices)


def of_all_choices(answer: Answer, most: int) -> TokenUsage | None:
    """What an answer with several choices used; None where its engine says that itself.

    llama.cpp says of the first choice only. One that was cut at its length has ``most`` tokens; how many the others
    have is estimated from how long they are.
    """
    if answer.usage is None or not present(answer.timings) or not present(answer.choices):
        return None
    try:
        choices = _choices.decode(answer.choices)
    except (msgspec.DecodeError, RecursionError):
        return None
    if len(choices) < 2:
        return None
    used = answer.usage.used()
    for choice in choices[1:]:
        tokens = max(1, len(bytes(choice.message if present(choice.message) else choice.text)) // 4)
        used.completion += most if choice.finish_reason == "length" else min(tokens, most)
    used.estimated = True
    return used


def estimate_prompt(text_bytes: int) -> int:
    """Tokens of a prompt whose engine did not say: four bytes each, the usual figure for English text."""
    return max(1, text_bytes // 4) if text_bytes else 0


def usage_object(used: TokenUsage) -> dict[str, Any]:
    """The ``usage`` object for a client that asked, when the engine sent none of its own."""
    return {
        "prompt_tokens": used.prompt,
        "completion_tokens": used.completion,
        "total_tokens": used.prompt + used.completion,
    }
