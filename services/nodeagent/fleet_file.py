"""The settings of each agent that a fleet file asks for."""

from __future__ import annotations

from pathlib import Path

import msgspec
import yaml

from libs.bus.identities import node_identity
from libs.bus.transport import Misconfigured
from libs.runtime.yaml_values import scalars, two_readings
from libs.simulated_machines import BadFleet, FleetMachine, SimulatedMachine, machines_of

from .settings import NodeAgentSettings

_HARDWARE = tuple(field.name for field in msgspec.structs.fields(SimulatedMachine))


def read(file: Path) -> tuple[FleetMachine, ...]:
    """The machines of a fleet file, at least one; what else it declares is for ``llmgw apply``.

    Raises Misconfigured.
    """
    try:
        text = file.read_text()
        _refuse_two_readings(file, text)
        machines = machines_of(text)
    except OSError as error:
        raise Misconfigured(f"the fleet file {file} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, BadFleet) as error:
        raise Misconfigured(f"the fleet file {file}: {error}") from None
    if not machines:
        raise Misconfigured(f"the fleet file {file} describes no machine")
    return machines


def _refuse_two_readings(file: Path, text: str) -> None:
    """Raises Misconfigured for a value that two versions of YAML read differently."""
    for node in yaml.compose_all(text, Loader=yaml.SafeLoader):
        for value in scalars(node):
            if not value.tag.endswith(":bool") and (differs := two_readings(value)) is not None:
                raise Misconfigured(f"the fleet file {file}:{value.start_mark.line + 1}: {differs}")


def of_machine(settings: NodeAgentSettings, machine: FleetMachine) -> NodeAgentSettings:
    """The settings of one machine's agent, from those of the process that runs all of them."""
    credentials = settings.credentials
    return msgspec.structs.replace(
        settings,
        fleet=None,
        machine_id=machine.id,
        labels=settings.labels | machine.labels,
        data_dir=settings.data_dir / machine.id,
        credentials=credentials.with_name(f"{node_identity(machine.id)}.nk") if credentials is not None else None,
        simulated=SimulatedMachine(**{name: getattr(machine, name) for name in _HARDWARE}),
    )
