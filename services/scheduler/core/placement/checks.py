"""Whether a machine can take a replica with a profile, and every reason why not, with the figures."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from libs.events.library import LibraryVersion
from libs.events.machine import Gpu
from libs.events.model import Profile
from libs.events.sources import of_library
from libs.events.times import rfc3339
from libs.fit import Need
from libs.fit.health import in_words, usable
from libs.fit.memory import GIB
from services.scheduler.core.inputs.heartbeats import LOST_AFTER_MS, Heartbeat
from services.scheduler.core.state.facts import Machine

from .capacity import Free
from .devices import (
    Chosen,
    Lacking,
    choose,
    compute_capability,
)
from .memory_fit import as_sum, usable_bytes

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
    chosen: Chosen | Lacking | None
    """Those it would be given; None: there are too few, or it needs none."""
    heard: Heartbeat | None
    regions: tuple[str, ...] = ()
    """Where the licence of the weights lets them run; empty: anywhere."""
    lacking: str = ""
    """What of its fine-tunings the library does not have."""
    each_gpu: Need | None = None
    """What each GPU must hold; None: that is not known."""
    gang: str | None = None
    """Why it can compute with no other machine, for a replica that spans several; None: it can, or need not."""


def node(q: Query) -> str | None:
    """It is there, has joined, and takes work."""
    machine = q.machine
    if machine.lost_at is not None:
        return f"is lost since {rfc3339(machine.lost_at)}"
    if not machine.joined:
        return "has only just registered"
    if machine.mode != "open":
        return f"is {machine.mode}" + (f": {machine.reason}" if machine.reason else "")
    return None


def silent(q: Query) -> str | None:
    """It is not lost yet, as many are silent or its agent begins anew; nothing new would be taken up there either."""
    if q.heard is None or q.heard.silent_ms < LOST_AFTER_MS:
        return None
    return f"has not been heard for {q.heard.silent_ms // 1000} s"


def orphans(q: Query) -> str | None:
    """Nothing runs there whose size is not known."""
    if not q.machine.orphans:
        return None
    names = ", ".join(sorted(q.machine.orphans))
    return f"still runs {names}, which nobody asked for and whose size is not known; it is being stopped"


def engine(q: Query) -> str | None:
    """It has the profile's engine, or was not asked yet which it has."""
    installed = {e.engine for e in q.machine.facts.engines}
    if q.profile.engine in installed or not q.machine.facts.engines_probed:
        return None
    return f"has no engine {q.profile.engine} (it has {', '.join(sorted(installed)) or 'none'})"


def weights(q: Query) -> str | None:
    """The library has the weights and the fine-tunings, and a mirror serves them."""
    if q.weights is None:
        return f"the library has no {q.source}"
    if q.lacking:
        return f"the library has no {q.lacking}"
    if q.weights and q.mirrors == 0 and of_library(q.weights):
        return f"no mirror serves {q.weights}"
    return None


def labels(q: Query) -> str | None:
    """It has the labels the profile asks for."""
    has = q.machine.facts.labels
    wrong = [
        f"{key}={value} (it has {has.get(key, 'none')})"
        for key, value in sorted(q.profile.node_selector.items())
        if has.get(key) != value
    ]
    return f"needs the label {', '.join(wrong)}" if wrong else None


def memory(q: Query) -> str | None:
    """Enough main memory (MB) is free."""
    needs, free, total = q.profile.memory_mb or 0, q.free.memory_mb, q.machine.facts.memory_total_mb
    # A machine that could not tell its memory says 0: what is not known rejects nothing.
    if needs <= free or total == 0:
        return None
    return f"needs {needs} MB of memory, {max(free, 0)} MB free of {total} MB"


def cores(q: Query) -> str | None:
    """Enough CPU cores are free."""
    needs, free, total = q.profile.cores, q.free.cores, q.machine.facts.cpu_count
    if needs <= free or total == 0 or needs == 0:
        return None
    return f"needs {needs} CPU cores, {max(free, 0)} free of {total}"


def gpu_class(q: Query) -> str | None:
    """It has GPUs of the profile's class, free or not."""
    wanted, facts = q.profile.gpu_class, q.machine.facts
    if wanted is None:
        return None
    if facts.gpus_state == "unverified":
        return f"its GPUs cannot be read: {facts.gpus_reason or 'no reason given'}"
    if any(g.gpu_class == wanted for g in facts.gpus):
        return None
    has = ", ".join(sorted({g.gpu_class for g in facts.gpus})) or "none"
    return f"has no GPU of class {wanted} (it has {has})"


def compute(q: Query) -> str | None:
    """Its GPUs of the class have the compute capability the profile asks for."""
    needs = compute_capability(q.profile.min_compute_capability)
    if not needs or gpu_class(q) is not None:
        return None
    capabilities = {g.compute_capability for g in _of_class(q) if compute_capability(g.compute_capability)}
    # What a machine does not tell of its cards rejects nothing.
    if not capabilities or any((compute_capability(capability) or ()) >= needs for capability in capabilities):
        return None
    has = ", ".join(sorted(str(capability) for capability in capabilities))
    return f"needs compute capability {q.profile.min_compute_capability}, its GPUs have {has}"


def gpu_memory(q: Query) -> str | None:
    """Each GPU of the class has the memory that is needed on one."""
    if q.profile.gpu_class is None or gpu_class(q) is not None:
        return None
    needs, most = q.profile.min_gpu_memory_mb, max((g.memory_total_mb for g in _of_class(q)), default=0)
    if needs is not None and most < needs:
        return f"needs {needs} MB on each GPU, its GPUs of this class have {most} MB"
    if q.each_gpu is not None and usable_bytes(most) < q.each_gpu.total:
        of = f"{usable_bytes(most) / GIB:.1f} GiB are usable of its GPUs of this class"
        return f"needs {as_sum(q.each_gpu)} on each GPU, {of}"
    return None


def _of_class(q: Query) -> list[Gpu]:
    return [g for g in q.machine.facts.gpus if g.gpu_class == q.profile.gpu_class]


def gpus(q: Query) -> str | None:
    """Enough GPUs that would do are free."""
    if q.profile.gpu_class is None or len(q.gpus) >= q.profile.gpus_per_node:
        return None
    if any(check(q) is not None for check in (gpu_class, compute, gpu_memory)):
        return None  # how many are free of what would not do is no matter
    needs = f"needs {_gpus(q.profile.gpus_per_node)} of class {q.profile.gpu_class}"
    return f"{needs}, {len(q.gpus)} free of {len(_of_class(q))}{_others(q)}"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _others(q: Query) -> str:
    """Who has the cards that are not free, or what keeps them from being given."""
    sick = [g for g in _of_class(q) if not usable(g)]
    foreign = q.heard.foreign_mb if q.heard is not None else {}
    taken = [g for g in q.free.gpus if g.gpu_class == q.profile.gpu_class and foreign.get(g.uuid, 0) > FOREIGN_MB]
    counts = ((q.free.gpus_held, "held by replicas"), (len(sick), "with problems"), (len(taken), "used by others"))
    shares = ", ".join(f"{count} {what}" for count, what in counts if count)
    each = [in_words(g) for g in sick]
    for g in taken:
        holders = q.heard.foreign_holders.get(g.uuid) if q.heard is not None else None
        each.append(f"GPU {g.index}: {foreign[g.uuid]} MB held by {holders or 'processes that are not ours'}")
    details = ": " + "; ".join(each) if each else ""
    return f" ({shares}{details})" if shares else ""


def nvlink(q: Query) -> str | None:
    """Enough of those are joined by NVLink, where that is needed."""
    return q.chosen.sentence if isinstance(q.chosen, Lacking) else None


def region(q: Query) -> str | None:
    """The licence of the weights lets them run where it stands."""
    where = q.machine.facts.labels.get("region")
    if not q.regions or where in q.regions:
        return None
    return f"is in the region {where or 'that nobody stated'}; the licence allows {', '.join(q.regions)}"


def fabric(q: Query) -> str | None:
    """It can compute with other machines, where the replica spans several."""
    return q.gang


def disk(q: Query) -> str | None:
    """The weights fit its disk (MB), unless it holds them."""
    if q.version is None or q.heard is None or q.heard.disk_free_mb is None or q.machine.holds(q.weights or ""):
        return None
    needs = sum(f.size_bytes for f in q.version.files) // MB
    if needs <= q.heard.disk_free_mb:
        return None
    return f"needs {needs} MB of disk for the weights, {q.heard.disk_free_mb} MB free"


def usable_gpus(profile: Profile, free: Free, heard: Heartbeat | None, each_gpu: Need | None = None) -> list[Gpu]:
    """Free GPUs of the profile's class, able enough, that others do not use either, by index."""
    if profile.gpu_class is None:
        return []
    gpus_left = [gpu for gpu in free.gpus if gpu.gpu_class == profile.gpu_class]
    if (needs := compute_capability(profile.min_compute_capability)) is not None and needs:
        gpus_left = [gpu for gpu in gpus_left if (compute_capability(gpu.compute_capability) or needs) >= needs]
    if profile.min_gpu_memory_mb is not None:
        gpus_left = [gpu for gpu in gpus_left if gpu.memory_total_mb >= profile.min_gpu_memory_mb]
    if each_gpu is not None:
        gpus_left = [gpu for gpu in gpus_left if usable_bytes(gpu.memory_total_mb) >= each_gpu.total]
    if heard is None or not heard.foreign_mb:
        return gpus_left
    return [gpu for gpu in gpus_left if heard.foreign_mb.get(gpu.uuid, 0) <= FOREIGN_MB]


CHECKS: dict[str, Callable[[Query], str | None]] = {
    "node": node,  # first: a machine that is not there is asked no more
    "silent": silent,
    "orphans": orphans,
    "engine": engine,
    "weights": weights,
    "labels": labels,
    "memory": memory,
    "cores": cores,
    "region": region,
    "gpu_class": gpu_class,
    "compute_capability": compute,
    "gpu_memory": gpu_memory,
    "gpus": gpus,
    "nvlink": nvlink,
    "fabric": fabric,
    "disk": disk,
}
"""By the name under which rejections are counted."""

LASTING = frozenset({"engine", "labels", "region", "gpu_class", "compute_capability", "gpu_memory"})
"""Checks of what a machine is: what it turns away for them it will not take tomorrow either."""

CHANGING = frozenset({"silent", "gpus", "nvlink", "disk"})
"""Checks whose outcome may change without an event: they look at telemetry too."""


def rejections(query: Query) -> dict[str, str]:
    """Check to sentence, for every check the machine does not pass. A machine that is not there is asked no more."""
    sentences: dict[str, str] = {}
    for name, check in CHECKS.items():
        sentence = check(query)
        if sentence is not None:
            sentences[name] = sentence
            if check in (node, silent):
                break
    return sentences


def query(
    machine: Machine,
    profile: Profile,
    *,
    source: str,
    weights: str | None,
    version: LibraryVersion | None,
    mirrors: int,
    free: Free,
    heard: Heartbeat | None,
    regions: tuple[str, ...],
    lacking: str,
    each_gpu: Need | None,
    gang: str | None,
) -> Query:
    """With the GPUs it would be given."""
    could = usable_gpus(profile, free, heard, each_gpu)
    chosen = None
    if profile.gpu_class is not None and could and len(could) >= profile.gpus_per_node:
        ports = machine.facts.ports if profile.nodes > 1 else ()
        nics = frozenset(port.nic for port in ports if port.state == "active")
        chosen = choose(machine.facts, could, profile.gpus_per_node, profile.gpu_class, nics)
    return Query(
        *(machine, profile, source, weights, version, mirrors, free, could, chosen, heard, regions),
        *(lacking, each_gpu, gang),
    )
