"""Services of NVIDIA's that GPUs need beside the driver, by systemd's word."""

from __future__ import annotations

from libs.events.machine import Imex
from services.nodeagent.adapters.host.host_access import HostAccess, NotThere, TookTooLong

CHANNELS = "/dev/nvidia-caps-imex-channels"


def unit_state(host: HostAccess, unit: str) -> str | None:
    """``active``, ``inactive``, ``failed`` …; None when there is no such unit or no systemd."""
    try:
        shown = host.run("systemctl", "show", "--property=LoadState,ActiveState", unit, timeout_s=5)
    except (NotThere, TookTooLong):
        return None
    values = dict(line.split("=", 1) for line in shown.out.splitlines() if "=" in line)
    return values.get("ActiveState") if shown.code == 0 and values.get("LoadState") == "loaded" else None


def imex(host: HostAccess) -> Imex | None:
    """The service that lets an NVLink domain's GPUs share memory across machines; None: not installed."""
    state = unit_state(host, "nvidia-imex")
    if state is None:
        return None
    return Imex(state=state, channels=sum(name.startswith("channel") for name in host.names(CHANNELS)))
