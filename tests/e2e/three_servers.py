"""The six services on a bus of three servers, as `llmgw up` starts them on one of its own."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from types import SimpleNamespace, TracebackType

from cli import fleet as fleets
from cli.cluster import Cluster
from cli.demo import Keys, declare
from cli.home import Home
from cli.output import Quiet
from cli.parts import CONTROL, GATEWAY, POSTGRES, Layout, ports_needed
from cli.ports import choose
from cli.running import stop_engines
from cli.supervisor import Supervisor
from libs.bus import Bus
from libs.testing.nats_cluster import NatsCluster
from tests.e2e.cluster import FLEET

SERVICES_S = 120.0


class OverThree:
    """Every part but the bus as a process of this test; ``nats`` is the bus."""

    def __init__(self, directory: Path) -> None:
        self.home = Home(directory / "state")
        self._fleet = fleets.load(FLEET)
        self._stack = AsyncExitStack()
        self.said: list[str] = []
        self.supervisor = Supervisor(lambda part, line: self.said.append(f"{part}: {line}"), lambda: None)

    async def __aenter__(self) -> OverThree:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def _start(self) -> None:
        home = self.home
        home.make()
        self.layout = layout = Layout(home, choose(ports_needed(self._fleet.machines), {}, 0), self._fleet.machines)
        # Its own server is not started: its users are those of the three, which stand in its place.
        users, operator = layout.nats.authorization, home.identity("operator")
        self.nats = await self._stack.enter_async_context(
            NatsCluster(home.root / "three", authorization=users, operator=operator)
        )
        vars(layout)["nats"] = SimpleNamespace(url=self.nats.url)
        self._stack.push_async_callback(self._stop)
        await asyncio.to_thread(layout.postgres.prepare)
        layout.write_settings()
        parts = [layout.postgres_part(), *layout.service_parts()]
        for part in parts:
            self.supervisor.start(part)
        self.bus: Bus = await self.nats.connect("operator")
        self._stack.push_async_callback(self.bus.close)
        await self.supervisor.wait_ready([part.name for part in parts if part.name != GATEWAY], SERVICES_S)
        await self.supervisor.wait_ready([GATEWAY], SERVICES_S)
        self.keys = Keys.of(home)
        await declare(Cluster(bus=self.bus, out=Quiet(), home=home), self.keys, self._fleet.items, with_model=False)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    async def _stop(self) -> None:
        for names in ([GATEWAY], self.layout.agents, CONTROL, [POSTGRES]):
            await self.supervisor.stop(names)
        await stop_engines(self.home, self.layout.agents, self.said.append)

    @property
    def restarts(self) -> dict[str, int]:
        """Parts that ended and were started again."""
        return {name: keeper.restarts for name, keeper in self.supervisor.keepers.items() if keeper.restarts}
