"""What can happen to an invented machine: each changes what its driver, kernel or tools say."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from libs.simulated_machines import SimulatedFault
from services.nodeagent.adapters.host.fabric import ROOT

from .host_access import Description
from .nvml import Card

_THERMAL = 0x40
_IN_PROGRESS, _COMPLETED = 2, 3
_FOREIGN_PID = 4_000_000
"""Beyond what the kernel gives out by default."""


def apply(description: Description, fault: SimulatedFault) -> None:
    """Let it happen. Raises ValueError when it names a card that is not there."""
    library = description.nvml
    assert library is not None
    if fault.kind == "driver_fails":
        library.error = "UNKNOWN"
    elif fault.kind == "driver_back":
        library.error = None
    elif fault.kind in ("port_down", "port_up"):
        state = ("1: DOWN", "3: Disabled") if fault.kind == "port_down" else ("4: ACTIVE", "5: LinkUp")
        port = f"{ROOT}/{fault.nic}/ports/1"
        description.files |= {f"{port}/state": state[0], f"{port}/phys_state": state[1]}
    elif fault.gpu >= len(library.cards):
        raise ValueError(f"the fault {fault.kind} is of GPU {fault.gpu} and there are {len(library.cards)}")
    elif fault.kind == "xid":
        bus_id = (library.cards[fault.gpu].bus_id or "").lower()
        description.kernel_log.append(f"NVRM: Xid (PCI:0000:{bus_id[9:14]}): {fault.xid}, simulated")
    else:
        _CARDS[fault.kind](library.cards[fault.gpu], fault)


def _set(**values: object) -> Callable[[Card, SimulatedFault], None]:
    def change(card: Card, fault: SimulatedFault) -> None:
        for name, value in values.items():
            setattr(card, name, value)

    return change


def _taken(card: Card, fault: SimulatedFault) -> None:
    card.processes = {_FOREIGN_PID: fault.memory_mb}
    card.memory_used_mb = fault.memory_mb


def _fabric(state: int) -> Callable[[Card, SimulatedFault], None]:
    def change(card: Card, fault: SimulatedFault) -> None:
        if card.fabric is not None:
            card.fabric = msgspec.structs.replace(card.fabric, state=state)

    return change


_CARDS: dict[str, Callable[[Card, SimulatedFault], None]] = {
    "gpu_lost": _set(error="GPU_IS_LOST"),
    "gpu_back": _set(error=None),
    "remap_pending": _set(remapped=(0, 1, 1, 0)),
    "remap_failed": _set(remapped=(0, 9, 0, 1)),
    "remap_done": _set(remapped=(0, 1, 0, 0)),
    "hot": _set(throttle=_THERMAL, temperature_c=93),
    "cool": _set(throttle=0, temperature_c=35),
    "foreign_memory": _taken,
    "foreign_gone": _set(processes={}, memory_used_mb=0),
    "nvlink_left": _fabric(_IN_PROGRESS),
    "nvlink_joined": _fabric(_COMPLETED),
}
