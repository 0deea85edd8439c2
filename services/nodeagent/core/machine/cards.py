"""What of a card keeps it from being used, as sentences."""

from __future__ import annotations

from datetime import datetime, timedelta

from libs.events.machine import Gpu, GpuWear
from libs.events.times import rfc3339

MIG_EMPTY = "it is in MIG mode and no instance is carved: nothing can run on it until one is, or MIG is turned off"

SUSPECT_S = 600
"""A card that reported a serious error is left out until so long passed without another."""

ZEROS = "00000000-0000-0000-0000-000000000000"

SERIOUS_XIDS: dict[int, str] = {
    48: "an error in its memory that could not be corrected",
    62: "its controller halted",
    64: "a bad memory row could not be replaced",
    74: "an NVLink error",
    79: "it has fallen off the bus",
    92: "many errors in its memory were corrected",
    94: "an error in its memory, contained to one program",
    95: "an error in its memory that reached other programs",
    119: "its controller does not answer (GSP)",
    120: "its controller failed (GSP)",
    140: "an error in its memory that was not recovered",
    143: "it could not be initialised",
}
"""Errors of the driver that speak of the card and not of the program on it."""

XIDS: dict[int, str] = SERIOUS_XIDS | {
    13: "a program computed an invalid address or instruction",
    31: "a program touched memory that is not its own",
    32: "a corrupted command was pushed to it",
    38: "its firmware failed",
    43: "a program was stopped after its fault",
    45: "a program was cut off after an earlier error",
    61: "its controller reported a breakpoint",
    63: "a bad memory row was marked to be replaced",
    68: "its video engine failed",
    69: "a graphics program failed",
}


def xid_text(number: int) -> str:
    """A sentence part for an error number of the driver."""
    return XIDS.get(number, "an error without a common name")


def wear_problems(wear: GpuWear | None, now: datetime) -> tuple[str, ...]:
    """What its memory and its last errors say against using a card."""
    if wear is None:
        return ()
    problems = []
    if wear.remap_failed:
        problems.append("its memory has no spare rows left for the bad ones (row remap failed): it must be replaced")
    if wear.remap_pending:
        problems.append("a bad row of its memory is replaced only when it is reset: drain it and reset it or reboot")
    if wear.retirement_pending:
        problems.append("a bad page of its memory is retired only when it is reset: drain it and reset it or reboot")
    at = wear.last_xid_at
    if wear.last_xid in SERIOUS_XIDS and at is not None and now - at < timedelta(seconds=SUSPECT_S):
        problems.append(
            f"it reported XID {wear.last_xid} ({xid_text(wear.last_xid)}) at {rfc3339(at)} "
            f"and is left out until {SUSPECT_S // 60} minutes have passed without another"
        )
    return tuple(problems)


def power_shortfall(gpu: Gpu) -> str | None:
    """What a card's power limit costs, as the rest of a sentence; None: nothing."""
    limit, usual = gpu.power_limit_watts, gpu.power_default_watts
    if limit is None or usual is None or limit >= usual:
        return None
    index = gpu.mig.card_index if gpu.mig is not None else gpu.index
    return (
        f"limited to {limit} W of its usual {usual}: it computes slower under load, and is given work last; "
        f"nvidia-smi -i {index} -pl {usual} lets it draw all of it again"
    )


def nvlink_domain(gpu_cluster: str | None, clique: int | None, state: str) -> str | None:
    """The name of the domain a card has joined, None while it has not."""
    if state != "completed" or gpu_cluster is None:
        return None
    return f"{gpu_cluster}/{clique or 0}"


def label(gpu: Gpu) -> str:
    """How sentences name a card: ``GPU 3 (NVIDIA H100 80GB HBM3)``, ``GPU 0 instance 1 (…)``."""
    if gpu.mig is not None:
        return f"GPU {gpu.mig.card_index} instance {gpu.mig.device} ({gpu.name})"
    return f"GPU {gpu.index} ({gpu.name})"
