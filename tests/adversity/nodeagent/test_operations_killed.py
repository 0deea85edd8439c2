"""The agent is killed at every step of an errand: it is done once all the same, and its end is told."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from libs.events.machine import MachineErrandEnded, MachineRegistered
from libs.events.node import Errand
from libs.events.shard import ShardFailed, ShardReady, ShardStopped
from libs.events.views import ErrandWanted
from libs.testing.files import FileServer, serving
from libs.testing.waiting import eventually
from tests.integration.nodeagent.box import Box, alive
from tests.unit.nodeagent.wanted import shard, weights

QUICK = """
from services.nodeagent import telemetry
from services.nodeagent.shard import shard_runner
telemetry._LOOK_AGAIN_S = 0.2
shard_runner._PROBE_S, shard_runner._DRAINED_AFTER_S = 0.1, 0.4
"""
KEEPING = """
from services.nodeagent.operations import Operations
keep = Operations._keep
def dying(self, record):
    point = {point!r}
    if point == "begun" and not record.begun_in:
        return keep(self, record)
    if point == "ended" and (record.outcome is None or record.reported):
        return keep(self, record)
    if point == "told" and not record.reported:
        return keep(self, record)
    {when}
Operations._keep = dying
"""
BEFORE, AFTER = "die()", "keep(self, record); die()"
RENEWING = """
from services.nodeagent.adapters.disk.shard_files import ShardFiles
write = ShardFiles.write
def dying(self, record):
    {before}
    write(self, record)
    {after}
ShardFiles.write = dying
"""
NOTED = RENEWING.format(before="", after="if record.renewal > record.renewed and record.phase == 'ready': die()")
STOPPING = RENEWING.format(before="", after="if record.phase == 'renewing': die()")
GONE = RENEWING.format(before="if record.renewed and record.phase == 'accepted': die()", after="")
TAKEN_UP = RENEWING.format(before="", after="if record.renewed and record.phase == 'accepted': die()")
LOADING = RENEWING.format(before="", after="if record.renewed and record.phase == 'loading': die()")
STORE = """
from services.nodeagent.adapters.weights.store import Store
finish = Store._finish
def dying(self, keep):
    if any(self._removing.iterdir()):
        {}
    return finish(self, keep)
Store._finish = dying
"""
MOVED = STORE.format("die()")
HALF_GONE = STORE.format("self._drop = lambda sha256: ((self._content / sha256).unlink(), die())")
KEEPING_SETTINGS = """
from services.nodeagent.machine.overrides import Overrides
keep = Overrides.keep
def dying(self, changes):
    keep(self, changes)
    die()
Overrides.keep = dying
"""


@pytest.fixture
def mirror() -> Iterator[FileServer]:
    with serving() as files:
        yield files


def errand(**fields: Any) -> tuple[ErrandWanted, ...]:
    return (ErrandWanted(number=5, errand=Errand(**fields)),)


async def died(box: Box, agent: Any) -> None:
    await eventually(lambda: agent.poll() is not None, 15)
    assert agent.returncode == -signal.SIGKILL


async def told_once(box: Box) -> MachineErrandEnded:
    ended = await box.next(MachineErrandEnded)
    assert (ended.errand, ended.outcome) == (5, "done"), ended
    await eventually(lambda: not list((box.settings.data_dir / "outbox").glob("[0-9]*.json")))
    assert len(box.of(MachineErrandEnded)) == 1
    return ended


RESTARTS = {
    "before it is begun": KEEPING.format(point="begun", when=BEFORE),
    "begun": KEEPING.format(point="begun", when=AFTER),
    "the shard knows": NOTED,
    "the old engine is being stopped": STOPPING,
    "the old engine is gone": GONE,
    "the new one is taken up": TAKEN_UP,
    "the new one loads": LOADING,
    "it has ended": KEEPING.format(point="ended", when=AFTER),
    "its end is told": KEEPING.format(point="told", when=BEFORE),
}


OFTEN = {"before it is begun", "the old engine is being stopped", "the old engine is gone", "it has ended"}
"""The others are near one of these."""


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=() if point in OFTEN else pytest.mark.slow) for point in RESTARTS]
)
async def test_an_engine_is_restarted_once(box: Box, point: str) -> None:
    agent = box.start_agent(QUICK + RESTARTS[point])
    await box.want(shard())
    first = await box.next(ShardReady)
    await box.want(shard(), errands=errand(kind="restart_shard", shard_id="r-1-0"))
    await died(box, agent)
    box.start_agent(QUICK)
    await told_once(box)
    pids = box.engine_pids()["r-1-0"]
    assert len(pids) == 1
    assert {ready.pid for ready in box.of(ShardReady)} == {first.pid, *pids}, "it was restarted once"
    assert pids != [first.pid]
    assert not alive(first.pid)
    assert box.of(ShardFailed) == []
    assert box.of(ShardStopped) == []


@pytest.mark.parametrize(
    ("point", "starts"),
    [
        # A death before it is begun is not the restart that was asked for; one after it is.
        (KEEPING.format(point="begun", when=BEFORE), 3),
        (KEEPING.format(point="begun", when=AFTER), 2),
    ],
    ids=["before it is begun", "begun"],
)
async def test_an_agent_is_restarted_once(box: Box, point: str, starts: int) -> None:
    agent = box.start_agent(point)
    await box.next(MachineRegistered)
    await box.want(errands=errand(kind="restart_agent"))
    await died(box, agent)
    box.start_agent()
    await told_once(box)
    assert len(box.of(MachineRegistered)) == starts


REMOVALS = {"the version is moved away": MOVED, "a file is gone": HALF_GONE}


@pytest.mark.parametrize("point", REMOVALS)
async def test_weights_are_removed_whole(box: Box, mirror: FileServer, point: str) -> None:
    agent = box.start_agent(QUICK + REMOVALS[point])
    files = mirror.add(b"one" * 1000, "a.gguf"), mirror.add(b"two" * 1000, "b.gguf")
    shared = weights(files[0], mirrors=(mirror.url,), name="stays")
    await box.want(shard(weights=weights(*files, mirrors=(mirror.url,))), shard("r-2-0", weights=shared))
    await box.next(ShardReady, 2)
    await box.want(shard("r-2-0", weights=shared))
    await box.next(ShardStopped)
    await eventually(lambda: set(box.records()) == {"r-2-0"})
    await box.want(shard("r-2-0", weights=shared), errands=errand(kind="remove_weights", weights="demo@v1"))
    await died(box, agent)
    box.start_agent(QUICK)
    await told_once(box)
    root = box.settings.data_dir / "weights"
    assert sorted(path.name for path in (root / "content").iterdir()) == [
        files[0].sha256,
        f"{files[0].sha256}.checked",
    ]
    assert list((root / "removing").iterdir()) == []
    assert [path.name for path in (root / "models").iterdir()] == ["stays"]


async def test_settings_are_changed_all_the_same(box: Box) -> None:
    agent = box.start_agent(KEEPING_SETTINGS)
    await box.next(MachineRegistered)
    await box.want(errands=errand(kind="change_settings", settings={"labels": '{"a": "b"}'}))
    await died(box, agent)
    box.start_agent()
    await told_once(box)
    await eventually(lambda: box.of(MachineRegistered)[-1].labels == {"a": "b"})
