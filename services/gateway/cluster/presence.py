"""That the gateway of an id runs, said on the bus: a second one with the same id is noticed.

A gateway's id lies in its spool, so two have one where a spool was copied. What both hold would be counted as one's.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from pathlib import Path

from libs.bus import Bus, BusAway, Misconfigured
from libs.bus.lease import RENEW_S, TTL_S
from libs.events import decode_token, encode_token
from libs.tasks import end

log = logging.getLogger("llmgw.gateway")

PATIENCE_S = 2 * TTL_S
"""What a killed one left behind is gone by then."""
LOOK_S = 0.25


class Presence:
    """One gateway's claim to its id. An earlier run on the same spool is no other: the spool's lock sees to that."""

    def __init__(self, bus: Bus, gateway_id: str, spool: Path) -> None:
        self._bus = bus
        self._gateway_id = gateway_id
        self._instance = encode_token(f"{socket.gethostname()}:{spool.resolve()}")
        self._lease = bus.lease("gateway", self._instance, gateway_id)
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Returns when the id is ours, or nobody else's as far as the bus says: requests are served without it.

        Raises Misconfigured when another gateway runs under the id.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not await self._lease.acquire():
            other = await self._other()
            if time.monotonic() > deadline:
                if other is not None:
                    raise Misconfigured(self._told(other))
                log.warning("that this gateway runs cannot be said on the bus: %s", self._lease.problem)
                break
            await asyncio.sleep(LOOK_S)
        self._task = self._bus.background("the gateway's claim to its id", self._keep)

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            if await self._lease.renew() or await self._lease.acquire():
                continue
            other = await self._other()
            if other is not None:
                self._bus.fail(self._told(other))

    async def _other(self) -> str | None:
        """Where another gateway of our id runs; None when none does, or the bus does not say."""
        try:
            holder = await self._lease.holder()
        except BusAway:
            return None
        return None if holder in (None, self._instance) else holder

    def _told(self, other: str) -> str:
        host, _, spool = decode_token(other).partition(":")
        return (
            f"another gateway runs as {self._gateway_id}, on {host} with the spool {spool}: where this is a copy "
            "of it, remove the file id there, and it is a gateway of its own"
        )

    async def stop(self) -> None:
        """Let the id go."""
        if self._task is not None:
            await end(self._task)
        await self._lease.release()
