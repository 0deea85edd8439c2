"""The agent is killed at every point of a start: afterwards there is exactly one engine, and it serves."""

from __future__ import annotations

import signal

import msgspec
import pytest

from libs.events.machine import MachineRegistered
from libs.events.shard import ShardAdopted, ShardFailed, ShardReady, ShardStopped
from libs.testing.waiting import eventually
from services.nodeagent.adapters.disk.lock import FolderInUse
from services.nodeagent.stop_all import stop_all
from tests.integration.nodeagent.box import Box, alive, signal_process
from tests.unit.nodeagent.wanted import shard

AFTER_WRITING = """
from services.nodeagent.adapters.disk.shard_files import ShardFiles
write = ShardFiles.write
def dying(self, record):
    write(self, record)
    if record.phase == {phase!r}:
        die()
ShardFiles.write = dying
"""
BETWEEN_START_AND_NOTE = """
from services.nodeagent.adapters.engine.process import Engines
start = Engines.start
def dying(self, *arguments):
    start(self, *arguments)
    die()
Engines.start = dying
"""
BEFORE_NOTING_READY = """
from libs.events.shard import ShardReady
from services.nodeagent.adapters.disk.outbox import Outbox
put = Outbox.put
def dying(self, event, cause):
    put(self, event, cause)
    if isinstance(event, ShardReady):
        die()
Outbox.put = dying
"""
BEFORE_WRITING = """
from services.nodeagent.adapters.disk.shard_files import ShardFiles
write = ShardFiles.write
def dying(self, record):
    if record.phase == {phase!r}:
        die()
    write(self, record)
ShardFiles.write = dying
"""
AFTER_REPORTING = """
from libs.events import shard
from services.nodeagent.adapters.disk.outbox import Outbox
put = Outbox.put
def dying(self, event, cause):
    put(self, event, cause)
    if isinstance(event, shard.{kind}):
        die()
Outbox.put = dying
"""
AFTER_ASKING = """
from services.nodeagent.adapters.engine.client import EngineClient
ask = EngineClient.{what}
async def dying(self, *arguments):
    answer = await ask(self, *arguments)
    if answer is {good}:
        die()
    return answer
EngineClient.{what} = dying
"""
CHOOSING_A_PORT = """
from services.nodeagent.shard import shard_runner
shard_runner.free_port = lambda host: die()
"""
DEATHS = {
    "before it is noted": BEFORE_WRITING.format(phase="accepted"),
    "taken up": AFTER_WRITING.format(phase="accepted"),
    "its start told": AFTER_REPORTING.format(kind="ShardStarting"),
    "its room taken": AFTER_WRITING.format(phase="fetching"),
    "a port being chosen": CHOOSING_A_PORT,
    "about to note its command": BEFORE_WRITING.format(phase="spawning"),
    "about to spawn": AFTER_WRITING.format(phase="spawning"),
    "spawned, number not noted": BETWEEN_START_AND_NOTE,
    "loading": AFTER_WRITING.format(phase="loading"),
    "loading told": AFTER_REPORTING.format(kind="ShardLoading"),
    "healthy": AFTER_ASKING.format(what="healthy", good=True),
    "first token generated": AFTER_ASKING.format(what="generates", good=None),
    "ready, not noted": BEFORE_NOTING_READY,
    "ready": AFTER_WRITING.format(phase="ready"),
}
UNSPAWNED = {*list(DEATHS)[:7]}


@pytest.mark.parametrize("point", DEATHS)
async def test_an_agent_killed_while_starting_a_shard(box: Box, point: str) -> None:
    agent = box.start_agent(DEATHS[point])
    await box.want(shard())
    assert await eventually(lambda: agent.poll() is not None)
    assert agent.returncode == -signal.SIGKILL
    left = box.engine_pids().get("r-1-0", [])
    assert len(left) == (0 if point in UNSPAWNED else 1)

    box.start_agent()
    await eventually(lambda: "r-1-0" in box.records() and box.records()["r-1-0"].phase == "ready", 15)
    running = box.engine_pids()["r-1-0"]
    assert len(running) == 1
    if left:
        assert running == left, "what ran was restarted"
        adopted = await box.next(ShardAdopted)
        assert adopted.pid == left[0]
        assert adopted.ready == (point == "ready")
    ready = await box.next(ShardReady)
    assert ready.pid == running[0]
    assert box.of(ShardFailed) == []
    await box.want()
    await box.next(ShardStopped)
    assert box.engine_pids() == {}


async def test_an_agent_killed_and_restarted_three_times_touches_nothing(box: Box) -> None:
    box.start_agent()
    await box.want(shard("r-1-0"), shard("r-2-0"))
    await box.next(ShardReady, 2)
    pids = box.engine_pids()
    for n in (1, 2, 3):
        box.kill_agent()
        assert box.engine_pids() == pids
        box.start_agent()
        await box.next(ShardAdopted, 2 * n)
    assert box.engine_pids() == pids
    assert all(adopted.ready for adopted in box.of(ShardAdopted))
    assert len(box.of(MachineRegistered)) == 4
    signal_process(pids["r-1-0"][0], signal.SIGKILL)
    failed = await box.next(ShardFailed)
    assert (failed.shard_id, failed.exit_code) == ("r-1-0", None), "an adopted engine's death is seen too"


async def test_a_stopping_agent_stops_no_engine(box: Box) -> None:
    box.start_agent()
    await box.want(shard())
    ready = await box.next(ShardReady)
    assert box.stop_agent() == 0
    assert alive(ready.pid)
    box.start_agent()
    adopted = await box.next(ShardAdopted)
    assert adopted.pid == ready.pid


async def test_an_engine_that_died_with_its_agent_is_reported_once(box: Box) -> None:
    box.start_agent()
    await box.want(shard())
    ready = await box.next(ShardReady)
    box.kill_agent()
    signal_process(ready.pid, signal.SIGKILL)
    box.start_agent()
    failed = await box.next(ShardFailed)
    assert "gone when the agent came back" in failed.reason
    assert box.engine_pids() == {}
    await box.want()
    await eventually(lambda: box.records() == {})
    assert len(box.of(ShardFailed)) == 1


async def test_another_program_that_got_the_number_is_not_adopted(box: Box) -> None:
    box.start_agent()
    await box.want(shard())
    ready = await box.next(ShardReady)
    box.kill_agent()
    record = box.records()["r-1-0"]
    assert record.process is not None
    other = msgspec.structs.replace(record.process, started=record.process.started - 1)
    box.files.write(msgspec.structs.replace(record, process=other))
    box.start_agent()
    failed = await box.next(ShardFailed)
    assert "gone when the agent came back" in failed.reason
    assert not alive(ready.pid), "it carried the mark: nothing of the shard may be left"


async def test_a_stop_begun_by_a_killed_agent_is_finished_by_the_next(box: Box) -> None:
    agent = box.start_agent(AFTER_WRITING.format(phase="stopping"))
    await box.want(shard())
    ready = await box.next(ShardReady)
    await box.want()
    assert await eventually(lambda: agent.poll() is not None)
    assert alive(ready.pid)
    box.start_agent()
    await box.next(ShardStopped)
    assert not alive(ready.pid)


async def test_what_is_no_longer_wanted_stops_only_when_the_scheduler_said_so(box: Box) -> None:
    box.start_agent()
    await box.want(shard())
    ready = await box.next(ShardReady)
    box.kill_agent()
    await box.bus.view("desired", dict).delete("box")
    box.start_agent()
    await box.next(ShardAdopted)
    await eventually(lambda: len(box.samples) > 3)
    assert alive(ready.pid), "silence stops nothing"
    await box.want()
    await box.next(ShardStopped)
    assert not alive(ready.pid)


async def test_engines_are_stopped_by_hand_without_an_agent_and_the_next_one_tells(box: Box) -> None:
    box.start_agent()
    await box.want(shard("r-1-0"), shard("r-2-0"))
    await box.next(ShardReady, 2)
    box.kill_agent()
    assert await stop_all(box.settings) == ["r-1-0", "r-2-0"]
    assert box.engine_pids() == {}
    box.start_agent()
    stopped = await box.next(ShardStopped, 2)
    assert stopped.reason == "the engines of this machine were stopped by hand"
    assert box.of(ShardFailed) == []
    with pytest.raises(FolderInUse):
        await stop_all(box.settings)
