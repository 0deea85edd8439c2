"""The units of deploy/systemd, checked against systemd and against the code they start."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.runtime.settings import variable
from services.entry import SERVICES, settings_type

UNITS = Path(__file__).parents[3] / "deploy" / "systemd"
SERVICE_UNITS = sorted(UNITS.glob("*.service"))
MAX_EXPOSED = 3.0
"""Of `systemd-analyze security`, 0 to 10, for all but the node agent, which needs its machine."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def entries(unit: Path) -> Iterator[tuple[str, str]]:
    for line in unit.read_text().splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            yield name, value


def values(unit: Path, name: str) -> list[str]:
    return [value for found, value in entries(unit) if found == name]


def service_of(unit: Path) -> str:
    return unit.stem.removeprefix("llmgw-")


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units with the program where it is on this machine: systemd looks whether it is there."""
    program = shutil.which("llmgw", path=str(Path(sys.executable).parent))
    assert program is not None
    for unit in UNITS.glob("llmgw*"):
        (tmp_path / unit.name).write_text(unit.read_text().replace("/opt/llmgw/bin/llmgw", program))
    return tmp_path


def test_every_service_has_a_unit_and_the_target_wants_it() -> None:
    assert {service_of(unit) for unit in SERVICE_UNITS} == set(SERVICES)
    (wanted,) = values(UNITS / "llmgw.target", "Wants")
    assert set(wanted.split()) == {unit.name for unit in SERVICE_UNITS}


@pytest.mark.parametrize("unit", SERVICE_UNITS, ids=service_of)
def test_a_unit_starts_its_service_with_settings_that_exist(unit: Path) -> None:
    service = service_of(unit)
    assert values(unit, "ExecStart") == [f"/opt/llmgw/bin/llmgw run {service} --settings /etc/llmgw/{service}.yaml"]
    known = {variable(service, field) for field in settings_type(service).__struct_fields__}
    credentials = {value.partition(":")[0] for value in values(unit, "LoadCredential")}
    for setting in values(unit, "Environment"):
        name, _, value = setting.partition("=")
        assert name in known
        for credential in re.findall(r"%d/(\S+)", value):
            assert credential in credentials


@pytest.mark.parametrize("unit", SERVICE_UNITS, ids=service_of)
def test_a_unit_tells_systemd_when_it_runs_and_is_always_restarted(unit: Path) -> None:
    assert values(unit, "Type") == ["notify"]
    assert values(unit, "Restart") == ["always"]
    assert values(unit, "StartLimitIntervalSec") == ["0"]
    assert values(unit, "PartOf") == ["llmgw.target"]


def test_engines_outlive_their_agent() -> None:
    unit = UNITS / "llmgw-nodeagent.service"
    assert values(unit, "KillMode") == ["process"]
    assert values(unit, "LimitMEMLOCK") == ["infinity"]


@needs_systemd
def test_systemd_finds_nothing_wrong(installed: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(installed.glob("llmgw*")))],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("unit", [one for one in SERVICE_UNITS if service_of(one) != "nodeagent"], ids=service_of)
def test_a_service_is_hardened(installed: Path, unit: Path) -> None:
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", str(installed / unit.name)],
        capture_output=True,
        text=True,
        check=False,
    )

    (exposure,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", done.stdout)
    assert float(exposure) <= MAX_EXPOSED, done.stdout
