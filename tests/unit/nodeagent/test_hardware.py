from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from libs.events.machine import Gpu
from services.nodeagent.adapters.gpu.dcgm_exporter import Exporter
from services.nodeagent.adapters.gpu.nvml import Nvml, _Known
from services.nodeagent.adapters.gpu.nvml_samples import Sampler
from services.nodeagent.adapters.host import machine
from services.nodeagent.machine.polling import Polling
from services.nodeagent.simulation.host_access import Described, Description
from services.nodeagent.simulation.nvml import Card, Library

GIB = 2**30


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A control group the machine module believes to be in, on a machine of sixteen cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(machine, "_control_groups", lambda controller: iter([tmp_path]))
    return tmp_path


def test_the_machine_under_the_tests() -> None:
    assert 1 <= machine.cpu_count() <= (psutil.cpu_count() or 1)
    assert 0 < machine.memory_available_mb() <= machine.memory_total_mb() <= psutil.virtual_memory().total // 2**20
    assert machine.operating_system()
    home = machine.filesystems(Path.cwd())
    assert any(Path.cwd().is_relative_to(one.path) and one.total_mb > 0 for one in home)
    devices = [one.device for one in home if one.device != "overlay"]
    assert len(set(devices)) == len(devices), "one entry a filesystem, not a folder"
    assert machine.free_mb(("/", "/not/there")).keys() == {"/"}


def test_the_tightest_limit_of_version_2_counts(group: Path) -> None:
    (group / "memory.max").write_text(f"{GIB}\n")
    (group / "memory.current").write_text(f"{GIB - 100 * 2**20}\n")
    (group / "memory.stat").write_text(f"anon 5\ninactive_file {50 * 2**20}\n")
    (group / "cpu.max").write_text("150000 100000\n")
    assert machine.memory_total_mb() == 1024
    assert machine.memory_available_mb() == 150, "pages the kernel would drop are free"
    assert (machine.cpu_count(), machine.cpu_quota()) == (1, 1.5), "no core is given that is not there"
    (group / "memory.max").write_text("max\n")
    (group / "cpu.max").write_text("max 100000\n")
    assert machine.memory_total_mb() == psutil.virtual_memory().total // 2**20


def test_the_tightest_limit_of_version_1_counts(group: Path) -> None:
    (group / "memory.limit_in_bytes").write_text(f"{GIB}\n")
    (group / "memory.usage_in_bytes").write_text("0\n")
    (group / "cpu.cfs_quota_us").write_text("50000\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    assert machine.memory_total_mb() == 1024
    assert (machine.cpu_count(), machine.cpu_quota()) == (1, 0.5)
    (group / "cpu.cfs_quota_us").write_text("150000\n")
    assert (machine.cpu_count(), machine.cpu_quota()) == (1, 1.5)
    (group / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    assert machine.memory_total_mb() == psutil.virtual_memory().total // 2**20
    assert (machine.cpu_count(), machine.cpu_quota()) == (len(os.sched_getaffinity(0)), None)


def test_the_address_is_the_one_on_the_route_to_the_bus() -> None:
    assert machine.address_towards("nats://127.0.0.1:4222,nats://b:4222") == "127.0.0.1"
    assert machine.address_towards("nats://no.such.host.invalid:4222") == "127.0.0.1"


GPU = Gpu(index=0, uuid="GPU-a", name="NVIDIA H100", gpu_class="h100-80g", memory_total_mb=81559)


@pytest.mark.parametrize(
    ("error", "said", "never"),
    [
        ("LIB_RM_VERSION_MISMATCH", "reboot needed", "unverified"),
        ("DRIVER_NOT_LOADED", "not loaded", "unverified"),
        ("GPU_IS_LOST", "does not answer", "unverified"),
        ("LIBRARY_NOT_FOUND", "no NVIDIA driver is installed", "absent"),
    ],
)
def test_a_driver_that_fails_is_not_zero_gpus(tmp_path: Path, error: str, said: str, never: str) -> None:
    here = Described(Description(nvml=Library(error=error)))
    first = Nvml(here, tmp_path / "gpus.json").look()
    assert (first.state, first.gpus) == (never, ())
    assert said in first.reason
    (tmp_path / "gpus.json").write_bytes(msgspec.json.encode(_Known((GPU,), "580.1")))
    before = Nvml(here, tmp_path / "gpus.json")
    found = before.look()
    assert (found.state, found.gpus, found.driver) == ("unverified", (GPU,), "580.1")
    assert said in found.reason
    assert Sampler(before, Exporter(None)).samples(frozenset(), {}) == ()


def test_a_driver_that_was_loaded_anew_is_begun_anew(tmp_path: Path) -> None:
    library = Library(cards=[Card(name="NVIDIA H100", uuid="GPU-a", memory_mb=81559)])
    nvml = Nvml(Described(Description(nvml=library)), tmp_path / "gpus.json")
    assert nvml.look().state == "verified"
    library.error = "DRIVER_NOT_LOADED"
    assert nvml.look().state == "unverified"
    library.error = None
    assert nvml.look().state == "verified"


def test_a_read_that_hangs_holds_nobody_up() -> None:
    release, calls = threading.Event(), []

    def read() -> int:
        calls.append(1)
        if len(calls) > 1:
            release.wait(10)
        return len(calls)

    background = Polling("a slow thing", read, 0.001)
    background.start()
    try:
        assert background.first(5)
        begun = time.monotonic()
        assert background.latest() == 1
        assert time.monotonic() - begun < 0.1
        assert background.latest(no_older_s=0) is None, "an old answer is none"
    finally:
        background.stop()
        release.set()


def test_a_read_that_fails_keeps_the_last_answer() -> None:
    answers = iter([1])
    background = Polling("a thing", lambda: next(answers), 0.001)
    background.start()
    assert background.first(5)
    assert background.latest() == 1
    background.stop()
