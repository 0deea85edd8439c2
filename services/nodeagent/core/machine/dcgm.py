"""What a dcgm-exporter on the machine says of how much of each chip is used."""

from __future__ import annotations

import re

from libs.events.machine import ChipUse

_FIELDS = {
    "DCGM_FI_PROF_SM_ACTIVE": "sm_active_percent",
    "DCGM_FI_PROF_SM_OCCUPANCY": "sm_occupancy_percent",
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "tensor_active_percent",
    "DCGM_FI_PROF_DRAM_ACTIVE": "dram_active_percent",
}
_LINE = re.compile(r"^(?P<name>DCGM_FI_PROF_\w+)\{(?P<labels>.*)\}\s+(?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def chip_use(page: str) -> dict[str, ChipUse]:
    """By GPU UUID. Lines of MIG instances and of cards DCGM cannot profile are not there."""
    by_uuid: dict[str, dict[str, float]] = {}
    for line in page.splitlines():
        match = _LINE.match(line)
        field = _FIELDS.get(match["name"]) if match else None
        if match is None or field is None:
            continue
        labels = dict(_LABEL.findall(match["labels"]))
        uuid = labels.get("UUID")
        if uuid is None or labels.get("GPU_I_ID"):
            continue
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if 0 <= value <= 1:
            by_uuid.setdefault(uuid, {})[field] = round(100 * value, 1)
    return {uuid: ChipUse(source="dcgm", **figures) for uuid, figures in by_uuid.items()}
