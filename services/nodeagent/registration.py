"""What the machine is, told to the log once and again whenever that changed."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from libs.events.machine import MachineRegistered

from .adapters.disk.outbox import Outbox
from .engines.programs import Available
from .machine.hardware import Hardware
from .machine.overrides import Overrides
from .shard.fetching import Fetching


class Registration:
    """``sealing_key``: the public one, hex; ``run``: how often an agent has started on this data folder."""

    def __init__(
        self,
        hardware: Hardware,
        fetching: Fetching,
        overrides: Overrides,
        outbox: Outbox,
        engines: Mapping[str, Available],
        sealing_key: str,
        run: int,
    ) -> None:
        self._hardware = hardware
        self._fetching = fetching
        self._overrides = overrides
        self._outbox = outbox
        self._engines = tuple(available.found for available in engines.values())
        self._sealing_key = sealing_key
        self._run = run
        self._last: MachineRegistered | None = None
        self._count = 0

    def refresh(self) -> None:
        """Tell what the machine is, if that is not what was told last. Raises OSError (disk)."""
        machine = msgspec.structs.replace(
            self._hardware.registered(self._sealing_key, self._engines),
            weights=self._fetching.complete,
            changed_settings=self._overrides.kept,
        )
        if self._last is not None and msgspec.structs.replace(self._last, at=machine.at) == machine:
            return
        self._last = machine
        self._count += 1
        self._outbox.put(machine, f"machine.{machine.machine_id}:registered:{self._run}.{self._count}")

    def repeat(self) -> None:
        """Tell it again, changed or not. Raises OSError (disk)."""
        self._last = None
        self.refresh()
