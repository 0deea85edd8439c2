"""The simulated engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from libs.events.machine import Gpu
from libs.events.views import ShardWanted

from ..readings import MetricNames
from .base import Place, Prometheus, unsafe
from .options import Option, refusal_of
from .vllm import VLLM_METRICS

SIM_OPTIONS: tuple[Option, ...] = (
    *(
        Option((f"--{name}",))
        for name in (
            *("tok-s", "ttft-ms", "prefill-tok-s", "load-s", "kv-tokens", "cached-tokens", "reasoning-tokens"),
            *("fail-status", "retry-after-s", "error-after", "cut-after", "hang-after", "die-after"),
            *("thinking", "tools"),
        )
    ),
    *(Option((f"--{name}",), takes_value=False) for name in ("echo", "interleaved", "refuse", "agent")),
)
"""Its pace, what it answers with, and its ways to fail."""


class Sim(msgspec.Struct, Prometheus, frozen=True, kw_only=True):
    """A real process with vLLM's whole surface and no model behind it."""

    python: str
    name: str = "sim"

    @property
    def key_variable(self) -> str | None:
        return "LLMGW_ENGINE_KEY"

    @property
    def metrics(self) -> MetricNames:
        return VLLM_METRICS

    def cpu_is_progress(self, wanted: ShardWanted) -> bool:
        return False

    def refusal(self, wanted: ShardWanted, gpus: Mapping[str, Gpu]) -> str | None:
        return unsafe(wanted) or refusal_of(wanted.args, SIM_OPTIONS)

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
