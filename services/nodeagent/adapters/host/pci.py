"""What is on the PCI bus, as the kernel sees it."""

from __future__ import annotations

from .host_access import HostAccess

PCI = "/sys/bus/pci/devices"

NVIDIA = "0x10de"
_DISPLAY = "0x03"
"""The PCI class of what draws or computes; NVSwitches and sound devices on the card have others."""


def cards_on_the_bus(host: HostAccess) -> list[str]:
    """Bus ids of NVIDIA's cards as the kernel finds them, whatever the driver does."""
    return [
        bus_id
        for bus_id in host.names(PCI)
        if host.text(f"{PCI}/{bus_id}/vendor") == NVIDIA
        and (host.text(f"{PCI}/{bus_id}/class") or "").startswith(_DISPLAY)
    ]
