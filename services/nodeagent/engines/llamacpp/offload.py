"""Where llama.cpp computes, as it prints while it loads a model."""

from __future__ import annotations

import re
from collections.abc import Iterable

from services.nodeagent.core.shard.offload import Offload

_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")
_LAYERS = re.compile(r"print_info: n_layer\s+= (\d+)")
_BUFFER = re.compile(r"load_tensors:\s+([A-Za-z]+?)\d*(?:_Mapped|_Private)? model buffer size")
"""``CUDA0``, ``Vulkan1``, ``MTL0_Mapped``, ``CPU_Mapped``; ``CUDA_Host`` and ``CPU_REPACK``, which are main memory,
do not match."""


def read(lines: Iterable[str]) -> Offload:
    """From its output at verbosity 4. The last load counts."""
    backend, gpu_layers, layers = "", None, None
    for line in lines:
        if (match := _LAYERS.search(line)) is not None:
            # Where nothing can go to a GPU it says no more than that; the output layer is counted as it counts it.
            backend, gpu_layers, layers = "", 0, int(match[1]) + 1
        elif (match := _OFFLOADED.search(line)) is not None:
            gpu_layers, layers = int(match[1]), int(match[2])
        elif (match := _BUFFER.search(line)) is not None:
            name = match[1].lower()
            if backend in ("", "cpu"):
                backend = "metal" if name == "mtl" else name
    return Offload(backend=backend, gpu_layers=gpu_layers, layers=layers)
