"""What makes a model's definition right, and what of it decides how the model runs."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Iterator

from libs.engines import ENGINES, traits_of
from libs.events import encode
from libs.events.commands import Problem
from libs.events.model import (
    Canary,
    ModelSpec,
    Profile,
    Scaling,
)
from libs.events.sources import (
    FORMS,
    LIBRARY,
    of_library,
    source_problem,
)
from libs.tuning import (
    argument_problems,
    environment_problems,
    knows,
    option_problems,
)
from services.scheduler.core.placement.memory_fit import fit_problems
from services.scheduler.core.state.state import State

NAME = re.compile(r"^[a-z0-9][a-z0-9._-]{0,62}\Z")
NAME_RULE = "1 to 63 small letters, digits, '.', '_' or '-', beginning with a letter or digit"
ALIAS = re.compile(r"^[A-Za-z0-9](?:[A-Za-z0-9._:-]|/(?=[A-Za-z0-9])){0,127}\Z")
ALIAS_RULE = "1 to 128 letters, digits, '.', '_', '-', ':' or single '/', beginning with a letter or digit"
"""Clients ask for a model by the name it has elsewhere: ``Qwen/Qwen3-8B``, ``llama3:8b``."""
CAPABILITIES = frozenset({"chat", "completions", "embeddings", "rerank", "images", "vision", "tools", "reasoning"})

MAX_CONTEXT = 16_777_216
MAX_REPLICAS = 10_000
MAX_PARALLEL = 4_096
MAX_NODES = 64
STARTUP_LEAST_S, STARTUP_MOST_S = 10, 86_400


def fingerprint(spec: ModelSpec) -> str:
    """Of what decides how a model runs: a replica started from another one is replaced.

    Which profile is preferred, how many replicas there are, names and what gateways alone look at are not part.
    """
    runs = [
        [p.name, p.engine, p.gpu_class, p.gpus_per_node, p.memory_mb, p.cores, p.parallel, p.args, env, labels]
        for p in sorted(spec.profiles, key=lambda p: p.name)
        for env, labels in [(sorted(p.env.items()), sorted(p.node_selector.items()))]
    ]
    # What was added later counts where it is set: definitions from before keep their fingerprint.
    more = [
        [p.name, p.nodes, p.tp, p.pp, p.kv_events]
        for p in sorted(spec.profiles, key=lambda p: p.name)
        if (p.nodes, p.tp, p.pp, p.kv_events) != (1, None, None, False)
    ]
    loras = [[lora.name, lora.source] for lora in spec.loras]
    extra = [[more, loras, spec.allow_pickle]] if more or loras or spec.allow_pickle else []
    return hashlib.sha256(encode([spec.source, spec.context_length, runs, *extra])).hexdigest()[:16]


def problems(state: State, spec: ModelSpec) -> list[Problem]:
    """Everything that is wrong with a definition, each with its path, the value found and the remedy."""
    wrong = [
        *_names(state, spec),
        *_model(spec),
        *_offers(state, spec),
        *_anti_affinity(spec),
        *scaling_problems(spec.scaling, "scaling."),
        *(_canary(spec.canary) if spec.canary is not None else ()),
        *(problem for i, profile in enumerate(spec.profiles) for problem in _profile(state, spec, i, profile)),
    ]
    return [*wrong, *fit_problems(state, spec, {problem.path for problem in wrong})]


def _problem(path: str, message: str) -> Problem:
    return Problem(path=path, message=message)


def _names(state: State, spec: ModelSpec) -> Iterator[Problem]:
    taken = {spec.name: "is the model's own name"} if NAME.match(spec.name) else {}
    for other in state.facts.models.values():
        if other.name != spec.name and not other.removed:
            taken[other.name] = "is the name of another model"
            for names in (other.spec, other.declared):
                taken.update(dict.fromkeys(names.aliases, f"is an alias of the model {other.name}"))
                taken.update({a.name: f"is an adapter of the model {other.name}" for a in names.loras})
    if not NAME.match(spec.name):
        yield _problem("name", f"{spec.name!r} is not a name: use {NAME_RULE}")
    elif spec.name in taken and taken[spec.name] != "is the model's own name":
        yield _problem("name", f"{spec.name!r} {taken[spec.name]}: choose another name, or remove the alias there")
    for i, alias in enumerate(spec.aliases):
        if not ALIAS.match(alias):
            yield _problem(f"aliases[{i}]", f"{alias!r} is not a name: use {ALIAS_RULE}")
        elif alias in taken:
            yield _problem(f"aliases[{i}]", f"{alias!r} {taken[alias]}: models and aliases share one namespace")
        taken.setdefault(alias, "is listed twice")
    for i, lora in enumerate(spec.loras):
        at = f"adapters[{i}]."
        if not NAME.match(lora.name):
            yield _problem(f"{at}name", f"{lora.name!r} is not a name: use {NAME_RULE}")
        elif lora.name in taken:
            why = f"{lora.name!r} {taken[lora.name]}: models, aliases and adapters share one namespace"
            yield _problem(f"{at}name", why)
        taken.setdefault(lora.name, "is listed twice")
        if not LIBRARY.match(lora.source):
            yield _problem(f"{at}source", f"{lora.source!r} is not library:NAME or library:NAME@VERSION")


def _offers(state: State, spec: ModelSpec) -> Iterator[Problem]:
    for i, name in enumerate(spec.fallbacks):
        if name == spec.name:
            yield _problem(f"fallbacks[{i}]", f"{name!r} is the model itself: name another")
        elif name in spec.fallbacks[:i]:
            yield _problem(f"fallbacks[{i}]", f"{name!r} is listed twice")
        elif not NAME.match(name):
            yield _problem(f"fallbacks[{i}]", f"{name!r} is not a name: use {NAME_RULE}")
        elif (circle := _circle(state, spec.name, name)) is not None:
            yield _problem(f"fallbacks[{i}]", f"{' falls back to '.join(circle)}: break the circle")
    if spec.licence is not None and not spec.licence.id:
        yield _problem("licence.id", "it is empty: state the licence's short name, or leave the licence out")
    numbered = [p.name for p in spec.profiles if p.replicas is not None]
    if numbered and spec.scaling.max is not None and spec.scaling.max != spec.scaling.min:
        names = ", ".join(numbered)
        yield _problem("scaling.max", f"the profile {names} states its number: leave out one or the other")
    if numbered and not any(p.replicas for p in spec.profiles) and spec.scaling.min:
        yield _problem("profiles", "every stated number is 0: state scaling.min: 0, or a number above it")


def _anti_affinity(spec: ModelSpec) -> Iterator[Problem]:
    stated: set[tuple[str, str]] = set()
    for i, rule in enumerate(spec.anti_affinity):
        for name in rule.models or (spec.name,):
            if not NAME.match(name):
                yield _problem(f"anti_affinity[{i}].models", f"{name!r} is not a name: use {NAME_RULE}")
            elif (name, rule.within) in stated:
                why = f"{name!r} within one {rule.within} is stated twice: leave one out"
                yield _problem(f"anti_affinity[{i}].models", why)
            stated.add((name, rule.within))


def _circle(state: State, name: str, first: str) -> list[str] | None:
    """The chain of fallbacks from ``first`` back to ``name``."""
    chain = [name, first]
    while (model := state.facts.models.get(chain[-1])) is not None and model.spec.fallbacks:
        step = model.spec.fallbacks[0]
        if step == name:
            return [*chain, name]
        if step in chain:
            return None
        chain.append(step)
    return None


def _canary(canary: Canary) -> Iterator[Problem]:
    for field, low, high in (
        *(("percent", 1, 90), ("replicas", 1, 100), ("min_requests", 1, 1_000_000)),
        *(("max_error_rate", 0.0, 1.0), ("max_ttft_ratio", 1.0, 100.0)),
    ):
        value = getattr(canary, field)
        if not low <= value <= high:
            yield _problem(f"canary.{field}", f"{value}: state {low} to {high}")


def _model(spec: ModelSpec) -> Iterator[Problem]:
    if not spec.profiles:
        yield _problem("profiles", "there is none: state at least one way to run the model")
    if spec.source is None:
        for engine in sorted({p.engine for p in spec.profiles if not traits_of(p.engine).simulated}):
            yield _problem("source", f"the engine {engine} needs weights: state {FORMS}")
    elif (wrong := source_problem(spec.source)) is not None:
        yield _problem("source", wrong)
    elif not of_library(spec.source):
        yield from _figures(spec, spec.source)
    if not 1 <= spec.context_length <= MAX_CONTEXT:
        yield _problem("context_length", f"{spec.context_length} tokens: state 1 to {MAX_CONTEXT}")
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


def _figures(spec: ModelSpec, source: str) -> Iterator[Problem]:
    """What profiles must say themselves of weights whose headers the cluster does not see."""
    unseen = f"the cluster does not see the headers of {source}, so what it takes must be stated"
    for i, profile in enumerate(spec.profiles):
        # A profile for the CPU says it in any case.
        stated = profile.gpu_class is None or profile.min_gpu_memory_mb is not None
        if not stated and not traits_of(profile.engine).simulated:
            yield _problem(f"profiles[{i}].min_gpu_memory_mb", f"{unseen}: state the MB it needs of each GPU")


def _nearest(capability: str) -> str:
    near = difflib.get_close_matches(capability, CAPABILITIES, n=1)
    return f": did you mean {near[0]}?" if near else f": use {', '.join(sorted(CAPABILITIES))}"


def scaling_problems(scaling: Scaling, prefix: str) -> Iterator[Problem]:
    """What is wrong with numbers of replicas; ``prefix`` stands before each path."""
    if not 0 <= scaling.min <= MAX_REPLICAS:
        yield _problem(f"{prefix}min", f"{scaling.min} replicas: state 0 to {MAX_REPLICAS}")
    if scaling.max is not None and not scaling.min <= scaling.max <= MAX_REPLICAS:
        yield _problem(
            f"{prefix}max", f"{scaling.max} replicas with a minimum of {scaling.min}: state that to {MAX_REPLICAS}"
        )
    elif scaling.min == 0 and scaling.max and not scaling.on_demand:
        yield _problem(f"{prefix}min", "0 would never grow by itself: state 1, or on_demand: true")
    for field, low, high in (
        *(("evict_after_idle_s", 0, 604_800), ("min_lifetime_s", 0, 604_800), ("target_waiting", 0, 10_000)),
    ):
        value = getattr(scaling, field)
        if not low <= value <= high:
            yield _problem(f"{prefix}{field}", f"{value}: state {low} to {high}")
    if scaling.target_ttft_ms is not None and scaling.target_ttft_ms < 1:
        yield _problem(f"{prefix}target_ttft_ms", f"{scaling.target_ttft_ms} ms: state at least 1, or leave it out")


def _profile(state: State, spec: ModelSpec, index: int, profile: Profile) -> Iterator[Problem]:
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
    if spec.loras and not traits_of(profile.engine).loras:
        able = ", ".join(name for name, engine in ENGINES.items() if engine.loras)
        why = f"{profile.engine} does not answer under an adapter's own name: {able} do"
        yield _problem(f"{at}engine", why)
    refused = argument_problems(profile.engine, profile.args)
    unknown = option_problems(profile.engine, profile.args) if _options_known(state, profile.engine) else {}
    for i, why in (unknown | refused).items():
        yield _problem(f"{at}args[{i}]", why)
    for name, why in environment_problems(profile.engine, profile.env).items():
        yield _problem(f"{at}env.{name}", why)


def _options_known(state: State, engine: str) -> bool:
    """Whether every machine that has the engine has a version whose options are known."""
    machines = state.facts.machines.values()
    installed = [each for machine in machines for each in machine.facts.engines if each.engine == engine]
    return all(knows(engine, each.version) for each in installed) and bool(
        installed or not traits_of(engine).arguments.other_programs
    )


def _hardware(profile: Profile) -> Iterator[tuple[str, str]]:
    if profile.gpu_class is None:
        if traits_of(profile.engine).needs_gpu:
            yield "gpu_class", f"{profile.engine} runs on GPUs: state their class"
        if profile.gpus_per_node:
            yield "gpu_class", f"gpus_per_node is {profile.gpus_per_node}: state the class of these GPUs"
        elif profile.memory_mb is None:
            yield "memory_mb", "a profile for the CPU must state the main memory it reserves"
    elif profile.gpus_per_node < 1:
        yield "gpus_per_node", f"{profile.gpus_per_node} GPUs of class {profile.gpu_class}: state at least 1"
    elif "-mig-" in profile.gpu_class:
        if profile.gpus_per_node != 1:
            what = f"{profile.gpus_per_node} MIG instances: a replica runs on exactly one, they cannot work together"
            yield "gpus_per_node", what
        if profile.nodes != 1:
            yield "nodes", f"{profile.nodes} machines with a MIG instance each: a replica runs on exactly one"
    yield from _spans(profile)
    if profile.min_compute_capability is not None and not re.match(r"^\d+\.\d+$", profile.min_compute_capability):
        yield "min_compute_capability", f"{profile.min_compute_capability!r} is not like 8.9"
    if profile.min_gpu_memory_mb is not None and profile.min_gpu_memory_mb < 1:
        yield "min_gpu_memory_mb", f"{profile.min_gpu_memory_mb} MB: state what each GPU needs"
    if profile.replicas is not None and not 0 <= profile.replicas <= MAX_REPLICAS:
        yield "replicas", f"{profile.replicas}: state 0 to {MAX_REPLICAS}"
    if profile.memory_mb is not None and profile.memory_mb < 1:
        yield "memory_mb", f"{profile.memory_mb} MB: state what the engine needs"


def _spans(profile: Profile) -> Iterator[tuple[str, str]]:
    """How a replica is divided among GPUs and machines."""
    if profile.nodes > 1 and profile.gpu_class is None:
        yield "nodes", f"{profile.nodes} machines without GPUs: only GPU profiles span machines"
    engine = traits_of(profile.engine)
    if profile.nodes > 1 and not engine.spans_nodes:
        yield "nodes", f"{profile.engine} runs on one machine, {profile.nodes} are stated"
    cards = profile.gpus_per_node * profile.nodes
    if engine.splits == "layers" and profile.tp not in (None, profile.gpus_per_node):
        what = f"{profile.tp}: {engine.called} splits layers over the {profile.gpus_per_node} GPUs of gpus_per_node"
        yield "tp", f"{what}; leave tp out"
    elif (profile.tp is not None or profile.pp is not None) and profile.gpu_class is not None and cards:
        tp, pp = profile.tp or profile.gpus_per_node, profile.pp or profile.nodes
        if tp < 1 or pp < 1 or tp * pp != cards:
            what = f"{tp} wide and {pp} stages make {tp * pp} GPUs"
            yield "tp", f"{what}, the profile has {cards} ({profile.nodes} x {profile.gpus_per_node})"


def _cores_least(profile: Profile) -> int:
    """The simulated engine computes nothing worth a core; GPU engines may share what is left."""
    return 1 if profile.gpu_class is None and not traits_of(profile.engine).simulated else 0


_RANGES: tuple[tuple[str, Callable[[Profile], int], int], ...] = (
    ("cores", _cores_least, 4_096),
    ("parallel", lambda profile: 1, MAX_PARALLEL),
    ("startup_timeout_s", lambda profile: STARTUP_LEAST_S, STARTUP_MOST_S),
    ("nodes", lambda profile: 1, MAX_NODES),
    ("weight", lambda profile: 1, 1_000),
)
