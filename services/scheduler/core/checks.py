"""Whether a machine can take a replica with a profile, and every reason why not, with the figures."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from libs.events.library import LibraryVersion
from libs.events.machine import Gpu
from libs.events.model import Profile

from .hearing import Heard
from .room import Free
from .state import Machine

FOREIGN_MB = 200
"""A GPU on which others hold more than this is taken; drivers and display servers hold less."""

MB = 1_000_000


class Query(msgspec.Struct, frozen=True):
    """One machine asked about one profile."""

    machine: Machine
    profile: Profile
    source: str
    """As the definition names it; empty if it needs no weights."""
    weights: str | None
    """``NAME@VERSION``; empty if none are needed, None if the library lacks them."""
    version: LibraryVersion | None
    mirrors: int
    free: Free
    gpus: list[Gpu]
    """Those it could be given."""
    heard: Heard | None


def node(q: Query) -> str | None:
    machine = q.machine
    if machine.lost_at is not None:
        return f"is lost since {machine.lost_at:%Y-%m-%d %H:%M:%S} UTC"
    if not machine.joined:
        return "has only just registered"
    if machine.mode != "open":
        return f"is {machine.mode}" + (f": {machine.reason}" if machine.reason else "")
    return None


def orphans(q: Query) -> str | None:
    if not q.machine.orphans:
        return None
    names = ", ".join(sorted(q.machine.orphans))
    return f"still runs {names}, which nobody asked for and whose size is not known; it is being stopped"


def engine(q: Query) -> str | None:
    found = {e.engine for e in q.machine.facts.engines}
    if q.profile.engine in found or not q.machine.facts.engines_probed:
        return None
    return f"has no engine {q.profile.engine} (it has {', '.join(sorted(found)) or 'none'})"


def weights(q: Query) -> str | None:
    if q.weights is None:
        return f"the library has no {q.source}"
    if q.weights and q.mirrors == 0:
        return f"no mirror serves {q.weights}"
    return None


def labels(q: Query) -> str | None:
    has = q.machine.facts.labels
    wrong = [
        f"{key}={value} (it has {has.get(key, 'none')})"
        for key, value in sorted(q.profile.node_selector.items())
        if has.get(key) != value
    ]
    return f"needs the label {', '.join(wrong)}" if wrong else None


def memory(q: Query) -> str | None:
    needs, free, total = q.profile.memory_mb or 0, q.free.memory_mb, q.machine.facts.memory_total_mb
    # A machine that could not tell its memory says 0: what is not known rejects nothing.
    if needs <= free or total == 0:
        return None
    return f"needs {needs} MB of memory, {max(free, 0)} MB free of {total} MB"


def cores(q: Query) -> str | None:
    needs, free, total = q.profile.cores, q.free.cores, q.machine.facts.cpu_count
    if needs <= free or total == 0 or needs == 0:
        return None
    return f"needs {needs} CPU cores, {max(free, 0)} free of {total}"


def gpu_class(q: Query) -> str | None:
    wanted, facts = q.profile.gpu_class, q.machine.facts
    if wanted is None:
        return None
    if facts.gpus_state == "unverified":
        return f"its GPUs cannot be read: {facts.gpus_reason or 'no reason given'}"
    if any(g.gpu_class == wanted for g in facts.gpus):
        return None
    has = ", ".join(sorted({g.gpu_class for g in facts.gpus})) or "none"
    return f"has no GPU of class {wanted} (it has {has})"


def gpus(q: Query) -> str | None:
    if q.profile.gpu_class is None or len(q.gpus) >= q.profile.gpus_per_node or gpu_class(q) is not None:
        return None
    of_class = sum(g.gpu_class == q.profile.gpu_class for g in q.machine.facts.gpus)
    unfit = of_class - q.free.gpus_held - len(q.gpus)
    return (
        f"needs {q.profile.gpus_per_node} GPUs of class {q.profile.gpu_class}, {len(q.gpus)} free of {of_class}"
        f" ({q.free.gpus_held} held by replicas, {max(0, unfit)} with problems or used by others)"
    )


def disk(q: Query) -> str | None:
    if q.version is None or q.heard is None or q.heard.disk_free_mb is None or q.weights in q.machine.weights:
        return None
    needs = sum(f.size_bytes for f in q.version.files) // MB
    if needs <= q.heard.disk_free_mb:
        return None
    return f"needs {needs} MB of disk for the weights, {q.heard.disk_free_mb} MB free"


def usable_gpus(profile: Profile, free: Free, heard: Heard | None) -> list[Gpu]:
    """Free GPUs of the profile's class that others do not use either, by index."""
    if profile.gpu_class is None:
        return []
    found = [gpu for gpu in free.gpus if gpu.gpu_class == profile.gpu_class]
    if heard is None or not heard.foreign_mb:
        return found
    return [gpu for gpu in found if heard.foreign_mb.get(gpu.uuid, 0) <= FOREIGN_MB]


CHECKS: dict[str, Callable[[Query], str | None]] = {
    "node": node,  # first: a machine that is not there is asked no more
    "orphans": orphans,
    "engine": engine,
    "weights": weights,
    "labels": labels,
    "memory": memory,
    "cores": cores,
    "gpu_class": gpu_class,
    "gpus": gpus,
    "disk": disk,
}
"""By the name under which rejections are counted."""

CHANGING = frozenset({"gpus", "disk"})
"""Checks whose outcome may change without an event: they look at telemetry too."""


def rejections(query: Query) -> dict[str, str]:
    """Check to sentence, for every check the machine does not pass. A machine that is not there is asked no more."""
    found: dict[str, str] = {}
    for name, check in CHECKS.items():
        said = check(query)
        if said is not None:
            found[name] = said
            if check is node:
                break
    return found
