"""How an engine, or one answer of it, behaves: pace, and ways to fail."""

from __future__ import annotations

from typing import Any

import msgspec

HEADER_PREFIX = b"x-sim-"


class Behaviour(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Set for the engine (options, ``POST /sim/behaviour``) or for one request: a body field ``sim`` holding these
    fields, or headers ``x-sim-<field with dashes>``.

    The ``…_after`` fields count content tokens that went out before it happens.
    """

    tok_s: float = 500.0
    """Tokens a second of each answer; 0: all in one go."""
    ttft_ms: float = 0.0
    """Time before the first token."""
    prefill_tok_s: float = 0.0
    """Prompt tokens a second, added to the time before the first token; 0: none."""
    fail_status: int = 0
    """Answer with this HTTP status and an error body instead; 0: do not."""
    retry_after_s: int | None = None
    """Sent with ``fail_status``."""
    error_after: int | None = None
    """An error event inside the 200 stream, then the end."""
    cut_after: int | None = None
    """Close the connection without an end."""
    hang_after: int | None = None
    """Generate nothing more, keep the connection."""
    die_after: int | None = None
    """The process exits with status 70."""
    echo: bool = False
    """Answer with the words of the last message instead of ``tok0 tok1 …``."""
    cached_tokens: int = 0
    """Reported in ``usage.prompt_tokens_details``."""
    reasoning_tokens: int = 0
    """Reported in ``usage.completion_tokens_details``; 0: as many as were thought."""
    thinking: int = 0
    """Tokens of ``reasoning_content`` before the answer."""
    tools: int = 0
    """The answer ends with so many calls of the tools that were offered, in turn."""
    interleaved: bool = False
    """The pieces of several calls alternate."""
    refuse: bool = False
    """The answer is a refusal."""
    agent: bool = False
    """As a model that uses its tools: unless the last message is a tool's result it calls the one the prompt names, or
    else the first, once for each thing the last message quotes. Arguments, and JSON, hold what it quotes and counts.
    Where the user's words hold ``[[name {…}]]``, one such after the other is called as it stands there, and the last
    result is the answer; ``[[say {"text": …}]]`` is said."""


class BehaviourWanted(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Body of ``POST /sim/behaviour``: how requests are answered from now on."""

    behaviour: dict[str, Any] = {}
    times: int | None = None
    """For that many requests, then as the options said. None: for all."""


def changed(base: Behaviour, fields: dict[str, Any], strict: bool = True) -> Behaviour:
    """``base`` with ``fields`` in place of its own. Raises msgspec.ValidationError."""
    return msgspec.convert(msgspec.structs.asdict(base) | fields, Behaviour, strict=strict)
