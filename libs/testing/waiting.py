"""Waiting for something to become true, with a deadline instead of a sleep."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(
    condition: Callable[[], T | Awaitable[T]], deadline_s: float = 10.0, *, every_s: float = 0.02, what: str = ""
) -> T:
    """Call ``condition`` (sync or async) until it returns something true, and return that.

    A condition that raises counts as not yet true. After ``deadline_s`` raises AssertionError which says what was
    last returned or raised.
    """
    end = time.monotonic() + deadline_s
    while True:
        last: object
        try:
            result = condition()
            value = await result if inspect.isawaitable(result) else result
            if value:
                return value
            last = value
        except Exception as problem:
            last = problem
        if time.monotonic() >= end:
            name = what or getattr(condition, "__name__", "condition")
            message = f"{name}: not true within {deadline_s:g} s; last: {last!r}"
            if isinstance(last, BaseException):
                raise AssertionError(message) from last
            raise AssertionError(message)
        await asyncio.sleep(every_s)
