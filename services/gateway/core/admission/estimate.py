"""What a request may use at most, before an engine has said anything."""

from __future__ import annotations

import msgspec

from libs.events.tenancy import Price
from services.gateway.core.json.raw import present
from services.gateway.core.protocols.operations import Kind
from services.gateway.core.request.body import Asked

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


def most_tokens(asked: Asked, kind: Kind, body_bytes: int, context_length: int, max_tokens: int) -> tuple[int, int]:
    """Prompt and completion tokens. ``max_tokens`` is the model's limit of an answer."""
    if kind.protocol == "tokenize":
        return 0, 0
    prompt = -(-(body_bytes + _repeated(asked)[1]) // BYTES_A_TOKEN)
    if kind.protocol not in ANSWERS:
        return prompt, 0
    prompts = prompts_in(asked)
    said = longest(asked, min(max_tokens, UNSAID_TOKENS))
    return min(prompt, prompts * context_length), answers_in(asked) * said


def plausible_tokens(asked: Asked, body_bytes: int, context_length: int, max_tokens: int) -> tuple[int, int]:
    """Prompt and completion tokens an engine may say it used; more than that it cannot have.

    No token is shorter than a byte; what a template or an image adds is within the context. An engine may count its
    last tokens differently, or work out a few that are thrown away.
    """
    said = longest(asked, max(max_tokens, context_length))
    answer = said + said // 10 + AROUND_TOKENS
    times, repeated = _repeated(asked)
    prompt = max(body_bytes, context_length) + repeated + times * AROUND_TOKENS
    return prompts_in(asked) * (prompt + AROUND_TOKENS), answers_in(asked) * answer


def _repeated(asked: Asked) -> tuple[int, int]:
    """How often the query of a reranking is read again, and its bytes then: once with each document."""
    if not present(asked.query) or bytes(memoryview(asked.documents)[:1]) != b"[":
        return 0, 0
    times = max(0, len(_elements.decode(asked.documents)) - 1)
    return times, times * len(memoryview(asked.query))


def most_micros(price: Price, prompt_tokens: int, completion_tokens: int) -> int:
    """The most so many tokens cost, whether the prompt is cached or not."""
    return max(price.cost_micros(prompt_tokens, cached, completion_tokens) for cached in (0, prompt_tokens))


def longest(asked: Asked, unsaid: int) -> int:
    """Tokens of one answer at most; ``unsaid`` where the request does not say."""
    return max((tokens for _, tokens in asked.limits()), default=unsaid)


def answers_in(asked: Asked) -> int:
    """How many are asked for at once."""
    return prompts_in(asked) * max(asked.n or 1, asked.n_cmpl or 1)


def prompts_in(asked: Asked) -> int:
    """A text completion may have several, each with an answer of its own."""
    if not present(asked.prompt) or not bytes(asked.prompt).startswith(b"["):
        return 1
    elements = _elements.decode(asked.prompt)
    return len(elements) if elements and bytes(elements[0])[:1] in b'"[' else 1
