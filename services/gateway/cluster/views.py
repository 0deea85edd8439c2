"""What a gateway knows: keys, routes and policies, each the live copy of a view.

A copy is good while it is watched; with the bus away it stays as it was last known.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

import msgspec

from libs.bus import Bus, Follower
from libs.events.budget import Period
from libs.events.policy import PolicySpec
from libs.events.views import Endpoint, KeyView, Route
from libs.runtime.secrets import engine_key
from services.gateway.adapters.upstream import Pool
from services.gateway.core.faults import unknown_model
from services.gateway.core.routing.circuit_breaker import Breaker
from services.gateway.core.routing.load_balancing import Share, choose

from .gossip import InFlight

log = logging.getLogger("llmgw.gateway")

V = TypeVar("V")
KEYS_USED = 10_000
"""Keys that are kept ready; another takes some 2 µs to unpack."""
_packed = msgspec.msgpack.Encoder().encode
_unpacked = msgspec.msgpack.Decoder(KeyView).decode


class ViewCopy(Generic[V]):
    """The live copy of one view."""

    bucket: ClassVar[str]
    kind: type[V]

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._watch: Follower | None = None

    async def start(self) -> None:
        """Begin to watch the view."""
        self._watch = await self._bus.view(self.bucket, self.kind).watch(self._changed)

    async def caught_up(self) -> None:
        """Returns when the view was read to its end once."""
        assert self._watch is not None
        await self._watch.caught_up.wait()

    async def stop(self) -> None:
        """Watch no more."""
        if self._watch is not None:
            await self._watch.stop()

    @property
    def live(self) -> bool:
        """Whether what is not here does not exist."""
        return self._watch is not None and self._watch.caught_up.is_set() and self._bus.connected

    async def _changed(self, key: str, value: V | None) -> None:
        raise NotImplementedError


class Keys(ViewCopy[KeyView]):
    """Keys by the SHA-256 (hex) of the key.

    There may be very many, and few are used at a time: the others lie here packed.
    """

    bucket = "keys"
    kind = KeyView

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus)
        self._by_hash: dict[str, bytes] = {}
        self._used: dict[str, KeyView] = {}
        """Those that were looked up, the first of them first."""

    async def _changed(self, key: str, value: KeyView | None) -> None:
        if value is None:
            self._by_hash.pop(key, None)
        else:
            self._by_hash[key] = _packed(value)
        self._used.pop(key, None)

    def get(self, sha256: str) -> KeyView | None:
        """The key of a hash (SHA-256, hex); None where there is none."""
        view = self._used.get(sha256)
        if view is None and (kept := self._by_hash.get(sha256)) is not None:
            view = self._used[sha256] = _unpacked(kept)
            if len(self._used) > KEYS_USED:
                del self._used[next(iter(self._used))]
        return view

    def views(self) -> Iterator[KeyView]:
        """All of them."""
        return map(_unpacked, self._by_hash.values())

    def budgeted(self) -> set[tuple[str, Period]]:
        """Accounts that have a budget, and of which period."""
        return {(budget.account, budget.period) for key in self.views() for budget in key.budgets}


class Target:
    """An endpoint and what this gateway knows of it."""

    __slots__ = ("_others", "authorization", "breaker", "endpoint", "own", "pool", "slots", "weight")

    def __init__(self, endpoint: Endpoint, pool: Pool, authorization: bytes, others: InFlight) -> None:
        self.pool = pool
        self.authorization = authorization
        """The header line with the engine's key, or b""."""
        self.breaker = Breaker()
        self.own = 0
        self._others = others
        self.about(endpoint)

    def about(self, endpoint: Endpoint) -> None:
        """What the view says of it now."""
        self.endpoint = endpoint
        self.weight = max(1, endpoint.weight)
        self.slots = max(1, endpoint.parallel) * self.weight

    @property
    def replica_id(self) -> str:
        """Of the replica that answers there."""
        return self.endpoint.replica_id

    @property
    def draining(self) -> bool:
        """It gets nothing new."""
        return self.endpoint.draining

    @property
    def silent(self) -> bool:
        """Nothing is heard of its machine."""
        return self.endpoint.silent

    @property
    def in_flight(self) -> int:
        """Requests of this gateway and, as last heard, of the others."""
        return self.own + self._others.others(self.endpoint.replica_id)


class ServedModel:
    """A model that can be asked for, with its endpoints of this moment."""

    __slots__ = ("_share", "_stable", "_tried", "max_tokens", "route", "targets")

    def __init__(self, route: Route, targets: tuple[Target, ...], share: Share) -> None:
        self.route = route
        self.targets = targets
        self.max_tokens = min(route.max_output_tokens or route.context_length, route.context_length)
        self._share = share
        self._tried = tuple(target for target in targets if target.endpoint.canary)
        self._stable = tuple(target for target in targets if not target.endpoint.canary)

    @property
    def ready(self) -> bool:
        """Whether it has an endpoint that may be asked."""
        return any(not target.draining and (target.breaker.closed or not target.silent) for target in self.targets)

    @property
    def wakeable(self) -> bool:
        """It has no engine, and one is started when somebody asks for it."""
        return self.route.on_demand and self.route.stopped is None and not self.ready

    def open_to(self, key: KeyView) -> bool:
        """Whether a key may use it."""
        return key.models is None or self.route.model in key.models

    def choose(self, tried: Sequence[str], now: float) -> Target | None:
        """The endpoint to ask; ``tried`` are those that were, for this request. None: nobody is left.

        A definition on trial gets its share of the requests, of those that failed at another endpoint none. Where one
        of the two definitions has nobody, the other answers.
        """
        draw = random.random()
        if not self._tried:
            return choose(self.targets, tried, now, draw)
        first, second = self._stable, self._tried
        if not tried and self._share.includes_next(self.route.canary_percent):
            first, second = second, first
        return choose(first, tried, now, draw) or choose(second, tried, now, draw)


class Routes(ViewCopy[Route]):
    """Models by name and alias. An endpoint that is not in the view gets nothing more."""

    bucket = "routes"
    kind = Route

    def __init__(self, bus: Bus, others: InFlight, fleet_secret: bytes | None, connect_timeout_s: float) -> None:
        super().__init__(bus)
        self._others = others
        self._fleet_secret = fleet_secret
        self._connect_timeout_s = connect_timeout_s
        self._models: dict[str, ServedModel] = {}
        self._tuned: dict[str, ServedModel] = {}
        """Fine-tunings by their names: each is like a model on the endpoints that have loaded it."""
        self._names: dict[str, ServedModel] = {}
        self._targets: dict[tuple[str, int, str], Target] = {}
        self._shares: dict[str, Share] = {}
        self._told: list[Callable[[str], None]] = []
        self.stopped: str | None = None
        """Why an administrator stopped the whole system; None: it is not."""

    async def stop(self) -> None:
        """Watch no more, and close the connections to all endpoints."""
        await super().stop()
        for target in self._targets.values():
            target.pool.close()

    @property
    def models(self) -> Mapping[str, ServedModel]:
        """All models and fine-tunings by their names, without aliases."""
        return {**self._models, **self._tuned}

    @property
    def targets(self) -> Mapping[tuple[str, int, str], Target]:
        """All endpoints by replica, generation and URL."""
        return self._targets

    def find(self, name: str) -> ServedModel | None:
        """The model of a name or an alias."""
        return self._names.get(name)

    def get(self, name: str, key: KeyView) -> ServedModel:
        """The model a key asks for. Raises Fault (404) naming those the key may use."""
        served = self._names.get(name)
        if served is None or not served.open_to(key):
            raise unknown_model(name, [other.route.model for other in self.open_to(key)])
        return served

    def open_to(self, key: KeyView) -> list[ServedModel]:
        """The models a key may use."""
        return [served for served in self.models.values() if served.open_to(key)]

    def on_change(self, callback: Callable[[str], None]) -> None:
        """``callback`` is called with the name of every model whose route has changed."""
        self._told.append(callback)

    async def _changed(self, model: str, route: Route | None) -> None:
        known = self._models.get(model)
        if route is None:
            self._models.pop(model, None)
            self._shares.pop(model, None)
        else:
            targets = tuple(self._target(endpoint) for endpoint in route.endpoints if _usable(endpoint))
            share = self._shares.setdefault(model, Share(random.random()))
            self._models[model] = ServedModel(route, targets, share)
        routes = [served.route for served in self._models.values()]
        self.stopped = next((route.stopped_reason for route in routes if route.stopped == "system_stopped"), None)
        self._names = {alias: served for served in self._models.values() for alias in served.route.aliases}
        self._tuned = {
            name: self._fine_tuned(served, name) for served in self._models.values() for name in served.route.loras
        }
        self._names.update(self._tuned)
        self._names.update(self._models)
        used = {id(target) for served in self._models.values() for target in served.targets}
        for identity, target in list(self._targets.items()):
            if id(target) not in used:
                del self._targets[identity]
                target.pool.close()
        tuned = {
            name for version in (known.route if known else None, route) if version is not None for name in version.loras
        }
        for callback in self._told:
            for name in (model, *sorted(tuned)):
                callback(name)

    def _fine_tuned(self, served: ServedModel, name: str) -> ServedModel:
        targets = tuple(target for target in served.targets if name in target.endpoint.loras)
        route = msgspec.structs.replace(
            served.route, model=name, aliases=(), loras=(), endpoints=tuple(target.endpoint for target in targets)
        )
        return ServedModel(route, targets, self._shares.setdefault(name, Share(random.random())))

    def _target(self, endpoint: Endpoint) -> Target:
        identity = (endpoint.replica_id, endpoint.generation, endpoint.url)
        target = self._targets.get(identity)
        if target is None:
            authorization = b""
            if self._fleet_secret is not None:
                key = engine_key(self._fleet_secret, endpoint.replica_id, endpoint.generation)
                authorization = b"authorization: Bearer %s\r\n" % key.encode()
            pool = Pool(endpoint.url, self._connect_timeout_s)
            target = self._targets[identity] = Target(endpoint, pool, authorization, self._others)
        target.about(endpoint)
        return target


def _usable(endpoint: Endpoint) -> bool:
    try:
        Pool(endpoint.url, 1.0)
    except ValueError as error:
        log.error("the endpoint of %s is left out: %s", endpoint.replica_id, error)
        return False
    return True


class ApplicablePolicies:
    """The policies one request is under."""

    __slots__ = ("enforced", "fail_closed", "missing", "names")

    def __init__(self, specs: list[PolicySpec], missing: tuple[str, ...]) -> None:
        self.missing = missing
        """Named for the key, and not there: what they would say is not known, so nothing may pass."""
        self.names = tuple(spec.name for spec in specs)
        enforcing = [spec for spec in specs if spec.mode == "enforce"]
        self.enforced = bool(enforcing)
        self.fail_closed = any(spec.fail == "closed" for spec in enforcing)


class Policies(ViewCopy[PolicySpec]):
    """Guard policies by name."""

    bucket = "policies"
    kind = PolicySpec

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus)
        self._specs: dict[str, PolicySpec] = {}
        self._applicable: dict[tuple[str, ...], ApplicablePolicies | None] = {}

    async def _changed(self, policy: str, spec: PolicySpec | None) -> None:
        if spec is None:
            self._specs.pop(policy, None)
        else:
            self._specs[policy] = spec
        self._applicable.clear()

    def applicable(self, named: tuple[str, ...]) -> ApplicablePolicies | None:
        """Those a key's tree names and those that apply to everybody; None when there are none."""
        try:
            return self._applicable[named]
        except KeyError:
            specs = [spec for name, spec in sorted(self._specs.items()) if spec.default or name in named]
            missing = tuple(name for name in named if name not in self._specs)
            applicable = self._applicable[named] = ApplicablePolicies(specs, missing) if specs or missing else None
            return applicable
