"""TensorRT-LLM's server. Never installed by the agent: where it is offered, the settings name it."""

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
    unsuited,
    width,
)
from services.nodeagent.core.engines.python_environment import isolated
from services.nodeagent.core.shard.engine_metrics import MetricNames


class Trtllm(msgspec.Struct, Prometheus, frozen=True, kw_only=True):
    """``program``: its ``trtllm-serve`` command."""

    program: str
    name: str = "trtllm"

    @property
    def metrics(self) -> MetricNames:
        raise NotImplementedError

    @property
    def metrics_path(self) -> str | None:
        return None  # its /metrics is a list of iterations that is emptied by whoever reads it first

    def cpu_is_progress(self, wanted: ShardWanted) -> bool:
        return False

    def refusal(self, wanted: ShardWanted, gpus: Mapping[str, Gpu]) -> str | None:
        return unsuited(wanted) or folder_of_safetensors(wanted) or shape(wanted, gpus, least_capability=8.0)

    def entry(self, paths: Sequence[str]) -> str | None:
        return "" if "config.json" in paths else None

    def command(self, wanted: ShardWanted, place: Place) -> list[str]:
        return [
            *(self.program, "serve", place.weights or ""),
            *("--host", place.host),
            *("--port", str(place.port)),
            *("--max_seq_len", str(wanted.context_length)),
            *("--max_batch_size", str(wanted.parallel)),
            *("--tp_size", str(width(wanted))),
            *("--pp_size", str(stages(wanted))),
            *wanted.args,
        ]

    def environment(self, wanted: ShardWanted, place: Place) -> dict[str, str]:
        return isolated(self.program)
