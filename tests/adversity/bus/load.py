"""Everything services do with the bus, going on while servers die, and what must be so afterwards."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from typing import Any

from libs.bus import Authority, Bus, BusAway, Delivery, OwnedView, Unanswered
from libs.events import Event
from libs.events.commands import CordonNode
from libs.events.machine import MachineErrandEnded
from libs.events.node import NodeCordoned
from libs.events.usage import UsageBatch
from libs.events.views import LibraryEntry
from libs.testing import eventually
from libs.testing.nats_cluster import NatsCluster

EVERY_S = 0.05
NOW = datetime(2026, 1, 1, tzinfo=UTC)

State = dict[str, int]
"""Machine to how often it was cordoned: twice is once too often."""


def evolve(state: State, event: Event, position: int) -> State:
    if isinstance(event, NodeCordoned):
        state[event.machine_id] = state.get(event.machine_id, 0) + 1
    return state


def decide(state: State, command: CordonNode, command_id: str, now: datetime) -> Event | None:
    return NodeCordoned(at=now, machine_id=command.machine_id, reason=command_id)


class Load:
    """Two authorities, a view, a follower, a durable worker; commands, facts and usage sent all the time."""

    def __init__(self, cluster: NatsCluster) -> None:
        self._cluster = cluster
        self._stack = AsyncExitStack()
        self._sending: list[asyncio.Task[None]] = []
        self._ending = asyncio.Event()
        self.buses: list[Bus] = []
        self.authorities: list[Authority[State]] = []
        self.commands: list[str] = []
        self.facts = self.usage = 0
        self.followed: list[str] = []
        self.worked: Counter[int] = Counter()
        self.viewed: dict[str, LibraryEntry | None] = {}
        self._done: dict[str, float] = {}

    async def _bus(self, identity: str) -> Bus:
        bus = await self._cluster.connect(identity)
        self.buses.append(bus)
        self._stack.push_async_callback(bus.close)
        return bus

    async def __aenter__(self) -> Load:
        for instance in ("a", "b"):
            bus = await self._bus("scheduler")
            view = OwnedView(bus.view("library", LibraryEntry))

            async def on_change(state: State, position: int, view: OwnedView[LibraryEntry] = view) -> None:
                term = next(one for one in self.authorities if one.leading)._fence
                assert term is not None
                entry = LibraryEntry(name="n", versions={}, latest=str(len(state)))
                await view.become({"n": entry}, term.sequence)

            authority = Authority[State](
                bus,
                "scheduler",
                instance,
                subjects=["llmgw.evt.node.>"],
                initial={},
                evolve=evolve,
                decide=decide,
                on_change=on_change,
            )
            await authority.start()
            self.authorities.append(authority)
            self._stack.push_async_callback(authority.stop)
        follower, worker, self._sender = await self._bus("f"), await self._bus("w"), await self._bus("operator")
        await follower.follow("EVENTS", ["llmgw.evt.machine.>"], self._follow)
        await worker.work("accounting-ledger", self._work)
        watch = await follower.view("library", LibraryEntry).watch(self._watch)
        self._stack.push_async_callback(watch.stop)
        await eventually(lambda: any(one.leading for one in self.authorities), 30)
        for send in (self._commands, self._facts, self._usage):
            self._sending.append(asyncio.create_task(send()))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ending.set()
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)
        await self._stack.aclose()

    async def _follow(self, delivery: Delivery) -> None:
        assert isinstance(delivery.message, MachineErrandEnded)
        self.followed.append(delivery.message.machine_id)

    async def _work(self, deliveries: list[Delivery]) -> None:
        self.worked.update(d.message.offset for d in deliveries if isinstance(d.message, UsageBatch))

    async def _watch(self, key: str, value: LibraryEntry | None) -> None:
        self.viewed[key] = value

    # what is sent

    async def _commands(self) -> None:
        for number in itertools.count():
            if self._ending.is_set():
                return
            command_id, command = f"c-{number}", CordonNode(machine_id=f"m{number}")
            self.commands.append(command.machine_id)
            await self._until_done("command", lambda one=command, id=command_id: self._command(one, id))

    async def _command(self, command: CordonNode, command_id: str) -> None:
        outcome = await self._sender.command(command, command_id=command_id, timeout_s=5)
        assert outcome.status == "done", outcome

    async def _facts(self) -> None:
        while not self._ending.is_set():
            number = self.facts
            fact = MachineErrandEnded(
                at=NOW, machine_id=f"f{number}", errand=1, kind="restart_agent", outcome="done", reason=""
            )
            self.facts += 1
            await self._until_done("fact", lambda one=fact, n=number: self._sender.append(one, cause=f"f{n}"))

    async def _usage(self) -> None:
        while not self._ending.is_set():
            batch = UsageBatch(gateway_id="g", offset=self.usage, records=())
            self.usage += 1
            await self._until_done("usage", lambda one=batch: self._sender.append(one, cause=f"u{one.offset}"))

    async def _until_done(self, what: str, send: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        while True:
            try:
                await send()
                break
            except (BusAway, Unanswered):
                continue
        self._done[what] = time.monotonic()
        await asyncio.sleep(EVERY_S)

    # what must be so

    async def flows(self, bound_s: float) -> float:
        """Wait until everything gets through again; returns the seconds it took."""
        began = time.monotonic()
        while time.monotonic() < began + bound_s:
            for task in self._sending:
                if task.done():
                    task.result()
            assert self._failed() == []
            if len(self._done) == 3 and min(self._done.values()) > began:
                return time.monotonic() - began
            await asyncio.sleep(EVERY_S)
        held = [what for what in ("command", "fact", "usage") if self._done.get(what, 0.0) <= began]
        raise AssertionError(f"not again within {bound_s:g} s: {', '.join(held)}; leading: {self._leading()}")

    def _leading(self) -> list[str]:
        return [one.instance for one in self.authorities if one.leading]

    def _failed(self) -> list[str]:
        return [bus.failure for bus in self.buses if bus.failed.is_set()]

    async def check(self) -> None:
        """Send no more; nothing was lost, nothing came twice, nobody ended, one leads."""
        self._ending.set()
        await asyncio.wait(self._sending, timeout=60)
        for task in self._sending:
            task.result()
        assert self._failed() == []
        wanted = [f"f{n}" for n in range(self.facts)]
        await eventually(lambda: len(self.followed) >= len(wanted), 30)
        assert self.followed == wanted
        await eventually(lambda: set(self.worked) == set(range(self.usage)), 30)
        once = dict.fromkeys(self.commands, 1)
        for authority in self.authorities:
            await eventually(lambda one=authority: len(one.state) == len(once), 30)
            assert authority.state == once
        await eventually(lambda: sum(one.leading for one in self.authorities) == 1, 30)
        entry = LibraryEntry(name="n", versions={}, latest=str(len(once)))
        await eventually(lambda: self.viewed == {"n": entry}, 30)
