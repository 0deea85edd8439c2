"""nats-py's client, mended where it breaks."""

from __future__ import annotations

import nats.errors
from nats.aio.client import Client


class MendedClient(Client):
    """nats-py's client, mended where it breaks: 2.16 leaves a socket open, and its read loop dies of small things."""

    async def _process_pong(self) -> None:
        # Whoever waited for this pong was cancelled or gave up: answering it would raise, and end the read loop.
        if self._pongs and self._pongs[0].done():
            self._pongs.pop(0)
            self._pongs_received += 1
            self._pings_outstanding = 0
            return
        await super()._process_pong()

    async def _read_loop(self) -> None:
        await super()._read_loop()
        if self.is_connected:
            # It ended though nobody closed it: without this the client would call itself connected for ever.
            await self._process_op_err(nats.errors.StaleConnectionError())

    async def _attempt_reconnect(self) -> None:
        # What could not be sent to a server that stands still would be waited for for ever.
        transport = getattr(self._transport, "_bare_io_writer", None)
        if transport is not None:
            transport.transport.abort()
        await super()._attempt_reconnect()

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        # The server may have died between accepting and greeting.
        except BaseException:
            if self._transport is not None:
                self._transport.close()  # type: ignore[no-untyped-call]
            raise
