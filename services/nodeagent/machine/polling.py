"""Facts that may take long to read, read on a clock of their own.

A network filesystem that went away or a GPU driver that hangs stops the thread that asks, for minutes or for
ever. It must not stop the machine's telemetry with it, whose silence would say that the whole machine is gone.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class Polling(Generic[T]):
    """Calls ``read`` every ``every_s`` seconds in a thread that dies with the process; keeps the last answer."""

    def __init__(self, name: str, read: Callable[[], T], every_s: float, after_s: float = 0.0) -> None:
        self._name = name
        self._read = read
        self.every_s = every_s
        self._after_s = after_s
        self._ended = threading.Event()
        self._due = threading.Event()
        self._answered = threading.Event()
        self._answer: tuple[float, T] | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """Read no more; a read that hangs is left alone."""
        self._ended.set()
        self._due.set()

    def expire(self) -> None:
        """Read anew now and not when it is time."""
        self._due.set()

    def first(self, patience_s: float) -> bool:
        """Wait for the first answer; whether it came. Blocks."""
        return self._answered.wait(patience_s)

    def latest(self, no_older_s: float = float("inf")) -> T | None:
        """The last answer; None when there is none, or only one older than ``no_older_s``."""
        if self._answer is None or time.monotonic() - self._answer[0] > no_older_s:
            return None
        return self._answer[1]

    def _run(self) -> None:
        self._due.wait(self._after_s)
        while not self._ended.is_set():
            try:
                self._answer = time.monotonic(), self._read()
                self._answered.set()
            except Exception:
                log.exception("%s could not be read", self._name)
            self._due.wait(self.every_s)
            self._due.clear()


class OnDemand(Generic[T]):
    """The same for facts that are at hand at once (a simulated machine's): read when asked for, without a thread."""

    def __init__(self, name: str, read: Callable[[], T], every_s: float, after_s: float = 0.0) -> None:
        self._name = name
        self._read = read
        self.every_s = every_s
        self._after = time.monotonic() + after_s
        self._answer: tuple[float, T] | None = None

    def start(self) -> None:
        """Nothing is to be started."""
        return

    def stop(self) -> None:
        """Nothing runs that is to be stopped."""
        return

    def first(self, patience_s: float) -> bool:
        """Whether it can be read now. Waits for nothing."""
        return self.latest() is not None

    def expire(self) -> None:
        """Read anew when it is asked for the next time."""
        if self._answer is not None:
            self._answer = float("-inf"), self._answer[1]

    def latest(self, no_older_s: float = float("inf")) -> T | None:
        """What was read last, read anew when it is time; None when that failed, or it is older than ``no_older_s``."""
        now = time.monotonic()
        due = now >= self._after if self._answer is None else now - self._answer[0] >= self.every_s
        if due:
            try:
                self._answer = now, self._read()
            except Exception:
                log.exception("%s could not be read", self._name)
        return self._answer[1] if self._answer is not None and now - self._answer[0] <= no_older_s else None
