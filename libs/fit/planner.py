"""The layouts that are tried, in order: one card, several cards of one node, several nodes; and which is taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from libs.engines import planned, traits_of

from . import memory
from .facts import Facts, Unreadable
from .hardware import Host
from .layouts import Layout, Reason, finished, on_cpu, one_node, several_nodes
from .memory import Load


class Place(msgspec.Struct, frozen=True):
    """Nodes that reach each other fast enough for one replica."""

    name: str
    hosts: tuple[Host, ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Every layout that was considered, in the order they are preferred; at most one is the best."""

    models: tuple[Facts, ...]
    load: Load
    layouts: tuple[Layout, ...]
    left_out: tuple[str, ...] = ()
    """Hardware that is there and was not counted, each with the reason."""

    @property
    def best(self) -> Layout | None:
        """The layout to take; None: none fits."""
        return next((layout for layout in self.layouts if layout.best), None)


def plan(models: Sequence[Facts], hosts: Iterable[Host], load: Load) -> Plan:
    """How a fleet could hold a model. ``models``: the same one in its precisions, the source's own first.

    Raises Unreadable when the context is longer than the model was trained for.
    """
    hosts = tuple(hosts)
    for facts in models:
        if load.context > facts.context:
            raise Unreadable(
                f"a context of {load.context:,} tokens is longer than {facts.name} was trained for: "
                f"{facts.context:,} at most"
            )
    here = tuple(host for host in hosts if not host.away)
    tried = [
        (layout, facts.bits, order) for order, facts in enumerate(models) for layout in _layouts(facts, load, here)
    ]
    fitting = [candidate for candidate in tried if candidate[0].fits]
    best = min(fitting, key=lambda candidate: _rank(*candidate))[0] if fitting else None
    layouts = (msgspec.structs.replace(layout, best=True) if layout is best else layout for layout, _, _ in tried)
    return Plan(models=tuple(models), load=load, layouts=tuple(layouts), left_out=tuple(_left_out(hosts)))


def _rank(layout: Layout, bits: float, order: int) -> tuple[bool, int, int, float, bool, bool, int, int]:
    """Fewest cards, then fewest nodes, then the better precision up to 8 bits; a CPU when no card will do.

    Equal so far: a domain's NVLink before a fabric, what could start now, the source's own files, the smaller card.
    """
    fabric = layout.nodes > 1 and not layout.link.startswith("NVLink")
    return (
        layout.gpu_class is None,
        layout.devices,
        layout.nodes,
        -min(bits, 8.0),
        fabric,
        not layout.now,
        order,
        layout.usable_bytes,
    )


def _layouts(facts: Facts, load: Load, hosts: Sequence[Host]) -> Iterator[Layout]:
    classes = sorted({card.gpu_class for host in hosts for card in host.cards if not card.unusable})
    for gpu_class in classes:
        yield from _on_class(facts, load, gpu_class, [host for host in hosts if host.of_class(gpu_class)])
    if not hosts:
        return
    if facts.format == "gguf":
        yield on_cpu(facts, load, hosts)
    elif not classes:
        engine = planned(facts.format)
        unknown = f"what {traits_of(engine).called} takes of main memory is not known, and there are no GPUs"
        yield Layout(
            model=facts.name,
            precision=facts.precision,
            engine=engine,
            need=memory.paged(facts, load, 1, 1),
            rejected=(Reason("engine", f"{unknown}: plan a GGUF of the model for the CPU"),),
        )


def _on_class(facts: Facts, load: Load, gpu_class: str, hosts: list[Host]) -> Iterator[Layout]:
    inside = list(_until_it_fits(one_node(facts, load, gpu_class, hosts)))
    yield from inside
    if any(layout.fits for layout in inside) or len(hosts) < 2 or facts.format == "gguf":
        # What one node holds needs no second one, and llama.cpp knows no other nodes.
        return
    if any(card.mig for host in hosts for card in host.of_class(gpu_class)):
        return
    places, outside = places_of(hosts)
    between: list[Layout] = []
    for place in places:
        tried = _widest(several_nodes(facts, load, gpu_class, place.hosts, place.name))
        # Where an earlier place holds it, a later one need not say what it cannot do.
        shown = [layout for layout in tried if layout.fits or not any(earlier.fits for earlier in between)]
        between += [finished(facts, layout, place.hosts) for layout in shown]
    yield from between
    if not any(layout.fits for layout in between):
        yield from _apart(facts, load, gpu_class, hosts, places, outside)


def _until_it_fits(layouts: Iterable[Layout]) -> Iterator[Layout]:
    for layout in layouts:
        yield layout
        if layout.fits:
            return


def _widest(layouts: Iterable[Layout]) -> list[Layout]:
    """The first layout that fits, and the widest one of each smaller number of nodes."""
    rejected: dict[int, Layout] = {}
    for layout in layouts:
        if layout.fits:
            return [*(rejected[nodes] for nodes in sorted(rejected) if nodes < layout.nodes), layout]
        rejected[layout.nodes] = layout
    return [rejected[nodes] for nodes in sorted(rejected)]


def _apart(
    facts: Facts, load: Load, gpu_class: str, hosts: list[Host], places: list[Place], apart: dict[str, str]
) -> Iterator[Layout]:
    """All nodes together, where they are not on one fabric: never a layout, and why."""
    if any(len(place.hosts) == len(hosts) for place in places):
        return
    groups = [f"{place.name} joins {', '.join(host.id for host in place.hosts)}" for place in places]
    groups += [f"{machine}: {why}" for machine, why in sorted(apart.items())]
    layouts = several_nodes(facts, load, gpu_class, hosts, "no common fabric")
    whole = max(layouts, key=lambda layout: (layout.nodes, layout.cards))
    rule = "a replica never spans two fabrics" if len(places) > 1 else "its nodes share no fabric"
    reason = Reason("fabric", f"{rule} ({'; '.join(groups)})")
    yield finished(facts, msgspec.structs.replace(whole, rejected=(reason, *whole.rejected)), hosts)


def places_of(hosts: Sequence[Host]) -> tuple[list[Place], dict[str, str]]:
    """Where several nodes can hold a replica, NVLink domains first; and of nodes in no fabric why."""
    domains: dict[str, list[Host]] = {}
    fabrics: dict[str, list[Host]] = {}
    names: dict[str, set[str]] = {}
    apart: dict[str, str] = {}
    for host in hosts:
        if host.domain:
            domains.setdefault(host.domain, []).append(host)
        on = {}
        why = "no InfiniBand or RoCE fabric"
        for network in host.networks:
            if len(network.identities) > 1:
                why = f"its adapters of {network.name} are on {len(network.identities)} physical fabrics"
            elif not network.identities:
                why = f"which physical fabric its {network.name} is could not be measured"
            else:
                on[next(iter(network.identities))] = network.name
        for identity, name in on.items():
            fabrics.setdefault(identity, []).append(host)
            names.setdefault(identity, set()).add(name)
        if not on and not host.domain:
            apart[host.id] = why
    places = [Place(f"NVLink domain {name}", tuple(group)) for name, group in sorted(domains.items()) if len(group) > 1]
    for identity, group in sorted(fabrics.items()):
        if len(group) > 1:
            places.append(Place(f"{'/'.join(sorted(names[identity]))} ({identity})", tuple(group)))
        elif not group[0].domain:
            apart[group[0].id] = f"alone on {'/'.join(sorted(names[identity]))} ({identity})"
    return places, apart


def _left_out(hosts: Sequence[Host]) -> Iterator[str]:
    for host in hosts:
        if host.away:
            yield f"{host.id}: {host.away}"
            continue
        for card in host.cards:
            if card.unusable:
                yield f"{host.id} {card.uuid}: {card.unusable}"
