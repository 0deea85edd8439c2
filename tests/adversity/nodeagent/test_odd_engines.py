"""Engines that say one thing and do another, each a real process under a real agent."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from libs.events.machine import MachineRegistered
from libs.events.shard import ShardEvent, ShardFailed, ShardLoading, ShardReady, ShardStopped
from libs.events.views import ShardWanted, WeightsWanted
from libs.simulated_machines import SimulatedGpus, SimulatedMachine
from libs.testing.files import FileServer, serving
from libs.testing.waiting import eventually
from tests.integration.nodeagent.box import Box
from tests.unit.nodeagent.machines import FOLDER
from tests.unit.nodeagent.wanted import shard

PROGRAM = Path(__file__).with_name("odd_engine.py")


@pytest.fixture
def mirror() -> Iterator[FileServer]:
    with serving() as files:
        yield files


def odd(box: Box, mirror: FileServer, how: str, folder: Path) -> ShardWanted:
    """Makes the agent's llama-server the odd engine; what to want of it."""
    program = folder / how
    program.write_text(f"#!{sys.executable}\n{PROGRAM.read_text()}")
    program.chmod(0o755)
    box.settings = msgspec.structs.replace(box.settings, engines=("llamacpp",), llama_server=program)
    weights = WeightsWanted(name="demo", version="v1", files=(mirror.add(b"GGUF model"),), mirrors=(mirror.url,))
    return shard(engine="llamacpp", weights=weights)


@pytest.mark.parametrize("how", ["says-loading-with-200", "lists-models-first"])
async def test_what_answers_while_it_loads_is_not_ready(box: Box, mirror: FileServer, tmp_path: Path, how: str) -> None:
    wanted = odd(box, mirror, how, tmp_path)
    box.start_agent()
    await box.want(wanted)
    ready = await box.next(ShardReady)
    assert ready.loaded_ms >= 900


async def test_lines_about_the_agents_own_looks_are_no_progress(box: Box, mirror: FileServer, tmp_path: Path) -> None:
    wanted = msgspec.structs.replace(odd(box, mirror, "notes-each-look", tmp_path), startup_timeout_s=2)
    box.start_agent()
    await box.want(wanted)
    failed = await box.next(ShardFailed)
    assert "last sign of progress" in failed.reason


async def test_health_without_a_token_is_not_ready(box: Box, mirror: FileServer, tmp_path: Path) -> None:
    wanted = odd(box, mirror, "healthy-and-useless", tmp_path)
    box.start_agent()
    await box.want(wanted)
    failed = await box.next(ShardFailed)
    assert failed.reason == "its first token failed: it answered HTTP 500"
    assert box.of(ShardReady) == []
    assert box.engine_pids() == {}


async def test_the_line_that_matters_becomes_the_reason_and_no_other(
    box: Box, mirror: FileServer, tmp_path: Path
) -> None:
    wanted = odd(box, mirror, "out-of-memory", tmp_path)
    box.start_agent()
    await box.want(wanted)
    failed = await box.next(ShardFailed)
    assert (failed.exit_code, failed.phase) == (1, "loading")
    assert failed.reason.endswith("its GPU had too little free memory")
    assert "hunter2" not in failed.reason


async def test_workers_in_sessions_of_their_own_go_with_their_engine(
    box: Box, mirror: FileServer, tmp_path: Path
) -> None:
    wanted = odd(box, mirror, "scatters-workers", tmp_path)
    box.settings = msgspec.structs.replace(box.settings, stop_grace_s=0.3)
    box.start_agent()
    await box.want(wanted)
    await box.next(ShardReady)
    assert len(box.engine_pids()["r-1-0"]) >= 4
    box.kill_agent()
    box.start_agent()
    await box.want()
    await box.next(ShardStopped)
    assert box.engine_pids() == {}


async def test_a_deadlock_behind_good_health_is_found(box: Box, mirror: FileServer, tmp_path: Path) -> None:
    wanted = msgspec.structs.replace(odd(box, mirror, "deadlocks", tmp_path), devices=("GPU-a",))
    box.settings = msgspec.structs.replace(box.settings, stuck_after_s=1.0)
    card = """
from services.nodeagent.machine import hardware
from services.nodeagent.shard import shard_runner
from services.nodeagent.simulation.nvml import Card, Library
from services.nodeagent.simulation.host_access import Described, Description
shard_runner._PROBE_S = 0.1
card = Card(name="NVIDIA L4", uuid="GPU-a", memory_mb=23034, processes=None)
hardware.ThisMachine = lambda: Described(Description(nvml=Library(cards=[card])))
"""
    box.start_agent(card)
    await box.want(wanted)
    await box.next(ShardReady)
    failed = await box.next(ShardFailed)
    assert "hung" in failed.reason
    assert box.engine_pids() == {}


EIGHT_CARDS = f"""
from services.nodeagent.machine import hardware
from services.nodeagent.shard import gpu_memory
from services.nodeagent.adapters.engine import process
from services.nodeagent.simulation.host_access import Described, Description
gpu_memory._HOLDS_AFTER_S = 0.5
described = msgspec.json.decode(Path({str(FOLDER / "h100-sxm-8.json")!r}).read_bytes(), type=Description)
hardware.ThisMachine = lambda: Described(described)
"""
HELD = """
def holders(self):
    ours = {entry.pid: 500 for found in process.marked(settings.data_dir).values() for entry in found}
    return {card.uuid: ours for card in described.nvml.cards[:1]} | {described.nvml.cards[1].uuid: {}}
hardware.Hardware.holders = holders
"""


async def test_an_engine_that_fell_back_to_the_cpu_is_not_ready(box: Box) -> None:
    box.start_agent(EIGHT_CARDS + HELD)
    machine = await box.next(MachineRegistered)
    first, second = machine.gpus[0].uuid, machine.gpus[1].uuid
    await eventually(lambda: any(sample.gpus for sample in box.samples))
    await box.want(shard("r-1-0", devices=(first,)), shard("r-2-0", devices=(second,)))
    failed = await box.next(ShardFailed)
    assert failed.shard_id == "r-2-0"
    assert f"holds no memory on GPU {second}" in failed.reason
    assert "computes on the CPU" in failed.reason
    ready = await box.next(ShardReady)
    assert ready.shard_id == "r-1-0"
    assert ready.gpu_memory_mb == {first: 500}


async def test_processes_named_by_numbers_of_another_container_are_no_proof(box: Box) -> None:
    grows = """
from services.nodeagent.shard.shard_runner import ShardRunner
spawn = ShardRunner._spawn
def then_grow(self, *arguments):
    spawn(self, *arguments)
    described.nvml.cards[1].memory_used_mb += 5000
ShardRunner._spawn = then_grow
"""
    box.start_agent(EIGHT_CARDS + HELD + grows)
    machine = await box.next(MachineRegistered)
    await eventually(lambda: any(sample.gpus for sample in box.samples))
    await box.want(shard("r-2-0", devices=(machine.gpus[1].uuid,)))
    await box.next(ShardReady)


async def test_starts_on_one_card_wait_for_each_other(box: Box) -> None:
    machine = SimulatedMachine(
        cores=8, memory_mb=10_000, gpus=(SimulatedGpus(gpu_class="h100-80g", memory_mb=81559, count=2),)
    )
    box.settings = msgspec.structs.replace(box.settings, simulated=machine)
    box.start_agent()
    uuids = [gpu.uuid for gpu in (await box.next(MachineRegistered)).gpus]
    slow = ("--load-s", "0.7")
    await box.want(
        shard("r-1-0", devices=(uuids[0],), args=slow),
        shard("r-2-0", devices=(uuids[0],), args=slow),
        shard("r-3-0", devices=(uuids[1],), args=slow),
    )
    await box.next(ShardReady, 3)

    def when(kind: type[ShardEvent], shard_id: str) -> float:
        return next(event.at.timestamp() for event in box.of(kind) if event.shard_id == shard_id)

    first, second = sorted(("r-1-0", "r-2-0"), key=lambda one: when(ShardLoading, one))
    assert when(ShardLoading, second) >= when(ShardReady, first)
    assert when(ShardLoading, "r-3-0") < when(ShardReady, first), "another card does not wait"


async def test_a_rank_without_a_door_is_ready_when_it_runs(box: Box) -> None:
    box.start_agent("from services.nodeagent.shard import gpu_memory\ngpu_memory.RANK_SETTLES_S = 0.3")
    await box.want(shard("r-1-1", rank=1, ranks=2, leader_address="127.0.0.1", leader_port=1, args=("--load-s", "600")))
    ready = await box.next(ShardReady)
    assert ready.loaded_ms < 5000
    await eventually(lambda: len(box.samples) > 3)
    assert box.of(ShardFailed) == []
