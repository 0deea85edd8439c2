"""Invented machines: many in one process, and what happens to them goes the way real faults go."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest

from cli import fleet as fleets
from cli.parts import hardware_of
from libs.bus import AskFailed, Bus, Delivery
from libs.bus.transport import Misconfigured
from libs.events.machine import Gpu, GpuSample, MachineErrandEnded, MachineRegistered, MachineSample
from libs.events.node import Errand
from libs.events.questions import AskDoctor, AskFabricMap, DoctorAnswer, FabricMap
from libs.events.views import Desired, ErrandWanted
from libs.fit import hosts_of
from libs.simulated_machines import SimulatedFabric, SimulatedFault, SimulatedGpus, SimulatedMachine
from libs.testing.nats import NatsServer
from libs.testing.waiting import eventually
from services.nodeagent import fleet_file
from services.nodeagent.machine import hardware
from services.nodeagent.settings import NodeAgentSettings
from services.nodeagent.stop_all import stop_all
from services.scheduler.core.state.fabrics import Fabrics
from tests.unit.nodeagent.wanted import desired, shard

from .box import Box

EIGHT = """
    cores: 128
    memory_mb: 1048576
    gpus:
      - {class: h100-80g, name: NVIDIA H100 80GB HBM3, capability: "9.0", memory_mb: 81559, nvlink: true, count: 8}
    fabrics:
      - {name: ib-a, network: "sm:1", adapters: [mlx5_0, mlx5_1], rate_gbps: 400}
"""


class Machines:
    """A process with a fleet, and what is heard of it."""

    def __init__(self, bus: Bus, nats_url: str, folder: Path) -> None:
        self._bus = bus
        self._nats_url = nats_url
        self._folder = folder
        self.samples: Counter[str] = Counter()
        self.process: subprocess.Popen[bytes] | None = None

    async def start(self, described: str) -> psutil.Process:
        async def heard(delivery: Delivery) -> None:
            if isinstance(delivery.message, MachineSample):
                self.samples[delivery.message.machine_id] += 1

        await self._bus.follow("TELEMETRY", ["llmgw.tel.machine.>"], heard, start="new")
        return self._spawn(described)

    def settings(self) -> NodeAgentSettings:
        return NodeAgentSettings(
            data_dir=self._folder / "data", fleet=self._folder / "fleet.yaml", engines=("sim",), stop_grace_s=1.0
        )

    def _spawn(self, described: str) -> psutil.Process:
        file, settings = self._folder / "fleet.yaml", self._folder / "nodeagent.yaml"
        file.write_text(described)
        settings.write_text(
            f"nats_url: {self._nats_url}\ndata_dir: {self._folder / 'data'}\nfleet: {file}\nengines: [sim]\n"
        )
        command = [sys.executable, "-m", "cli.main", "run", "nodeagent", "--settings", str(settings)]
        with (self._folder / "log").open("wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return psutil.Process(self.process.pid)


@pytest.fixture
def machines(bus: Bus, nats_server: NatsServer, tmp_path: Path) -> Iterator[Machines]:
    made = Machines(bus, nats_server.url, tmp_path)
    yield made
    if made.process is not None:
        made.process.send_signal(signal.SIGTERM)
        made.process.wait(30)


async def test_a_fleet_file_becomes_as_many_agents(machines: Machines, bus: Bus) -> None:
    registered: dict[str, MachineRegistered] = {}
    starts: Counter[str] = Counter()
    ends: list[MachineErrandEnded] = []

    async def happened(delivery: Delivery) -> None:
        if isinstance(delivery.message, MachineRegistered):
            registered[delivery.message.machine_id] = delivery.message
            starts[delivery.message.machine_id] += 1
        elif isinstance(delivery.message, MachineErrandEnded):
            ends.append(delivery.message)

    await bus.follow("EVENTS", ["llmgw.evt.machine.>"], happened)
    cpu = "  - {id: cpu, cores: 4, memory_mb: 8000}\n"
    await machines.start(f"machines:\n  - id: gpu\n    copies: 12\n    labels: {{rack: a}}{EIGHT}{cpu}")
    await eventually(lambda: len(registered) == 13 and len(machines.samples) == 13, 30)
    one = registered["gpu-7"]
    assert [gpu.gpu_class for gpu in one.gpus] == ["h100-80g"] * 8
    assert len(one.gpus[0].nvlink_peers) == 7
    assert [(port.nic, port.fabric, port.network, port.state) for port in one.ports] == [
        ("mlx5_0", "ib-a", "sm:1", "active"), ("mlx5_1", "ib-a", "sm:1", "active"),
    ]  # fmt: skip
    assert one.labels == {"rack": "a"}
    assert one.simulated
    assert registered["cpu"].gpus_state == "absent"
    answer = await bus.ask(AskDoctor(machine_id="gpu-3"), DoctorAnswer, timeout_s=20)
    assert any("8 can be used" in finding.found for finding in answer.findings)
    # One of them begins anew, the others do not notice.
    errand = ErrandWanted(number=9, errand=Errand(kind="restart_agent"))
    await bus.view("desired", Desired).put("gpu-7", Desired(machine_id="gpu-7", generation=9, errands=(errand,)))
    await eventually(lambda: [(end.machine_id, end.outcome) for end in ends] == [("gpu-7", "done")], 20)
    assert starts == {name: 2 if name == "gpu-7" else 1 for name in registered}


async def test_engines_of_a_fleet_outlive_its_process_and_are_taken_over(machines: Machines, bus: Bus) -> None:
    kinds: Counter[str] = Counter()

    async def happened(delivery: Delivery) -> None:
        kinds[type(delivery.message).__name__] += 1

    await bus.follow("EVENTS", ["llmgw.evt.shard.>"], happened)
    fleet_file = "machines:\n  - {id: a, cores: 4, memory_mb: 8000, copies: 2}\n"
    await machines.start(fleet_file)
    await bus.view("desired", Desired).put("a-2", desired(1, shard(), machine_id="a-2"))
    await eventually(lambda: kinds["ShardReady"] == 1, 20)
    assert machines.process is not None
    machines.process.kill()
    machines.process.wait()
    await machines.start(fleet_file)
    await eventually(lambda: kinds["ShardAdopted"] == 1, 20)
    machines.process.kill()
    machines.process.wait()
    assert await stop_all(machines.settings()) == ["r-1-0"]
    assert kinds["ShardFailed"] == 0


TIMELINE = (
    SimulatedFault(after_s=0.6, kind="gpu_lost", gpu=1),
    SimulatedFault(after_s=0.6, kind="hot", gpu=0),
    SimulatedFault(after_s=0.6, kind="foreign_memory", gpu=0, memory_mb=5000),
    SimulatedFault(after_s=0.6, kind="port_down", nic="mlx5_1"),
    SimulatedFault(after_s=1.5, kind="gpu_back", gpu=1),
    SimulatedFault(after_s=1.5, kind="cool", gpu=0),
    SimulatedFault(after_s=1.5, kind="foreign_gone", gpu=0),
    SimulatedFault(after_s=1.5, kind="port_up", nic="mlx5_1"),
    SimulatedFault(after_s=1.6, kind="silent"),
)
QUICK = """
from services.nodeagent import telemetry
telemetry._LOOK_AGAIN_S = 0.1
"""


async def test_faults_come_and_go_by_the_paths_of_real_ones(box: Box) -> None:
    machine = SimulatedMachine(
        cores=8, memory_mb=10_000, gpus=(SimulatedGpus(gpu_class="h100-80g", memory_mb=81559, count=2, nvlink=True),),
        fabrics=(SimulatedFabric(name="ib-a", network="sm:1", nics=("mlx5_0", "mlx5_1")),), faults=TIMELINE,
    )  # fmt: skip
    box.settings = msgspec.structs.replace(box.settings, simulated=machine, sample_every_s=0.1)
    box.start_agent(QUICK)
    sound = await box.next(MachineRegistered)
    assert not any(gpu.problems for gpu in sound.gpus)

    def sick() -> MachineRegistered | None:
        return next((m for m in box.of(MachineRegistered) if any(gpu.problems for gpu in m.gpus)), None)

    lost = await eventually(sick)
    assert lost is not None
    assert "does not answer the driver" in lost.gpus[1].problems[0]
    assert {port.nic: port.state for port in lost.ports} == {"mlx5_0": "active", "mlx5_1": "down"}
    hot = await eventually(lambda: next((s for s in box.samples for g in s.gpus if g.throttled_by), None))
    first: GpuSample = hot.gpus[0]
    assert (first.throttled_by, first.foreign_memory_mb) == (("hw_thermal",), 5000)

    def mended() -> bool:
        last = box.of(MachineRegistered)[-1]
        return not any(gpu.problems for gpu in last.gpus) and all(port.state == "active" for port in last.ports)

    await eventually(mended)
    gpus: tuple[Gpu, ...] = box.of(MachineRegistered)[-1].gpus
    assert [gpu.uuid for gpu in gpus] == [gpu.uuid for gpu in sound.gpus]
    last = box.samples[-1]
    assert (last.gpus[0].throttled_by, last.gpus[0].foreign_memory_mb) == ((), 0)


def test_the_other_faults(tmp_path: Path) -> None:
    faults: tuple[SimulatedFault, ...] = ()

    def look(*faults: SimulatedFault) -> hardware.Hardware:
        machine = SimulatedMachine(
            cores=8, memory_mb=100, nvlink_domain="3c0f5b1e-9d2a-4e77-8a51-0b6f2d9e4c10/7", memory_read_mb_s=9000,
            memory_read_one_core_mb_s=1000, faults=faults,
            gpus=(
                SimulatedGpus(gpu_class="gb200-180g", memory_mb=189471, count=2, nvlink=True),
                SimulatedGpus(gpu_class="a100-80g-mig-3g.40gb", memory_mb=40192, mig_of_mb=81920, count=2),
                SimulatedGpus(gpu_class="l40s-48g", memory_mb=46068, lanes=4, card_lanes=16, problems=("it is ill",)),
            ),
        )  # fmt: skip
        made = hardware.Hardware(NodeAgentSettings(data_dir=tmp_path, simulated=machine), "1")
        made._memory_rate.first(0)
        made.gpu_samples(frozenset())
        assert not made.silent
        return made

    sound = look(*faults).registered("", ())
    assert [gpu.gpu_class for gpu in sound.gpus] == [
        "gb200-180g", "gb200-180g", "a100-80g-mig-3g.40gb", "a100-80g-mig-3g.40gb", "l40s-48g",
    ]  # fmt: skip
    assert [gpu.index for gpu in sound.gpus] == [0, 1, 1200, 1201, 3]
    assert sound.gpus[0].nvlink_domain == "3c0f5b1e-9d2a-4e77-8a51-0b6f2d9e4c10/7"
    assert sound.imex is not None
    assert sound.imex.state == "active"
    assert sound.gpus[4].problems == ("it is ill",)
    assert "x4 of its x16 lanes" in sound.problems[0]
    assert (sound.memory_read_mb_s, sound.memory_read_one_core_mb_s) == (9000, 1000)

    xid = look(SimulatedFault(after_s=0, kind="xid", gpu=1, xid=95))
    assert "XID 95" in xid.gpus.gpus[1].problems[0]
    assert "reset" in look(SimulatedFault(after_s=0, kind="remap_pending")).gpus.gpus[0].problems[0]
    assert "replaced" in look(SimulatedFault(after_s=0, kind="remap_failed")).gpus.gpus[0].problems[0]
    left = look(SimulatedFault(after_s=0, kind="nvlink_left", gpu=1)).gpus.gpus
    assert [gpu.nvlink_domain is None for gpu in left[:2]] == [False, True]
    dead = look(SimulatedFault(after_s=0, kind="driver_fails")).gpus
    assert (dead.state, len(dead.gpus)) == ("unverified", 5)
    silent = look()
    silent._invented._due = [SimulatedFault(after_s=0, kind="silent")]  # type: ignore[union-attr]
    assert silent.silent


async def test_a_map_is_refused_with_the_reason_where_there_is_no_adapter(
    box: Box, bus: Bus, connect_as: Callable[[str], Awaitable[Bus]]
) -> None:
    box.start_agent()
    await box.next(MachineRegistered)
    with pytest.raises(AskFailed, match="is not an InfiniBand adapter of this machine; name one of: none"):
        await bus.ask(AskFabricMap(machine_id="box", nic="mlx5_0"), FabricMap, timeout_s=10)


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_thousand_machines_in_one_process(
    machines: Machines, record_property: Callable[[str, object], None]
) -> None:
    process = await machines.start(f"machines:\n  - id: gpu\n    copies: 1000{EIGHT}")
    await eventually(lambda: len(machines.samples) == 1000, 400)

    def used() -> float:
        times = process.cpu_times()
        return times.user + times.system

    # The first minute is theirs to settle: what was not wanted is not looked for again.
    settled = machines.samples.total() + 10_000
    await eventually(lambda: machines.samples.total() >= settled, 120)
    before, heard = used(), machines.samples.total()
    await eventually(lambda: machines.samples.total() >= heard + 15_000, 120)
    share = (used() - before) / 30
    memory_mb = process.memory_info().rss / 2**20
    record_property("1,000 machines, 8,000 GPUs, idle", f"{100 * share:.0f} % of a core, {memory_mb:.0f} MB")
    assert share <= 0.6
    assert memory_mb <= 2048


EXAMPLES = sorted((Path(__file__).parents[3] / "examples" / "fleets").glob("*.yaml"))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda path: path.stem)
def test_an_agent_understands_every_example_as_the_command_line_does(file: Path, tmp_path: Path) -> None:
    described = {machine.id: machine for machine in fleets.load(file).machines}
    machines = fleet_file.read(file)
    assert [machine.id for machine in machines] == list(described)
    said, meant = {}, {}
    for machine in machines:
        settings = fleet_file.of_machine(NodeAgentSettings(data_dir=tmp_path), machine)
        assert settings.simulated == msgspec.convert(hardware_of(described[machine.id]), SimulatedMachine)
        reported = hardware.Hardware(settings, "1").registered("", ())
        expected = fleets.registered(described[machine.id])
        assert [gpu.gpu_class for gpu in reported.gpus] == [gpu.gpu_class for gpu in expected.gpus]
        assert (reported.simulated, reported.nvlink_stated) == (expected.simulated, expected.nvlink_stated)
        assert [host.nvlink for host in hosts_of([reported])] == [host.nvlink for host in hosts_of([expected])]
        assert [gpu.nvlink_domain for gpu in reported.gpus] == [gpu.nvlink_domain for gpu in expected.gpus]
        assert [bool(gpu.problems) for gpu in reported.gpus] == [bool(gpu.problems) for gpu in expected.gpus]
        assert {(p.nic, p.fabric, p.network) for p in reported.ports} == {
            (p.nic, p.fabric, p.network) for p in expected.ports
        }
        said[machine.id], meant[machine.id] = reported, expected
    together = {name: member.nics for name, member in Fabrics(meant).members.items()}
    assert {name: member.nics for name, member in Fabrics(said).members.items()} == together


def test_what_two_versions_of_yaml_read_differently_is_told_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("machines:\n  - id: a\n    cores: 010\n    memory_mb: 1000\n")

    with pytest.raises(Misconfigured, match=r"fleet\.yaml:3: 010 is 8 to YAML 1\.1 and 10 to YAML 1\.2"):
        fleet_file.read(file)
