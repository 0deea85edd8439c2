"""A bucket as its writer keeps it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Generic, TypeVar

from libs.events import BadPayload, decode_as, encode

from .follow import Follower
from .transport import START_LAST, BusAway, Expectation, RawMessage, WrongSequence
from .view import GONE, RETRY_FOR_S, View

V = TypeVar("V")


class Overtaken(BusAway):
    """Somebody else wrote the entry: whoever leads now, or a person. The bucket must be taken over again."""


class OwnedView(Generic[V]):
    """A view that its writer takes over when it comes to lead, and that refuses it once another has.

    A write names the revision it replaces. One that was sent by an earlier leader, or that was held up while the
    bus was away, therefore never replaces what a later leader wrote: a revoked key does not come back.
    """

    def __init__(self, view: View[V]) -> None:
        self._view = view
        self._values: dict[str, V] = {}
        self._revisions: dict[str, int] = {}
        self._term: int | None = None
        """Of the election it was taken over for; None: it was not, or somebody else wrote since."""

    @property
    def owned(self) -> bool:
        """Whether it was taken over, and nobody else is known to have written since."""
        return self._term is not None

    @property
    def values(self) -> Mapping[str, V]:
        """What stands in the bucket, as far as this writer took it over and wrote it."""
        return self._values

    async def take_over(self, term: int) -> bool:
        """Read all of it, as its writer from now on, unless that was done for this ``term`` (the sequence of the
        election one leads from) and nobody else wrote since. Returns whether it was read.

        Raises BusAway, and TimeoutError when nothing of it comes for 15 s.
        """
        if term == self._term:
            return False
        values: dict[str, V] = {}
        revisions: dict[str, int] = {}

        async def keep(raw: RawMessage) -> None:
            key = self._view.key_of(raw.subject)
            revisions[key] = raw.sequence
            values.pop(key, None)
            if raw.headers.get("KV-Operation") not in GONE:
                try:
                    values[key] = decode_as(self._view.kind, raw.payload)
                except BadPayload:
                    return  # it is as good as not there, and is written over

        reading = Follower(
            self._view.transport, f"KV_{self._view.bucket}", [f"$KV.{self._view.bucket}.>"], keep, START_LAST
        ).open()
        try:
            await reading.listed()
        finally:
            await reading.stop()
        self._values, self._revisions, self._term = values, revisions, term
        return True

    def let_go(self) -> None:
        """Another writes it from now on: it is read again before the next write here."""
        self._term = None

    async def become(self, wanted: Mapping[str, V], term: int) -> None:
        """Take it over, and make it hold just this. Raises Overtaken, BusAway, TimeoutError."""
        await self.take_over(term)
        for key in self._values.keys() - wanted.keys():
            await self.delete(key)
        for key, value in wanted.items():
            if self._values.get(key) != value:
                await self.put(key, value)

    async def put(self, key: str, value: V) -> None:
        """Raises Overtaken; BusAway after 15 s of trying."""
        await self._store(key, encode(value), {})
        self._values[key] = value

    async def delete(self, key: str) -> None:
        """Raises Overtaken; BusAway after 15 s of trying."""
        await self._store(key, b"", {"KV-Operation": "DEL"})
        self._values.pop(key, None)

    async def _store(self, key: str, payload: bytes, headers: dict[str, str]) -> None:
        subject = self._view.subject_of(key)
        transport = self._view.transport
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RETRY_FOR_S
        while True:
            try:
                self._revisions[key] = await transport.store(
                    subject, payload, headers, Expectation(self._revisions.get(key, 0))
                )
                return
            except WrongSequence:
                # An earlier try of ours may have landed without its answer reaching us.
                last = await transport.last(f"KV_{self._view.bucket}", subject)
                if last is None or last.payload != payload:
                    self._term = None
                    raise Overtaken(f"bucket {self._view.bucket}: another instance wrote {key}") from None
                self._revisions[key] = last.sequence
                return
            except BusAway:
                if loop.time() > deadline:
                    raise
                await asyncio.sleep(0.2)
