"""``--fleet FILE``: simulated machines, and what to apply beside them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import yaml

from cli.declared import Item, Sections, read
from cli.failure import Failed
from libs.events.contract import Value


class Gpus(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Simulated GPUs of one class."""

    gpu_class: str = msgspec.field(name="class")
    memory_mb: int
    count: int = 1


class Machine(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A simulated machine: its hardware is invented, its agent and engines are real processes."""

    id: str
    labels: dict[str, str] = {}
    cores: int
    memory_mb: int
    gpus: tuple[Gpus, ...] = ()


class FleetSections(Sections, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A fleet file: machines, and any section of ``llmgw apply``."""

    machines: tuple[Machine, ...] = ()


class Fleet(msgspec.Struct, frozen=True):
    machines: tuple[Machine, ...] = ()
    items: tuple[Item, ...] = ()


def load(file: Path) -> Fleet:
    """What a fleet file says. Raises Failed with everything that is wrong."""
    try:
        text = file.read_text()
    except OSError as error:
        raise Failed(f"the fleet file {file} cannot be read: {error.strerror}") from None
    items = read([(str(file), text)], FleetSections)
    machines: list[Machine] = []
    for document in yaml.safe_load_all(text):
        try:
            machines += msgspec.convert((document or {}).get("machines") or [], list[Machine])
        except msgspec.ValidationError as error:
            raise Failed(f"{file}: machines: {error}") from None
    ids = [machine.id for machine in machines]
    twice = sorted({one for one in ids if ids.count(one) > 1})
    if twice:
        raise Failed(f"{file}: the machine {twice[0]!r} stands twice: ids must differ")
    return Fleet(tuple(machines), tuple(items))
