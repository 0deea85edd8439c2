"""Between layouts and profiles: how a layout is declared, and what a profile that is declared needs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

import msgspec

from libs.engines import reads, traits_of
from libs.events.model import Profile
from libs.tuning.options import whole_inputs

from . import memory, speed
from .facts import Facts
from .hardware import Host, linked
from .layouts import Layout, Reason, width_reason
from .memory import MIB, USABLE, Load, Need


def profile_of(layout: Layout, load: Load) -> Profile:
    """A layout as the catalog declares it."""
    name = re.sub(r"[^a-z0-9._-]+", "-", (layout.gpu_class or "cpu").lower())
    if layout.gpu_class is None:
        return Profile(
            name=name,
            engine=layout.engine,
            memory_mb=-(-layout.need.total // MIB),
            cores=layout.cores,
            parallel=load.parallel,
        )
    engine = traits_of(layout.engine)
    split = engine.splits == "tensors" and (layout.tensor, layout.pipeline) != (layout.cards, layout.nodes)
    return Profile(
        name=name,
        engine=layout.engine,
        gpu_class=layout.gpu_class,
        gpus_per_node=layout.cards,
        nodes=layout.nodes,
        tp=layout.tensor if split else None,
        pp=layout.pipeline if split else None,
        parallel=load.parallel,
        args=engine.expert_parallel if layout.expert_parallel else (),
        min_gpu_memory_mb=-(-int(layout.need.total / USABLE) // MIB),
    )


def need_of(facts: Facts, profile: Profile, context_length: int) -> Need | None:
    """What each card of a profile needs, or main memory on the CPU. None: of its engine nothing is known."""
    load = Load(context=context_length, parallel=profile.parallel)
    model = traits_of(profile.engine).memory
    if model == "slots":
        if whole_inputs(profile.engine, profile.args):
            load = msgspec.structs.replace(load, step=context_length)
        if profile.gpu_class is None:
            return memory.slots_in_main_memory(facts, load)
        return memory.slots(facts, load, max(1, profile.gpus_per_node))
    if model == "paged" and profile.gpu_class is not None:
        return memory.paged(facts, load, profile.tp or profile.gpus_per_node or 1, profile.pp or profile.nodes)
    return None


def pace_of(facts: Facts, profile: Profile, hosts: Sequence[Host], devices: Collection[str]) -> float | None:
    """Tokens a second of one request of a replica on these machines and cards; None: something of them is not known."""
    if facts.encoder:
        return None
    engine = traits_of(profile.engine)
    if engine.memory is None:
        return None
    if profile.gpu_class is None:
        host = hosts[0]
        if engine.memory != "slots" or not host.read_bytes_s or not host.vector:
            return None
        return speed.cpu(facts, host.read_bytes_s, host.read_core_bytes_s, profile.cores or max(1, host.cores // 2))
    cards = [card for host in hosts for card in host.cards if card.uuid in devices]
    bandwidths = [known * card.share for card in cards if (known := speed.card_bandwidth(card.name)) is not None]
    if not cards or len(bandwidths) < len(cards):
        return None
    if engine.splits == "layers":
        return speed.layer_split(facts, min(bandwidths), len(cards))
    width, stages = profile.tp or profile.gpus_per_node, profile.pp or profile.nodes
    here = [card for card in hosts[0].cards if card.uuid in devices]
    link = "NVLink" if linked(hosts[0], here, min(width, len(here))) else "PCIe"
    return speed.tensor_parallel(facts, min(bandwidths), width, stages, link)


def problems_of(facts: Facts, profile: Profile, context_length: int) -> Iterator[Reason]:
    """What is wrong with a profile for this model, whatever the machines."""
    engine = traits_of(profile.engine)
    if engine.formats and facts.format not in engine.formats:
        others = " or ".join(reads(facts.format))
        yield Reason("engine", f"{profile.engine} does not read {facts.format}: use {others}")
    if context_length > facts.context:
        yield Reason("context", f"a context of {context_length:,} tokens; it was trained for {facts.context:,}")
    if engine.splits == "tensors":
        width, stages = profile.tp or profile.gpus_per_node or 1, profile.pp or profile.nodes
        if reason := width_reason(facts, width):
            yield reason
        if stages > facts.layers:
            yield Reason("layers", f"{stages} stages and only {facts.layers} layers")
