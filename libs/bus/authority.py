"""How a service that owns something decides: one instance at a time, fenced, from the log alone.

Every instance follows the log into the same pure state. The one that holds the lease writes an election into
the log, and from then on appends decisions that the server accepts only while no newer election stands there.
A decision is folded back through the log before the next is made.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from libs.events import Event, Question, decode_as, tag_of
from libs.events.commands import Outcome
from libs.events.leadership import ELECTIONS
from libs.events.questions import EXAMINES, STANDINGS, AskStanding, Examine, Examined, Standing
from libs.events.refusal import Refused
from libs.events.subjects import elected as elected_subject
from libs.events.subjects import matches
from libs.tasks import end

from .aside import stand_aside
from .asking import Elsewhere
from .bus import Bus, Fence
from .delivery import MESSAGE_ID, Delivery
from .examiner import Examiner
from .folded_state import FoldedState
from .lease import RENEW_S
from .snapshot import Snapshot
from .supervision import supervise
from .transport import BusAway, NotLeader
from .work import Again, Worker

log = logging.getLogger("llmgw.bus")

S = TypeVar("S")
Answer = Callable[[Any], Awaitable[Any]]
MAX_ROUNDS = 200
"""Rounds of reacting to one's own decisions after which they are taken not to settle."""


class Authority(Generic[S]):
    """Decides for one service while it holds the lease; holds its state always.

    ``evolve(state, event, position)`` folds one event and returns the state.
    ``decide(state, command, command_id, now)`` returns the event a command causes, None when nothing changes, or
    raises Refused.
    ``react(state, now)`` returns what should be decided without a command, as (cause, event); it is asked again
    after every fold and every ``tick_s`` until it returns nothing, so it must be settled by its own events.
    ``on_change(state, position)`` writes the views; leader only.
    ``questions()`` are those answered from the state, from when the log was read to its end; ``Examine`` is among them
    already. ``on_known()`` is called once, then: what else works with the state begins there. ``on_unreadable()`` is
    called when the log holds something of the service's own (an aggregate in ``owns``) that this version cannot read.
    ``problems()`` is what the service says of itself beside that it leads or stands by; without it, ``not_ready()``.
    """

    def __init__(
        self,
        bus: Bus,
        service: str,
        instance: str,
        *,
        subjects: Sequence[str],
        initial: S,
        evolve: Callable[[S, Event, int], S],
        decide: Callable[[S, Any, str, datetime], Event | None],
        react: Callable[[S, datetime], Sequence[tuple[str, Event]]] | None = None,
        on_change: Callable[[S, int], Awaitable[None]] | None = None,
        questions: Callable[[], Mapping[type[Question], Answer]] | None = None,
        on_known: Callable[[], Awaitable[None]] | None = None,
        on_unreadable: Callable[[], Awaitable[None]] | None = None,
        problems: Callable[[], Sequence[str]] | None = None,
        owns: Sequence[str] = (),
        snapshot: Snapshot[S] | None = None,
        tick_s: float = 1.0,
    ) -> None:
        self._bus = bus
        self._service = service
        self.instance = instance
        elections = elected_subject(service)
        covered = any(matches(subject, elections) for subject in subjects)
        self._decide = decide
        self._react = react
        self._on_change = on_change
        self._questions = questions
        self._on_known = on_known
        self._on_unreadable = on_unreadable
        self._problems = problems or self.not_ready
        self._tick_s = tick_s
        self._examiner = Examiner(evolve, decide)
        self._log = FoldedState(
            bus,
            service,
            subjects=subjects if covered else (*subjects, elections),
            owns=owns,
            initial=initial,
            evolve=evolve,
            snapshot=snapshot,
            on_event=self._folded,
            on_unusable=self._lose,
        )
        self._lease = bus.lease(service, instance)
        self._deciding = asyncio.Lock()
        self._dirty = asyncio.Event()
        self._lost = asyncio.Event()
        self._fence: Fence | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.hindered = ""
        """What of the bus keeps it from leading or deciding; empty: nothing does, or another instance leads."""
        self.leading = False
        self.term = 0
        """Of the election it last led from; see ``Elected.term``."""

    @property
    def state(self) -> S:
        """As of ``position``; only its own ``evolve`` changes it."""
        return self._log.value

    @property
    def position(self) -> int:
        """Sequence of the last event folded."""
        return self._log.position

    @property
    def caught_up(self) -> bool:
        """Whether the log was read to its end."""
        return self._log.known

    def not_ready(self) -> list[str]:
        """Why it should not be relied on yet; a standby is ready."""
        reasons = [] if self.caught_up else [f"{self._service} has not read the log to its end yet"]
        hindered = f"{self._service} cannot decide: {self.hindered}" if self.hindered else ""
        return [*reasons, *filter(None, (self._log.unreadable, self._log.void, hindered))]

    async def start(self) -> None:
        """Follow the log, and try to lead once it was read to its end. Raises BusAway."""
        await self._bus.answer(self._service, {STANDINGS[self._service]: self._standing})
        await self._log.start()
        opening = asyncio.create_task(self._open(), name=f"{self._service} opens")
        self._tasks = [asyncio.create_task(self._run(opening), name=f"{self._service} authority"), opening]

    async def _standing(self, _question: AskStanding) -> Standing:
        problems = filter(None, (*self._problems(), self._log.dropped))
        return Standing(instance=self.instance, leads=self.leading, position=self.position, problems=tuple(problems))

    async def _open(self) -> None:
        await self._log.until_known()
        try:
            own = self._questions() if self._questions is not None else {}
            answers: dict[type[Question], Answer] = {EXAMINES[self._service]: self._examined, **own}
            await self._bus.answer(self._service, {kind: self._known(answer) for kind, answer in answers.items()})
            if self._on_known is not None and not self._log.unreadable:
                await self._on_known()
        except Exception as error:
            log.exception("%s cannot open", self._service)
            self._bus.fail(f"{self._service} cannot open: {type(error).__name__}: {error}")

    def _known(self, answer: Answer) -> Answer:
        """``answer``, as long as the state is what the log says."""

        async def answer_if_known(question: Any) -> Any:
            if not self._log.unreadable:
                return await answer(question)
            raise Elsewhere(f"{self._service} {self.instance} cannot answer: {self._log.unreadable}")

        return answer_if_known

    async def stop(self) -> None:
        """Give the lease back and end; a standby takes over at once."""
        await end(*self._tasks)
        await self._log.stop()

    def poke(self) -> None:
        """Something outside the log changed that ``react`` looks at."""
        self._dirty.set()

    def examine(self, question: Examine) -> Examined:
        """What would become of a command now, or after other commands, without any of them being sent."""
        return self._examiner.examine(question, self.state, self.position)

    async def _examined(self, question: Examine) -> Examined:
        return self.examine(question)

    # the log

    def _folded(self, delivery: Delivery) -> None:
        self._examiner.forget()
        if self._fence and delivery.sequence > self._fence.sequence and delivery.subject == self._fence.subject:
            self._lose("a newer leader was elected")
        self._dirty.set()

    # leading

    def _lose(self, why: str) -> None:
        if self.leading:
            log.warning("%s stops leading: %s", self._service, why)
        self._lost.set()

    async def _run(self, opening: asyncio.Task[None]) -> None:
        await self._log.until_known()
        try:
            while True:
                if self._log.unreadable:
                    await self._step_aside(opening)
                    continue
                if self._log.void or not (await self._lease.renew() or await self._lease.acquire()):
                    self.hindered = self._lease.problem
                    await asyncio.sleep(0.5)
                    continue
                try:
                    await self._lead()
                except (NotLeader, BusAway, TimeoutError) as why:
                    log.warning("%s did not come to lead: %s", self._service, why)
                    self.hindered = str(why) or type(why).__name__
                    await asyncio.sleep(0.5)
        except Exception as error:
            log.exception("%s cannot decide", self._service)
            self._bus.fail(f"{self._service} cannot decide: {type(error).__name__}: {error}")
        finally:
            await asyncio.shield(self._lease.release())

    async def _step_aside(self, opening: asyncio.Task[None]) -> None:
        await asyncio.wait({opening})
        if self._on_unreadable is not None:
            await self._on_unreadable()
        await self._lease.release()
        await stand_aside(self._bus, self._service, self._lease, self._log.unreadable)
        await asyncio.sleep(0.5)

    async def _lead(self) -> None:
        self._lost.clear()
        if not self._sure():
            raise BusAway("whether the log went back is not known yet")
        event = ELECTIONS[self._service](at=await self._later(), instance=self.instance)
        sequence = await self._bus.append(event, cause=f"{self._service}:elected:{os.urandom(8).hex()}")
        self._fence = Fence(elected_subject(self._service), sequence, self._sure)
        renewing = supervise(self._renew, name=f"{self._service} lease", fail=self._bus.fail)
        worker: Worker | None = None
        try:
            await self._log.reached(sequence)
            self.term = event.term
            self.leading = True
            log.info("%s %s leads from sequence %d on", self._service, self.instance, sequence)
            await self._refresh()
            worker = await self._bus.work(f"cmd-{self._service}", self._commands, batch=1)
            await self._reacting()
        finally:
            self.leading = False
            self._fence = None
            await end(renewing)
            if worker is not None:
                await worker.stop()

    def _sure(self) -> bool:
        """Whether the log is known to be the one that was folded. Raises NotLeader when it is not."""
        if self._log.void:
            raise NotLeader(self._log.void)
        return self._log.sure

    async def _later(self) -> datetime:
        """Now, but later than the last election, whatever clock that was made by."""
        last = await self._bus.transport.last("EVENTS", elected_subject(self._service))
        if last is None:
            return datetime.now(UTC)
        return max(datetime.now(UTC), decode_as(ELECTIONS[self._service], last.payload).at + timedelta(microseconds=1))

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            if not await self._lease.renew():
                self._lose("the lease was lost")
                return

    async def _reacting(self) -> None:
        self._dirty.set()
        while not self._lost.is_set():
            waiting = [asyncio.ensure_future(self._dirty.wait()), asyncio.ensure_future(self._lost.wait())]
            await asyncio.wait(waiting, timeout=self._tick_s, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
            self._dirty.clear()
            try:
                async with self._deciding:
                    await self._settle()
                    await self._refresh()
                    self.hindered = ""
            except NotLeader as why:
                self._lose(str(why))
            except (BusAway, TimeoutError) as why:
                self.hindered = str(why) or type(why).__name__
                log.warning("%s waits for the bus: %s", self._service, self.hindered)
                self._dirty.set()
                await asyncio.sleep(0.5)

    async def _settle(self) -> None:
        if self._react is None:
            return
        for _ in range(MAX_ROUNDS):
            if self._lost.is_set():
                return
            decisions = self._react(self.state, datetime.now(UTC))
            if not decisions:
                return
            await self._stand([(cause, event, None) for cause, event in decisions])
        log.error("%s does not settle: it keeps deciding %s", self._service, decisions[0])

    async def _stand(self, decisions: Sequence[tuple[str, Event, str | None]]) -> int:
        """Append decisions (cause, event, actor) and fold them; returns the last one's sequence.

        Where no answer comes, one may stand in the log by now or later, and the next must be made knowing that. So it
        is led anew then: behind a new election nothing sent before is accepted any more, and all before it is folded
        first. Raises NotLeader, BusAway, TimeoutError.
        """
        sequence = 0
        try:
            for cause, event, actor in decisions:
                sequence = await self._bus.append(event, cause=cause, actor=actor, fence=self._fence)
            await self._log.reached(sequence)
        except (BusAway, TimeoutError) as why:
            self._lose(f"what became of a decision is not known: {why or type(why).__name__}")
            raise
        return sequence

    async def _refresh(self) -> None:
        if self._on_change is not None and not self._lost.is_set():
            if not self._sure():
                raise BusAway("whether the log went back is not known yet")
            await self._on_change(self.state, self.position)

    # commands

    async def _commands(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            command_id = delivery.headers.get(MESSAGE_ID, "")
            try:
                outcome = await self._carry_out(delivery, command_id)
            except NotLeader as why:
                self._lose(str(why))
                raise Again("another instance leads now", 0.1) from None
            except (BusAway, TimeoutError) as why:
                raise Again(f"the bus is away: {why or type(why).__name__}") from None
            await self._bus.answer_command(delivery, outcome)

    async def _carry_out(self, delivery: Delivery, command_id: str) -> Outcome:
        applied = self._log.applied.get(command_id)
        if applied is not None:
            return Outcome(command_id=command_id, status="done", event=applied.tag, sequence=applied.sequence)
        try:
            async with self._deciding:
                event = self._decide(self.state, delivery.message, command_id, datetime.now(UTC))
                return await self._record(event, delivery, command_id)
        except Refused as refused:
            return Outcome(command_id=command_id, status="refused", message=str(refused), problems=refused.problems)

    async def _record(self, event: Event | None, delivery: Delivery, command_id: str) -> Outcome:
        if event is None:
            return Outcome(command_id=command_id, status="unchanged")
        if self._fence is None or self._lost.is_set():
            raise NotLeader("the lease was lost")
        sequence = await self._stand([(command_id, event, delivery.actor)])
        await self._refresh()
        return Outcome(command_id=command_id, status="done", event=tag_of(event), sequence=sequence)
