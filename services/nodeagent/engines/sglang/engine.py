"""SGLang, in a Python environment of its own."""

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

SGLANG_METRICS = MetricNames(
    running="sglang:num_running_reqs",
    waiting="sglang:num_queue_reqs",
    tokens="sglang:generation_tokens_total",
    kv_used="sglang:token_usage",
    progress=("sglang:prompt_tokens_total",),
)


class Sglang(msgspec.Struct, Prometheus, frozen=True, kw_only=True):
    """``python``: the interpreter of its environment. ``launcher``: a file that starts the server with the key from
    the environment, since the server itself takes one only on its command line."""

    python: str
    launcher: str
    name: str = "sglang"

    @property
    def metrics(self) -> MetricNames:
        return SGLANG_METRICS

    def cpu_is_progress(self, wanted: ShardWanted) -> bool:
        return False

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
        command = [self.python, self.launcher, "--model-path", place.weights or ""]
        command += ["--served-model-name", wanted.served_name, "--host", place.host, "--port", str(place.port)]
        command += ["--context-length", str(wanted.context_length), "--max-running-requests", str(wanted.parallel)]
        command += ["--tp-size", str(width(wanted)), "--pp-size", str(stages(wanted)), "--enable-metrics"]
        if not wanted.allow_pickle:
            command += ["--load-format", "safetensors"]
        if wanted.ranks > 1:
            command += ["--nnodes", str(wanted.ranks), "--node-rank", str(wanted.rank)]
            command += ["--dist-init-addr", f"{wanted.leader_address}:{wanted.leader_port}"]
        if place.loras:
            # One place in a batch is the model's own, without an adapter.
            command += ["--enable-lora", "--max-loras-per-batch", str(len(place.loras) + 1)]
            command += ["--lora-paths", *(f"{lora.name}={lora.folder}" for lora in place.loras)]
        return [*command, *wanted.args]

    def environment(self, wanted: ShardWanted, place: Place) -> dict[str, str]:
        return isolated(self.python)
