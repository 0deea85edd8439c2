"""Where llama.cpp says it computes. The lines are its own: of a CPU, of one GPU, of two with some layers left over."""

from __future__ import annotations

import pytest

from services.nodeagent.core.shard.offload import Offload, fell_back
from services.nodeagent.engines.llamacpp.offload import read

CPU = """
0.01.731.926 I print_info: n_layer               = 18
0.01.731.926 I print_info: n_layer_all           = 18
0.01.766.977 I load_tensors:   CPU_Mapped model buffer size =   235.16 MiB
0.01.766.994 I load_tensors:   CPU_REPACK model buffer size =    12.66 MiB
"""
GPU = """
print_info: n_layer          = 28
load_tensors: offloading output layer to GPU
load_tensors: offloading 27 repeating layers to GPU
load_tensors: offloaded 29/29 layers to GPU
load_tensors:   CPU_Mapped model buffer size =   166.92 MiB
load_tensors:        CUDA0 model buffer size =  1834.82 MiB
"""
PARTLY = """
print_info: n_layer          = 80
load_tensors: offloading 60 repeating layers to GPU
load_tensors: offloaded 60/81 layers to GPU
load_tensors:    CUDA_Host model buffer size =  9000.00 MiB
load_tensors:        CUDA0 model buffer size = 20000.00 MiB
load_tensors:        CUDA1 model buffer size = 20000.00 MiB
"""


@pytest.mark.parametrize(
    ("output", "offload"),
    [
        ("", Offload()),
        ("serving on http://127.0.0.1:1", Offload()),
        (CPU, Offload(backend="cpu", gpu_layers=0, layers=19)),
        (GPU, Offload(backend="cuda", gpu_layers=29, layers=29)),
        (PARTLY, Offload(backend="cuda", gpu_layers=60, layers=81)),
        (GPU + CPU, Offload(backend="cpu", gpu_layers=0, layers=19)),
        (GPU.replace("CUDA0", "MTL0_Mapped"), Offload(backend="metal", gpu_layers=29, layers=29)),
        (GPU.replace("CUDA0", "Vulkan0"), Offload(backend="vulkan", gpu_layers=29, layers=29)),
    ],
)
def test_what_it_prints_says_where_it_computes(output: str, offload: Offload) -> None:
    assert read(output.splitlines()) == offload


def test_an_engine_that_was_given_gpus_and_uses_none_is_told() -> None:
    assert fell_back(read(CPU.splitlines()), 0) is None
    assert fell_back(read(GPU.splitlines()), 1) is None
    assert fell_back(Offload(), 1) is None
    assert "none of its 19 layers went to the 2 GPUs" in (fell_back(read(CPU.splitlines()), 2) or "")
