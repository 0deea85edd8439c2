"""What a request may use at most, before an engine has said anything."""

from __future__ import annotations

import msgspec

from libs.events.tenancy import Price
from services.gateway.core.json.lossless import present
from services.gateway.core.protocols.operations import Operation
from services.gateway.core.request.body import ParsedRequest

BYTES_A_TOKEN = 3
"""Of a body. English has over four, Chinese about three: an estimate that is rather too high."""
UNSAID_TOKENS = 4096
"""Of an answer whose request does not say how long it may be, where the model's limit is not lower. Few answers are
longer, and with a model's whole context nearly every budget would be too short for a single request."""

AROUND_TOKENS = 64
"""Which the gateway knows nothing of: of a template around a prompt, or behind the end of an answer."""

ANSWERS = frozenset({"openai.chat", "openai.completions", "openai.responses", "anthropic.messages"})
"""Protocols whose requests have an answer of tokens."""

_elements = msgspec.json.Decoder(list[msgspec.Raw])


def most_tokens(
    parsed: ParsedRequest, operation: Operation, body_bytes: int, context_length: int, max_tokens: int
) -> tuple[int, int]:
    """Prompt and completion tokens. ``max_tokens`` is the model's limit of an answer."""
    if operation.protocol == "tokenize":
        return 0, 0
    prompt = -(-(body_bytes + _repeated(parsed)[1]) // BYTES_A_TOKEN)
    if operation.protocol not in ANSWERS:
        return prompt, 0
    prompts = prompts_in(parsed)
    answer = longest(parsed, min(max_tokens, UNSAID_TOKENS))
    return min(prompt, prompts * context_length), answers_in(parsed) * answer


def plausible_tokens(parsed: ParsedRequest, body_bytes: int, context_length: int, max_tokens: int) -> tuple[int, int]:
    """Prompt and completion tokens an engine may say it used; more than that it cannot have.

    No token is shorter than a byte; what a template or an image adds is within the context. An engine may count its
    last tokens differently, or work out a few that are thrown away.
    """
    answer_tokens = longest(parsed, max(max_tokens, context_length))
    answer = answer_tokens + answer_tokens // 10 + AROUND_TOKENS
    times, repeated = _repeated(parsed)
    prompt = max(body_bytes, context_length) + repeated + times * AROUND_TOKENS
    return prompts_in(parsed) * (prompt + AROUND_TOKENS), answers_in(parsed) * answer


def _repeated(parsed: ParsedRequest) -> tuple[int, int]:
    """How often the query of a reranking is read again, and its bytes then: once with each document."""
    if not present(parsed.query) or bytes(memoryview(parsed.documents)[:1]) != b"[":
        return 0, 0
    times = max(0, len(_elements.decode(parsed.documents)) - 1)
    return times, times * len(memoryview(parsed.query))


def most_micros(price: Price, prompt_tokens: int, completion_tokens: int) -> int:
    """The most so many tokens cost, whether the prompt is cached or not."""
    return max(price.cost_micros(prompt_tokens, cached, completion_tokens) for cached in (0, prompt_tokens))


def longest(parsed: ParsedRequest, unsaid: int) -> int:
    """Tokens of one answer at most; ``unsaid`` where the request does not say."""
    return max((tokens for _, tokens in parsed.limits()), default=unsaid)


def answers_in(parsed: ParsedRequest) -> int:
    """How many are asked for at once."""
    return prompts_in(parsed) * max(parsed.n or 1, parsed.n_cmpl or 1)


def prompts_in(parsed: ParsedRequest) -> int:
    """A text completion may have several, each with an answer of its own."""
    if not present(parsed.prompt) or not bytes(parsed.prompt).startswith(b"["):
        return 1
    elements = _elements.decode(parsed.prompt)
    return len(elements) if elements and bytes(elements[0])[:1] in b'"[' else 1
