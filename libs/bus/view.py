"""Key-value buckets: what services know of each other. One writer each, rebuilt from the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, TypeVar
from zlib import crc32

from libs.events import BadPayload, decode_as, decode_token, encode, encode_token

from .follow import Follower
from .metrics import SKIPPED, WENT_BACK
from .transport import START_LAST, BusAway, RawMessage, Transport

log = logging.getLogger("llmgw.bus")

V = TypeVar("V")
OnChange = Callable[[str, V | None], Awaitable[None]]
GONE = ("DEL", "PURGE")
RETRY_FOR_S = 15.0


def _stamp(raw: RawMessage) -> int:
    """Tells a revision from another of the same number in a bucket that went back: number, then checksum."""
    return raw.sequence << 32 | crc32(raw.payload)


class View(Generic[V]):
    """One bucket whose values are of one kind. Keys are plain text; the view encodes them."""

    def __init__(self, transport: Transport, bucket: str, kind: type[V], fail: Callable[[str], None]) -> None:
        self.transport = transport
        self.bucket = bucket
        self.kind = kind
        self._fail = fail

    def subject_of(self, key: str) -> str:
        """Where the entry of a key stands."""
        return f"$KV.{self.bucket}.{encode_token(key)}"

    def key_of(self, subject: str) -> str:
        """The key of the entry that stands on a subject."""
        return decode_token(subject.split(".", 2)[2])

    async def put(self, key: str, value: V) -> int:
        """Returns the revision. Raises BusAway after 15 s of trying."""
        return await self._store(key, encode(value), {})

    async def delete(self, key: str) -> None:
        """Raises BusAway after 15 s of trying."""
        await self._store(key, b"", {"KV-Operation": "DEL"})

    async def _store(self, key: str, payload: bytes, headers: dict[str, str]) -> int:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RETRY_FOR_S
        while True:
            try:
                return await self.transport.store(self.subject_of(key), payload, headers)
            except BusAway:
                if loop.time() > deadline:
                    raise
                await asyncio.sleep(0.2)

    async def get(self, key: str) -> V | None:
        """The entry of a key now; None: there is none. Raises BusAway, BadPayload."""
        raw = await self.transport.last(f"KV_{self.bucket}", self.subject_of(key))
        if raw is None or raw.headers.get("KV-Operation") in GONE:
            return None
        return decode_as(self.kind, raw.payload)

    async def all(self) -> dict[str, V]:
        """Everything in the bucket now. Raises TimeoutError when nothing of it comes for 15 s."""
        entries: dict[str, V] = {}

        async def keep(key: str, value: V | None) -> None:
            if value is None:
                entries.pop(key, None)
            else:
                entries[key] = value

        watch = await self.watch(keep)
        try:
            await watch.listed()
        finally:
            await watch.stop()
        return entries

    async def watch(self, on_change: OnChange[V], keys: Iterable[str] = ()) -> Follower:
        """List, then follow. After every gap it lists again: a key that vanished meanwhile is reported as None.

        An older revision is never reported after a newer one, unless the bucket itself went back (it was made anew,
        or put back from a copy): then what it holds now is reported. Who watches single keys, in a bucket it may not
        read as a whole, cannot know that and is told every revision: it must know from the values which is newer.
        """
        revisions: dict[str, int] = {}
        """Key to revision and checksum."""
        older: dict[str, RawMessage] = {}
        """Listed, and not newer than what is known."""
        gone: set[str] = set()
        """Of those that are known, what is not there."""
        listed: set[str] | None = None
        single = tuple(keys)

        async def handle(raw: RawMessage) -> None:
            key = self.key_of(raw.subject)
            if listed is not None:
                listed.add(key)
            known = revisions.get(key, 0)
            if _stamp(raw) == known:
                older.pop(key, None)
            elif raw.sequence > known >> 32 or single:
                older.pop(key, None)
                await take(key, raw)
            elif listed is not None:
                older[key] = raw

        async def take(key: str, raw: RawMessage) -> None:
            was_there = key in revisions and key not in gone
            revisions[key] = _stamp(raw)
            if raw.headers.get("KV-Operation") in GONE:
                gone.add(key)
                if was_there:
                    await on_change(key, None)
                return
            try:
                value = decode_as(self.kind, raw.payload)
            except BadPayload as error:
                SKIPPED.labels("bad value").inc()
                log.error("bucket %s, key %s: %s", self.bucket, key, error)
                return
            gone.discard(key)
            await on_change(key, value)

        async def relist(begins: bool) -> None:
            nonlocal listed
            if begins:
                listed = set()
                older.clear()
                return
            if older:
                # Not of a leader that was cut off and is behind the others: that raises BusAway.
                await self.transport.extent(f"KV_{self.bucket}")
                WENT_BACK.labels(f"KV_{self.bucket}").inc()
                log.error("bucket %s was made anew or put back from a copy: what it holds now is taken", self.bucket)
                for key, raw in older.items():
                    await take(key, raw)
                older.clear()
            for key in sorted(revisions.keys() - (listed or set())):
                del revisions[key]
                if key in gone:
                    gone.discard(key)
                else:
                    await on_change(key, None)
            listed = None

        wanted = [self.subject_of(key) for key in single] or [f"$KV.{self.bucket}.>"]
        follower = Follower(
            self.transport, f"KV_{self.bucket}", wanted, handle, START_LAST, relist=relist, on_failure=self._fail
        )
        return follower.open()
