"""Deliberate bugs, one at a time, and how soon the simulator finds each: ``python -m tests.simulate.mutations``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from services.scheduler.core.placement import (
    candidates,
    capacity,
    checks,
    search,
)
from services.scheduler.core.reconciler import (
    demand,
    lifecycle,
    model_reconciler,
    nodes,
    preemption,
    silence,
)
from services.scheduler.core.reconciler.round import Starts
from services.scheduler.core.state import evolve, fabrics
from services.scheduler.core.views import desired, routes

from .story import failure

SEEDS = 500
PAGE = Path(__file__).with_name("mutations.md")

Patch = tuple[Any, str, Any]


class Mutation(msgspec.Struct, frozen=True):
    name: str
    what: str
    patches: Callable[[], list[Patch]]

    @contextmanager
    def applied(self) -> Iterator[None]:
        undo: list[Any] = []
        try:
            for owner, name, value in self.patches():
                change = (
                    patch.dict(owner, {name: value}) if isinstance(owner, dict) else patch.object(owner, name, value)
                )
                change.start()
                undo.append(change)
            yield
        finally:
            for change in reversed(undo):
                change.stop()


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _double_booking() -> list[Patch]:
    def holders(self: capacity.Capacity, machine_id: str) -> Iterator[Any]:
        for shard_id, shard in self.state.held.get(machine_id, {}).items():
            if shard_id not in self._without:
                yield shard

    return [(capacity.Capacity, "holders", holders)]


def _forgotten_release() -> list[Patch]:
    from libs.events.shard import ShardStopped

    fold = evolve._FOLDS[ShardStopped]

    def keeps(state: Any, event: Any, position: int) -> None:
        held = dict(state.held.get(event.machine_id, {}))
        fold(state, event, position)
        state.held[event.machine_id] = held

    return [(evolve._FOLDS, ShardStopped, keeps)]


def _released_too_early() -> list[Patch]:
    return [(lifecycle, "_gone", lambda *_: True)]


def _across_fabrics() -> list[Patch]:
    return [(fabrics.Fabrics, "identity", lambda self, port: "all one")]


def _ignores_lost() -> list[Patch]:
    def node(q: Any) -> str | None:
        return None if q.machine.joined and q.machine.mode == "open" else "no"

    return [(checks.CHECKS, "node", node), (lifecycle, "_lost", _nothing)]


def _ignores_drain() -> list[Patch]:
    def node(q: Any) -> str | None:
        return "no" if q.machine.lost or not q.machine.joined else None

    return [(checks.CHECKS, "node", node)]


def _half_a_gang_runs_on() -> list[Patch]:
    return [(desired, "_should_run", lambda replica: replica.phase in ("placed", "ready", "draining", "failed"))]


def _ids_twice() -> list[Patch]:
    name = model_reconciler.replica_name

    def same(model: Any, term: int, already: int) -> str:
        return name(msgspec.structs.replace(model, placings=0), term, already)

    return [(model_reconciler, "replica_name", same)]


def _never_parks() -> list[Patch]:
    def fail(state: Any, model: Any, replica: Any, reason: str, cause: str, now: Any) -> Any:
        cause, failed = real(state, model, replica, reason, cause, now)
        return cause, msgspec.structs.replace(failed, failures=1, retry_at=None)

    real = lifecycle._fail
    return [(lifecycle, "_fail", fail)]


def _takes_from_equals() -> list[Patch]:
    real = preemption.preempt

    def preempt(look_: Any, search: Any) -> Any:
        with patch.object(preemption, "CLASSES", {"high": 0, "normal": 0.5, "low": 1}):
            own = look_.model.spec
            look_.model.spec = msgspec.structs.replace(own, priority_class="high")
            try:
                return real(look_, search)
            finally:
                look_.model.spec = own

    return [(model_reconciler, "preempt", preempt)]


def _evicts_the_busy() -> list[Patch]:
    real = demand.evictable

    def evictable(model: Any, replicas: Any, traffic: Any, now: Any) -> Any:
        if traffic is not None:
            uses = {r: msgspec.structs.replace(use, in_flight=0) for r, use in traffic.replicas.items()}
            traffic = msgspec.structs.replace(traffic, replicas=uses)
        return real(model, replicas, traffic, now)

    return [(preemption, "evictable", evictable)]


def _stale_table() -> list[Patch]:
    refresh = candidates.Table.refresh

    def once(self: candidates.Table, *args: Any) -> None:
        if self._seen < 0:
            refresh(self, *args)

    return [(candidates.Table, "refresh", once)]


def _sick_cards_given() -> list[Patch]:
    free = capacity.Capacity.free

    def given(self: capacity.Capacity, machine: Any) -> Any:
        found = free(self, machine)
        held = {device for shard in self.holders(machine.facts.machine_id) for device in shard.devices}
        gpus = tuple(gpu for gpu in machine.facts.gpus if gpu.uuid not in held)
        return msgspec.structs.replace(found, gpus=gpus)

    return [(capacity.Capacity, "free", given)]


def _lost_in_a_blink() -> list[Patch]:
    return [(silence, "LOST_AFTER_MS", -1)]


def _grows_without_end() -> list[Patch]:
    limits = demand.limits
    return [(demand, "limits", lambda spec: (limits(spec)[0], limits(spec)[1] + (2 if spec.scaling.max else 0)))]


def _side_by_side() -> list[Patch]:
    return [(search, "conflicts", lambda *_: {})]


def _no_brake() -> list[Patch]:
    return [(nodes, "pause_decision", _nothing)]


def _silence_removes() -> list[Patch]:
    asked = routes._asked
    return [(routes, "_asked", lambda state, model: [r for r in asked(state, model) if not state.silent(r)])]


def _starts_without_end() -> list[Patch]:
    return [(Starts, "full", False)]


def _answers_unheard() -> list[Patch]:
    return [(lifecycle, "answers_nobody", lambda *_: True)]


MUTATIONS = (
    Mutation("double booking", "room given away in a round is not counted in it", _double_booking),
    Mutation("forgotten release", "a stopped shard goes on holding its room", _forgotten_release),
    Mutation("released too early", "a replica counts as gone while its engines still run", _released_too_early),
    Mutation("gang across fabrics", "every port is taken to be on one fabric", _across_fabrics),
    Mutation("ignoring lost", "a lost machine is neither avoided nor left", _ignores_lost),
    Mutation("ignoring drains", "cordoned, drained and lent machines get new work", _ignores_drain),
    Mutation("half a gang", "what failed is not taken back from machines", _half_a_gang_runs_on),
    Mutation("ids twice", "a replica gets the id of an earlier one", _ids_twice),
    Mutation("never parking", "failures are not counted in a row and nothing waits", _never_parks),
    Mutation("taking from equals", "replicas of the same class make way for each other", _takes_from_equals),
    Mutation("evicting the busy", "a model with requests in flight is put to sleep", _evicts_the_busy),
    Mutation("stale table", "what is known of machines is never looked at again", _stale_table),
    Mutation("sick cards", "a card with a problem is given away", _sick_cards_given),
    Mutation("lost in a blink", "any silence makes a machine lost", _lost_in_a_blink),
    Mutation("side by side", "whom a replica must keep away from is not looked at", _side_by_side),
    Mutation("no brake", "many machines that fall silent together are taken for lost one by one", _no_brake),
    Mutation("silence removes", "a route loses an engine whose machine is not heard", _silence_removes),
    Mutation("starts without end", "any number of replicas starts at once", _starts_without_end),
    Mutation("answers unheard", "a replica is lost although its engine answers", _answers_unheard),
    Mutation("growing without end", "autoscaling goes beyond the most that is allowed", _grows_without_end),
)


def finder(mutation: Mutation, first: int = 0) -> tuple[int, str] | None:
    """The first seed that finds a bug, and what it says."""
    with mutation.applied():
        for seed in range(first, SEEDS):
            found = failure(seed)
            if found is not None:
                return seed, found[0]
    return None


def main() -> int:
    rows = ["| Bug | What is wrong | Seed | What the simulator says |", "|---|---|---|---|"]
    missed = 0
    for mutation in MUTATIONS:
        found = finder(mutation)
        missed += found is None
        seed, says = found if found is not None else ("none", "nothing")
        says = says.partition("\n")[0][:160].replace("|", "/")
        rows.append(f"| {mutation.name} | {mutation.what} | {seed} | {says} |")
        sys.stdout.write(rows[-1] + "\n")
        sys.stdout.flush()
    head = (
        "# Deliberate bugs and the seeds that find them\n\n"
        "Written by `python -m tests.simulate.mutations`; `make prove` runs each of them again. A seed is the first\n"
        f"of {SEEDS} with which the simulator fails when the core has that bug.\n\n"
    )
    PAGE.write_text(head + "\n".join(rows) + "\n")
    return missed


if __name__ == "__main__":
    sys.exit(main())
