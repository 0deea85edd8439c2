"""What a model's headers, where the library knows them, say against a profile: its engine, its widths, its memory.

A profile whose options change what is kept in memory, or how far back a model sees, is not judged by the figures that
they change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from libs.engines import traits_of
from libs.events.commands import Problem
from libs.events.headers import ModelHeaders
from libs.events.model import ModelSpec, Profile
from libs.fit import Need, need_of, problems_of
from libs.fit.memory import GIB, MIB, USABLE
from services.scheduler.core.state.state import State

MAX_CARDS = 64
TOLERANCE = 0.85
"""Of the predicted main memory: the prediction is within 15 % of what llama.cpp uses."""


def headers_of(state: State, spec: ModelSpec) -> ModelHeaders | None:
    """Of the weights a new replica would be started from."""
    version = state.facts.versions.get(state.weights_of(spec) or "")
    return version.headers if version is not None else None


def on_each_gpu(headers: ModelHeaders | None, profile: Profile, context_length: int) -> Need | None:
    """The least each GPU must hold; None: that is not known.

    An engine whose cache is in pages takes what a card has and lets requests wait that find no room in it, so one of
    the longest must fit; one with slots takes the room for all of them when it starts.
    """
    if headers is None or profile.gpu_class is None or _changes_memory(profile) or _problems(headers, profile, 1):
        return None
    if traits_of(profile.engine).memory == "paged":
        profile = msgspec.structs.replace(profile, parallel=1)
    return need_of(headers, profile, context_length)


def as_sum(need: Need) -> str:
    """What a GPU must hold, as a sum for people, in GiB."""
    parts = f"weights {_gib(need.weights)} + context {_gib(need.context)} + engine {_gib(need.engine)}"
    return f"{_gib(need.total)} GiB ({parts})"


def usable_bytes(memory_total_mb: int) -> int:
    """Of a card's memory."""
    return int(memory_total_mb * MIB * USABLE)


def problems_of_headers(
    state: State, spec: ModelSpec, known: Collection[Problem], headers: ModelHeaders
) -> Iterator[Problem]:
    """What headers say against a definition whose weights the log does not know; ``known``: what is wrong with it
    anyhow. Also where it states less than they need: that is what a place is looked for by.
    """
    wrong = {problem.path for problem in known}
    yield from fit_problems(state, spec, wrong, headers)
    for i, profile in enumerate(spec.profiles):
        path = f"profiles[{i}].min_gpu_memory_mb"
        need = on_each_gpu(headers, profile, spec.context_length) if path not in wrong else None
        if need is None or profile.min_gpu_memory_mb is None or usable_bytes(profile.min_gpu_memory_mb) >= need.total:
            continue
        least = -(-int(need.total / USABLE) // MIB)
        usable = _gib(usable_bytes(profile.min_gpu_memory_mb))
        stated = f"{profile.min_gpu_memory_mb} MB, of which {usable} GiB are usable"
        yield Problem(path=path, message=f"{stated}, and each GPU must hold {as_sum(need)}: state at least {least}")


def fit_problems(
    state: State, spec: ModelSpec, wrong: Collection[str], headers: ModelHeaders | None = None
) -> Iterator[Problem]:
    """Everything the headers say against a definition, with its path, what was found and the remedy.

    ``wrong``: paths of what is wrong by itself; figures there are not reckoned with. ``headers``: those of its
    weights, where they are not on the log.
    """
    headers = headers or headers_of(state, spec)
    if headers is None or "context_length" in wrong:
        return
    context: Problem | None = None
    for i, profile in enumerate(spec.profiles):
        at = f"profiles[{i}]."
        if any(path.startswith(at) for path in wrong):
            continue
        for check, why in _problems(headers, profile, spec.context_length):
            if check == "context":
                message = f"{why}: state at most that"
                context = None if _changes_context(profile) else Problem(path="context_length", message=message)
            else:
                field, remedy = _remedy(headers, profile, check)
                yield Problem(path=at + field, message=why + remedy)
        yield from _memory(state, spec, headers, profile, at)
    if context is not None:
        yield context


def _problems(headers: ModelHeaders, profile: Profile, context_length: int) -> list[tuple[str, str]]:
    return [(reason.check, reason.text) for reason in problems_of(headers, profile, context_length)]


def _remedy(headers: ModelHeaders, profile: Profile, check: str) -> tuple[str, str]:
    """The field to be changed, and to what."""
    if check == "width":
        fitting = [str(width) for width in range(1, 17) if _width_is_right(headers, profile, width)]
        return "tp" if profile.tp is not None else "gpus_per_node", f": a width of {', '.join(fitting)} would do"
    if check == "layers":
        return "pp" if profile.pp is not None else "nodes", ": state no more stages than layers"
    return check, ""


def _width_is_right(headers: ModelHeaders, profile: Profile, width: int) -> bool:
    tried = msgspec.structs.replace(profile, tp=width)
    return all(check != "width" for check, _ in _problems(headers, tried, 1))


def _memory(state: State, spec: ModelSpec, headers: ModelHeaders, profile: Profile, at: str) -> Iterator[Problem]:
    if profile.gpu_class is None:
        need = None if _changes_memory(profile) else need_of(headers, profile, spec.context_length)
        if need is not None and profile.memory_mb is not None and profile.memory_mb * MIB < TOLERANCE * need.total:
            what = f"{profile.memory_mb} MB, and {headers.name} takes {as_sum(need)} of main memory"
            more = f"state at least {-(-need.total // MIB)}, a shorter context_length or fewer parallel"
            yield Problem(path=f"{at}memory_mb", message=f"{what} for {profile.parallel} requests: {more}")
        return
    need = on_each_gpu(headers, profile, spec.context_length)
    cards = [
        gpu.memory_total_mb
        for machine in state.facts.machines.values()
        for gpu in machine.facts.gpus
        if gpu.gpu_class == profile.gpu_class
    ]
    if need is None or not cards or need.total <= (usable := usable_bytes(max(cards))):
        return
    some = f"each of {profile.nodes * profile.gpus_per_node} GPUs" if profile.gpus_per_node > 1 else "the GPU"
    what = f"{some} would hold {as_sum(need)}, of a {profile.gpu_class} {_gib(usable)} GiB are usable"
    yield Problem(path=f"{at}gpus_per_node", message=f"{what}: {_less(headers, profile, spec.context_length, usable)}")


def _less(headers: ModelHeaders, profile: Profile, context_length: int, usable: int) -> str:
    """What would make it fit."""
    enough = next((n for n in _wider(profile) if _fits(headers, profile, context_length, n, usable)), None)
    less = "a shorter context_length or smaller weights"
    return f"take {enough} of them, {less}" if enough is not None else f"take {less}"


def _wider(profile: Profile) -> Sequence[int]:
    alone = "-mig-" in (profile.gpu_class or "") or profile.tp is not None or profile.pp is not None
    return () if alone else range(profile.gpus_per_node + 1, MAX_CARDS + 1)


def _fits(headers: ModelHeaders, profile: Profile, context_length: int, cards: int, usable: int) -> bool:
    need = on_each_gpu(headers, msgspec.structs.replace(profile, gpus_per_node=cards), context_length)
    return need is not None and need.total <= usable


def _changes_memory(profile: Profile) -> bool:
    return _reserved(profile, traits_of(profile.engine).arguments.of_memory)


def _changes_context(profile: Profile) -> bool:
    return _reserved(profile, traits_of(profile.engine).arguments.of_context)


def _reserved(profile: Profile, options: tuple[str, ...]) -> bool:
    """Whether it is given one of these options, as the engines' parsers read them."""
    return any(arg.replace("_", "-").startswith(options) for arg in profile.args)


def _gib(size: int) -> str:
    return f"{size / GIB:.1f}"
