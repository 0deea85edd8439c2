"""What a detector finds in a text, however it is encoded there."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator

from .decodings import Decoding, OutOfTime
from .detect import Detector, Match

MATCHES_BETWEEN_CHECKS = 256
"""Matches between two checks whether time is left."""


class _Covered:
    """Stretches of the text in which a rule has found something."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def touches(self, start: int, end: int) -> bool:
        return bisect_right(self._ends, start) < bisect_left(self._starts, end)

    def holds(self, start: int, end: int) -> bool:
        index = bisect_right(self._starts, start) - 1
        return index >= 0 and end <= self._ends[index]

    def add(self, spans: Iterable[tuple[int, int]]) -> None:
        merged: list[tuple[int, int]] = []
        for start, end in sorted([*zip(self._starts, self._ends, strict=True), *spans]):
            if merged and start < merged[-1][1]:
                merged[-1] = merged[-1][0], max(end, merged[-1][1])
            else:
                merged.append((start, end))
        self._starts = [start for start, _ in merged]
        self._ends = [end for _, end in merged]


def search(every: list[Decoding], find: Detector, keep_going: Callable[[], bool]) -> list[Match]:
    """The matches in all decodings of a text, where they stand in the text that was sent. Raises OutOfTime.

    ``every`` is what ``decodings`` gives. What matches in several is one match, of the text that was decoded most: that
    says more exactly where an address begins than the text with a ``\\n`` before it does.
    """
    matches: list[Match] = []
    covered: dict[str, _Covered] = {}
    for decoding in reversed(every):
        spans: dict[str, list[tuple[int, int]]] = {}
        for match in _watched(find(decoding.text), keep_going):
            touched = decoding.widened(match.start, match.end)
            start, end = decoding.origin(*(touched or (match.start, match.end)))
            known = covered.get(match.rule)
            if known is not None and (known.holds(start, end) or (touched and known.touches(start, end))):
                continue
            matches.append(match._replace(start=start, end=end))
            spans.setdefault(match.rule, []).append((start, end))
        for rule, new in spans.items():
            covered.setdefault(rule, _Covered()).add(new)
    return matches


def _watched(matches: Iterator[Match], keep_going: Callable[[], bool]) -> Iterator[Match]:
    for count, match in enumerate(matches, 1):
        if count % MATCHES_BETWEEN_CHECKS == 0 and not keep_going():
            raise OutOfTime
        yield match
