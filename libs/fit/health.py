"""What is done about a card for what its agent says of it: the policy, as a table.

A verdict holds as long as the sentence stands among the card's problems. The agent removes it once the card is well
again (after a reset, or long enough without another error); the card is then used again at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from libs.events.machine import Gpu

Verdict = Literal["out", "suspect", "slow", "note"]
"""``out``: nothing new, and what runs there is moved, its successor ready before it goes. ``suspect``: nothing new,
what runs stays. ``slow``: taken last. ``note``: used like any other."""

WORST: tuple[Verdict, ...] = ("out", "suspect", "slow", "note")

XIDS: dict[int, Verdict] = {
    **dict.fromkeys((62, 64, 79, 95, 119, 120, 140, 143), "out"),
    # The process they hit has ended by itself; one of these now and then is no reason to move everything off a card.
    **dict.fromkeys((48, 74, 92, 94), "suspect"),
    # Faults of the program on the card, or consequences of an error that was reported under another number.
    **dict.fromkeys((13, 31, 32, 43, 45, 63, 68, 69), "note"),
}
"""Errors of NVIDIA's driver by number, after its list of them; one that is not here is suspect."""

SENTENCES: tuple[tuple[str, Verdict], ...] = (
    (r"row remap failed|no spare rows", "out"),
    (r"(row|page) of its memory is (replaced|retired) only when it is reset|remap pending", "out"),
    (r"\blinked at\b|\blanes\b|PCIe generation", "slow"),
    (r"power (cap|limit|brake)|\bcapped\b", "slow"),
    (r"\bthrottl|too hot|\bslows? down", "slow"),
)
"""Pattern in a sentence of the agent's to its verdict; the first match counts. Without a match the card is out."""

POWER_LEAST = 0.9
"""Share of its usual power below which a card counts as slow. Just below the usual it loses speed only after minutes of
full load."""

_XID = re.compile(r"\bXID (\d+)")


def verdict(problem: str) -> Verdict:
    """On one sentence."""
    xid = _XID.search(problem)
    if xid is not None:
        return XIDS.get(int(xid.group(1)), "suspect")
    return next((judged for pattern, judged in SENTENCES if re.search(pattern, problem, re.IGNORECASE)), "out")


def worst(problems: Sequence[str]) -> tuple[Verdict, str] | None:
    """The gravest verdict on a card, and the sentence it is about; None: nothing is said of it."""
    verdicts = [(verdict(problem), problem) for problem in problems]
    return min(verdicts, key=lambda pair: WORST.index(pair[0])) if verdicts else None


def usable(gpu: Gpu) -> bool:
    """Whether new work may go there."""
    gravest = worst(gpu.problems) if gpu.problems else None
    return gravest is None or gravest[0] in ("slow", "note")


def slow(gpu: Gpu) -> bool:
    """Whether it is taken last: by what is said of it, or because it may draw much less than it was made for."""
    gravest = worst(gpu.problems) if gpu.problems else None
    return limited(gpu) or (gravest is not None and gravest[0] == "slow")


def limited(gpu: Gpu) -> bool:
    """Whether it may draw less than POWER_LEAST of its usual power; False where either figure is not known."""
    limit, usual = gpu.power_limit_watts, gpu.power_default_watts
    return limit is not None and usual is not None and limit < POWER_LEAST * usual


def must_leave(gpu: Gpu) -> str | None:
    """Why what runs there is moved; None: it may stay."""
    gravest = worst(gpu.problems) if gpu.problems else None
    return gravest[1] if gravest is not None and gravest[0] == "out" else None


def in_words(gpu: Gpu) -> str:
    """Why nothing new goes there, for a card of which that is so."""
    gravest = worst(gpu.problems)
    assert gravest is not None
    kind = "suspect" if gravest[0] == "suspect" else "out of use"
    return f"GPU {gpu.index} is {kind}: {gravest[1]}"
