"""The simulated engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from libs.events.machine import Gpu
from libs.events.views import ShardWanted
from services.nodeagent.core.engines.base import Place, Prometheus, misunderstood, unsuited
from services.nodeagent.core.shard.engine_metrics import MetricNames
from services.nodeagent.engines.vllm.engine import VLLM_METRICS


class Sim(msgspec.Struct, Prometheus, frozen=True, kw_only=True):
    """A real process with vLLM's whole surface and no model behind it."""

    python: str
    name: str = "sim"

    @property
    def metrics(self) -> MetricNames:
        return VLLM_METRICS

    def cpu_is_progress(self, wanted: ShardWanted) -> bool:
        return False

    def refusal(self, wanted: ShardWanted, gpus: Mapping[str, Gpu]) -> str | None:
        return unsuited(wanted) or misunderstood(wanted)

    def entry(self, paths: Sequence[str]) -> str | None:
        return ""

    def command(self, wanted: ShardWanted, place: Place) -> list[str]:
        return [
            *(self.python, "-m", "libs.testing.sim_engine"),
            *("--host", place.host),
            *("--port", str(place.port)),
            *("--model", wanted.served_name),
            *("--parallel", str(wanted.parallel)),
            *("--context-length", str(wanted.context_length)),
            *(part for lora in place.loras for part in ("--lora", lora.name)),
            *wanted.args,
        ]
