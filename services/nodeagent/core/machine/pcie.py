"""How cards are linked to their host, and how far things on the PCIe tree are from each other."""

from __future__ import annotations

from libs.events.machine import PcieLink

LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.877}
"""What one lane carries each way, by generation, after encoding."""

_SPEEDS = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16": 4, "16.0": 4, "32": 5, "32.0": 5, "64": 6, "64.0": 6}


def generation_of(speed: str | None) -> int | None:
    """The generation of a link speed as the kernel writes it: ``16.0 GT/s PCIe`` is 4."""
    words = (speed or "").split()
    return _SPEEDS.get(words[0]) if words else None


def kernel_bus_id(bus_id: str) -> str:
    """``00000000:3B:00.0`` as the kernel names it: ``0000:3b:00.0``."""
    domain, _, rest = bus_id.strip().lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def shortfall(link: PcieLink | None) -> str | None:
    """What a card's link lacks of what the card could do, with the figures and what to look at; None: nothing."""
    if link is None:
        return None
    generation = link.generation or link.card_generation
    narrow = link.lanes is not None and link.card_lanes is not None and 0 < link.lanes < link.card_lanes
    slow = (
        link.generation is not None and link.card_generation is not None and 0 < link.generation < link.card_generation
    )
    if not narrow and not slow:
        return None
    parts = []
    if narrow:
        parts.append(f"x{link.lanes} of its x{link.card_lanes} lanes")
    if slow:
        parts.append(f"PCIe generation {link.generation} of its {link.card_generation}")
    figures = ""
    best = link.card_generation or generation
    if generation in LANE_GB_S and best in LANE_GB_S and link.lanes and link.card_lanes:
        has, could = LANE_GB_S[generation] * link.lanes, LANE_GB_S[best] * link.card_lanes
        figures = f": {has:.1f} GB/s where it could have {could:.1f}"
    return (
        f"linked at {' and '.join(parts)}{figures}; loading weights and work split over cards are slower for it: "
        "look at the slot (fewer lanes, an older generation), a riser, or the PCIe setting of the firmware"
    )


DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""Nearest first, in NVIDIA's terms: one bridge, several, over the host bridge, over the NUMA node, over the sockets."""


def distance(path: str, other_path: str, one_node: int | None, other_node: int | None) -> str:
    """How far two devices are apart, by their paths under ``/sys/devices`` and their NUMA nodes."""
    left, right = _branch(path), _branch(other_path)
    shared = 0
    while shared < min(len(left), len(right)) and left[shared] == right[shared]:
        shared += 1
    if shared > 1:
        # Everything below the last common bridge: the device itself and the bridges on the way to it.
        bridges = max(len(left), len(right)) - shared - 1
        return "PIX" if bridges <= 1 else "PXB"
    if shared == 1:
        return "PHB"
    if one_node is not None and one_node == other_node:
        return "NODE"
    return "SYS"


def _branch(path: str) -> list[str]:
    """``[host bridge, port, switch, …, device]`` of ``/sys/devices/pci0000:15/0000:15:01.0/…``."""
    parts = path.strip("/").split("/")
    start = next((n for n, part in enumerate(parts) if part.startswith("pci")), len(parts))
    return parts[start:]
