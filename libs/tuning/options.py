"""Options a profile may pass because the engine has them: those of programs of ours, and those recorded of others."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from .arguments import NUMBER, name_of
from .flags import ARGPARSE
from .recorded import RECORDED, VERSIONS


@dataclass(frozen=True)
class Option:
    """An option that a program of ours takes from a profile."""

    names: tuple[str, ...]
    """Every spelling, the long one first; ``_`` in an argument is read as ``-``."""
    takes_value: bool = True
    field: str = ""
    """Of llama.cpp: the field of the server's parameters it sets."""
    kind: str = "int"


LLAMACPP_OPTIONS = (
    Option(("--batch-size", "-b"), field="n_batch"),
    Option(("--ubatch-size", "-ub"), field="n_ubatch"),
    Option(("--n-gpu-layers", "-ngl", "--gpu-layers"), field="n_gpu_layers"),
    Option(("--cache-ram", "-cram"), field="cache_ram_mib"),
    Option(("--cache-reuse",), field="n_cache_reuse"),
    Option(("--threads-http",), field="n_threads_http"),
    Option(("--flash-attn", "-fa"), field="flash_attn_type", kind="flash"),
    Option(("--cache-type-k", "-ctk"), field="cache_type_k", kind="ggml"),
    Option(("--cache-type-v", "-ctv"), field="cache_type_v", kind="ggml"),
    Option(("--chat-template",), field="chat_template", kind="str"),
    Option(("--embeddings", "--embedding"), takes_value=False, field="embedding", kind="on"),
    Option(("--pooling",), field="pooling_type", kind="pooling"),
    Option(("--no-cont-batching", "-nocb"), takes_value=False, field="cont_batching", kind="off"),
    Option(("--no-warmup",), takes_value=False, field="warmup", kind="off"),
)
"""Options of ``llama-server`` a profile may set, and the parameter each one is."""

EMBEDDING = frozenset({"--embeddings", "--embedding", "--reranking", "--rerank", "--pooling"})
BATCH = frozenset({"--batch-size", "-b"})
STEP = frozenset({"--ubatch-size", "-ub"})
"""llama.cpp's physical batch."""

SIM_OPTIONS = (
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
"""The simulated engine's pace, what it answers with, and its ways to fail."""

OURS = {"llamacpp": LLAMACPP_OPTIONS, "sim": SIM_OPTIONS}

AS_SET = "as set"
"""Version of an engine that the settings name and nobody asked for its version."""


def has(args: Iterable[str], names: Collection[str]) -> bool:
    """Whether one of an option's spellings is among the arguments."""
    return any(name_of(argument) in names for argument in args)


def whole_inputs(args: Iterable[str]) -> bool:
    """Whether llama.cpp is told to make vectors, for which it takes every input in one physical batch."""
    return has(args, EMBEDDING)


def knows(engine: str, version: str) -> bool:
    """Whether the options of this version of an engine are known here."""
    recorded = VERSIONS.get(engine)
    return version != AS_SET and (recorded is None or version.partition("+")[0] == recorded)


def option_problems(engine: str, args: Sequence[str]) -> dict[int, str]:
    """Index of each argument that an engine of a version that is known does not understand, to the reason."""
    if engine in OURS:
        return _of_ours(args, OURS[engine])
    known = RECORDED.get(engine)
    if known is None:
        return {}
    return {n: why for n, argument in enumerate(args) if (why := _unknown(engine, argument, known)) is not None}


def _of_ours(args: Sequence[str], options: Sequence[Option]) -> dict[int, str]:
    known = {name: option for option in options for name in option.names}
    found: dict[int, str] = {}
    rest = list(enumerate(args))
    while rest:
        number, argument = rest.pop(0)
        name, equals, _ = argument.partition("=")
        option = known.get(name.replace("_", "-") if name.startswith("--") else name)
        if not argument.startswith("-"):
            found[number] = f"the argument {argument!r} belongs to no option"
        elif option is None:
            there = ", ".join(sorted(one.names[0] for one in options))
            found[number] = f"the option {name} is not one it takes from a profile; these are: {there}"
            if rest and not rest[0][1].startswith("-"):
                rest.pop(0)  # its value
        elif option.takes_value and not equals:
            if rest:
                rest.pop(0)
            else:
                found[number] = f"the option {name} lacks its value"
        elif not option.takes_value and equals:
            found[number] = f"the option {name} takes no value"
    return found


def _unknown(engine: str, argument: str, known: Iterable[str]) -> str | None:
    if not argument.startswith("-") or NUMBER.match(argument):
        return None
    name = name_of(argument)
    names = {name_of(one) for one in known}
    if name in names or (engine in ARGPARSE and any(one.startswith(name) for one in names if name.startswith("--"))):
        return None
    if not name.startswith("--") and any(name.startswith(one) for one in (*names, "-O") if not one.startswith("--")):
        return None  # -tp4 is -tp with its value
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    advice = f"did you mean {near[0]}?" if near else "leave it out"
    return f"{engine} {VERSIONS[engine]} has no option {argument.partition('=')[0]}: {advice}"
