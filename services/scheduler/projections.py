"""The views the scheduler writes: routes, desired, nodes, models."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec
from prometheus_client import Counter

from libs.bus import Bus, OwnedView
from libs.events.views import Desired, ModelView, NodeView, Route, ShardWanted
from libs.runtime.secrets import BadSecret, engine_key, seal

from .core.state.facts import Machine
from .core.state.operations import open_operations
from .core.state.state import State
from .core.views.desired import wanted_on
from .core.views.model_views import model_view
from .core.views.node_views import node_view
from .core.views.routes import route

log = logging.getLogger("llmgw.scheduler")

WRITTEN = Counter("llmgw_scheduler_views_written_total", "Values written to the scheduler's views.", ["bucket"])

V = TypeVar("V")


class Sealer:
    """Seals the engine's key of a shard to the machine it runs on."""

    def __init__(self, fleet_secret: bytes | None) -> None:
        self._fleet_secret = fleet_secret
        self._sealed: dict[str, tuple[str, str]] = {}
        """Shard id to the key it was sealed to and what came of it: sealing is random, a view must not be."""

    @property
    def seals(self) -> bool:
        """Whether engines have keys at all."""
        return self._fleet_secret is not None

    def sealed(self, machine: Machine, shard: ShardWanted) -> ShardWanted:
        """The shard with its key sealed to its machine; without one where that cannot be."""
        if self._fleet_secret is None:
            return shard
        sealing_key = machine.facts.sealing_key
        known = self._sealed.get(shard.shard_id)
        if known is None or known[0] != sealing_key:
            key = engine_key(self._fleet_secret, shard.replica_id, shard.generation)
            try:
                known = (sealing_key, seal(sealing_key, key.encode()))
            except BadSecret as problem:
                log.error("no key for %s: machine %s: %s", shard.shard_id, machine.facts.machine_id, problem)
                return shard
            self._sealed[shard.shard_id] = known
        return msgspec.structs.replace(shard, sealed_key=known[1])

    def forget(self, shard_id: str) -> None:
        """A shard that is wanted no more."""
        self._sealed.pop(shard_id, None)


class Projection:
    """Keeps four buckets as the state is, writing only what changed.

    After an election the buckets are read once: another instance may have written them meanwhile.
    """

    def __init__(self, bus: Bus, fleet_secret: bytes | None) -> None:
        self._routes = _Written(bus, "routes", Route, _route_at)
        self._desired = _Written(bus, "desired", Desired, _desired_at)
        self._nodes = _Written(bus, "nodes", NodeView, _undated)
        self._models = _Written(bus, "models", ModelView, _undated)
        self._sealer = Sealer(fleet_secret)
        self._position = -1
        self._models_seen: dict[str, int] = {}
        self._machines_seen: dict[str, int] = {}
        self._everywhere = 0

    async def refresh(self, state: State, position: int) -> None:
        """Write what is not yet as ``state`` has it. Raises BusAway; what was not written is tried again then."""
        election = state.election
        views = (self._routes, self._desired, self._nodes, self._models)
        if any([await view.take_over(election) for view in views]):
            self._models_seen, self._machines_seen, self._position = {}, {}, -1
        if self._position == state.position:
            return
        # Everything is derived before the first wait: the state moves on while we write.
        at = state.position
        models = self._stale_models(state)
        machines = self._stale_machines(state)
        routes = {name: value[0] for name, value in models.items()}
        model_views = {name: value[1] for name, value in models.items()}
        desired = {machine_id: value[0] for machine_id, value in machines.items()}
        node_views = {machine_id: value[1] for machine_id, value in machines.items()}
        models_seen = {name: model.touched for name, model in state.facts.models.items()}
        machines_seen = dict(state.changed)
        everywhere = state.mirrors_changed
        # Gateways are told before a node is: nothing is sent to an engine that was told to stop.
        await self._routes.write(routes, at)
        await self._desired.write(desired, at)
        await self._nodes.write(node_views, at)
        await self._models.write(model_views, at)
        self._models_seen, self._machines_seen, self._everywhere = models_seen, machines_seen, everywhere
        self._position = at

    def _stale_models(self, state: State) -> dict[str, tuple[Route | None, ModelView | None]]:
        stale: dict[str, tuple[Route | None, ModelView | None]] = {}
        for name, model in state.facts.models.items():
            if self._models_seen.get(name) != model.touched:
                # A removed model is shown as long as something of it runs where it can be stopped.
                stopping = any(r.phase != "lost" for r in state.replicas_of(name))
                shown = model_view(state, model) if stopping or not model.removed else None
                stale[name] = (None if model.removed else route(state, model), shown)
        for name in (self._routes.last.keys() | self._models.last.keys()) - state.facts.models.keys():
            stale[name] = (None, None)
        return stale

    def _stale_machines(self, state: State) -> dict[str, tuple[Desired | None, NodeView | None]]:
        stale: dict[str, tuple[Desired | None, NodeView | None]] = {}
        for machine_id, machine in state.facts.machines.items():
            changed = state.changed.get(machine_id, 0)
            if self._machines_seen.get(machine_id) == changed and self._everywhere == state.mirrors_changed:
                continue
            stale[machine_id] = (self._desired_of(state, machine), node_view(state, machine))
        for machine_id in (self._desired.last.keys() | self._nodes.last.keys()) - state.facts.machines.keys():
            stale[machine_id] = (None, None)
        return stale

    def _desired_of(self, state: State, machine: Machine) -> Desired:
        machine_id = machine.facts.machine_id
        wanted = wanted_on(state, machine_id)
        last = self._desired.last.get(machine_id)
        shards = {shard.shard_id: shard for shard in last.shards} if last is not None else {}
        for gone in shards.keys() - {shard.shard_id for shard in wanted}:
            self._sealer.forget(gone)
        # What stands there was sealed to the machine's present key if it was written after the machine said it.
        sealed_to_present_key = last is not None and machine.registered <= last.generation <= state.position
        sealed = tuple(
            shards[shard.shard_id]
            if sealed_to_present_key and shard.shard_id in shards and self._same(shards[shard.shard_id], shard)
            else self._sealer.sealed(machine, shard)
            for shard in wanted
        )
        return Desired(
            machine_id=machine_id,
            term=state.term,
            generation=state.position,
            shards=sealed,
            errands=open_operations(machine),
        )

    def _same(self, written: ShardWanted, wanted: ShardWanted) -> bool:
        sealed = written.sealed_key is not None
        return sealed == self._sealer.seals and msgspec.structs.replace(written, sealed_key=None) == wanted


class _Written(Generic[V]):
    """One bucket, and what stands in it as far as this instance knows."""

    def __init__(self, bus: Bus, bucket: str, kind: type[V], stamp: Callable[[V, int], V]) -> None:
        """``stamp`` writes into a value from which position in the log it was derived."""
        self._view = OwnedView(bus.view(bucket, kind))
        self._bucket = bucket
        self._stamp = stamp

    @property
    def last(self) -> Mapping[str, V]:
        return self._view.values

    async def take_over(self, term: int) -> bool:
        """See ``OwnedView.take_over``."""
        return await self._view.take_over(term)

    async def write(self, values: Mapping[str, V | None], position: int) -> None:
        """Put what differs in more than its position; None: the key is removed. Raises Overtaken, BusAway."""
        for key, value in values.items():
            last = self.last.get(key)
            if value is None:
                if last is None:
                    continue
                await self._view.delete(key)
            elif last is None or self._stamp(last, 0) != self._stamp(value, 0):
                await self._view.put(key, self._stamp(value, position))
            else:
                continue
            WRITTEN.labels(self._bucket).inc()


def _route_at(value: Route, position: int) -> Route:
    return msgspec.structs.replace(value, position=position)


def _desired_at(value: Desired, position: int) -> Desired:
    return msgspec.structs.replace(value, generation=position)


def _undated(value: V, position: int) -> V:
    return value
