"""What becomes of a model's thinking when it crosses from one protocol to another. It never becomes visible text."""

from __future__ import annotations

from typing import Literal

from services.gateway.core.json.fields import Json

Thinking = Literal["pass", "reasoning", "drop"]
"""How a backend takes the thinking of earlier turns.

``pass``: blocks with their signatures, in the field ``thinking_blocks`` (backends that have Anthropic's models
behind Chat); ``reasoning``: their text, in ``reasoning_content`` (vLLM, SGLang, llama.cpp); ``drop``: not at all.
"""

UNSIGNED = "bGxtZ3c="
"""The signature of thinking that no Anthropic model signed. Not empty, because clients return only signed blocks."""

EFFORTS = ((4096, "low"), (16384, "medium"))
"""``budget_tokens`` up to which an effort is asked for; above the last it is ``high``."""


def effort_of(budget_tokens: int) -> str:
    """OpenAI's word for a budget of Anthropic's."""
    return next((effort for most, effort in EFFORTS if budget_tokens <= most), "high")


def is_signed(block: Json) -> bool:
    """Whether an Anthropic model would take the block back."""
    if block.get("type") == "redacted_thinking":
        return True
    return block.get("signature") not in (None, "", UNSIGNED)
