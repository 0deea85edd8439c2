"""Three real nats-servers that keep everything together, to be killed, frozen and cut off from each other."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from libs.bus import Bus, BusAway, BusSettings, NatsTransport, connect, ensure
from libs.runtime.servers.nats import NatsFiles
from libs.runtime.servers.ports import free_port

from .nats import NatsServer
from .proxy import TcpProxy

REPLICAS = 3
CREATE_FOR_S = 60.0


class Member(NatsServer):
    """One server of a cluster; ``routes`` are the ports it reaches the others at."""

    def __init__(self, directory: Path, name: str, *, cluster_port: int, authorization: str) -> None:
        super().__init__(directory, authorization=authorization)
        self.server_name = name
        self.cluster_port = cluster_port
        self.routes: list[int] = []

    @property
    def files(self) -> NatsFiles:
        """With a route to each of the others through its proxy, and none that servers tell each other."""
        routes = ", ".join(f'"nats-route://127.0.0.1:{port}"' for port in self.routes)
        cluster = (
            f"cluster {{ name: llmgw, listen: 127.0.0.1:{self.cluster_port}, routes: [{routes}], pool_size: -1\n"
            # What one server tells the next of the third leads nowhere: they meet through the proxies only.
            "  advertise: 127.0.0.1:1, no_advertise: true }\n"
        )
        return NatsFiles(
            directory=self.directory,
            port=self.port,
            authorization=cluster + self.authorization,
            # What one loses with its power the others have.
            sync_interval="2m",
            server_name=self.server_name,
        )

    def freeze(self) -> None:
        """SIGSTOP: its connections stay, nothing moves."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Undo ``freeze``."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


class NatsCluster:
    """Three servers with the product's configuration on free ports, and the topology on all three of them.

    Use as an async context manager on the loop of the test: the routes between the servers run through it.
    """

    def __init__(self, directory: Path, *, authorization: str = "", operator: Path | None = None) -> None:
        self._operator = operator
        self.members = [
            Member(directory / f"n{n}", f"n{n}", cluster_port=free_port(), authorization=authorization)
            for n in range(REPLICAS)
        ]
        self._routes: dict[tuple[int, int], TcpProxy] = {}

    @property
    def url(self) -> str:
        """Of all its servers, as a client is given it."""
        return ",".join(member.url for member in self.members)

    async def __aenter__(self) -> NatsCluster:
        for here, member in enumerate(self.members):
            for there, other in enumerate(self.members):
                if here != there:
                    proxy = self._routes[here, there] = TcpProxy("127.0.0.1", other.cluster_port)
                    await proxy.start()
                    member.routes.append(proxy.port)
        await asyncio.gather(*(asyncio.to_thread(member.start) for member in self.members))
        bus = await self.connect("operator")
        try:
            async with asyncio.timeout(CREATE_FOR_S):
                while True:
                    try:
                        await ensure(bus, REPLICAS)
                        break
                    except BusAway:
                        await asyncio.sleep(0.2)
        finally:
            await bus.close()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            if member.process is not None:
                member.thaw()
            await asyncio.to_thread(member.kill)
        for proxy in self._routes.values():
            await proxy.stop()

    async def connect(self, identity: str, to: Sequence[Member] = (), first: Member | None = None) -> Bus:
        """A bus under an identity, which knows all servers, or only those of ``to``, and begins with ``first``. Raises
        Misconfigured."""
        url = ",".join(member.url for member in to) or self.url
        credentials = self._operator if identity == "operator" else None
        while True:
            bus = await connect(BusSettings(url=url, identity=identity, credentials=credentials))
            assert isinstance(bus.transport, NatsTransport)
            there = bus.transport.client.connected_url
            if first is None or (there is not None and there.port == first.port):
                return bus
            await bus.close()  # the client takes any of them

    async def leader(self, bus: Bus, stream: str = "EVENTS") -> Member:
        """The server that leads a stream now. Raises BusAway while none does."""
        assert isinstance(bus.transport, NatsTransport)
        info: dict[str, Any] = await bus.transport.api(f"STREAM.INFO.{stream}")
        name = info["cluster"].get("leader")
        if name is None:
            raise BusAway(f"{stream} has no leader")
        return next(member for member in self.members if member.server_name == name)

    async def cut_off(self, member: Member) -> None:
        """It goes on running and its clients stay connected, but no other server hears it."""
        for proxy in self._of(member):
            await proxy.refuse()

    async def rejoin(self, member: Member) -> None:
        """Undo ``cut_off``."""
        for proxy in self._of(member):
            await proxy.heal()

    def _of(self, member: Member) -> list[TcpProxy]:
        number = self.members.index(member)
        return [proxy for ends, proxy in self._routes.items() if number in ends]
