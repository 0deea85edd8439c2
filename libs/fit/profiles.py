"""Between ways and profiles: how a way is declared, and what a profile that is declared needs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

import msgspec

from libs.events.model import Profile
from libs.tuning.options import whole_inputs

from . import memory, speed
from .facts import Facts
from .hardware import Host, linked
from .memory import MIB, USABLE, Load, Need
from .shapes import Reason, Way, width_reason

EXPERT_PARALLEL = "--enable-expert-parallel"
"""vLLM's option: each card holds whole experts instead of a slice of every one."""


def profile_of(way: Way, load: Load) -> Profile:
    """A way as the catalog declares it."""
    name = re.sub(r"[^a-z0-9._-]+", "-", (way.gpu_class or "cpu").lower())
    if way.gpu_class is None:
        return Profile(
            name=name, engine="llamacpp", memory_mb=-(-way.need.total // MIB), cores=way.cores, parallel=load.parallel
        )
    split = way.engine == "vllm" and (way.tensor, way.pipeline) != (way.cards, way.nodes)
    return Profile(
        name=name,
        engine="vllm" if way.engine == "vllm" else "llamacpp",
        gpu_class=way.gpu_class,
        gpus_per_node=way.cards,
        nodes=way.nodes,
        tp=way.tensor if split else None,
        pp=way.pipeline if split else None,
        parallel=load.parallel,
        args=(EXPERT_PARALLEL,) if way.expert_parallel else (),
        min_gpu_memory_mb=-(-int(way.need.total / USABLE) // MIB),
    )


def need_of(facts: Facts, profile: Profile, context_length: int) -> Need | None:
    """What each card of a profile needs, or main memory on the CPU. None: of its engine nothing is known."""
    load = Load(context=context_length, parallel=profile.parallel)
    if profile.engine == "llamacpp":
        if whole_inputs(profile.args):
            load = msgspec.structs.replace(load, step=context_length)
        if profile.gpu_class is None:
            return memory.llamacpp_process(facts, load)
        return memory.llamacpp(facts, load, max(1, profile.gpus_per_node))
    if profile.engine == "vllm" and profile.gpu_class is not None:
        return memory.vllm(facts, load, profile.tp or profile.gpus_per_node or 1, profile.pp or profile.nodes)
    return None


def pace_of(facts: Facts, profile: Profile, hosts: Sequence[Host], devices: Collection[str]) -> float | None:
    """Tokens a second of one request of a replica on these machines and cards; None: something of them is not known."""
    if facts.encoder:
        return None
    if profile.gpu_class is None:
        host = hosts[0]
        if profile.engine != "llamacpp" or not host.read_bytes_s or not host.vector:
            return None
        return speed.cpu(facts, host.read_bytes_s, host.read_core_bytes_s, profile.cores or max(1, host.cores // 2))
    cards = [card for host in hosts for card in host.cards if card.uuid in devices]
    bandwidths = [known * card.share for card in cards if (known := speed.card_bandwidth(card.name)) is not None]
    if not cards or len(bandwidths) < len(cards):
        return None
    if profile.engine == "llamacpp":
        return speed.layer_split(facts, min(bandwidths), len(cards))
    if profile.engine != "vllm":
        return None
    width, stages = profile.tp or profile.gpus_per_node, profile.pp or profile.nodes
    here = [card for card in hosts[0].cards if card.uuid in devices]
    link = "NVLink" if linked(hosts[0], here, min(width, len(here))) else "PCIe"
    return speed.tensor_parallel(facts, min(bandwidths), width, stages, link)


def problems_of(facts: Facts, profile: Profile, context_length: int) -> Iterator[Reason]:
    """What is wrong with a profile for this model, whatever the machines."""
    reads = {"gguf": ("llamacpp",), "safetensors": ("vllm", "sglang", "trtllm")}[facts.format]
    if profile.engine in ("llamacpp", "vllm", "sglang", "trtllm") and profile.engine not in reads:
        yield Reason("engine", f"{profile.engine} does not read {facts.format}: use {' or '.join(reads)}")
    if context_length > facts.context:
        yield Reason("context", f"a context of {context_length:,} tokens; it was trained for {facts.context:,}")
    if profile.engine in ("vllm", "sglang", "trtllm"):
        width, stages = profile.tp or profile.gpus_per_node or 1, profile.pp or profile.nodes
        if reason := width_reason(facts, width):
            yield reason
        if stages > facts.layers:
            yield Reason("layers", f"{stages} stages and only {facts.layers} layers")
