"""Facts on their way to the log: on disk first, sent in order, removed when the log has them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from libs.bus import Bus, BusAway, TooLarge
from libs.events import (
    Event,
    decode,
    encode,
    subject_of,
)
from libs.tasks import end

from . import durable

log = logging.getLogger(__name__)

_RETRY_S = 1.0
LOOK_EVERY_S = 10.0
"""How often it is looked whether the log still has what was sent last."""


class _Waiting(msgspec.Struct, frozen=True):
    cause: str
    event: msgspec.Raw


class _Sent(msgspec.Struct, frozen=True):
    """What the log took last."""

    subject: str
    sequence: int
    cause: str


def _name_of(folder: Path) -> str:
    """What this folder is called, from its making on."""
    path = folder / "name"
    try:
        return path.read_text()
    except FileNotFoundError:
        name = os.urandom(4).hex()
        with contextlib.suppress(OSError):  # the next one has another then
            durable.write(path, name.encode())
        return name


class Outbox:
    """Events go in at once, whatever the bus does; a fact that is in is sent, by this agent or the next one.

    A log that was wiped, or put back from a copy, has forgotten what was sent: ``say_again`` is called then, once, and
    nothing more is sent. All that is so must be put in anew, by an agent that begins with ``forgotten``.
    """

    def __init__(self, folder: Path, say_again: Callable[[], None] | None = None) -> None:
        self._folder = folder
        self._say_again = say_again
        self._sent = self._read_sent()
        self.forgotten = self._sent is None
        """Whether the log may know nothing of what earlier agents said."""
        folder.mkdir(parents=True, exist_ok=True)
        self._name = _name_of(folder)
        waiting = [int(path.stem) for path in folder.glob("[0-9]*.json")]
        self._next = max(waiting, default=0) + 1
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def put(self, event: Event, cause: str) -> None:
        """Keep an event until the log has it. ``cause`` says why it happened and makes sending it twice harmless.

        The folder has a name of its own, which goes into it: an agent whose folder was lost counts from one again, and
        what it says then is no repetition of what it said before.
        """
        path = self._folder / f"{self._next:012d}.json"
        self._next += 1
        durable.write(path, msgspec.json.encode(_Waiting(f"{cause}@{self._name}", msgspec.Raw(encode(event)))))
        self._empty.clear()
        self._filled.set()

    def waiting(self) -> list[Path]:
        """Files of the facts the log does not have yet, the oldest first."""
        return sorted(self._folder.glob("[0-9]*.json"))

    def start(self, bus: Bus) -> None:
        """Send what waits, and what will be put in."""
        self._task = bus.background("the outbox", lambda: self._send(bus))

    async def stop(self, patience_s: float) -> None:
        """Wait a little for what is still to be sent, then leave the rest for the next agent."""
        if self._task is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self._empty.wait()
        await end(self._task)

    async def _send(self, bus: Bus) -> None:
        while True:
            self._filled.clear()
            if self._say_again is not None and await self._is_forgotten(bus):
                log.error("the log no longer has what was said last; everything is said again")
                self._forget()
                self._empty.set()
                self._say_again()
                return
            for path in self.waiting():
                await self._send_one(bus, path)
            if not self.waiting():
                self._empty.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._filled.wait()

    async def _is_forgotten(self, bus: Bus) -> bool:
        try:
            sent = self._sent
            return sent is not None and await bus.forgot("EVENTS", sent.subject, sent.sequence, sent.cause)
        except BusAway:
            return False  # not known; it is looked again

    def _read_sent(self) -> _Sent | None:
        try:
            return msgspec.json.decode((self._folder / "sent").read_bytes(), type=_Sent)
        except (OSError, msgspec.DecodeError):
            return None

    def _forget(self) -> None:
        """What is said again is no repetition to a log that may remember a part of it: the folder gets another name."""
        self._sent = None
        for name in ("sent", "name"):
            (self._folder / name).unlink(missing_ok=True)

    async def _send_one(self, bus: Bus, path: Path) -> None:
        try:
            waiting = msgspec.json.decode(path.read_bytes(), type=_Waiting)
            event = decode(bytes(waiting.event))
        except Exception:
            # Written by another version, or damaged: kept for a person, out of the way of the others.
            log.exception("%s cannot be read and is set aside", path)
            path.rename(path.with_suffix(".unreadable"))
            return
        while True:
            try:
                sequence = await bus.append(event, cause=waiting.cause)
                break
            except TooLarge as error:
                # It never will be taken: out of the way of the others, for a person to look at.
                log.error("%s is set aside: %s", path.name, error)
                path.rename(path.with_suffix(".too-large"))
                return
            except BusAway:
                log.warning("the log is out of reach; %d facts wait here", len(self.waiting()))
            except Exception:
                log.exception("%s was not taken by the log; it is tried again", path.name)
            await asyncio.sleep(_RETRY_S)
        self._sent = _Sent(subject_of(event), sequence, waiting.cause)
        with contextlib.suppress(OSError):  # an agent that does not know says more than it must
            durable.write(self._folder / "sent", msgspec.json.encode(self._sent))
        path.unlink(missing_ok=True)
