"""vLLM, in a Python environment of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from libs.events.machine import Gpu
from libs.events.views import ShardWanted
from services.nodeagent.core.engines.base import (
    Place,
    Prometheus,
    folder_of_safetensors,
    shape,
    stages,
    unfit_loras,
    unsuited,
    width,
)
from services.nodeagent.core.engines.python_environment import isolated
from services.nodeagent.core.shard.engine_metrics import MetricNames

VLLM_METRICS = MetricNames(
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    tokens="vllm:generation_tokens_total",
    kv_used="vllm:kv_cache_usage_perc",
    progress=("vllm:prompt_tokens_total",),
)

_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The limits of a fine-tuning's rank that vLLM knows."""

_CPU_CACHE_SHARE = 4
"""Of the memory reserved for a shard on the CPU, a quarter is for its KV cache unless the profile says."""


class Vllm(msgspec.Struct, Prometheus, frozen=True, kw_only=True):
    """``program``: its ``vllm`` command."""

    program: str
    name: str = "vllm"

    @property
    def metrics(self) -> MetricNames:
        return VLLM_METRICS

    def cpu_is_progress(self, wanted: ShardWanted) -> bool:
        return not wanted.devices

    def refusal(self, wanted: ShardWanted, gpus: Mapping[str, Gpu]) -> str | None:
        return (
            unsuited(wanted)
            or folder_of_safetensors(wanted)
            or shape(wanted, gpus, least_capability=7.5)
            or unfit_loras(wanted)
        )

    def entry(self, paths: Sequence[str]) -> str | None:
        return "" if "config.json" in paths else None

    def command(self, wanted: ShardWanted, place: Place) -> list[str]:
        command = [self.program, "serve", place.weights or "", "--served-model-name", wanted.served_name]
        if wanted.rank == 0:
            command += ["--host", place.host, "--port", str(place.port)]
        command += ["--max-model-len", str(wanted.context_length), "--max-num-seqs", str(wanted.parallel)]
        if not wanted.allow_pickle:
            # Left to choose, it takes pickles where it finds no safetensors.
            command += ["--load-format", "safetensors"]
        if wanted.devices:
            command += ["--tensor-parallel-size", str(width(wanted)), "--pipeline-parallel-size", str(stages(wanted))]
        if wanted.ranks > 1:
            command += ["--distributed-executor-backend", "mp", "--nnodes", str(wanted.ranks)]
            command += ["--node-rank", str(wanted.rank)]
            command += ["--master-addr", wanted.leader_address, "--master-port", str(wanted.leader_port)]
            if wanted.rank > 0:
                command.append("--headless")
        if place.loras:
            rank = max(lora.rank for lora in place.loras)
            command += ["--enable-lora", "--max-loras", str(len(place.loras))]
            command += ["--max-lora-rank", str(next((limit for limit in _RANKS if limit >= rank), rank))]
            if wanted.rank == 0:
                command += ["--lora-modules", *(f"{lora.name}={lora.folder}" for lora in place.loras)]
        return [*command, *wanted.args]

    def environment(self, wanted: ShardWanted, place: Place) -> dict[str, str]:
        env = isolated(self.program) | {"VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1"}
        if wanted.ranks > 1:
            env["VLLM_HOST_IP"] = place.host
        if not wanted.devices:
            env["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
            if "VLLM_CPU_KVCACHE_SPACE" not in wanted.env:
                env["VLLM_CPU_KVCACHE_SPACE"] = str(max(1, wanted.memory_mb // 1024 // _CPU_CACHE_SHARE))
        return env
