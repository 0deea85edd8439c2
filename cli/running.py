"""A cluster from the first process to the last: start, declare, answer, keep, stop."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from cli.cluster import Cluster, reached
from cli.console import Console
from cli.demo import Keys, answered, declare, stuck
from cli.failure import Failed
from cli.fleet import Fleet
from cli.home import Endpoint, Home, PartSeen, Phase, Record, default
from cli.output import Quiet
from cli.parts import CONTROL, GATEWAY, NATS, POSTGRES, Layout
from cli.run import stop_engines_of
from cli.supervisor import Part, Supervisor
from libs.bus import AskFailed, Bus, BusError, NoRoom, ensure, supervise
from libs.bus.topology import LEAST_USAGE_BYTES, USAGE_BYTES
from libs.events.questions import STANDINGS, ListModels, ModelsAnswer, Standing
from libs.runtime.secrets import BadSecret
from libs.runtime.servers.nats import NoBinary
from libs.runtime.servers.postgres import PrepareFailed
from libs.tasks import end

SERVERS_S = 60.0
LOOK_AT_DISK_S = 2.0
FULL_BYTES, ROOM_BYTES = 16_000_000, 64_000_000
SERVICES_S = 120.0


async def stop_engines(home: Home, agents: Sequence[str], say: Callable[[str], None]) -> None:
    """Stop the engines that stopped agents left running. What could not be stopped is told."""

    async def stop(agent: str) -> None:
        try:
            stopped = await stop_engines_of(home.settings(agent))
        except Failed as error:
            say(f"{agent}: {error.message}")
        else:
            if stopped:
                say(f"{agent}: stopped {', '.join(stopped)}")

    await asyncio.gather(*(stop(agent) for agent in agents if home.settings(agent).exists()))


def without_keys(endpoint: Endpoint, home: Home) -> Endpoint:
    """What may stand in a log: where the keys are instead of the keys."""
    return msgspec.structs.replace(
        endpoint,
        client_key=f"<client_key of {home.endpoint_file}>",
        admin_key=f"<admin_key of {home.endpoint_file}>",
    )


def banner(endpoint: Endpoint, model: str | None, home: Home) -> Iterator[str]:
    """What a person needs to make the first request."""
    yield ""
    yield "llmgw is up."
    yield f"  base URL    {endpoint.base_url}"
    yield f"  client key  {endpoint.client_key}"
    yield f"  admin key   {endpoint.admin_key}"
    yield ""
    if model is None:
        yield "No model was asked: `llmgw status` shows which there are, `llmgw apply -f FILE` adds one."
    else:
        messages = [{"role": "user", "content": "Once upon a time"}]
        body = json.dumps({"model": model, "messages": messages, "max_tokens": 60, "stream": True})
        yield f"curl -N {endpoint.base_url}/chat/completions \\"
        yield f"  -H 'Authorization: Bearer {endpoint.client_key}' -H 'Content-Type: application/json' \\"
        yield f"  -d '{body}'"
    yield ""
    where = "" if home.root == default() else f" --state-dir {home.root}"
    yield f"`{program()} status{where}` shows what runs, `{program()} event tail{where}` tells what happens."
    yield "Ctrl-C stops everything."


def program() -> str:
    """What to type for this command line here."""
    beside = Path(sys.executable).with_name("llmgw")
    installed = shutil.which("llmgw")
    if installed is not None and Path(installed).resolve() == beside.resolve():
        return "llmgw"
    here = Path.cwd()
    return str(beside.relative_to(here) if beside.is_relative_to(here) else beside)


class Running:
    """One run of ``up``."""

    def __init__(self, layout: Layout, fleet: Fleet, record: Record, console: Console, with_model: bool) -> None:
        self._layout = layout
        self._home: Home = layout.home
        self._fleet = fleet
        self._record = record
        self._console = console
        self._with_model = with_model
        self._supervisor = Supervisor(console.say, self._note)
        self._asked_to_stop = asyncio.Event()
        console.width = max(map(len, layout.names))

    async def run(self) -> None:
        """Start everything, keep it running until a signal, stop everything. Raises Failed when it cannot start."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal)
        showing = asyncio.create_task(self._console.run())
        watching = supervise(self._watch_disk, name="the look at the disk", fail=self._say)
        starting = asyncio.create_task(self._start())
        asked = asyncio.create_task(self._asked_to_stop.wait())
        failure = ""
        try:
            await asyncio.wait({starting, asked}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                await asked
        except Failed as error:
            failure = error.message
            raise
        finally:
            await end(starting, watching)
            await self._stop()
            self._phase("failed" if failure else "stopped", failure)
            showing.cancel()
            self._console.show()

    def _on_signal(self) -> None:
        if self._asked_to_stop.is_set():
            self._console.say("up", "asked again: killing what is left")
            for keeper in self._supervisor.keepers.values():
                if keeper.process is not None:
                    with suppress(ProcessLookupError):
                        os.killpg(keeper.process.pid, signal.SIGKILL)
        self._asked_to_stop.set()

    async def _start(self) -> None:
        layout, supervisor = self._layout, self._supervisor
        self._phase("starting", "starting nats-server and PostgreSQL")
        try:
            layout.nats.prepare()
            supervisor.start(self._shown(layout.nats_part()))
            await asyncio.to_thread(layout.postgres.prepare)
            layout.write_settings()
            supervisor.start(self._shown(layout.postgres_part()))
        except (BadSecret, NoBinary, PrepareFailed, LookupError, OSError) as error:
            raise Failed(str(error)) from None
        await supervisor.wait_ready([NATS], SERVERS_S)
        async with reached(layout.nats.url, self._home.identity("operator"), "operator") as bus:
            try:
                free = shutil.disk_usage(layout.nats.directory).free
                await ensure(bus, most_usage_bytes=min(USAGE_BYTES, max(LEAST_USAGE_BYTES, free // 4)))
            except NoRoom as error:
                raise Failed(
                    f"{error}. {layout.nats.directory} has {free // 10**6} MB free: make room there, or name another "
                    "--state-dir"
                ) from None
            except BusError as error:
                raise Failed(f"the streams of the bus cannot be made: {error}") from None
            self._phase("starting", "starting the services")
            services = [self._shown(part) for part in layout.service_parts()]
            for part in services:
                supervisor.start(part)
            await supervisor.wait_ready([POSTGRES], SERVERS_S)
            await supervisor.wait_ready([part.name for part in services if part.name != GATEWAY], SERVICES_S)
            await supervisor.wait_ready([GATEWAY], SERVICES_S)
            self._phase("starting", "declaring what is served")
            cluster = Cluster(bus=bus, out=Quiet(), home=self._home)
            keys = Keys.of(self._home)
            await declare(cluster, keys, self._fleet.items, self._with_model)
            model = None
            if self._with_model or any(item.kind == "model" for item in self._fleet.items):
                model = await answered(cluster, layout.base_url, keys.client.key, self._waits)
            troubles = [*await self._troubles(bus), *await self._not_served(cluster, model)]
        endpoint = Endpoint(
            base_url=layout.base_url,
            client_key=keys.client.key,
            admin_key=keys.admin.key,
            nats_url=layout.nats.url,
            postgres_dsn=layout.postgres.dsn(),
        )
        self._home.publish(endpoint)
        self._phase("ready", "\n".join(troubles))
        self._console.show()
        shown = endpoint if sys.stdout.isatty() else without_keys(endpoint, self._home)
        for line in banner(shown, model, self._home):
            self._console.plain(line)
        for line in troubles:
            self._say(line)

    async def _troubles(self, bus: Bus) -> list[str]:
        """What the services say that those who run them should know."""
        problems: list[str] = []
        for kind in STANDINGS.values():
            with suppress(AskFailed):
                problems += (await bus.ask(kind(), Standing)).problems
        return problems

    async def _not_served(self, cluster: Cluster, answers: str | None) -> list[str]:
        """Which models are not served, why, and what brought machines for them the last time."""
        views = (await cluster.ask(ListModels(), ModelsAnswer)).models
        lines = [
            f"{view.model} is not served: {view.state} ({view.reason}): see `llmgw explain {view.model}`"
            for view in stuck(views)
        ]
        if views and answers is None and self._record.fleet and not self._fleet.machines:
            lines.append(
                f"the machines of --fleet {self._record.fleet}, with which this was started before, are not there: "
                "give it again to have them"
            )
        return lines

    def _shown(self, part: Part) -> Part:
        self._console.follow(part.name, part.log)
        return part

    async def _stop(self) -> None:
        """Nobody before those who still speak to it; engines with their agents."""
        self._home.endpoint_file.unlink(missing_ok=True)
        self._phase("stopping", "")
        self._say("stopping")
        order: Sequence[Sequence[str]] = ([GATEWAY], self._layout.agents, CONTROL, [POSTGRES], [NATS])
        for names in order:
            await self._supervisor.stop(names)
            if names == self._layout.agents:
                await stop_engines(self._home, names, self._say)

    def _waits(self, line: str) -> None:
        """A phase of its own: `up --detach` tells it too."""
        self._phase("starting", line)

    def _say(self, line: str) -> None:
        self._console.say("up", line)

    def _phase(self, phase: Phase, reason: str) -> None:
        self._record.phase, self._record.reason = phase, reason
        if phase == "starting":
            self._say(reason)
        self._note()

    def _note(self) -> None:
        self._record.parts = {
            name: PartSeen(keeper.process, keeper.restarts)
            for name, keeper in self._supervisor.keepers.items()
            if keeper.process is not None
        }
        try:
            self._home.remember(self._record)
        except OSError as error:
            self._say(f"what runs cannot be written to {self._home.record_file}: {error}")

    async def _watch_disk(self) -> None:
        """A nats-server whose disk was full stores nothing more, though there be room again, until it is begun anew."""
        was_full = False
        while True:
            await asyncio.sleep(LOOK_AT_DISK_S)
            free = shutil.disk_usage(self._home.root).free
            if free < FULL_BYTES and not was_full:
                was_full = True
                self._say(f"the disk of {self._home.root} is full: nothing is stored until there is room")
            elif free > ROOM_BYTES and was_full:
                was_full = False
                self._say("there is room on the disk again: nats-server is started anew")
                self._supervisor.keepers[NATS].begin_anew()
