"""What ``up`` tells its parts holds, whatever the environment says."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.fleet import load
from cli.home import Home
from cli.parts import Layout, ports_needed
from libs.runtime.settings import load as load_settings
from libs.simulated_machines import FleetMachine
from services.entry import SERVICES, settings_type

FLEET = Path(__file__).parents[3] / "examples" / "fleet.yaml"
MACHINES = load(FLEET).machines
PREFERRED = "LLMGW_GATEWAY_WORKERS"


def layout(root: Path, machines: tuple[FleetMachine, ...] = ()) -> Layout:
    home = Home(root)
    home.make()
    ports = {name: 20000 + i for i, name in enumerate(["gateway", *ports_needed(machines)])}
    return Layout(home, ports, machines)


@pytest.mark.parametrize("field", ["nats_url", "credentials", "data_dir", "status_host", "status_port", "instance"])
@pytest.mark.parametrize("service", SERVICES)
def test_no_service_is_parted_from_the_others_by_a_variable(tmp_path: Path, service: str, field: str) -> None:
    name = f"LLMGW_{service}_{field}".upper()

    assert layout(tmp_path).overruled({name: "x", "HOME": "/", PREFERRED: "4"}) == [name]


def test_labels_are_anyones_where_no_machine_is_simulated(tmp_path: Path) -> None:
    environ = {"LLMGW_NODEAGENT_LABELS": "{a: b}", "LLMGW_NODEAGENT_ENGINES": "[sim]"}

    assert layout(tmp_path).overruled(environ) == []
    assert layout(tmp_path, MACHINES).overruled(environ) == ["LLMGW_NODEAGENT_LABELS"]


def test_what_the_parts_are_told_are_settings_they_take(tmp_path: Path) -> None:
    made = layout(tmp_path, MACHINES)
    made.write_settings()

    for name in made.settings():
        service = next(one for one in SERVICES if one == name.partition("@")[0])
        load_settings(settings_type(service), service, made.home.settings(name), environ={})
