"""What an operator asked of this agent: each operation done once, whenever the agent dies over it, its end reported.

On the wire an operation is called an errand.
"""

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

from .adapters.disk import durable
from .adapters.weights.store import Rejected
from .core import operations as core
from .core.operations import OperationRecord, Outcome
from .core.shard.weights import used_by
from .machine.overrides import InvalidOverride, Overrides
from .shard.node import Node
from .shard.supervisor import Supervisor

log = logging.getLogger(__name__)

_LOOK_S = 0.2
_RETRY_S = 5.0


class Operations:
    """Follows the desired state. ``begin_anew`` ends this agent and starts the next; ``apply_overrides`` puts changed
    settings into effect."""

    def __init__(
        self,
        node: Node,
        supervisor: Supervisor,
        data_dir: Path,
        overrides: Overrides,
        begin_anew: Callable[[], None],
        apply_overrides: Callable[[], None],
    ) -> None:
        self._node = node
        self._supervisor = supervisor
        self._path = data_dir / "errands.json"
        self._overrides = overrides
        self._begin_anew = begin_anew
        self._apply_overrides = apply_overrides
        self._records = self._read()
        self._under_way: dict[int, asyncio.Task[None]] = {}

    def _read(self) -> dict[int, OperationRecord]:
        try:
            return core.decode(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError) as error:
            log.error("%s cannot be read: what was begun is begun anew: %s", self._path, error)
            return {}

    async def on_desired(self, key: str, desired: Desired | None) -> None:
        """The supervisor first: an operation on a shard finds it taken up."""
        await self._supervisor.on_desired(key, desired)
        if desired is None or desired is not self._supervisor.desired:
            return
        self._begin_due(desired.errands)

    def _begin_due(self, wanted: tuple[ErrandWanted, ...]) -> None:
        due, over = core.due(self._records, wanted)
        if over:
            self._records = {number: record for number, record in self._records.items() if number not in over}
        for record in due:
            if record.number not in self._under_way:
                carry_out = partial(self._carry_out, record)
                self._under_way[record.number] = self._node.bus.background(f"operation {record.number}", carry_out)

    async def close(self) -> None:
        """Leave what is under way to the next agent."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _carry_out(self, record: OperationRecord) -> None:
        try:
            await self._do_and_report(record)
        finally:
            del self._under_way[record.number]

    async def _do_and_report(self, record: OperationRecord) -> None:
        while True:
            try:
                if record.outcome is None:
                    outcome, reason = await self._do(record)
                    log.info("what #%d asked for is %s: %s", record.number, outcome, reason)
                    record = msgspec.structs.replace(record, outcome=outcome, reason=reason)
                    self._keep(record)
                self._node.outbox.put(self._ended(record), f"machine.{self._node.machine_id}:errand:{record.number}")
                self._keep(msgspec.structs.replace(record, reported=True))
                return
            except OSError as error:
                log.error("what #%d asked for cannot be written down (%s); tried again", record.number, error)
            await asyncio.sleep(_RETRY_S)
            record = self._records.get(record.number, record)

    async def _do(self, record: OperationRecord) -> tuple[Outcome, str]:
        """Raises OSError: it is tried again then."""
        try:
            return await self._DO[record.errand.kind](self, record)
        except OSError:
            raise
        except Exception as error:
            log.exception("what #%d asked for", record.number)
            return "failed", f"the agent itself failed: {type(error).__name__}"

    def _ended(self, record: OperationRecord) -> MachineErrandEnded:
        assert record.outcome is not None
        return MachineErrandEnded(
            at=datetime.now(UTC),
            machine_id=self._node.machine_id,
            errand=record.number,
            kind=record.errand.kind,
            outcome=record.outcome,
            reason=record.reason,
        )

    def _begun(self, record: OperationRecord) -> None:
        self._keep(msgspec.structs.replace(record, begun_in=self._node.agent_run))

    def _keep(self, record: OperationRecord) -> None:
        """Write it down. Those the log has heard the end of are left out from the next write on. Raises OSError."""
        kept = self._records | {record.number: record}
        durable.write(self._path, core.encode(kept))
        self._records = kept

    async def _restart_agent(self, record: OperationRecord) -> tuple[Outcome, str]:
        run = self._node.agent_run
        if record.begun_in and record.begun_in < run:
            return "done", f"start {run} of the agent on this machine"
        self._begun(record)
        self._begin_anew()
        await asyncio.Event().wait()  # this agent ends; the next one reports
        raise AssertionError

    async def _restart_shard(self, record: OperationRecord) -> tuple[Outcome, str]:
        runners, shard_id = self._supervisor.runners, record.errand.shard_id
        runner = runners.get(shard_id)
        if not record.begun_in:
            if runner is None or runner.ended:
                running = ", ".join(sorted(other for other, runner in runners.items() if not runner.ended)) or "none"
                return "refused", f"no shard {shard_id} runs here; there is {running}"
            self._begun(record)
        while runner is not None and not runner.ended:
            runner.renew(record.number)
            if runner.record.renewed == record.number and runner.ready:
                return "done", f"its engine is process {runner.record.process.pid if runner.record.process else 0} now"
            await asyncio.sleep(_LOOK_S)
            runner = runners.get(shard_id)
        return "failed", runner.record.reason if runner is not None else f"{shard_id} is no longer wanted here"

    async def _change_settings(self, record: OperationRecord) -> tuple[Outcome, str]:
        try:
            self._overrides.keep(record.errand.settings)
        except InvalidOverride as why:
            return "refused", str(why)
        self._apply_overrides()
        changed = ", ".join(f"{name}={text or '(as set here)'}" for name, text in record.errand.settings.items())
        return "done", f"in effect: {changed}"

    async def _remove_weights(self, record: OperationRecord) -> tuple[Outcome, str]:
        name, _, version = kept_as(record.errand.weights).partition("@")
        supervisor = self._supervisor
        runners = supervisor.runners
        running = {shard_id: used_by(runner.wanted) for shard_id, runner in runners.items() if not runner.ended}
        shards = supervisor.desired.shards if supervisor.desired is not None else ()
        over = {shard_id for shard_id, runner in runners.items() if runner.ended}
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

    _DO: Mapping[str, Callable[[Any, OperationRecord], Awaitable[tuple[Outcome, str]]]] = {
        "restart_agent": _restart_agent,
        "restart_shard": _restart_shard,
        "change_settings": _change_settings,
        "remove_weights": _remove_weights,
    }
