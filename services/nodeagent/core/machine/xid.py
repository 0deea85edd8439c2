"""Errors of the NVIDIA driver in the kernel's log."""

from __future__ import annotations

import re

import msgspec

from .cards import xid_text
from .pcie import kernel_bus_id

_LINE = re.compile(r"NVRM: Xid \(PCI:(?P<bus>[0-9a-fA-F:.]+)\): (?P<number>\d+)\b")


class Xid(msgspec.Struct, frozen=True):
    """One error: the card's bus id as the kernel names it (without the function), and the number."""

    bus: str
    number: int

    @property
    def text(self) -> str:
        """What the number means, as part of a sentence."""
        return xid_text(self.number)


def xid_of(line: str) -> Xid | None:
    """The error a line of the kernel's log speaks of, or None. What the line says of programs is not kept."""
    match = _LINE.search(line)
    if match is None:
        return None
    bus = match.group("bus")
    return Xid(
        kernel_bus_id(bus if bus.count(":") > 1 else f"0000:{bus}").partition(".")[0], int(match.group("number"))
    )
