"""Every recorded machine: the right facts, the right classes, problems as sentences, never a crash."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from libs.events.machine import Gpu, NvlinkFabric, PcieLink
from services.nodeagent.adapters.gpu.dcgm_exporter import Exporter
from services.nodeagent.adapters.gpu.nvml import Gpus, Nvml
from services.nodeagent.adapters.gpu.nvml_samples import Sampler
from services.nodeagent.core.machine import pcie, smi
from services.nodeagent.core.machine.xid import Xid, xid_of
from services.nodeagent.machine.hardware import link_problems

from .machines import NAMES, described


def look(name: str, memory: Path | None = None) -> Gpus:
    return Nvml(described(name), memory).look()


def test_eight_h100_behind_nvswitches() -> None:
    found = look("h100-sxm-8")
    assert (found.state, found.driver, found.cuda, found.source) == ("verified", "580.95.05", "13.0", "nvml")
    assert {gpu.gpu_class for gpu in found.gpus} == {"h100-80g"}
    assert [gpu.index for gpu in found.gpus] == list(range(8))
    assert [gpu.numa_node for gpu in found.gpus] == [0, 0, 0, 0, 1, 1, 1, 1]
    first = found.gpus[0]
    assert len(first.nvlink_peers) == 7
    assert first.uuid not in first.nvlink_peers
    assert (first.compute_capability, first.pci_bus_id, first.ecc_enabled) == ("9.0", "0000:19:00.0", True)
    assert first.pcie == PcieLink(generation=5, card_generation=5, lanes=16, card_lanes=16)
    # The fabric manager of a single machine reports zeros: joined, and no domain.
    assert first.nvlink == NvlinkFabric(state="completed")
    assert first.nvlink_domain is None
    assert found.problems == link_problems(found.gpus) == ()
    assert not any(gpu.problems for gpu in found.gpus)


def test_instances_take_the_place_of_their_card() -> None:
    found = look("a100-mig")
    first, second, empty = found.gpus
    assert [gpu.index for gpu in found.gpus] == [1000, 1001, 1]
    assert first.gpu_class == second.gpu_class == "a100-80g-mig-3g.40gb"
    assert first.uuid.startswith("MIG-")
    assert first.memory_total_mb == 40192
    assert first.nvlink_peers == (), "instances have no NVLink between them"
    assert first.mig is not None
    assert (first.mig.card_index, first.mig.device, first.mig.profile) == (0, 0, "3g.40gb")
    assert (first.mig.gpu_instance, first.mig.card_memory_total_mb) == (1, 81920)
    assert "no instance is carved" in empty.problems[0]


def test_a_tray_of_a_rack_tells_its_domain() -> None:
    found = look("gb200-nvl72-tray")
    domain = "3c0f5b1e-9d2a-4e77-8a51-0b6f2d9e4c10/32766"
    assert {gpu.nvlink_domain for gpu in found.gpus} == {domain}
    assert {gpu.gpu_class for gpu in found.gpus} == {"gb200-192g"}
    assert found.gpus[0].nvlink is not None
    assert found.gpus[0].nvlink.bandwidth_degraded is False
    assert found.gpus[2].pci_bus_id == "0018:01:00.0"
    waiting = look("gb200-not-joined").gpus
    assert [gpu.nvlink_domain for gpu in waiting] == [domain, domain, None, domain]
    assert waiting[2].nvlink == NvlinkFabric(state="in_progress")


def test_cards_on_pcie() -> None:
    found = look("l40s-pcie-2")
    assert [gpu.gpu_class for gpu in found.gpus] == ["l40s-48g"] * 2
    assert [gpu.nvlink_peers for gpu in found.gpus] == [(), ()]
    assert found.cuda == "12.8"
    assert found.gpus[0].nvlink is None


def test_an_old_card_whose_driver_knows_little() -> None:
    (gpu,) = look("v100").gpus
    assert (gpu.gpu_class, gpu.compute_capability) == ("v100-32g", "7.0")
    # The driver does not know the card's own generation; the kernel does.
    assert gpu.pcie == PcieLink(generation=3, card_generation=3, lanes=16, card_lanes=16)


def test_a_card_in_a_narrow_slot_says_what_it_costs() -> None:
    found = look("h100-narrow-slot")
    (problem,) = link_problems(found.gpus)
    assert "GPU 0 (NVIDIA H100 PCIe) is linked at x8 of its x16 lanes and PCIe generation 4 of its 5" in problem
    assert "15.8 GB/s where it could have 63.0" in problem
    assert found.gpus[0].problems == (), "it is slower, not unusable"


def test_a_card_that_may_draw_less_than_it_was_made_for_says_what_it_costs() -> None:
    (gpu,) = look("v100").gpus
    limited = msgspec.structs.replace(gpu, power_limit_watts=200, power_default_watts=300)
    (problem,) = link_problems((limited,))
    assert "is limited to 200 W of its usual 300: it computes slower under load" in problem
    assert "nvidia-smi -i 0 -pl 300" in problem
    assert link_problems((msgspec.structs.replace(limited, power_limit_watts=300),)) == ()


def test_a_driver_that_does_not_match_is_not_zero_gpus(tmp_path: Path) -> None:
    never = look("driver-mismatch")
    assert (never.state, never.gpus) == ("unverified", ())
    assert "reboot needed" in never.reason
    memory = tmp_path / "gpus.json"
    assert look("h100-narrow-slot", memory).state == "verified"
    after = look("driver-mismatch", memory)
    assert (after.state, len(after.gpus), after.driver) == ("unverified", 1, "580.95.05")


def test_no_driver_and_no_card_are_different() -> None:
    without = look("no-driver")
    assert without.state == "unverified"
    assert "1 NVIDIA cards are in this machine and cannot be used" in without.problems[0]
    none = look("no-gpu")
    assert (none.state, none.gpus, none.problems) == ("absent", (), ())
    assert "no NVIDIA driver is installed" in none.reason


def test_one_lost_card_takes_no_other_with_it(tmp_path: Path) -> None:
    memory = tmp_path / "gpus.json"
    look("h100-sxm-8", memory)
    for _ in range(2):  # the second look must not have forgotten the card
        found = look("h100-one-lost", memory)
        assert found.state == "verified"
        assert [gpu.index for gpu in found.gpus] == list(range(8))
        lost = found.gpus[3]
        assert "does not answer the driver" in lost.problems[0]
        assert [gpu.index for gpu in found.gpus if gpu.problems] == [3]
        assert len(found.gpus[0].nvlink_peers) == 6
        (problem,) = found.problems
        assert "1 of 8 NVIDIA cards at 0000:5d:00.0 cannot be used" in problem
    unknown = look("h100-one-lost")
    assert len(unknown.gpus) == 7
    assert "GPU 3 does not answer" in unknown.problems[0]


def test_an_only_card_that_is_lost_stays_known() -> None:
    here = described("v100")
    nvml = Nvml(here, None)
    (sound,) = nvml.look().gpus
    assert here.description.nvml is not None
    (card,) = here.description.nvml.cards
    card.error = "GPU_IS_LOST"
    for _ in range(2):
        found = nvml.look()
        (lost,) = found.gpus
        assert (found.state, lost.uuid) == ("verified", sound.uuid)
        assert "does not answer the driver" in lost.problems[0]
    card.error = None
    assert nvml.look().gpus == (sound,)


def test_nvidia_smi_stands_in_for_a_library_that_is_not_there() -> None:
    found = look("smi-only")
    assert (found.state, found.source, found.driver, found.cuda) == ("verified", "nvidia-smi", "550.54.15", "12.4")
    large, small, whole = found.gpus
    assert [gpu.index for gpu in found.gpus] == [1000, 1001, 1]
    assert (large.gpu_class, large.memory_total_mb) == ("a100-80g-mig-3g.40gb", 40192)
    assert (small.gpu_class, small.memory_total_mb) == ("a100-80g-mig-1g.10gb", 9728)
    assert large.mig is not None
    assert large.mig.gpu_instance == 2
    assert (whole.gpu_class, whole.pci_bus_id, whole.ecc_enabled) == ("a100-80g", "0000:0b:00.0", True)


def test_a_card_that_shares_the_machines_memory_is_a_card() -> None:
    nvml = Nvml(described("gb10-spark"), None)
    found = nvml.look()

    (card,) = found.gpus
    assert (found.state, card.name, card.gpu_class, card.compute_capability) == (
        "verified", "NVIDIA GB10", "gb10-120g", "12.1",
    )  # fmt: skip
    assert (card.memory_total_mb, card.unified_memory, card.problems) == (122571, True, ())
    (sample,) = Sampler(nvml, Exporter(None)).samples(frozenset(), {})
    assert sample.memory_used_mb == 122571 - 104541696 // 1024
    assert sample.foreign_memory_mb == 24
    line = "0, GPU-a, NVIDIA GB10, [N/A], 12.1, 0000000F:01:00.0, [N/A], [N/A], 4, 4, 1, 16\n"
    (listed,) = smi.listed(line, smi.FIELDS, 122571)
    assert (listed.gpu.memory_total_mb, listed.gpu.unified_memory) == (122571, True)
    assert smi.listed(line.replace("[N/A], 12.1", "[GPU is lost], 12.1"), smi.FIELDS, 122571) == []


def test_a_query_with_a_field_the_driver_does_not_know_is_asked_with_fewer() -> None:
    found = look("smi-old")
    assert [(gpu.gpu_class, gpu.pci_bus_id) for gpu in found.gpus] == [("t4-16g", "0000:00:1e.0")]
    assert found.driver == "unknown", "the report hung; the list stands"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_said_that_was_not_found(name: str) -> None:
    found = look(name)
    for gpu in found.gpus:
        for field in msgspec.structs.fields(Gpu):
            value = getattr(gpu, field.name)
            assert value != -1, f"{field.name} of {gpu.name}"
        assert gpu.memory_total_mb > 0
    assert (found.state == "verified") == (found.reason == "")
    for sentence in (*found.problems, *(p for gpu in found.gpus for p in gpu.problems)):
        assert len(sentence) > 30


@pytest.mark.parametrize("garbage", ["", "<", "No devices were found\n", "0, GPU-x\n", "a,b,c\n" * 3, "\x00" * 40])
def test_garbage_from_nvidia_smi_is_no_card(garbage: str) -> None:
    assert smi.listed(garbage, smi.FIELDS) == []
    assert smi.instances(garbage) == {}
    with pytest.raises(ValueError, match="not XML"):
        smi.report(garbage)


def test_a_report_of_a_fabric_is_read() -> None:
    xml = """<?xml version="1.0" ?><!DOCTYPE nvidia_smi_log SYSTEM "x.dtd"><nvidia_smi_log>
    <driver_version>580.1</driver_version><gpu id="0"><uuid>GPU-a</uuid><fabric><state>Completed</state>
    <status>Success</status><clusterUuid>3c0f5b1e-9d2a-4e77-8a51-0b6f2d9e4c10</clusterUuid><cliqueId>3</cliqueId>
    <health><bandwidth>Degraded</bandwidth></health></fabric></gpu></nvidia_smi_log>"""
    fabric = smi.report(xml).fabrics["GPU-a"]
    assert (fabric.state, fabric.clique, fabric.bandwidth_degraded) == ("completed", 3, True)


@pytest.mark.parametrize(
    ("one", "other", "nodes", "expected"),
    [
        ("15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0",
         "15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0", (0, 0), "PIX"),
        ("15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0/0000:1a:00.0/0000:1b:00.0",
         "15/0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0", (0, 0), "PXB"),
        ("15/0000:15:01.0/0000:16:00.0", "15/0000:15:02.0/0000:18:00.0", (0, 0), "PHB"),
        ("15/0000:15:01.0/0000:16:00.0", "37/0000:37:02.0/0000:38:00.0", (0, 0), "NODE"),
        ("15/0000:15:01.0/0000:16:00.0", "97/0000:97:02.0/0000:98:00.0", (0, 1), "SYS"),
        ("15/0000:15:01.0/0000:16:00.0", "97/0000:97:02.0/0000:98:00.0", (None, None), "SYS"),
    ],
)  # fmt: skip
def test_distances_are_nvidias(one: str, other: str, nodes: tuple[int | None, int | None], expected: str) -> None:
    paths = [f"/sys/devices/pci0000:{path}" for path in (one, other)]
    assert pcie.distance(*paths, *nodes) == pcie.distance(*reversed(paths), *reversed(nodes)) == expected


def test_speeds_and_bus_ids() -> None:
    assert [pcie.generation_of(s) for s in ("2.5 GT/s PCIe", "16.0 GT/s PCIe", "64.0 GT/s", "Unknown", "", None)] == [
        1, 4, 6, None, None, None,
    ]  # fmt: skip
    assert pcie.kernel_bus_id("00000000:3B:00.0") == "0000:3b:00.0"
    assert pcie.shortfall(None) is None
    assert pcie.shortfall(PcieLink(lanes=4, card_lanes=16)) is not None, "without figures, but said"


@pytest.mark.parametrize(
    ("line", "xid"),
    [
        ("NVRM: Xid (PCI:0000:19:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
         Xid("0000:19:00", 79)),
        ("NVRM: Xid (PCI:0000:3b:00): 31, pid=4711, name=python3, Ch 00000008, intr 00000000.", Xid("0000:3b:00", 31)),
        ("NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_EVT Fatal", Xid("0018:01:00", 149)),
        ("usb 1-1: new high-speed USB device", None),
    ],
)  # fmt: skip
def test_errors_in_the_kernels_log(line: str, xid: Xid | None) -> None:
    assert xid_of(line) == xid
    assert xid is None or ("python3" not in xid.text and xid.text)
