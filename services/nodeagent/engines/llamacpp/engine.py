"""llama.cpp's HTTP server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from libs.engines.llamacpp import BATCH, STEP
from libs.events.machine import Gpu
from libs.events.views import ShardWanted
from libs.tuning.options import has, whole_inputs
from services.nodeagent.core.engines.base import Place, Prometheus, cores_for, misunderstood, unsuited
from services.nodeagent.core.shard.engine_metrics import MetricNames
from services.nodeagent.core.shard.offload import Offload

from .offload import read

LAUNCHER = "services.nodeagent.engines.llamacpp.launcher"


def _batches(wanted: ShardWanted) -> list[str]:
    """An input that becomes a vector is read in one batch: of 512 tokens unless told otherwise, whatever its length."""
    if not whole_inputs(wanted.engine, wanted.args):
        return []
    tokens = str(wanted.context_length)
    batch = [] if has(wanted.args, BATCH) else ["--batch-size", tokens]
    return batch if has(wanted.args, STEP) else [*batch, "--ubatch-size", tokens]


class LlamaCpp(msgspec.Struct, Prometheus, frozen=True, kw_only=True):
    """llama.cpp's HTTP server: the one in the ``xllamacpp`` package, or a ``llama-server`` the settings name."""

    python: str
    binary: str | None = None
    name: str = "llamacpp"

    @property
    def metrics(self) -> MetricNames:
        return MetricNames(
            running="llamacpp:requests_processing",
            waiting="llamacpp:requests_deferred",
            tokens="llamacpp:tokens_predicted_total",
            # Tokens are counted when a request ends; a decode is counted when it is done.
            progress=("llamacpp:n_decode_total", "llamacpp:prompt_tokens_total"),
        )

    def cpu_is_progress(self, wanted: ShardWanted) -> bool:
        # On a CPU one decode of a long prompt's 2,048 tokens takes minutes with a large model. With a GPU it takes
        # moments, and a driver that hangs burns CPU.
        return not wanted.devices

    def refusal(self, wanted: ShardWanted, gpus: Mapping[str, Gpu]) -> str | None:
        if wanted.weights is None:
            return "llama.cpp needs weights and the model names none (source: library:NAME)"
        if self.entry([file.path for file in wanted.weights.files]) is None:
            return f"llama.cpp runs GGUF files and {wanted.weights.name} has none"
        # A program the settings name knows more options than the launcher of the package.
        return unsuited(wanted) or (None if self.binary else misunderstood(wanted))

    def entry(self, paths: Sequence[str]) -> str | None:
        # A split model is opened by its first part, which sorts first. A projector is never the model.
        models = sorted(path for path in paths if path.endswith(".gguf") and "mmproj" not in path.lower())
        return models[0] if models else None

    def command(self, wanted: ShardWanted, place: Place) -> list[str]:
        start = [self.binary] if self.binary else [self.python, "-m", LAUNCHER]
        return [
            *start,
            *("--host", place.host),
            *("--port", str(place.port)),
            *("--model", place.weights or ""),
            *("--alias", wanted.served_name),
            # The server divides its context among its slots; a profile promises it to each.
            *("--ctx-size", str(wanted.context_length * wanted.parallel)),
            *("--parallel", str(wanted.parallel)),
            *("--threads", str(cores_for(wanted, place.cpu_count))),
            "--metrics",
            "--no-slots",
            "--no-webui",
            # Its prompt cache in main memory is 8 GiB unless told otherwise, which no reservation knows of.
            *(() if has(wanted.args, ("--cache-ram", "-cram")) else ("--cache-ram", "0")),
            *_batches(wanted),
            *wanted.args,
        ]

    def offload(self, output: Sequence[str]) -> Offload:
        return read(output)
