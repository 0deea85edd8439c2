"""What makes a model's definition right, and what of it decides how the model runs."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Iterator

from libs.events import encode
from libs.events.commands import Problem
from libs.events.model import ModelSpec, Profile, Scaling

from .arguments import argument_problems, environment_problems
from .state import State

NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,62}$")
NAME_RULE = "1 to 63 small letters, digits, '.', '_' or '-', beginning with a letter or digit"
SOURCE = re.compile(r"^library:[a-z0-9][a-z0-9._-]{0,62}(@[A-Za-z0-9][A-Za-z0-9._-]{0,62})?$")
CAPABILITIES = frozenset({"chat", "completions", "embeddings", "rerank", "images", "vision", "tools", "reasoning"})

CONTEXT_MOST = 16_777_216
REPLICAS_MOST = 10_000
PARALLEL_MOST = 4_096
STARTUP_LEAST_S, STARTUP_MOST_S = 10, 86_400
NEEDS_GPU = frozenset({"vllm", "sglang", "trtllm", "comfyui"})


def fingerprint(spec: ModelSpec) -> str:
    """Of what decides how a model runs: a replica started from another one is replaced.

    Which profile is preferred, how many replicas there are, names and what gateways alone look at are not part.
    """
    runs = [
        [p.name, p.engine, p.gpu_class, p.gpus_per_node, p.memory_mb, p.cores, p.parallel, p.args, env, labels]
        for p in sorted(spec.profiles, key=lambda p: p.name)
        for env, labels in [(sorted(p.env.items()), sorted(p.node_selector.items()))]
    ]
    return hashlib.sha256(encode([spec.source, spec.context_length, runs])).hexdigest()[:16]


def problems(state: State, spec: ModelSpec) -> list[Problem]:
    """Everything that is wrong with a definition, each with its path, the value found and the remedy."""
    return [
        *_names(state, spec),
        *_model(spec),
        *scaling_problems(spec.scaling, "scaling."),
        *(problem for i, profile in enumerate(spec.profiles) for problem in _profile(spec, i, profile)),
    ]


def _problem(path: str, message: str) -> Problem:
    return Problem(path=path, message=message)


def _names(state: State, spec: ModelSpec) -> Iterator[Problem]:
    taken = {spec.name: "is the model's own name"} if NAME.match(spec.name) else {}
    for other in state.facts.models.values():
        if other.name != spec.name and not other.removed:
            taken[other.name] = "is the name of another model"
            taken.update(dict.fromkeys(other.spec.aliases, f"is an alias of the model {other.name}"))
    if not NAME.match(spec.name):
        yield _problem("name", f"{spec.name!r} is not a name: use {NAME_RULE}")
    elif spec.name in taken and taken[spec.name] != "is the model's own name":
        yield _problem("name", f"{spec.name!r} {taken[spec.name]}: choose another name, or remove the alias there")
    for i, alias in enumerate(spec.aliases):
        if not NAME.match(alias):
            yield _problem(f"aliases[{i}]", f"{alias!r} is not a name: use {NAME_RULE}")
        elif alias in taken:
            yield _problem(f"aliases[{i}]", f"{alias!r} {taken[alias]}: models and aliases share one namespace")
        taken.setdefault(alias, "is listed twice")


def _model(spec: ModelSpec) -> Iterator[Problem]:
    if not spec.profiles:
        yield _problem("profiles", "there is none: state at least one way to run the model")
    if spec.source is None:
        for engine in sorted({p.engine for p in spec.profiles} - {"sim"}):
            yield _problem("source", f"the engine {engine} needs weights: state library:NAME or library:NAME@VERSION")
    elif not SOURCE.match(spec.source):
        yield _problem("source", f"{spec.source!r} is not library:NAME or library:NAME@VERSION")
    if not 1 <= spec.context_length <= CONTEXT_MOST:
        yield _problem("context_length", f"{spec.context_length} tokens: state 1 to {CONTEXT_MOST}")
    if spec.max_output_tokens is not None and not 1 <= spec.max_output_tokens <= spec.context_length:
        yield _problem(
            "max_output_tokens",
            f"{spec.max_output_tokens} tokens do not fit a context of {spec.context_length}: state 1 to that",
        )
    if not spec.capabilities:
        yield _problem("capabilities", f"there is none: state some of {', '.join(sorted(CAPABILITIES))}")
    for i, capability in enumerate(spec.capabilities):
        if capability not in CAPABILITIES:
            yield _problem(f"capabilities[{i}]", f"{capability!r} is not known{_nearest(capability)}")
    names = [p.name for p in spec.profiles]
    for i, name in enumerate(names):
        if name in names[:i]:
            yield _problem(f"profiles[{i}].name", f"{name!r} is the name of an earlier profile: give each its own")


def _nearest(capability: str) -> str:
    near = difflib.get_close_matches(capability, CAPABILITIES, n=1)
    return f": did you mean {near[0]}?" if near else f": use {', '.join(sorted(CAPABILITIES))}"


def scaling_problems(scaling: Scaling, prefix: str) -> Iterator[Problem]:
    if not 0 <= scaling.min <= REPLICAS_MOST:
        yield _problem(f"{prefix}min", f"{scaling.min} replicas: state 0 to {REPLICAS_MOST}")
    if scaling.max is not None and not scaling.min <= scaling.max <= REPLICAS_MOST:
        yield _problem(
            f"{prefix}max", f"{scaling.max} replicas with a minimum of {scaling.min}: state that to {REPLICAS_MOST}"
        )


def _profile(spec: ModelSpec, index: int, profile: Profile) -> Iterator[Problem]:
    at = f"profiles[{index}]."
    if not NAME.match(profile.name):
        yield _problem(f"{at}name", f"{profile.name!r} is not a name: use {NAME_RULE}")
    for field, message in _hardware(profile):
        yield _problem(at + field, message)
    for field, low, high in _RANGES:
        value = getattr(profile, field)
        if not low(profile) <= value <= high:
            yield _problem(at + field, f"{value}: state {low(profile)} to {high}")
    for key, value in profile.node_selector.items():
        if not key or not value:
            yield _problem(f"{at}node_selector", f"{key!r}: {value!r} has an empty side: state a label and its value")
    for i, why in argument_problems(profile.engine, profile.args).items():
        yield _problem(f"{at}args[{i}]", why)
    for name, why in environment_problems(profile.engine, profile.env).items():
        yield _problem(f"{at}env.{name}", why)


def _hardware(profile: Profile) -> Iterator[tuple[str, str]]:
    if profile.gpu_class is None:
        if profile.engine in NEEDS_GPU:
            yield "gpu_class", f"{profile.engine} runs on GPUs: state their class"
        if profile.gpus_per_node:
            yield "gpu_class", f"gpus_per_node is {profile.gpus_per_node}: state the class of these GPUs"
        elif profile.memory_mb is None:
            yield "memory_mb", "a profile for the CPU must state the main memory it reserves"
    elif profile.gpus_per_node < 1:
        yield "gpus_per_node", f"{profile.gpus_per_node} GPUs of class {profile.gpu_class}: state at least 1"
    if profile.memory_mb is not None and profile.memory_mb < 1:
        yield "memory_mb", f"{profile.memory_mb} MB: state what the engine needs"


def _cores_least(profile: Profile) -> int:
    """The simulated engine computes nothing worth a core; GPU engines may share what is left."""
    return 1 if profile.engine != "sim" and profile.gpu_class is None else 0


_RANGES: tuple[tuple[str, Callable[[Profile], int], int], ...] = (
    ("cores", _cores_least, 4_096),
    ("parallel", lambda profile: 1, PARALLEL_MOST),
    ("startup_timeout_s", lambda profile: STARTUP_LEAST_S, STARTUP_MOST_S),
)
