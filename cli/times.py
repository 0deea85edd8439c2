"""Times on the command line: one way to write them, whatever they are for, and one way they are shown."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import click

UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
LONGEST_S = 100 * 365.25 * UNITS["d"]
_PART = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)"
_LENGTH = re.compile(rf"(?:{_PART})+")
_CLOCK = re.compile(r"[0-9]{1,2}:[0-9]{2}(:[0-9]{2})?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
HOW_DURATION = "write 30s, 20m, 2h, 7d or several of these (1h30m)"
HOW_TIME = "write 20m, 2h or 7d, a date (2026-11-29), or RFC 3339 (2026-11-29T14:03:20Z)"


def duration_s(text: str) -> float:
    """Seconds of ``20m``, ``2h``, ``7d``, ``1h30m``, ``250ms``; a number alone is seconds. Raises ValueError."""
    text = text.replace(" ", "")
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        text += "s"
    if _LENGTH.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not a length of time: {HOW_DURATION}")
    seconds = sum(float(number) * UNITS[unit] for number, unit in re.findall(_PART, text))
    if seconds > LONGEST_S:
        raise ValueError(f"{text!r} is longer than a hundred years: write a shorter time")
    return seconds


def moment(text: str, now: datetime, sign: int) -> datetime:
    """The time that is meant, in UTC. Raises ValueError.

    ``text``: a length of time, which is counted from ``now`` (``sign`` -1: back, 1: ahead), a date, a time of the day
    of ``now`` (``14:03``, ``14:03:20``), or RFC 3339, where what has no zone is UTC.
    """
    text = text.strip()
    today = f"{now.astimezone(UTC):%Y-%m-%d}T"
    try:
        if _LENGTH.fullmatch(text):
            return now.astimezone(UTC) + sign * timedelta(seconds=duration_s(text))
        if _CLOCK.fullmatch(text):
            at = datetime.fromisoformat(today + text.zfill(5 if text.count(":") == 1 else 8))
        elif _DATE.match(text):
            at = datetime.fromisoformat(text)
        else:
            raise ValueError
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not a time: {HOW_TIME}") from None


def written(seconds: float) -> str:
    """A length of time as ``duration_s`` reads it, to the millisecond: ``1h30m``, ``2.5s``, ``0s``."""
    left_ms = round(seconds * 1000)
    parts = []
    for unit in ("d", "h", "m"):
        whole, left_ms = divmod(left_ms, int(UNITS[unit] * 1000))
        parts += [f"{whole}{unit}"] if whole else []
    if left_ms or not parts:
        parts.append(f"{left_ms / 1000:g}s")
    return "".join(parts)


class Duration(click.ParamType[float]):
    """A length of time; the command gets seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Raises BadParameter."""
        try:
            return float(value) if isinstance(value, int | float) else duration_s(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Moment(click.ParamType[datetime]):
    """A time; the command gets it in UTC. ``sign``: whether a length of time means ago (-1) or ahead (1)."""

    name = "time"

    def __init__(self, sign: int) -> None:
        self._sign = sign

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Raises BadParameter."""
        if isinstance(value, datetime):
            return value
        try:
            return moment(str(value), datetime.now(UTC), self._sign)
        except ValueError as error:
            self.fail(str(error), param, ctx)


DURATION = Duration()
PAST, FUTURE = Moment(-1), Moment(1)
