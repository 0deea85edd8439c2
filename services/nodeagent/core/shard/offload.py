"""Where an engine computes, as it says itself while it loads."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_LAYERS = re.compile(r"print_info: n_layer\s+= (\d+)")
_BUFFER = re.compile(r"load_tensors:\s+([A-Za-z]+?)\d*(?:_Mapped|_Private)? model buffer size")
"""``CUDA0``, ``Vulkan1``, ``MTL0_Mapped``, ``CPU_Mapped``; ``CUDA_Host`` and ``CPU_REPACK``, which are main memory,
do not match."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """What is not said is None, or empty."""

    backend: str = ""
    """``cpu``, ``cuda``, ``vulkan`` …"""
    gpu_layers: int | None = None
    layers: int | None = None


def of_llamacpp(lines: Iterable[str]) -> Layout:
    """From what llama.cpp prints while it loads a model (at its verbosity 4). The last load counts."""
    backend, gpu_layers, layers = "", None, None
    for line in lines:
        if (found := _LAYERS.search(line)) is not None:
            # Where nothing can go to a GPU it says no more than that; the output layer is counted as it counts it.
            backend, gpu_layers, layers = "", 0, int(found[1]) + 1
        elif (found := _OFFLOADED.search(line)) is not None:
            gpu_layers, layers = int(found[1]), int(found[2])
        elif (found := _BUFFER.search(line)) is not None:
            name = found[1].lower()
            if backend in ("", "cpu"):
                backend = "metal" if name == "mtl" else name
    return Layout(backend=backend, gpu_layers=gpu_layers, layers=layers)


def fell_back(layout: Layout, devices: int) -> str | None:
    """A sentence when an engine that was given GPUs computes on the CPU all the same."""
    if not devices or layout.gpu_layers != 0:
        return None
    return (
        f"it computes on the CPU: none of its {layout.layers} layers went to the {devices} GPUs it was given (does the "
        "engine's build support them, and does the profile allow it?)"
    )
