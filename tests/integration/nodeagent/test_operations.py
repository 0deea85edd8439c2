"""What an operator asks of a machine's agent: done once, and told how it ended."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.events.machine import MachineErrandEnded, MachineRegistered, ShardSample
from libs.events.node import Errand
from libs.events.shard import ShardAdopted, ShardFailed, ShardReady, ShardStopped
from libs.events.views import ErrandWanted
from libs.simulated_machines import SimulatedGpus, SimulatedMachine
from libs.testing.files import FileServer, serving
from libs.testing.waiting import eventually
from tests.unit.nodeagent.wanted import shard, weights

from .box import Box, alive

QUICK = """
from services.nodeagent import telemetry
from services.nodeagent.shard import shard_runner
telemetry._LOOK_AGAIN_S = 0.2
shard_runner._PROBE_S, shard_runner._DRAINED_AFTER_S = 0.1, 0.5
"""


@pytest.fixture
def mirror() -> Iterator[FileServer]:
    with serving() as files:
        yield files


def errand(number: int, **fields: Any) -> ErrandWanted:
    return ErrandWanted(number=number, errand=Errand(**fields))


async def states(systemd: socket.socket, count: int) -> list[str]:
    """What an agent told systemd of its state."""
    found: list[str] = []

    def heard() -> bool:
        with contextlib.suppress(BlockingIOError):
            while True:
                lines = systemd.recv(4096).decode().splitlines()
                told = [line.partition("=")[0] for line in lines]
                found.extend(name for name in told if name in ("READY", "RELOADING", "STOPPING"))
        return len(found) >= count

    await eventually(heard)
    return found


async def test_an_agent_begins_anew_in_its_own_place_and_touches_no_engine(
    box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    systemd.bind(str(tmp_path / "notify"))
    systemd.setblocking(False)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    agent = box.start_agent()
    await box.want(shard())
    ready = await box.next(ShardReady)
    await box.want(shard(), errands=(errand(41, kind="restart_agent"),))
    ended = await box.next(MachineErrandEnded)
    assert (ended.errand, ended.outcome) == (41, "done")
    assert agent.poll() is None, "whoever keeps the process sees no end"
    adopted = await box.next(ShardAdopted)
    assert (adopted.pid, adopted.ready) == (ready.pid, True)
    assert len(box.of(MachineRegistered)) == 2
    assert await states(systemd, 3) == ["READY", "RELOADING", "READY"], "for systemd it was a reload, not an end"
    systemd.close()
    # Until the scheduler has heard of it the errand stands there, and is not done again.
    await box.want(shard(), shard("r-2-0"), errands=(errand(41, kind="restart_agent"),))
    await box.next(ShardReady, 2)
    assert len(box.of(MachineRegistered)) == 2
    await box.want()
    await box.next(ShardStopped, 2)
    assert not alive(ready.pid), "no corpse is left of an engine its own process started before"
    with pytest.raises(ProcessLookupError):
        os.kill(ready.pid, 0)


async def test_an_engine_is_restarted_once(box: Box) -> None:
    box.start_agent(QUICK)
    await box.want(shard())
    first = await box.next(ShardReady)
    asked = errand(7, kind="restart_shard", shard_id="r-1-0")
    await box.want(shard(), errands=(asked,))
    ended = await box.next(MachineErrandEnded)
    second = await box.next(ShardReady, 2)
    assert (ended.outcome, ended.kind) == ("done", "restart_shard")
    assert str(second.pid) in ended.reason
    assert second.pid != first.pid
    assert not alive(first.pid)
    assert box.story() == [
        *("ShardStarting", "ShardLoading", "ShardReady", "ShardStarting", "ShardLoading", "ShardReady"),
        "MachineErrandEnded",
    ]
    box.stop_agent()
    box.start_agent(QUICK)
    adopted = await box.next(ShardAdopted)
    assert adopted.pid == second.pid
    await box.want(shard(), errands=(asked, errand(8, kind="restart_shard", shard_id="r-9-0")))
    refused = await box.next(MachineErrandEnded, 2)
    assert (refused.errand, refused.outcome) == (8, "refused")
    assert refused.reason == "no shard r-9-0 runs here; there is r-1-0"
    assert box.engine_pids() == {"r-1-0": [second.pid]}


async def test_a_restart_that_fails_says_why(box: Box) -> None:
    box.start_agent(QUICK)
    await box.want(shard())
    await box.next(ShardReady)
    record = box.records()["r-1-0"]
    box.kill_agent()
    # The engine it starts the next time dies at its first token.
    box.files.write(msgspec.structs.replace(record, wanted=shard(args=("--die-after", "0"))))
    box.start_agent(QUICK)
    await box.want(shard(), errands=(errand(7, kind="restart_shard", shard_id="r-1-0"),))
    ended = await box.next(MachineErrandEnded)
    failed = await box.next(ShardFailed)
    assert (ended.outcome, ended.reason) == ("failed", failed.reason)
    assert box.engine_pids() == {}


async def test_settings_are_checked_kept_and_in_effect_at_once(box: Box) -> None:
    box.start_agent()
    await box.want(shard())
    ready = await box.next(ShardReady)
    changes = {"labels": '{"zone": "b"}', "sample_every_s": "0.1", "stop_grace_s": "2.5"}
    await box.want(shard(), errands=(errand(3, kind="change_settings", settings=changes),))
    assert (await box.next(MachineErrandEnded)).outcome == "done"
    said = await box.next(MachineRegistered, 2)
    assert said.labels == {"zone": "b"}
    assert said.changed_settings == changes
    wrong = (
        errand(4, kind="change_settings", settings={"stop_grace_s": '"soon"'}),
        errand(5, kind="change_settings", settings={"llama_server": '"/bin/sh"'}),
        errand(6, kind="change_settings", settings={"labels": "{}", "sample_every_s": "60"}),
        errand(20, kind="change_settings", settings={"sample_every_s": "0.000001"}),
        errand(21, kind="change_settings", settings={"stuck_after_s": "0.001"}),
        errand(22, kind="change_settings", settings={"stop_grace_s": "1e308"}),
        errand(23, kind="change_settings", settings={"labels": f'{{"a": "{"x" * 20000}"}}'}),
        errand(7, kind="change_settings", settings={"colour": "1"}),
        errand(8, kind="change_settings", settings={"dcgm_exporter": '"file:///etc/shadow"'}),
    )
    await box.want(shard(), errands=wrong)
    await box.next(MachineErrandEnded, 10)
    reasons = {ended.errand: (ended.outcome, ended.reason) for ended in box.of(MachineErrandEnded)[1:]}
    assert {outcome for outcome, _ in reasons.values()} == {"refused"}
    assert "stop_grace_s" in reasons[4][1]
    assert "set where the agent is started" in reasons[5][1]
    assert "lost after 8 s" in reasons[6][1]
    assert "no such setting" in reasons[7][1]
    assert ["is not between" in reasons[n][1] for n in (20, 21, 22)] == [True] * 3
    assert "16384" in reasons[23][1]
    assert "not the address of an exporter" in reasons[8][1]
    box.kill_agent()
    box.start_agent()
    assert (await box.next(MachineRegistered, 3)).labels == {"zone": "b"}, "they are kept"
    back = errand(9, kind="change_settings", settings=dict.fromkeys(changes, ""))
    await box.want(shard(), errands=(back,))
    await eventually(lambda: box.of(MachineRegistered)[-1].changed_settings == {})
    assert box.of(MachineRegistered)[-1].labels == {}
    assert alive(ready.pid)


def told(box: Box) -> dict[str, tuple[int, int]]:
    """Weights the machine says it has: bytes, and those of them that others have too."""
    return {one.weights: (one.size_bytes, one.shared_bytes) for one in box.of(MachineRegistered)[-1].weights}


async def test_weights_are_removed_when_nobody_uses_them(box: Box, mirror: FileServer) -> None:
    box.start_agent(QUICK)
    both, own = mirror.add(b"shared" * 1000, "a.gguf"), mirror.add(b"own" * 1000, "b.gguf")
    one = weights(both, own, mirrors=(mirror.url,), name="one")
    two = weights(both, mirrors=(mirror.url,), name="two")
    await box.want(shard(weights=one), shard("r-2-0", weights=two))
    await box.next(ShardReady, 2)
    await eventually(lambda: told(box) == {"one@v1": (9000, 6000), "two@v1": (6000, 6000)}, 10)
    remove = [errand(n, kind="remove_weights", weights=name) for n, name in enumerate(["one@v1", "three@v1"], 1)]
    await box.want(shard(weights=one), shard("r-2-0", weights=two), errands=tuple(remove))
    await box.next(MachineErrandEnded, 2)
    reasons = {ended.errand: (ended.outcome, ended.reason) for ended in box.of(MachineErrandEnded)}
    assert reasons[1] == ("refused", "r-1-0 uses one@v1: stop its model first")
    assert reasons[2] == (
        "refused",
        "there are no weights three@v1 on this machine; there are: one@v1, two@v1",
    )
    await box.want(shard("r-2-0", weights=two))
    await box.next(ShardStopped)
    await eventually(lambda: set(box.records()) == {"r-2-0"})
    await box.want(shard("r-2-0", weights=two), errands=(errand(9, kind="remove_weights", weights="one@v1"),))
    assert (await box.next(MachineErrandEnded, 3)).outcome == "done"
    content = box.settings.data_dir / "weights" / "content"
    assert not (content / own.sha256).exists()
    assert (content / both.sha256).exists(), "the other version has it too"
    await eventually(lambda: [w.weights for w in box.of(MachineRegistered)[-1].weights] == ["two@v1"], 10)


async def test_how_far_a_start_is_can_be_seen(box: Box, mirror: FileServer) -> None:
    box.start_agent()
    content = b"x" * 2_000_000
    mirror.rate_bytes_s = 1_500_000
    wanted = weights(mirror.add(content), mirrors=(mirror.url,))
    await box.want(shard(weights=wanted, args=("--load-s", "0.8")))
    await box.next(ShardReady)

    def samples() -> list[ShardSample]:
        return [one for sample in box.samples for one in sample.shards]

    await eventually(lambda: samples()[-1].phase == "ready")
    # Between two of these a sample may find it checking what has come, or about to be started.
    told = ("fetching", "loading", "ready")
    assert list(dict.fromkeys(one.phase for one in samples() if one.phase in told)) == list(told)
    fetching = [one for one in samples() if one.phase == "fetching"]
    assert {one.total_bytes for one in fetching} == {len(content)}
    assert any(0 < (one.done_bytes or 0) < len(content) for one in fetching)
    assert all(one.done_bytes is None for one in samples() if one.phase in ("loading", "ready"))


async def test_an_invented_machine_does_errands_too(box: Box) -> None:
    machine = SimulatedMachine(
        cores=8, memory_mb=1000, gpus=(SimulatedGpus(gpu_class="h100-80g", memory_mb=81559, count=1),)
    )
    box.settings = msgspec.structs.replace(box.settings, simulated=machine)
    box.start_agent()
    await box.next(MachineRegistered)
    await box.want(errands=(errand(1, kind="change_settings", settings={"labels": '{"a": "b"}'}),))
    assert (await box.next(MachineErrandEnded)).outcome == "done"
    assert (await box.next(MachineRegistered, 2)).labels == {"a": "b"}
