"""What a card may draw: its board power as its maker states it, by the beginning of its class."""

from __future__ import annotations

from libs.events.machine import Gpu

BOARD_WATTS = (
    ("gb200", 1200), ("b200", 1000), ("gh200", 900), ("h200", 700), ("h100-nvl", 400), ("h100-pcie", 350),
    ("h100", 700), ("h20", 400), ("a100", 400), ("a800", 400), ("l40s", 350), ("l40", 300), ("l4", 72),
    ("a10", 150), ("a30", 165), ("a40", 300), ("a6000", 300), ("v100", 300), ("t4", 70), ("rtx-4090", 450),
    ("rtx-5090", 575), ("rtx-3090", 350), ("rtx-6000", 300), ("mi300x", 750),
)  # fmt: skip
UNKNOWN_WATTS = 400


def watts_of(gpu: Gpu) -> int:
    """The most a card draws, as it is set or else as it is made; of a MIG instance its share of the card's memory."""
    watts = gpu.power_limit_watts or next(
        (watts for name, watts in BOARD_WATTS if gpu.gpu_class.startswith(name)), UNKNOWN_WATTS
    )
    if gpu.mig is not None and gpu.mig.card_memory_total_mb:
        return round(watts * min(1.0, gpu.memory_total_mb / gpu.mig.card_memory_total_mb))
    return watts
