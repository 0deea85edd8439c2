"""Where an engine computes, as it says itself while it loads."""

from __future__ import annotations

import msgspec


class Offload(msgspec.Struct, frozen=True, kw_only=True):
    """What is not said is None, or empty."""

    backend: str = ""
    """``cpu``, ``cuda``, ``vulkan`` …"""
    gpu_layers: int | None = None
    layers: int | None = None


def fell_back(offload: Offload, devices: int) -> str | None:
    """A sentence when an engine that was given GPUs computes on the CPU all the same."""
    if not devices or offload.gpu_layers != 0:
        return None
    return (
        f"it computes on the CPU: none of its {offload.layers} layers went to the {devices} GPUs it was given "
        "(does the engine's build support them, and does the profile allow it?)"
    )
