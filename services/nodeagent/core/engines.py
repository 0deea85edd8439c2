"""The engines an agent can run: what they need, how they are started, and how their figures are named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from libs.events.views import ShardWanted

from . import tuning
from .readings import MetricNames
from .tuning import Flag


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where one shard is to run."""

    host: str
    port: int
    weights: str | None
    """The file (or folder) its weights are in."""
    cpu_count: int


class Engine(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def key_variable(self) -> str:
        """The environment variable that carries the engine's API key; a command line can be read by everyone."""

    @property
    def metrics(self) -> MetricNames: ...

    def cpu_is_progress(self, wanted: ShardWanted) -> bool:
        """Whether CPU time it uses shows that it works, where its counters may stand still for minutes."""

    def refusal(self, wanted: ShardWanted) -> str | None:
        """Why this engine cannot run ``wanted``, or None."""

    def entry(self, paths: Sequence[str]) -> str | None:
        """Which of the model's files the engine is pointed at; ``""`` is their folder, None: none of them will do."""

    def command(self, wanted: ShardWanted, place: Place) -> list[str]:
        """The command line."""


def cores_for(wanted: ShardWanted, cpu_count: int) -> int:
    """Threads a shard computes with: what was reserved for it, else half the machine."""
    return wanted.cores or max(1, cpu_count // 2)


def environment(wanted: ShardWanted, engine: Engine, key: str | None) -> dict[str, str]:
    """What an engine's environment holds besides the agent's own few variables."""
    env = dict(wanted.env)
    if wanted.devices:
        # By UUID and in bus order: indexes change with the driver's mood and with CUDA's idea of speed.
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        env["CUDA_VISIBLE_DEVICES"] = ",".join(wanted.devices)
    else:
        env["CUDA_VISIBLE_DEVICES"] = ""
    env["PYTHONUNBUFFERED"] = "1"
    if key is not None:
        env[engine.key_variable] = key
    return env


class LlamaCppFlag(Flag, frozen=True):
    field: str = ""
    """The field of the server's parameters it sets."""
    kind: str = "int"


LLAMACPP_FLAGS: tuple[LlamaCppFlag, ...] = (
    LlamaCppFlag(("--batch-size", "-b"), field="n_batch"),
    LlamaCppFlag(("--ubatch-size", "-ub"), field="n_ubatch"),
    LlamaCppFlag(("--n-gpu-layers", "-ngl", "--gpu-layers"), field="n_gpu_layers"),
    LlamaCppFlag(("--cache-ram", "-cram"), field="cache_ram_mib"),
    LlamaCppFlag(("--cache-reuse",), field="n_cache_reuse"),
    LlamaCppFlag(("--threads-http",), field="n_threads_http"),
    LlamaCppFlag(("--flash-attn", "-fa"), field="flash_attn_type", kind="flash"),
    LlamaCppFlag(("--cache-type-k", "-ctk"), field="cache_type_k", kind="ggml"),
    LlamaCppFlag(("--cache-type-v", "-ctv"), field="cache_type_v", kind="ggml"),
    LlamaCppFlag(("--embeddings", "--embedding"), takes_value=False, field="embedding", kind="on"),
    LlamaCppFlag(("--no-cont-batching", "-nocb"), takes_value=False, field="cont_batching", kind="off"),
    LlamaCppFlag(("--no-warmup",), takes_value=False, field="warmup", kind="off"),
)
"""Options of ``llama-server`` a profile may set, and the parameter each one is."""


class LlamaCpp(msgspec.Struct, frozen=True, kw_only=True):
    """llama.cpp's HTTP server: the one in the ``xllamacpp`` package, or a ``llama-server`` the settings name."""

    python: str
    binary: str | None = None
    name: str = "llamacpp"

    @property
    def key_variable(self) -> str:
        return "LLAMA_API_KEY"

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

    def refusal(self, wanted: ShardWanted) -> str | None:
        if wanted.weights is None:
            return "llama.cpp needs weights and the model names none (source: library:NAME)"
        if self.entry([file.path for file in wanted.weights.files]) is None:
            return f"llama.cpp runs GGUF files and {wanted.weights.name} has none"
        return tuning.environment_refusal(wanted.env) or tuning.arguments_refusal(wanted.args, LLAMACPP_FLAGS)

    def entry(self, paths: Sequence[str]) -> str | None:
        # A split model is opened by its first part, which sorts first. A projector is never the model.
        models = sorted(path for path in paths if path.endswith(".gguf") and "mmproj" not in path.lower())
        return models[0] if models else None

    def command(self, wanted: ShardWanted, place: Place) -> list[str]:
        start = [self.binary] if self.binary else [self.python, "-m", "services.nodeagent.engines.llamacpp_launcher"]
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
            *(() if any(a.split("=")[0] in ("--cache-ram", "-cram") for a in wanted.args) else ("--cache-ram", "0")),
            *wanted.args,
        ]


SIM_FLAGS: tuple[Flag, ...] = (
    *(
        Flag((f"--{name}",))
        for name in (
            *("tok-s", "ttft-ms", "prefill-tok-s", "load-s", "kv-tokens", "cached-tokens", "reasoning-tokens"),
            *("fail-status", "retry-after-s", "error-after", "cut-after", "hang-after", "die-after"),
        )
    ),
    Flag(("--echo",), takes_value=False),
)
"""Its pace and its ways to fail."""


class Sim(msgspec.Struct, frozen=True, kw_only=True):
    """The simulated engine: a real process with the whole surface and no model behind it."""

    python: str
    name: str = "sim"

    @property
    def key_variable(self) -> str:
        return "LLMGW_ENGINE_KEY"

    @property
    def metrics(self) -> MetricNames:
        return VLLM_METRICS

    def cpu_is_progress(self, wanted: ShardWanted) -> bool:
        return False

    def refusal(self, wanted: ShardWanted) -> str | None:
        return tuning.environment_refusal(wanted.env) or tuning.arguments_refusal(wanted.args, SIM_FLAGS)

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
            *wanted.args,
        ]


VLLM_METRICS = MetricNames(
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    tokens="vllm:generation_tokens_total",
    kv_used="vllm:kv_cache_usage_perc",
    progress=("vllm:prompt_tokens_total",),
)
