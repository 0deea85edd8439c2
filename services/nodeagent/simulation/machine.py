"""A machine as the settings invent it, and what happens to it in its time."""

from __future__ import annotations

import msgspec

from ..adapters.nvml import Gpus
from ..adapters.surroundings import Surroundings
from ..settings import SimulatedMachine
from .nvml import Card, Library
from .surroundings import Described, Description


class Invented:
    """The surroundings of an invented machine."""

    def __init__(self, machine_id: str, machine: SimulatedMachine) -> None:
        self._classes: dict[str, str] = {}
        cards: list[Card] = []
        for group in machine.gpus:
            for _ in range(group.count):
                index = len(cards)
                uuid = f"GPU-sim-{machine_id}-{index}"
                self._classes[uuid] = group.gpu_class
                cards.append(
                    Card(
                        name=f"simulated {group.gpu_class}",
                        uuid=uuid,
                        memory_mb=group.memory_mb,
                        bus_id=f"00000000:{index + 1:02X}:00.0",
                        utilisation=(0, 0),
                        temperature_c=30,
                        power_mw=50_000,
                        throttle=0,
                        remapped=(0, 0, 0, 0),
                    )
                )
        self.description = Description(
            nvml=Library(driver="simulated", cards=cards, error=None if cards else "LIBRARY_NOT_FOUND")
        )
        self.here: Surroundings = Described(self.description)

    def named(self, gpus: Gpus) -> Gpus:
        """The cards under the class the settings give them, whatever a real card of that size would be called."""
        if not gpus.gpus:
            return Gpus(state="absent", reason="this simulated machine has none")
        renamed = tuple(
            msgspec.structs.replace(gpu, gpu_class=self._classes.get(gpu.uuid, gpu.gpu_class)) for gpu in gpus.gpus
        )
        return msgspec.structs.replace(gpus, gpus=renamed)
