"""Who tries to lead, or which of several runs: one key for each in a bucket whose entries expire.

The lease only says who may try. What keeps an old leader from deciding is the fence on every decision.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

from libs.events import encode_token

from .transport import BusAway, Expectation, Transport, WrongSequence

TTL_S = 6.0
"""The age at which the bucket ``leases`` drops an entry that was not renewed."""
RENEW_S = 2.0


class Lease:
    """One service's lease, or that of ``member`` of its kind, as one instance sees it. No space in ``instance``."""

    def __init__(self, transport: Transport, service: str, instance: str, member: str = "") -> None:
        self._transport = transport
        self._subject = ".".join(["$KV.leases", encode_token(service), *([encode_token(member)] if member else [])])
        self._instance = instance
        self._value = f"{instance} {os.urandom(6).hex()}".encode()
        self._revision: int | None = None
        self._renewed = 0.0
        self._began = True
        self._seen = 0, 0.0
        """The sequence of the lease as another has it, and since when (monotonic seconds)."""
        self.problem = ""
        """Why the bus did not say whose it is, or did not let it be taken, when that was last tried."""

    @property
    def revision(self) -> int | None:
        """The revision at which it is held; None: it is not."""
        return self._revision

    async def acquire(self) -> bool:
        """Take it if nobody has it, if it was given back, or if an earlier run of this same instance had it.

        Returns whether it is held now; ``problem`` says what of the bus was in the way.
        """
        asked = time.monotonic()
        # Only a run that just began may take its own name's lease: two that run would take it from each other.
        earlier_run, self._began = self._began, False
        self.problem = ""
        try:
            last = await self._transport.last("KV_leases", self._subject)
            if last is None:
                free_at = 0
            elif (
                last.headers.get("KV-Operation") == "DEL"
                or last.payload == self._value  # taken, or renewed, without our learning of it
                or (earlier_run and self._ours(last.payload))
            ):
                free_at = last.sequence
            else:
                self._look_at(last.sequence, asked)
                return False
            self._revision = await self._store(free_at)
        except WrongSequence:
            return False
        except BusAway as why:
            self.problem = str(why)
            return False
        self._renewed = asked
        return True

    def _look_at(self, sequence: int, now: float) -> None:
        """Another's lease is renewed, or expires: where neither comes the server stores nothing any more."""
        if sequence != self._seen[0]:
            self._seen = sequence, now
        elif now - self._seen[1] > 2 * TTL_S:
            self.problem = (
                f"the lease was neither renewed nor let go for {now - self._seen[1]:.0f} s: the bus stores nothing, "
                "its disk may be full or have been (nats-server must be started anew then)"
            )

    async def free(self) -> bool:
        """Whether nobody has it. Raises BusAway."""
        return await self.holder() is None

    async def holder(self) -> str | None:
        """The instance that has it; None: nobody does. Raises BusAway."""
        last = await self._transport.last("KV_leases", self._subject)
        if last is None or last.headers.get("KV-Operation") == "DEL":
            return None
        return last.payload.split(b" ")[0].decode()

    async def renew(self) -> bool:
        """Keep it. False when it is lost: taken by another, or not renewed for as long as it lasts."""
        if self._revision is None:
            return False
        asked = time.monotonic()
        try:
            try:
                self._revision = await self._store(self._revision)
            except WrongSequence:
                # A renewal whose answer was lost may have landed.
                last = await self._transport.last("KV_leases", self._subject)
                if last is None or last.payload != self._value:
                    self._revision = None
                    return False
                try:
                    self._revision = await self._store(last.sequence)
                except WrongSequence as why:
                    # It is ours, and an earlier renewal is still being agreed on.
                    raise BusAway(str(why)) from None
            self._renewed = asked
        except BusAway:
            if time.monotonic() - self._renewed > TTL_S:
                self._revision = None
        return self._revision is not None

    def _ours(self, value: bytes) -> bool:
        return value.split(b" ")[0].decode() == self._instance

    async def _store(self, after: int) -> int:
        return await self._transport.store(self._subject, self._value, {}, Expectation(after))

    async def release(self) -> None:
        """Give it back, so that a standby need not wait for it to expire."""
        if self._revision is None:
            return
        with suppress(WrongSequence, BusAway):
            await self._transport.store(
                self._subject, b"", {"KV-Operation": "DEL"}, Expectation(self._revision), timeout_s=1.0
            )
        self._revision = None
