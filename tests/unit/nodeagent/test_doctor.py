"""The doctor on every recorded machine: what is wrong, what it costs, how to mend it."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from libs.events.questions import Finding
from services.nodeagent import doctor
from services.nodeagent.core.machine.diagnostics import Facts, findings
from services.nodeagent.machine import diagnostics
from services.nodeagent.settings import NodeAgentSettings
from services.nodeagent.simulation.host_access import Described

from .machines import NAMES, described

RAILS = {"ib-a": tuple(f"mlx5_{n}" for n in range(8))}


def facts(name: str, here: Described | None = None, **settings: object) -> Facts:
    given = NodeAgentSettings(data_dir=Path("/nowhere/at/all"), **settings)  # type: ignore[arg-type]
    found = diagnostics.gather(here or described(name), given, ("llamacpp", "sim"))
    # What is of the machine below the tests and not of the recorded one.
    return msgspec.structs.replace(
        found, disk_free_mb=500_000, memlock_bytes=None, modules=("ib_uverbs", "nvidia_peermem")
    )


def serious(found: tuple[Finding, ...]) -> list[tuple[str, str]]:
    return [(one.severity, one.subject) for one in found if one.severity in ("broken", "costly")]


def said(found: tuple[Finding, ...], words: str) -> Finding:
    return next(one for one in found if words in one.found)


@pytest.mark.parametrize("name", NAMES)
def test_every_machine_is_judged_most_serious_first_and_every_fault_says_cost_and_fix(name: str) -> None:
    found = findings(facts(name))
    order = ["broken", "costly", "note", "fine"]
    assert [order.index(one.severity) for one in found] == sorted(order.index(one.severity) for one in found)
    for one in found:
        if one.severity != "fine":
            assert one.found, one
            assert one.costs, one
            assert one.fix, one
    assert doctor.code(found) == any(one.severity == "broken" for one in found)
    text = doctor.as_text("gpu-01", found)
    assert text.count("\n        fix:") == sum(bool(one.fix) for one in found)


def test_a_sound_machine_has_nothing_to_mend() -> None:
    found = findings(facts("h100-sxm-8", fabrics=RAILS))
    assert serious(found) == []
    assert said(found, "sm:fc6a1c0300bb0000").subject == "fabric ib-a"
    assert said(found, "8 can be used (h100-80g)")
    assert doctor.code(found) == 0


def test_a_lost_card_and_one_that_waits_for_a_reset() -> None:
    found = findings(facts("h100-one-lost", fabrics=RAILS))
    assert said(found, "1 of 8 NVIDIA cards at 0000:5d:00.0").severity == "broken"
    assert doctor.code(found) == 1


def test_mig_with_nothing_carved() -> None:
    one = said(findings(facts("a100-mig")), "no instance is carved")
    assert (one.severity, one.subject) == ("broken", "GPU 1 (NVIDIA A100-SXM4-80GB)")
    assert "nvidia-smi mig -cgi" in one.fix


def test_a_rack_whose_card_has_not_joined() -> None:
    found = findings(facts("gb200-not-joined"))
    assert ("broken", "IMEX") in serious(found)
    assert said(found, "has not joined its NVLink fabric (in progress)").severity == "broken"
    assert serious(findings(facts("gb200-nvl72-tray"))) == []


def test_a_narrow_slot_that_also_gets_hot() -> None:
    found = findings(facts("h100-narrow-slot"))
    assert "15.8 GB/s where it could have 63.0" in said(found, "x8 of its x16").found
    assert "hw_thermal" in said(found, "clocks are held down").found
    assert said(found, "error correction is off").severity == "note"
    assert doctor.code(found) == 0


@pytest.mark.parametrize(
    ("name", "words", "fix"),
    [
        ("driver-mismatch", "reboot needed", "drain the machine and reboot it"),
        ("no-driver", "cannot be used", "the sentence"),
        ("v100", "15000 MB of its memory are held by programs that are not engines: process 991", "ps -fp"),
        ("v100", "1 memory errors could not be corrected", "reset the card"),
        ("no-gpu", "no AVX2", "'host'"),
        ("l40s-pcie-2", "no fabric of the settings names it", "fabrics: {NAME: [mlx5_0]}"),
    ],
)
def test_what_else_is_found(name: str, words: str, fix: str) -> None:
    assert fix in said(findings(facts(name)), words).fix


def test_two_networks_under_one_name_a_port_that_is_down_and_a_slow_one() -> None:
    here = described("h100-sxm-8")
    for path in list(here.description.files):
        if path.endswith("mlx5_2/ports/1/state"):
            here.description.files[path] = "1: DOWN"
        if path.endswith("mlx5_3/ports/1/rate"):
            here.description.files[path] = "200 Gb/sec (4X HDR)"
        if path.endswith("mlx5_5/ports/1/counters/link_downed"):
            here.description.files[path] = "7"
    commands = here.description.commands
    commands["sminfo -C mlx5_4 -P 1"] = msgspec.structs.replace(
        commands["sminfo -C mlx5_4 -P 1"],
        out="sminfo: sm lid 1 sm guid 0xa0, activity count 1 priority 0 state 3 SMINFO_MASTER\n",
    )
    del commands["saquery -C mlx5_4 -P 1 SMIR"]
    found = findings(facts("", here, fabrics=RAILS))
    assert said(found, "2 networks that cannot reach each other").severity == "broken"
    assert said(found, "it is down (linkup)").subject == "mlx5_2 port 1"
    assert said(found, "200 Gb/s and another at 400").subject == "mlx5_3 port 1"
    assert said(found, "7 link_downed").severity == "note"


def test_services_modules_limits_disk_and_engines() -> None:
    sound = facts("h100-sxm-8", fabrics=RAILS)
    sick = msgspec.structs.replace(
        sound, units={"nvidia-fabricmanager": "failed", "nvidia-persistenced": None}, modules=(), memlock_bytes=8 << 20,
        disk_free_mb=100, engines=("sim",), xids={79: 2, 31: 5},
    )  # fmt: skip
    found = findings(sick)
    assert said(found, "4 NVSwitches and nvidia-fabricmanager is failed").severity == "broken"
    assert said(found, "ib_uverbs").severity == "broken"
    assert said(found, "8192 KB of memory").fix == "set LimitMEMLOCK=infinity in the agent's unit"
    assert said(found, "100 MB are free").severity == "broken"
    assert said(found, "no engine").severity == "broken"
    assert said(found, "XID 79 (it has fallen off the bus) 2 times").severity == "costly"
    assert not any("XID 31" in one.found for one in found)
    assert "persistence daemon" in said(found, "not installed").found


def test_json_carries_every_fact() -> None:
    seen = facts("a100-mig")
    whole = msgspec.json.decode(doctor.as_json("gpu-01", seen, findings(seen)))
    assert whole["machine"] == "gpu-01"
    assert len(whole["facts"]["gpus"]) == 3
    assert whole["findings"][0]["severity"] == "broken"
