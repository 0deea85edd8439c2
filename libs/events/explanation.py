"""Why a replica went where it went, or nowhere: part of the decision, so the log can be judged alone."""

from __future__ import annotations

from .contract import Value

MAX_CANDIDATES = 64
"""Candidates an explanation carries one by one: a message stays bounded however large the fleet is."""


class Candidate(Value, frozen=True, kw_only=True):
    """One node for one profile."""

    machine_id: str
    profile: str
    rejected: tuple[str, ...] = ()
    """Sentences with the figures; empty: it was feasible."""
    scores: dict[str, float] = {}
    """Score parts, 0 to 1, higher is better."""


class Explanation(Value, frozen=True, kw_only=True):
    considered: int
    """Nodes looked at."""
    rejected: dict[str, int] = {}
    """How many nodes each check turned away, by the check's name."""
    candidates: tuple[Candidate, ...] = ()
    """The first ``MAX_CANDIDATES``, best first."""
    chosen: tuple[str, ...] = ()
    """Machine ids."""
    summary: str = ""
    """One sentence for a person."""
    took_ms: float | None = None
    """The round of decisions it was made in; it may hold others."""
