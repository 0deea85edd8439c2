"""Every engine there is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from . import comfyui, llamacpp, sglang, sim, trtllm, vllm
from .traits import Traits, Variables

ENGINES: dict[str, Traits] = {
    "llamacpp": Traits(
        called="llama.cpp",
        formats=("gguf",),
        spans_nodes=False,
        splits="layers",
        memory="slots",
        key_variable="LLAMA_API_KEY",
        stop_field="verbose",
        arguments=llamacpp.ARGUMENTS,
        variables=Variables(families=("GGML_", "LLAMA_"), options_as="LLAMA_ARG_"),
    ),
    "vllm": Traits(
        called="vLLM",
        formats=("safetensors",),
        loras=True,
        splits="tensors",
        memory="paged",
        expert_parallel=("--enable-expert-parallel",),
        key_variable="VLLM_API_KEY",
        arguments=vllm.ARGUMENTS,
        variables=Variables(
            families=("VLLM_",),
            ours=("VLLM_HOST_IP",),
            harmless=(
                "VLLM_CPU_KVCACHE_SPACE",
                "VLLM_ALLOW_LONG_MAX_MODEL_LEN",
                "VLLM_LOGGING_LEVEL",
                "VLLM_FLASHINFER_MOE_BACKEND",
            ),
        ),
    ),
    "sglang": Traits(
        called="SGLang",
        formats=("safetensors",),
        needs_gpu=True,
        loras=True,
        splits="tensors",
        key_variable="LLMGW_ENGINE_KEY",
        arguments=sglang.ARGUMENTS,
        variables=Variables(families=("SGLANG_",)),
    ),
    "trtllm": Traits(
        called="TensorRT-LLM",
        formats=("safetensors",),
        needs_gpu=True,
        spans_nodes=False,
        splits="tensors",
        arguments=trtllm.ARGUMENTS,
        variables=Variables(families=("TRTLLM_", "TLLM_")),
    ),
    "comfyui": Traits(
        called="ComfyUI",
        needs_gpu=True,
        spans_nodes=False,
        arguments=comfyui.ARGUMENTS,
    ),
    "sim": Traits(
        called="the simulated engine",
        simulated=True,
        loras=True,
        key_variable="LLMGW_ENGINE_KEY",
        arguments=sim.ARGUMENTS,
        variables=Variables(families=("SIM_",)),
    ),
}
"""Name to traits. The order decides: of the engines of a weight format the first whose ``memory`` is known is the one
that is planned with (``planned``), and people are told of them in this order."""

if TYPE_CHECKING:
    EngineName: TypeAlias = str
    ForeignEngineName: TypeAlias = str
else:
    EngineName = Literal[tuple(ENGINES)]
    ForeignEngineName = Literal[tuple(name for name, engine in ENGINES.items() if engine.arguments.options is None)]
    """Of engines whose program is not ours: settings name it."""

UNKNOWN = Traits(called="an engine this version does not know")


def traits_of(engine: str) -> Traits:
    """An engine's traits; of one a newer version knows, those about which nothing is known."""
    return ENGINES.get(engine, UNKNOWN)


def reads(weights: str) -> tuple[str, ...]:
    """The engines that read weights of a format."""
    return tuple(name for name, traits in ENGINES.items() if weights in traits.formats)


def planned(weights: str) -> str:
    """The engine that is planned for weights of a format: the first whose memory can be reckoned."""
    return next(name for name in reads(weights) if ENGINES[name].memory is not None)
