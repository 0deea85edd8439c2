"""One shard, from being taken up to being gone."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from libs.events.machine import ShardOutput
from libs.events.shard import (
    Phase,
    ShardAdopted,
    ShardFailed,
    ShardLoading,
    ShardReady,
    ShardStarting,
    ShardStopped,
)
from libs.events.views import ShardWanted
from libs.runtime.secrets import BadSecret
from libs.runtime.servers.ports import free_port
from libs.tasks import end
from services.nodeagent.adapters.engine import process as processes
from services.nodeagent.adapters.engine.client import EngineClient
from services.nodeagent.adapters.engine.output import last_lines
from services.nodeagent.adapters.engine.process import StillRunning
from services.nodeagent.core.engines import (
    Engine,
    Lora,
    Place,
    environment,
)
from services.nodeagent.core.shard import failure_causes
from services.nodeagent.core.shard.offload import Offload, fell_back
from services.nodeagent.core.shard.record import ENDED, EngineProcess, ShardRecord

from . import gpu_memory
from .fetching import Fetched
from .liveness import LivenessWatcher
from .node import Failure, Node
from .readiness import until_serving
from .state import ShardState
from .weights import brought, listed, loras

log = logging.getLogger(__name__)

_LOOK_S = 0.2
"""How soon the death of an engine is seen."""

_PROBE_S = 2.0
"""Time between two looks at a serving engine's health and figures."""

_DRAINED_AFTER_S = 5.0
"""A draining engine without requests for so long gets none any more: gateways hear of it within a second."""

_RENEWED_AFTER_S = 30.0
"""An engine that is to start anew may finish what it has for so long."""

_RETRY_S = 5.0

_LOADING = 1000
"""Output lines an engine prints while it loads, and some more."""

_TAIL = 50
"""Output lines told when an engine failed."""


class ShardRunner(ShardState):
    """Runs one shard. Its record is on disk before each step.

    ``changed`` is called whenever its phase changed; ``lacking`` says what this machine lacks for it now, or None.
    """

    def __init__(
        self,
        node: Node,
        record: ShardRecord,
        changed: Callable[[], None],
        lacking: Callable[[ShardWanted], str | None],
    ) -> None:
        super().__init__(node, record, changed)
        self._lacking = lacking
        self._task: asyncio.Task[None] | None = None
        self._client: EngineClient | None = None
        self._engine: Engine | None = None
        self.ready = False
        self._draining = False
        self._used_before_mb: dict[str, int] = {}

    def begin(self) -> None:
        """Bring the shard up; its record says that nothing of it runs yet."""
        self._run(lambda: self._live(self._bring_up))

    def adopt(self) -> None:
        """Go on where an earlier agent left off."""
        self._run(lambda: self._live(self._take_over))

    def _run(self, part: Callable[[], Awaitable[None]]) -> None:
        """Live through this part of it from now on. Engines outlive an agent that ends for a fault in it."""
        self._task = self._node.bus.background(f"shard {self.wanted.shard_id}", part)

    async def let_go(self) -> None:
        """Stop watching; the engine stays as it is."""
        if self._task is not None:
            await end(self._task)

    def drain(self) -> None:
        """Stop as soon as no request is left; at once if it does not serve yet."""
        if not self._draining and self.record.phase not in (*ENDED, "stopping"):
            self._draining = True
            if self.record.phase != "ready":
                self.stop("drained before it served")

    def stop(self, reason: str) -> None:
        """Stop the engine on purpose, whatever it is doing."""
        try:
            self._write(phase="stopping", reason=reason)
        except OSError as error:
            # It is stopped all the same: what stops may be what fills the disk, and an agent that comes back finds
            # that it is not wanted.
            log.error("shard %s: that it is stopped cannot be written down: %s", self.wanted.shard_id, error)
        earlier = self._task
        self.ready = False
        self._run(lambda: self._stop(earlier))

    def renew(self, number: int) -> None:
        """Start the engine anew, once for each errand: a serving one when it has no request, or half a minute on."""
        if number != self.record.renewal and self.record.phase not in (*ENDED, "stopping"):
            self._write(renewal=number)
            if self.record.phase != "ready":
                self._renew()

    def _renew(self) -> None:
        self._write(phase="renewing")
        earlier = self._task
        self.ready = False
        self._run(lambda: self._live(lambda: self._begin_anew(earlier)))

    # the parts of a life

    async def _live(self, beginning: Callable[[], Any]) -> None:
        try:
            await beginning()
            await self._watch()
        except Failure as failure:
            await self._fail(failure)
        except Exception as error:
            log.exception("shard %s", self.wanted.shard_id)
            await self._fail(Failure("starting", f"the agent itself failed: {type(error).__name__}"))

    async def _bring_up(self) -> None:
        node, wanted = self._node, self.wanted
        engine = node.engines.get(wanted.engine)
        if engine is None:
            names = ", ".join(sorted(node.engines)) or "none"
            raise Failure("refused", f"the engine {wanted.engine} is not on this machine (there are: {names})")
        source, wanted = await listed(node, wanted)
        # What no room would help comes first.
        refusal = engine.refusal(wanted, node.gpus()) or self._lacking(wanted)
        if refusal is not None:
            raise Failure("refused", refusal)
        key = self._key()
        self._report(ShardStarting, engine=wanted.engine)
        # From here on its room is taken: the next shard that asks finds less.
        self._write(phase="fetching")
        weights, fetched_bytes = None, 0
        if wanted.weights is not None:
            fetched = Fetched(source, 0) if source is not None else await brought(node, wanted, wanted.weights)
            fetched_bytes = fetched.fetched_bytes
            entry = engine.entry([file.path for file in wanted.weights.files])
            weights = str(fetched.folder / entry) if entry is not None else None
        tunings, more_bytes = await loras(node, wanted)
        self._write(fetched_bytes=fetched_bytes + more_bytes)
        async with node.devices(wanted.devices):
            for attempt in (1, 2):
                self._spawn(engine, key, weights, tunings)
                try:
                    await self._until_ready()
                    return
                except Failure as failure:
                    # The port was free a moment ago; another program was faster.
                    if attempt == 2 or failure_causes.PORT_TAKEN not in failure.reason:
                        raise
                    log.info("shard %s: %s; another port is tried", wanted.shard_id, failure.reason)
                    self._write(run=self.record.run + 1)

    async def _begin_anew(self, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await end(earlier)
        await self._until_gone()
        record = self.record
        self._write(phase="accepted", run=record.run + 1, process=None, renewed=record.renewal)
        await self._bring_up()

    def _key(self) -> str | None:
        if self.wanted.sealed_key is None:
            return None
        try:
            return self._node.sealing_key.open(self.wanted.sealed_key).decode()
        except BadSecret as error:
            raise Failure("refused", f"its key cannot be opened: {error}") from None

    def _spawn(self, engine: Engine, key: str | None, weights: str | None, loras: tuple[Lora, ...]) -> None:
        node, wanted = self._node, self.wanted
        host = node.hardware.address
        port = free_port(host)
        url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        place = Place(
            host=host,
            port=port,
            weights=weights,
            cpu_count=node.hardware.cpu_count,
            interface=node.interface,
            ports=node.hardware.ports,
            loras=loras,
        )
        command = engine.command(wanted, place)
        self._used_before_mb = node.hardware.gpu_used_mb()
        # On disk before it runs: whatever carries the mark from now on belongs to this shard.
        self._write(phase="spawning", command=tuple(command), url=url, spawned_at=datetime.now(UTC))
        try:
            started = node.processes.start(
                wanted.shard_id, command, environment(wanted, engine, key, place), node.files.output(wanted.shard_id)
            )
        except OSError as error:
            raise Failure("starting", f"{command[0]} could not be started: {error.strerror}") from None
        self._write(phase="loading", process=started)
        self._client, self._engine = EngineClient(url, key, engine), engine
        self._report(ShardLoading, pid=started.pid, fetched_bytes=self.record.fetched_bytes)

    async def _until_ready(self) -> None:
        client, process = self._client, self.record.process
        assert client is not None
        assert process is not None
        held = await until_serving(
            self._node,
            self.wanted,
            process,
            client,
            self._used_before_mb,
            lambda: self.usage.rss_mb if self.usage else 0,
            lambda: self._raise_if_dead(process, "loading", "while loading"),
        )
        self._become_ready(process, held)

    def _become_ready(self, process: EngineProcess, held: dict[str, int]) -> None:
        spawned = self.record.spawned_at or datetime.now(UTC)
        # A start script may have become the engine by now: what it is called is what an adopter will find.
        named = processes.describe(process.pid) or process
        offload = self._offload()
        self._report(
            ShardReady,
            pid=process.pid,
            url=self.record.url,
            backend=offload.backend,
            gpu_layers=offload.gpu_layers,
            layers=offload.layers,
            loaded_ms=int((datetime.now(UTC) - spawned).total_seconds() * 1000),
            engine=self.wanted.engine,
            engine_version=self._node.versions.get(self.wanted.engine, ""),
            gpu_memory_mb=held,
        )
        self._write(phase="ready", process=named, offload=offload)
        self.ready = True

    def _offload(self) -> Offload:
        """Where the engine computes. Raises Failure when it should not compute there."""
        assert self._engine is not None
        output = self._node.files.output(self.wanted.shard_id)
        offload = self._engine.offload(last_lines(output, _LOADING))
        sentence = fell_back(offload, len(self.wanted.devices))
        if sentence is not None:
            raise Failure("loading", sentence)
        return offload

    def _raise_if_dead(self, process: EngineProcess, phase: Phase, when: str) -> None:
        if self._node.processes.running(process):
            return
        code = self._node.processes.exit_code(process)
        lines = last_lines(self._node.files.output(self.wanted.shard_id), _TAIL)
        raise Failure(phase, failure_causes.death(code, lines, when), code)

    async def _take_over(self) -> None:
        """Find what an earlier agent left of this shard and go on from there."""
        node, record = self._node, self.record
        process = record.process
        if process is not None:
            node.processes.adopt(process)
        if record.phase == "renewing":
            return await self._begin_anew(None)
        if record.phase == "spawning":
            process = await asyncio.to_thread(
                processes.leader, processes.mark_of(node.files.data_dir, self.wanted.shard_id)
            )
            if process is not None:
                self._write(phase="loading", process=process)
        if process is None:
            self._write(phase="accepted", run=record.run + 1)
            return await self._bring_up()
        if not await asyncio.to_thread(processes.same, process):
            phase: Phase = "ready" if record.phase == "ready" else "loading"
            raise Failure(phase, "the engine was gone when the agent came back: it died, or the machine was restarted")
        engine = node.engines.get(self.wanted.engine)
        if engine is None:
            raise Failure("ready", f"the engine {self.wanted.engine} is no longer on this machine")
        self._client, self._engine = EngineClient(record.url, self._key(), engine), engine
        serves = record.phase == "ready" and (self.wanted.rank > 0 or await self._client.healthy())
        log.info("shard %s runs as process %d and is taken over", self.wanted.shard_id, process.pid)
        self._report(ShardAdopted, pid=process.pid, url=record.url, ready=serves)
        if serves:
            self.ready = True
        else:
            await self._until_ready()

    async def _watch(self) -> None:
        """Until the engine dies or hangs, or is drained. Raises Failure."""
        client, engine, process = self._client, self._engine, self.record.process
        assert client is not None
        assert engine is not None
        assert process is not None
        self._watcher = watcher = LivenessWatcher(self.wanted, engine, client)
        due = time.monotonic()
        renewing_at: float | None = None
        while True:
            self._raise_if_dead(process, "ready", "while serving")
            if time.monotonic() >= due:
                due = time.monotonic() + _PROBE_S
                sentence = await self._seen(watcher)
                if sentence is not None:
                    raise Failure("ready", sentence)
                if self._draining and watcher.idle_s() >= _DRAINED_AFTER_S:
                    return self.stop("drained: no request is left")
                if self.record.renewal != self.record.renewed:
                    renewing_at = renewing_at or time.monotonic() + _RENEWED_AFTER_S
                    if watcher.idle_s() >= _DRAINED_AFTER_S or time.monotonic() >= renewing_at:
                        return self._renew()
            await asyncio.sleep(_LOOK_S)

    async def _seen(self, watcher: LivenessWatcher) -> str | None:
        """What is wrong with the engine, or None. A look that fails is the agent's fault and ends no engine."""
        try:
            return await watcher.look(self.usage, self._node.stuck_after_s)
        except Exception:
            log.exception("shard %s could not be looked at", self.wanted.shard_id)
            return None

    async def _fail(self, failure: Failure) -> None:
        self.ready = False
        await self._until_gone()
        await self._insisting(self._say_failed, failure)

    async def _insisting(self, step: Callable[..., Awaitable[None]], *arguments: Any) -> None:
        """Do a step that writes to disk, again until it is done: a full disk must not hide how a shard ended."""
        while True:
            try:
                return await step(*arguments)
            except OSError as error:
                log.error("shard %s: its end cannot be written down (%s); tried again", self.wanted.shard_id, error)
                await asyncio.sleep(_RETRY_S)

    async def _say_failed(self, failure: Failure) -> None:
        lines = last_lines(self._node.files.output(self.wanted.shard_id), _TAIL)
        if lines:
            await self._node.bus.tell(
                ShardOutput(
                    at=datetime.now(UTC),
                    machine_id=self._node.machine_id,
                    shard_id=self.wanted.shard_id,
                    lines=tuple(lines),
                )
            )
        self._report(ShardFailed, phase=failure.phase, reason=failure.reason, exit_code=failure.exit_code)
        self._write(phase="failed", reason=failure.reason, exit_code=failure.exit_code)

    async def _stop(self, earlier: asyncio.Task[None] | None) -> None:
        if earlier is not None:
            await end(earlier)
        await self._until_gone()
        await self._insisting(self._say_stopped)

    async def _say_stopped(self) -> None:
        self._report(ShardStopped, reason=self.record.reason)
        self._write(phase="stopped")

    def say_end_again(self) -> None:
        """How it ended, to a log that has forgotten it."""
        record = self.record
        if record.phase == "failed":
            phase: Phase = "ready" if record.url else "starting"
            self._report(ShardFailed, phase=phase, reason=record.reason, exit_code=record.exit_code)
        else:
            self._report(ShardStopped, reason=record.reason)

    async def _until_gone(self) -> None:
        while True:
            try:
                await self._node.processes.stop(self.wanted.shard_id, self.record.process, self._node.stop_grace_s)
                pids = self.usage.pids if self.usage else frozenset()
                return await gpu_memory.until_given_back(self._node, self.wanted, pids)
            except StillRunning as error:
                # Its room is not free while it lives, so nothing is reported yet.
                log.error("shard %s: %s; still waiting for them", self.wanted.shard_id, error)
            except OSError as error:
                log.error("shard %s cannot be stopped (%s); tried again", self.wanted.shard_id, error)
                await asyncio.sleep(_RETRY_S)

    def go_on_stopping(self) -> None:
        """An earlier agent was stopping it."""
        self._run(lambda: self._stop(None))
