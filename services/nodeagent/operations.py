"""What an operator asked of this agent: each thing done once, whenever the agent dies over it, and its end told."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from libs.events.machine import MachineErrandEnded
from libs.events.sources import kept_as
from libs.events.views import Desired, ErrandWanted
from libs.tasks import end

from .adapters.disk import durable
from .adapters.weights.store import Rejected
from .core import operations as core
from .core.operations import ErrandRecord, Outcome
from .core.shard.weights import used_by
from .machine.overrides import Changes, NotChanged
from .shard.node import Node
from .shard.supervisor import Supervisor

log = logging.getLogger(__name__)

_LOOK_S = 0.2
_RETRY_S = 5.0


class Errands:
    """Follows the desired state. ``begin_anew`` ends this agent and starts the next; ``apply`` puts changed settings
    into effect."""

    def __init__(
        self,
        node: Node,
        supervisor: Supervisor,
        data_dir: Path,
        changes: Changes,
        begin_anew: Callable[[], None],
        apply: Callable[[], None],
    ) -> None:
        self._node = node
        self._supervisor = supervisor
        self._path = data_dir / "errands.json"
        self._changes = changes
        self._begin_anew = begin_anew
        self._apply = apply
        self._records = self._read()
        self._under_way: dict[int, asyncio.Task[None]] = {}

    def _read(self) -> dict[int, ErrandRecord]:
        try:
            return core.decode(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            log.error("%s cannot be read: what was begun is begun anew: %s", self._path, error)
            return {}

    async def on_desired(self, key: str, desired: Desired | None) -> None:
        """The supervisor first: an errand about a shard finds it taken up."""
        await self._supervisor.on_desired(key, desired)
        if desired is None or desired is not self._supervisor.desired:
            return
        self._take(desired.errands)

    def _take(self, wanted: tuple[ErrandWanted, ...]) -> None:
        due, over = core.due(self._records, wanted)
        if over:
            self._records = {number: one for number, one in self._records.items() if number not in over}
        for record in due:
            if record.number not in self._under_way:
                carry_out = partial(self._carry_out, record)
                self._under_way[record.number] = self._node.bus.background(f"errand {record.number}", carry_out)

    async def close(self) -> None:
        await end(*self._under_way.values())

    async def _carry_out(self, record: ErrandRecord) -> None:
        try:
            await self._do_and_tell(record)
        finally:
            del self._under_way[record.number]

    async def _do_and_tell(self, record: ErrandRecord) -> None:
        while True:
            try:
                if record.outcome is None:
                    outcome, reason = await self._do(record)
                    log.info("what #%d asked for is %s: %s", record.number, outcome, reason)
                    record = msgspec.structs.replace(record, outcome=outcome, reason=reason)
                    self._keep(record)
                self._node.outbox.put(self._ended(record), f"machine.{self._node.machine_id}:errand:{record.number}")
                self._keep(msgspec.structs.replace(record, told=True))
                return
            except OSError as error:
                log.error("what #%d asked for cannot be written down (%s); tried again", record.number, error)
            await asyncio.sleep(_RETRY_S)
            record = self._records.get(record.number, record)

    async def _do(self, record: ErrandRecord) -> tuple[Outcome, str]:
        """Raises OSError: it is tried again then."""
        try:
            return await self._DO[record.errand.kind](self, record)
        except OSError:
            raise
        except Exception as error:
            log.exception("what #%d asked for", record.number)
            return "failed", f"the agent itself failed: {type(error).__name__}"

    def _ended(self, record: ErrandRecord) -> MachineErrandEnded:
        assert record.outcome is not None
        return MachineErrandEnded(
            at=datetime.now(UTC),
            machine_id=self._node.machine_id,
            errand=record.number,
            kind=record.errand.kind,
            outcome=record.outcome,
            reason=record.reason,
        )

    def _begun(self, record: ErrandRecord) -> None:
        self._keep(msgspec.structs.replace(record, begun_in=self._node.agent_run))

    def _keep(self, record: ErrandRecord) -> None:
        """Those the log has heard the end of are left out from the next write on."""
        kept = self._records | {record.number: record}
        durable.write(self._path, core.encode(kept))
        self._records = kept

    # what can be asked

    async def _restart_agent(self, record: ErrandRecord) -> tuple[Outcome, str]:
        run = self._node.agent_run
        if record.begun_in and record.begun_in < run:
            return "done", f"start {run} of the agent on this machine"
        self._begun(record)
        self._begin_anew()
        await asyncio.Event().wait()  # this agent ends; the next one says so
        raise AssertionError

    async def _restart_shard(self, record: ErrandRecord) -> tuple[Outcome, str]:
        lives, shard_id = self._supervisor.lives, record.errand.shard_id
        life = lives.get(shard_id)
        if not record.begun_in:
            if life is None or life.ended:
                there = ", ".join(sorted(one for one, life in lives.items() if not life.ended)) or "none"
                return "refused", f"no shard {shard_id} runs here; there is {there}"
            self._begun(record)
        while life is not None and not life.ended:
            life.renew(record.number)
            if life.record.renewed == record.number and life.ready:
                return "done", f"its engine is process {life.record.process.pid if life.record.process else 0} now"
            await asyncio.sleep(_LOOK_S)
            life = lives.get(shard_id)
        return "failed", life.record.reason if life is not None else f"{shard_id} is no longer wanted here"

    async def _change_settings(self, record: ErrandRecord) -> tuple[Outcome, str]:
        try:
            self._changes.keep(record.errand.settings)
        except NotChanged as why:
            return "refused", str(why)
        self._apply()
        changed = ", ".join(f"{name}={text or '(as set here)'}" for name, text in record.errand.settings.items())
        return "done", f"in effect: {changed}"

    async def _remove_weights(self, record: ErrandRecord) -> tuple[Outcome, str]:
        name, _, version = kept_as(record.errand.weights).partition("@")
        supervisor = self._supervisor
        lives = supervisor.lives
        running = {shard_id: used_by(life.wanted) for shard_id, life in lives.items() if not life.ended}
        shards = supervisor.desired.shards if supervisor.desired is not None else ()
        over = {shard_id for shard_id, life in lives.items() if life.ended}
        wanted = {shard.shard_id: used_by(shard) for shard in shards if shard.shard_id not in over}
        fetching = self._node.fetching
        if not record.begun_in:
            why = fetching.stays(name, version, running, wanted)
            if why is not None:
                return "refused", why
            self._begun(record)
        elif not fetching.holds(name, version):
            return "done", f"{record.errand.weights} is gone"
        try:
            freed = await fetching.remove(name, version, running, wanted)
        except Rejected as why_not:
            return "refused", str(why_not)
        return "done", f"{freed // 2**20} MB became free"

    _DO: Mapping[str, Callable[[Any, ErrandRecord], Awaitable[tuple[Outcome, str]]]] = {
        "restart_agent": _restart_agent,
        "restart_shard": _restart_shard,
        "change_settings": _change_settings,
        "remove_weights": _remove_weights,
    }
