"""Leaving a server that is no good, and saying so when no connection is."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from nats.aio.client import Client

from .transport import BusAway, Misconfigured

log = logging.getLogger("llmgw.bus")

LOOK_EVERY_S = 1.0
PING_EVERY_S = 5
PROBE_EVERY_S = 10.0
SILENT_FOR_S = 6.0
"""JetStream answering nothing for so long is no election of a leader: of several servers another one is tried."""
DEAD_AFTER = 4
"""Pongs that did not come, one after another, the last of them from a new connection."""


class Watch:
    """Over one connection. ``probe`` raises BusAway where the server is cut off from the others."""

    def __init__(self, client: Client, probe: Callable[[], Awaitable[object]]) -> None:
        self._client = client
        self._probe = probe
        self._silent_since = 0.0
        """Monotonic seconds: since when JetStream has answered nothing here; 0: it answered the last question."""

    def answered(self) -> None:
        """JetStream answered a request."""
        self._silent_since = 0.0

    def unanswered(self) -> None:
        """JetStream did not answer a request."""
        self._silent_since = self._silent_since or time.monotonic()

    async def run(self, fail: Callable[[str], None]) -> None:
        """For ever, or until the connection is beyond repair: then ``fail`` is told why.

        A read loop can die, or a server stand still, while the client still calls itself connected: a pong is asked
        for now and then. A server cut off from the others answers, and can store and read nothing; it goes on talking
        to who only listens, and has nothing to say.
        """
        missed, pinged, probed = 0, time.monotonic(), time.monotonic()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if not self._client.is_connected:
                missed = 0
                if self._client.is_closed:
                    return fail("the bus connection was closed")
                continue
            if len(self._client.servers) > 1:
                await self._leave_when_silent()
                if time.monotonic() - probed > PROBE_EVERY_S:
                    await self._ask_for_majority()
                    probed = time.monotonic()
            if time.monotonic() - pinged < PING_EVERY_S:
                continue
            missed = 0 if await self._pong() else missed + 1
            pinged = time.monotonic()
            if missed >= DEAD_AFTER:
                return fail("the bus connection is dead though it calls itself connected")
            if missed >= 2:
                await self._client.force_reconnect()

    async def _pong(self) -> bool:
        try:
            await self._client.rtt(timeout=PING_EVERY_S)
        except Exception:
            return False
        return True

    async def _leave_when_silent(self) -> None:
        silent_s = time.monotonic() - self._silent_since if self._silent_since else 0.0
        if silent_s > SILENT_FOR_S:
            log.warning("JetStream has not answered for %.0f s here: another server is tried", silent_s)
            self._silent_since = 0.0
            await self._client.force_reconnect()

    async def _ask_for_majority(self) -> None:
        try:
            await self._probe()
        except BusAway as why:
            log.info("whether others hear this server is not known: %s", why)
            self.unanswered()
        except Misconfigured:
            return  # there is no stream yet to ask about
