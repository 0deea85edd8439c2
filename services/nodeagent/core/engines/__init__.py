"""The engines an agent can run: what they need, how they are started, and how their figures are named."""

from .base import Engine, Lora, Place, cores_for
from .comfyui import Comfyui
from .environment import environment
from .llamacpp import LlamaCpp
from .sglang import Sglang
from .sim import Sim
from .trtllm import Trtllm
from .vllm import VLLM_METRICS, Vllm

__all__ = [
    "VLLM_METRICS",
    "Comfyui",
    "Engine",
    "LlamaCpp",
    "Lora",
    "Place",
    "Sglang",
    "Sim",
    "Trtllm",
    "Vllm",
    "cores_for",
    "environment",
]
