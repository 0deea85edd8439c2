"""Measurements: what is told, nothing else, and at what cost."""

from __future__ import annotations

import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from libs.events import encode
from libs.events.machine import ChipUse, ForeignProcess, GpuSample, GpuWear, MachineSample
from services.nodeagent.adapters.gpu.dcgm_exporter import Exporter
from services.nodeagent.adapters.gpu.nvml import Nvml
from services.nodeagent.adapters.gpu.nvml_samples import Sampler, Xids
from services.nodeagent.adapters.host import memory_rate
from services.nodeagent.adapters.host.fabric import Ports
from services.nodeagent.adapters.host.host_access import ThisMachine
from services.nodeagent.adapters.host.memory_rate import MemoryRate
from services.nodeagent.adapters.host.sensors import SensorReadings, Sensors
from services.nodeagent.core.machine import cards, dcgm
from services.nodeagent.machine.hardware import Hardware
from services.nodeagent.settings import NodeAgentSettings
from services.nodeagent.simulation.host_access import Described, Description

from .machines import NAMES, described

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def sampler(here: Described) -> Sampler:
    nvml = Nvml(here, None)
    nvml.look()
    return Sampler(nvml, Exporter(None))


def test_a_card_of_today_tells_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    here = described("h100-sxm-8")
    reading = sampler(here)
    assert reading.samples(frozenset(), {})[0].use is None, "these counters are differences"
    monkeypatch.setattr("services.nodeagent.adapters.gpu.nvml_samples._SLOW_S", 0.0)
    first = reading.samples(frozenset(), {})[0]
    assert first.use == ChipUse(
        source="gpm", sm_active_percent=41.5, sm_occupancy_percent=22.0, tensor_active_percent=3.2,
        dram_active_percent=60.0,
    )  # fmt: skip
    assert (first.memory_used_mb, first.temperature_c, first.memory_temperature_c) == (551, 31.0, 40.0)
    assert (first.power_watts, first.power_limit_watts, first.sm_clock_mhz) == (70.123, 700.0, 345)
    assert first.throttled_by == (), "idle is not throttled"
    assert first.wear == GpuWear(
        pcie_replays=0, remapped_rows_correctable=0, remapped_rows_uncorrectable=0, remap_pending=False,
        remap_failed=False, nvlink_crc_errors=0, nvlink_replay_errors=0, nvlink_recovery_errors=0,
    )  # fmt: skip


def test_what_an_old_card_does_not_tell_is_absent() -> None:
    (sample,) = sampler(described("v100")).samples(frozenset(), {})
    assert sample.use is None
    assert sample.throttled_by is None
    assert sample.memory_temperature_c is None
    assert sample.sm_clock_mhz is None
    assert sample.wear is not None
    assert (sample.wear.retired_pages_single_bit, sample.wear.retired_pages_double_bit) == (4, 1)
    assert sample.wear.remap_pending is None
    assert sample.ecc_uncorrected == 1


def test_memory_others_hold_is_told_with_who_holds_it() -> None:
    here = described("v100")
    reading = sampler(here)
    (sample,) = reading.samples(frozenset(), {})
    assert sample.foreign_memory_mb == 15000
    assert sample.foreign_processes == (ForeignProcess(pid=991, memory_mb=15000),)
    assert reading.holders == {sample.uuid: {991: 15000}}
    assert here.description.nvml is not None
    here.description.nvml.cards[0].processes = {991: 15000, 992: None, 7: 20}
    (sample,) = reading.samples(frozenset({991}), {})
    assert sample.foreign_memory_mb == 20
    assert sample.foreign_processes == (ForeignProcess(pid=7, memory_mb=20), ForeignProcess(pid=992))
    here.description.nvml.cards[0].processes = {991: 15000}
    (sample,) = reading.samples(frozenset({991}), {})
    assert (sample.foreign_memory_mb, sample.foreign_processes) == (0, ())
    here.description.nvml.cards[0].processes = None
    (sample,) = reading.samples(frozenset(), {})
    assert (sample.foreign_memory_mb, sample.foreign_processes) == (None, None), "not looked is not zero"


def test_an_instance_has_its_own_memory_and_no_utilisation() -> None:
    first, _ = sampler(described("a100-mig")).samples(frozenset(), {})
    assert first.uuid.startswith("MIG-")
    assert first.memory_used_mb == 37
    assert first.foreign_memory_mb == 900
    assert first.utilisation_percent is None
    assert first.temperature_c == 35.0, "heat is the card's"


def test_what_holds_a_card_back_has_a_name() -> None:
    (sample,) = sampler(described("h100-narrow-slot")).samples(frozenset(), {})
    assert sample.throttled_by == ("sw_power_cap", "hw_thermal")


def test_a_card_that_is_lost_between_two_samples_takes_no_other_with_it() -> None:
    here = described("h100-sxm-8")
    reading = sampler(here)
    assert here.description.nvml is not None
    here.description.nvml.cards[2].error = "GPU_IS_LOST"
    samples = reading.samples(frozenset(), {})
    assert len(samples) == 8
    assert samples[2] == GpuSample(uuid=samples[2].uuid)
    assert samples[3].memory_used_mb == 551


def test_errors_the_kernel_logs_are_counted_and_leave_the_card_out_for_a_while(tmp_path: Path) -> None:
    here = described("h100-sxm-8")
    hardware = Hardware(NodeAgentSettings(data_dir=tmp_path, measure_memory=False), "1", here)
    for one in (hardware._gpus, hardware._gpu_samples):
        one._answer = time.monotonic(), one._read()
    here.description.kernel_log = ["NVRM: Xid (PCI:0000:3b:00): 31, pid=1", "NVRM: Xid (PCI:0000:3b:00): 95, pid=1"]
    hardware._gpu_samples._answer = time.monotonic(), hardware._gpu_samples._read()
    (sick,) = [gpu for gpu in hardware.gpus.gpus if gpu.problems]
    assert sick.pci_bus_id == "0000:3b:00.0"
    assert "XID 95 (an error in its memory that reached other programs)" in sick.problems[0]
    wear = next(sample.wear for sample in hardware.gpu_samples(frozenset()) if sample.uuid == sick.uuid)
    assert wear is not None
    assert (wear.xids, wear.last_xid) == (2, 95)


def test_what_wear_says_against_a_card() -> None:
    assert cards.wear_problems(GpuWear(remap_pending=False, pcie_replays=9), NOW) == ()
    assert "replaced" in cards.wear_problems(GpuWear(remap_failed=True), NOW)[0]
    assert "reset" in cards.wear_problems(GpuWear(remap_pending=True), NOW)[0]
    fatal = GpuWear(last_xid=79, last_xid_at=NOW - timedelta(minutes=9))
    assert cards.wear_problems(fatal, NOW)
    assert cards.wear_problems(fatal, NOW + timedelta(minutes=2)) == (), "it comes back by itself"
    assert cards.wear_problems(GpuWear(last_xid=31, last_xid_at=NOW), NOW) == (), "a program's fault is not the card's"


def everything(value: Any) -> list[Any]:
    if isinstance(value, msgspec.Struct):
        return [one for name in value.__struct_fields__ for one in everything(getattr(value, name))]
    if isinstance(value, dict):
        return [one for entry in value.values() for one in everything(entry)]
    if isinstance(value, list | tuple):
        return [one for entry in value for one in everything(entry)]
    return [value]


SILENT: dict[str, Any] = {
    "utilisation": None, "temperature_c": None, "memory_temperature_c": None, "power_mw": None,
    "power_limit_mw": None, "sm_clock_mhz": None, "throttle": None, "ecc_uncorrected": None, "pcie_replays": None,
    "remapped": None, "retired": None, "retirement_pending": None, "nvlink_errors": None, "gpm": None,
    "processes": None, "pcie_generation": None,
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_what_is_not_measured_is_absent_everywhere(name: str) -> None:
    here = described(name)
    for card in here.description.nvml.cards if here.description.nvml else []:
        for field, value in SILENT.items():
            setattr(card, field, value)
        card.memory_used_mb = 5
        card.instances = tuple(msgspec.structs.replace(one, memory_used_mb=5, processes=None) for one in card.instances)
    for path in [path for path in here.description.files if "counters/" in path or path == "/proc/meminfo"]:
        del here.description.files[path]
    sample = MachineSample(
        at=NOW, machine_id="m", gpus=sampler(here).samples(frozenset(), {}), ports=Ports(here, {}).samples()
    )
    said = [value for value in everything(sample) if isinstance(value, int | float)]
    assert not [value for value in said if value in (0, -1)], sample
    assert set(said) <= {5}


def test_nothing_is_said_twice_in_a_sample_of_eight_cards_and_it_is_small() -> None:
    here = described("h100-sxm-8")
    xids = {f"0000:{bus}:00": Xids(3, 31, "x" * 60, NOW) for bus in ("19", "3b", "4c", "5d", "9b", "bb", "cb", "db")}
    assert here.description.nvml is not None
    for card in here.description.nvml.cards:
        card.processes = dict.fromkeys(range(4000, 4400), 1000)
    reading = sampler(here)
    sample = MachineSample(
        at=NOW, machine_id="m", gpus=reading.samples(frozenset(), xids), ports=Ports(here, {}).samples()
    )
    assert len(encode(sample)) < 16_384


def test_a_sample_of_eight_cards_costs_a_hundredth_of_a_core_at_most() -> None:
    here = described("h100-sxm-8")
    assert here.description.nvml is not None
    here.description.nvml.latency_us = 100
    reading = sampler(here)
    reading.samples(frozenset(), {})
    begun = time.thread_time()
    for _ in range(5):
        encode(MachineSample(at=NOW, machine_id="m", gpus=reading.samples(frozenset(), {})))
    assert (time.thread_time() - begun) / 5 < 0.02, "of 2 s"


PAGE = """# HELP DCGM_FI_PROF_SM_ACTIVE x
DCGM_FI_PROF_SM_ACTIVE{gpu="0",UUID="GPU-a",pci_bus_id="x"} 0.415
DCGM_FI_PROF_DRAM_ACTIVE{gpu="0",UUID="GPU-a"} 0.6
DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-b",GPU_I_ID="3"} 0.9
DCGM_FI_PROF_SM_ACTIVE{gpu="2",UUID="GPU-c"} NaN
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a"} 92
broken
"""


def test_an_exporter_fills_in_for_older_cards() -> None:
    assert dcgm.chip_use(PAGE) == {"GPU-a": ChipUse(source="dcgm", sm_active_percent=41.5, dram_active_percent=60.0)}
    away = Exporter("http://127.0.0.1:9/metrics")
    assert away.read() == {}
    begun = time.monotonic()
    for _ in range(1000):
        assert away.read() == {}
    assert time.monotonic() - begun < 0.5, "it is left alone"


def test_another_program_at_the_exporters_port_costs_no_sample() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        assert Exporter(f"http://127.0.0.1:{server.getsockname()[1]}/metrics").read() == {}
        thread.join()
    assert Exporter("http://127.0.0.1:99999/metrics").read() == {}


def test_the_machines_own_sensors() -> None:
    rapl = "/sys/class/powercap/intel-rapl:0"
    files = {
        "/sys/class/hwmon/hwmon0/name": "coretemp",
        "/sys/class/hwmon/hwmon0/temp1_input": "61000",
        "/sys/class/hwmon/hwmon0/temp2_input": "65500",
        "/sys/class/hwmon/hwmon1/name": "acpi_ipmi",
        "/sys/class/hwmon/hwmon1/temp1_label": "Inlet Temp",
        "/sys/class/hwmon/hwmon1/temp1_input": "24000",
        "/sys/class/hwmon/hwmon1/temp2_label": "PCH",
        "/sys/class/hwmon/hwmon1/temp2_input": "70000",
        f"{rapl}/energy_uj": "1000000",
        f"{rapl}/max_energy_range_uj": "2000000",
        f"{rapl}:0/energy_uj": "5",
    }
    here = Described(Description(files=files))
    sensors = Sensors(here)
    first = sensors.read()
    assert first == SensorReadings(cpu_temperature_c=65.5, inlet_temperature_c=24.0)
    sensors._energy["intel-rapl:0"] = time.monotonic() - 1.0, 1_500_000
    second = sensors.read().cpu_power_watts
    assert second == pytest.approx(1.5, rel=0.1), "the counter went round"
    assert Sensors(Described(Description())).read() == SensorReadings()


def test_memory_is_measured_only_where_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_rate, "cache_bytes", lambda here: 2**40)
    assert memory_rate.measure(ThisMachine(), 1) is None
    monkeypatch.setattr(memory_rate, "cache_bytes", lambda here: 2**20)
    monkeypatch.setattr(memory_rate, "_PASSES", 1)
    found = memory_rate.measure(ThisMachine(), 2)
    assert isinstance(found, MemoryRate)
    assert found.one_core > 100
    assert found.all_cores % 100 == 0
