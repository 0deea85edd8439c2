"""The layouts of a model on cards or on a CPU, and what speaks against each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from libs.engines import planned, traits_of

from . import memory, speed
from .facts import Facts
from .hardware import Card, Host, linked
from .memory import GIB, Load, Need
from .quantisation import NATIVE


class Reason(msgspec.Struct, frozen=True):
    """Why a layout is rejected."""

    check: str
    """``memory``, ``width``, ``nvlink``, ``fabric``, ``mig``, ``capability``, ``engine``, ``layers``."""
    text: str


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How a model could be held: engine, cards, and how they share it. Whether it fits or not."""

    model: str
    """Name of the files it is of."""
    precision: str
    engine: str
    gpu_class: str | None = None
    """None: on the CPU."""
    nodes: int = 1
    cards: int = 0
    """On each node."""
    tensor: int = 1
    pipeline: int = 1
    expert_parallel: bool = False
    link: str = ""
    """What joins the cards: NVLink, PCIe, or the fabric's or domain's name."""
    cores: int = 0
    """On the CPU: what it computes with."""
    need: Need
    """Of each card, or of main memory."""
    usable_bytes: int = 0
    """Of each card, or of the largest machine."""
    rejected: tuple[Reason, ...] = ()
    machines: tuple[str, ...] = ()
    """Machines that are large enough for it, or of which a group is."""
    free_units: int = 0
    """Cards (or machines, on the CPU) that have room for their part now."""
    units: int = 0
    """All of them there are of this kind in this place."""
    free_bytes: int = 0
    """On all of them together, now."""
    now: bool = False
    """It could start now."""
    note: str = ""
    """What is to be known of it although it fits."""
    tokens_per_s: float | None = None
    """Of one request, estimated. None: ``pace`` says why."""
    pace: str = ""
    best: bool = False

    @property
    def devices(self) -> int:
        """Cards in all."""
        return self.nodes * self.cards

    @property
    def total_bytes(self) -> int:
        """Of all cards together."""
        return self.need.total * max(1, self.devices)

    @property
    def fits(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.rejected


NOTHING_GENERATED = "an encoder generates nothing"
NOT_JOINED = Reason("nvlink", "its cards are not on one NVLink domain, which tensor parallelism needs")


def width_reason(facts: Facts, width: int) -> Reason | None:
    """Cards share out KV heads and query heads: a width that leaves some over is none."""
    heads = facts.split_heads
    if heads % width and width % heads:
        return Reason("width", f"{width} neither divides the {heads} KV heads nor is a multiple of them")
    if facts.heads % width:
        return Reason("width", f"{width} does not divide the {facts.heads} attention heads")
    return None


def memory_reason(need: Need, usable: int, of: str) -> Reason | None:
    """More than can be used."""
    over = need.total - usable
    return Reason("memory", f"{over / GIB:.1f} GiB more than {of}'s usable {usable / GIB:.1f}") if over > 0 else None


def capability_reason(facts: Facts, cards: Sequence[Card]) -> Reason | None:
    """Every card is too old for the precision; a card that did not say is not."""
    if any(card.capability is None or card.capability >= facts.capability for card in cards):
        return None
    has = max(card.capability for card in cards if card.capability)
    need = ".".join(map(str, facts.capability))
    return Reason(
        "capability", f"{facts.precision} needs compute capability {need}, these cards have {has[0]}.{has[1]}"
    )


def computed_in(facts: Facts, cards: Sequence[Card]) -> str:
    """What is to be said of a precision that these cards keep and do not compute in; empty where they do."""
    native = NATIVE.get(facts.precision)
    known = [card.capability for card in cards if card.capability is not None]
    if native is None or not known or max(known) >= native:
        return ""
    has, needs = ".".join(map(str, max(known))), ".".join(map(str, native))
    return f"{facts.precision} weights only: these cards ({has}) compute in 16 bits, others from {needs} on in it"


def one_node(facts: Facts, load: Load, gpu_class: str, hosts: Sequence[Host]) -> Iterator[Layout]:
    """1, 2, … cards of one node: every number a node has."""
    most = max(len(host.of_class(gpu_class)) for host in hosts)
    if any(card.mig for host in hosts for card in host.of_class(gpu_class)):
        yield _in_node(facts, load, gpu_class, hosts, 1)
        if most > 1:
            layout = _in_node(facts, load, gpu_class, hosts, 2)
            mig = Reason("mig", "a replica runs on exactly one MIG instance: they have no NVLink between them")
            yield msgspec.structs.replace(layout, rejected=(mig,), link="", now=False)
        return
    for number in range(1, most + 1):
        layout = _in_node(facts, load, gpu_class, hosts, number)
        yield layout
        if any(reason.check == "nvlink" for reason in layout.rejected):
            # A pipeline passes one layer's output on, which PCIe carries; tensor parallelism exchanges every layer's.
            yield _in_node(facts, load, gpu_class, hosts, number, pipeline=number)


def _in_node(facts: Facts, load: Load, gpu_class: str, hosts: Sequence[Host], number: int, pipeline: int = 1) -> Layout:
    able = [host for host in hosts if len(host.of_class(gpu_class)) >= number]
    cards = [card for host in able for card in host.of_class(gpu_class)]
    usable = min(card.usable_bytes for card in cards)
    reasons: list[Reason | None] = [capability_reason(facts, cards)] if facts.format == "safetensors" else []
    width, link = number // pipeline, ""
    if facts.format == "gguf":
        need, link, width = memory.slots(facts, load, number), "layer split" if number > 1 else "", 1
        pipeline = number
    else:
        need = memory.paged(facts, load, width, pipeline)
        reasons.append(width_reason(facts, width))
        if number > 1:
            states = {host.id: linked(host, host.of_class(gpu_class), number) for host in able}
            joined = [host for host in able if states[host.id]]
            unknown = any(state is None for state in states.values())
            link = "NVLink" if joined else "NVLink not known" if unknown else "PCIe"
            if pipeline > 1:
                link = "PCIe"
            elif joined:
                able = joined
            elif not unknown:
                reasons.append(NOT_JOINED)
        if pipeline > facts.layers:
            reasons.append(Reason("layers", f"{pipeline} stages and only {facts.layers} layers"))
    reasons.append(memory_reason(need, usable, "a card"))
    layout = Layout(
        model=facts.name,
        precision=facts.precision,
        engine=planned(facts.format),
        gpu_class=gpu_class,
        cards=number,
        tensor=width,
        pipeline=pipeline,
        expert_parallel=facts.format == "safetensors" and facts.experts is not None and width > 1,
        link=link,
        need=need,
        usable_bytes=usable,
        note=computed_in(facts, cards) if facts.format == "safetensors" else "",
        rejected=tuple(reason for reason in reasons if reason),
        machines=tuple(host.id for host in able),
    )
    return _paced(facts, _freed(layout, able, gpu_class), cards)


class Width(msgspec.Struct, frozen=True, kw_only=True):
    """So many cards on each of several nodes."""

    cards: int
    hosts: tuple[Host, ...]
    """Nodes that have as many."""
    usable_bytes: int
    reasons: tuple[Reason, ...]
    """What speaks against it however many nodes there are."""
    joined: int
    """Nodes whose cards are on one NVLink domain, or may be."""


def several_nodes(facts: Facts, load: Load, gpu_class: str, hosts: Sequence[Host], place: str) -> Iterator[Layout]:
    """2, 3, … nodes that reach each other: a pipeline between them, tensor parallelism inside.

    Every width a node allows, fewest cards first. What is free for them, and their pace, is for ``finished`` to say.
    """
    most = max(len(host.of_class(gpu_class)) for host in hosts)
    widths = [_width(facts, gpu_class, hosts, cards) for cards in range(1, most + 1)]
    shapes = [(nodes, width) for width in widths for nodes in range(2, min(len(width.hosts), facts.layers) + 1)]
    for nodes, width in sorted(shapes, key=lambda shape: (shape[0] * shape[1].cards, shape[0])):
        need = memory.paged(facts, load, width.cards, nodes)
        reasons = list(width.reasons)
        if width.joined < nodes:
            reasons.append(NOT_JOINED)
        if over := memory_reason(need, width.usable_bytes, "a card"):
            reasons.append(over)
        yield Layout(
            model=facts.name,
            precision=facts.precision,
            engine=planned(facts.format),
            gpu_class=gpu_class,
            nodes=nodes,
            cards=width.cards,
            tensor=width.cards,
            pipeline=nodes,
            expert_parallel=facts.experts is not None and width.cards > 1,
            link=place,
            need=need,
            usable_bytes=width.usable_bytes,
            rejected=tuple(reasons),
            machines=tuple(host.id for host in width.hosts),
        )


def _width(facts: Facts, gpu_class: str, hosts: Sequence[Host], number: int) -> Width:
    able = tuple(host for host in hosts if len(host.of_class(gpu_class)) >= number)
    cards = [card for host in able for card in host.of_class(gpu_class)]
    reasons = (capability_reason(facts, cards), width_reason(facts, number))
    return Width(
        cards=number,
        hosts=able,
        usable_bytes=min(card.usable_bytes for card in cards),
        reasons=tuple(reason for reason in reasons if reason),
        joined=sum(linked(host, host.of_class(gpu_class), number) is not False for host in able),
    )


def finished(facts: Facts, layout: Layout, hosts: Sequence[Host]) -> Layout:
    """A layout on cards with what is free for it now on these hosts, and its pace."""
    assert layout.gpu_class is not None
    able = [host for host in hosts if host.id in set(layout.machines)]
    cards = [card for host in able for card in host.of_class(layout.gpu_class or "")]
    noted = msgspec.structs.replace(layout, note=computed_in(facts, cards))
    return _paced(facts, _freed(noted, able, layout.gpu_class), cards)


def on_cpu(facts: Facts, load: Load, hosts: Sequence[Host]) -> Layout:
    """llama.cpp in main memory, on half a machine's cores."""
    need = memory.slots_in_main_memory(facts, load)
    largest = max(host.usable_memory_bytes for host in hosts)
    reason = memory_reason(need, largest, "the largest machine")
    able = [host for host in hosts if host.usable_memory_bytes >= need.total]
    free = [host for host in able if host.free_memory_bytes >= need.total]
    paces = [
        speed.cpu(facts, host.read_bytes_s, host.read_core_bytes_s, max(1, host.cores // 2))
        for host in able
        if host.read_bytes_s and host.vector and not facts.encoder
    ]
    slow = any(host.read_bytes_s and not host.vector for host in able)
    return Layout(
        model=facts.name,
        precision=facts.precision,
        engine=planned(facts.format),
        need=need,
        usable_bytes=largest,
        rejected=(reason,) if reason else (),
        machines=tuple(host.id for host in able),
        cores=max((host.cores // 2 for host in able), default=1) or 1,
        free_units=len(free),
        units=len(hosts),
        free_bytes=sum(host.free_memory_bytes for host in hosts),
        now=bool(free),
        tokens_per_s=max(paces) if paces else None,
        pace=NOTHING_GENERATED
        if facts.encoder
        else ""
        if paces
        else "its CPU shows no AVX2"
        if slow
        else "no machine has measured its memory yet",
    )


def _freed(layout: Layout, hosts: Sequence[Host], gpu_class: str) -> Layout:
    """What is free now for a layout on cards of these hosts."""
    room = {host.id: sum(card.free_bytes >= layout.need.total for card in host.of_class(gpu_class)) for host in hosts}
    cards = [card for host in hosts for card in host.of_class(gpu_class)]
    return msgspec.structs.replace(
        layout,
        free_units=sum(room.values()),
        units=len(cards),
        free_bytes=sum(card.free_bytes for card in cards),
        now=layout.fits and sum(number >= layout.cards for number in room.values()) >= layout.nodes,
    )


def _paced(facts: Facts, layout: Layout, cards: Sequence[Card]) -> Layout:
    """Its estimated speed, when every card's bandwidth is known."""
    if facts.encoder:
        return msgspec.structs.replace(layout, pace=NOTHING_GENERATED)
    bandwidths = []
    for card in cards:
        known = speed.card_bandwidth(card.name)
        if known is None:
            name = repr(card.name) if card.name else "without a name"
            return msgspec.structs.replace(layout, pace=f"the bandwidth of a card {name} is not known")
        bandwidths.append(known * card.share)
    slowest = min(bandwidths)
    if traits_of(layout.engine).splits == "layers":
        pace = speed.layer_split(facts, slowest, layout.cards)
    else:
        link = "PCIe" if layout.link == "PCIe" else "NVLink"
        pace = speed.tensor_parallel(facts, slowest, layout.tensor, layout.pipeline, link)
    return msgspec.structs.replace(layout, tokens_per_s=pace)
