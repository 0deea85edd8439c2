"""A connection to NATS under an identity: made and made again, with what readers and the transport both need of it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from nats.aio.client import Client

from .nats_answers import UNREACHABLE
from .nats_client import MendedClient
from .transport import Link, Misconfigured, RawMessage, keyed_id

log = logging.getLogger("llmgw.bus")

OLDEST_SERVER = (2, 12, 1)
"""Older servers drop options silently; 2.9 knows neither the fence nor filtered consumers as we use them."""


@dataclass(frozen=True)
class BusSettings:
    """Where the bus is, and as whom to speak on it."""

    url: str = "nats://127.0.0.1:4222"
    """Comma-separated for a cluster."""
    credentials: Path | None = None
    """File with the nkey seed of the identity."""
    identity: str = "operator"
    name: str = ""
    """Shown in ``nats server report connections``."""


class Losable(Protocol):
    """What reads over the connection, and is to be opened again after a gap."""

    def lose(self, why: str) -> None:
        """What comes on it from now on may lack something; ``why`` is for the log."""
        ...

    async def close(self) -> None:
        """Read no more, and take what the server keeps of it away."""
        ...


class NatsConnection:
    """Connected again for as long as it takes, whenever it is lost."""

    def __init__(self, client: Client, link: Link, identity: str, inbox_prefix: str, id_key: bytes) -> None:
        self.client = client
        self.identity = identity
        self._id_key = id_key
        self._link = link
        self._prefix = inbox_prefix
        self.readers: set[Losable] = set()
        """Those that are open: they are lost with every reconnect."""
        self.on_failure: Callable[[str], None] = lambda why: None
        """Called when the connection is beyond repair: the process should end and be started again."""
        self.renewed = asyncio.Event()
        """Set at every reconnect; whoever waits for it clears it."""

    @classmethod
    async def connect(
        cls,
        url: str,
        identity: str,
        credentials: Path | None,
        name: str,
        trouble: Callable[[str], None] = lambda why: None,
    ) -> Self:
        """Connect, waiting as long as it takes; ``trouble`` is told each error. Raises Misconfigured for a server that
        is too old.
        """
        link = Link()
        logged_at = 0.0

        # A callback that raises would kill nats-py's read loop: these only note what happened.
        async def on_error(error: Exception) -> None:
            nonlocal logged_at
            text = str(error) or type(error).__name__
            trouble(text)
            if "permissions violation" in text.lower():
                log.error("the bus refused %s: %s", identity, text)
            elif time.monotonic() - logged_at > 5:
                logged_at = time.monotonic()
                log.warning("bus at %s: %s", url, text)

        async def on_disconnected() -> None:
            if link.connected:
                log.warning("bus connection lost")
            link.connected = False

        async def on_reconnected() -> None:
            link.connected = True
            link.epoch += 1
            link.connected_since = time.monotonic()
            log.info("bus connected again")
            connection.renewed.set()
            for reader in list(connection.readers):
                reader.lose("the connection was renewed")

        prefix = f"_INBOX.{identity}"
        client = MendedClient()
        await client.connect(
            servers=url.split(","),
            name=name,
            nkeys_seed=str(credentials) if credentials else None,
            inbox_prefix=prefix,
            error_cb=on_error,
            disconnected_cb=on_disconnected,
            reconnected_cb=on_reconnected,
            max_reconnect_attempts=-1,
            reconnect_time_wait=0.25,  # type: ignore[arg-type]  # seconds; a fraction works
            connect_timeout=2,
            ping_interval=10,
            max_outstanding_pings=2,
            pending_size=8 * 1024 * 1024,
        )
        version = client.connected_server_version
        running = (version.major, version.minor, version.patch)
        if running < OLDEST_SERVER:
            await client.close()
            raise Misconfigured(
                f"the NATS server at {url} is {'.'.join(map(str, running))}; "
                f"llmgw needs {'.'.join(map(str, OLDEST_SERVER))} or newer"
            )
        link.connected = True
        link.connected_since = time.monotonic()
        # Where there are no nkeys everyone may do everything, and nothing is kept from anybody.
        secret = credentials.read_bytes().strip() if credentials is not None else identity.encode()
        connection = cls(client, link, identity, prefix, b"message ids " + secret)
        return connection

    @property
    def connected(self) -> bool:
        """Whether messages can be sent now."""
        return self._link.connected and self.client.is_connected

    @property
    def connected_since(self) -> float:
        """Monotonic seconds."""
        return self._link.connected_since

    def message_id(self, name: str) -> str:
        """See ``Transport.message_id``."""
        return keyed_id(self._id_key, name)

    def new_inbox(self) -> str:
        """A subject that only this identity may listen to."""
        return f"{self._prefix}.{os.urandom(9).hex()}"

    async def _acknowledge(self, message: RawMessage, answer: bytes) -> None:
        with suppress(*UNREACHABLE):  # what is not acknowledged comes again
            await self.client.publish(message.reply, answer)

    async def ack(self, message: RawMessage) -> None:
        """It was dealt with. Lost when not connected: then it comes again."""
        await self._acknowledge(message, b"+ACK")

    async def nak(self, message: RawMessage, delay_s: float) -> None:
        """It is to come again after a delay."""
        # A bare nak would ignore back-off and come again at once.
        await self._acknowledge(message, b'-NAK {"delay": %d}' % int(delay_s * 1e9))

    async def term(self, message: RawMessage, reason: str) -> None:
        """It is to come no more."""
        await self._acknowledge(message, b"+TERM " + reason.encode()[:200])

    async def working(self, message: RawMessage) -> None:
        """It is being worked on: it is not to be given to another yet."""
        await self._acknowledge(message, b"+WPI")
