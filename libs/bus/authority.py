"""How a service that owns something decides: one instance at a time, fenced, from the log alone.

Every instance follows the log into the same pure state. The one that holds the lease writes an election into
the log, and from then on appends decisions that the server accepts only while no newer election stands there.
A decision is folded back through the log before the next is made.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, TypeVar

from libs.events import BadPayload, Command, Event, UnknownTag, decode, decode_as, tag_of
from libs.events.commands import Outcome, Problem
from libs.events.leadership import ELECTIONS
from libs.events.questions import STANDINGS, AskStanding, Examine, Examined, Standing
from libs.events.refusal import Refused
from libs.events.subjects import elected as elected_subject
from libs.events.subjects import matches
from libs.tasks import end

from .aside import stand_aside
from .bus import Bus, Fence, NotLeader
from .delivery import MESSAGE_ID, Delivery
from .follow import Follower, gone_back
from .lease import RENEW_S
from .metrics import WENT_BACK
from .snapshot import Snapshot
from .supervision import supervise
from .transport import BusAway, BusError, RawMessage
from .work import Again, Worker

log = logging.getLogger("llmgw.bus")

S = TypeVar("S")
REMEMBER = timedelta(hours=2)
"""A command may be redelivered while it is in its stream (one hour); the server's own memory is two minutes."""
SNAPSHOT_EVERY = 5000
"""Events after which the state is kept on disk: a start then reads little more than so many."""
MAX_ROUNDS = 200
"""Rounds of reacting to one's own decisions after which they are taken not to settle."""


@dataclass(frozen=True, slots=True)
class Applied:
    at: datetime
    tag: str
    sequence: int


class Authority(Generic[S]):
    """Decides for one service while it holds the lease; holds its state always.

    ``evolve(state, event, position)`` folds one event and returns the state.
    ``decide(state, command, command_id, now)`` returns the event a command causes, None when nothing changes, or
    raises Refused.
    ``react(state, now)`` returns what should be decided without a command, as (cause, event); it is asked again
    after every fold and every ``tick_s`` until it returns nothing, so it must be settled by its own events.
    ``on_change(state, position)`` writes the views; leader only.
    ``on_known()`` is called once, when the log was read to its end: what answers with the state begins there.
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
        on_known: Callable[[], Awaitable[None]] | None = None,
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
        self._subjects = tuple(subjects) if covered else (*subjects, elections)
        self._evolve = evolve
        self._decide = decide
        self._react = react
        self._on_change = on_change
        self._on_known = on_known
        self._problems = problems or self.not_ready
        self._owns = frozenset(owns)
        self._tick_s = tick_s
        self._snapshot = snapshot
        self._stream = ""
        self._saved = 0
        self._mark = ""
        self._writing: asyncio.Task[None] | None = None
        self._lease = bus.lease(service, instance)
        self._deciding = asyncio.Lock()
        self._dirty = asyncio.Event()
        self._lost = asyncio.Event()
        self._applied: dict[str, Applied] = {}
        self._fence: Fence | None = None
        self._follower: Follower | None = None
        self._task: asyncio.Task[None] | None = None
        self._opening: asyncio.Task[None] | None = None
        self._outdated = ""
        self.hindered = ""
        """What of the bus keeps it from leading or deciding; empty: nothing does, or another instance leads."""
        """The log holds something of ours that this version cannot read: what is folded beyond is not to be used."""
        self._void = ""
        """The log is not the one that was folded: the process is to begin anew."""
        self._supposed: tuple[tuple[str, ...], S] | None = None
        """Commands somebody examined others after, and the state after them; until the log goes on."""
        self.state: S = initial
        self.leading = False
        self.term = 0
        """Of the election it last led from; see ``Elected.term``."""

    @property
    def position(self) -> int:
        """Sequence of the last event folded."""
        return self._follower.position if self._follower else 0

    @property
    def caught_up(self) -> bool:
        return self._follower is not None and self._follower.caught_up.is_set()

    def not_ready(self) -> list[str]:
        """Why it should not be relied on yet; a standby is ready."""
        reasons = [] if self.caught_up else [f"{self._service} has not read the log to its end yet"]
        hindered = f"{self._service} cannot decide: {self.hindered}" if self.hindered else ""
        return [*reasons, *filter(None, (self._outdated, self._void, hindered))]

    async def start(self) -> None:
        await self._bus.answer(self._service, {STANDINGS[self._service]: self._standing})
        start = await self._restore() if self._snapshot is not None else 0
        self._follower = await self._bus.follow(
            "EVENTS", self._subjects, self._fold, start=start, on_unread=self._unread, begin_anew=self._went_back
        )
        self._task = asyncio.create_task(self._run(), name=f"{self._service} authority")
        if self._on_known is not None:
            self._opening = asyncio.create_task(self._open(self._on_known), name=f"{self._service} opens")

    async def _standing(self, _question: AskStanding) -> Standing:
        dropped = self._snapshot.dropped(datetime.now(UTC)) if self._snapshot is not None else ""
        problems = [*self._problems(), *([dropped] if dropped else [])]
        return Standing(instance=self.instance, leads=self.leading, position=self.position, problems=tuple(problems))

    async def _open(self, on_known: Callable[[], Awaitable[None]]) -> None:
        assert self._follower is not None
        await self._follower.caught_up.wait()
        try:
            await on_known()
        except Exception as error:
            log.exception("%s cannot open", self._service)
            self._bus.fail(f"{self._service} cannot open: {type(error).__name__}: {error}")

    async def stop(self) -> None:
        """Give the lease back and end; a standby takes over at once."""
        if self._opening is not None:
            await end(self._opening)
        if self._task is not None:
            await end(self._task)
        if self._follower is not None:
            await self._follower.stop()
            if self._writing is not None:
                await self._writing
            self._save(self.position)
            if self._writing is not None:
                await self._writing

    async def _restore(self) -> int:
        """Begin with the snapshot, where there is one; returns the sequence up to which it is folded."""
        assert self._snapshot is not None
        try:
            extent = await self._bus.transport.extent("EVENTS")
            self._stream = extent.epoch
            place = self._snapshot.place()
            why_not = await gone_back(self._bus.transport, "EVENTS", place, extent) if place is not None else ""
        except BusError as why:
            log.warning("%s reads the log from its beginning, and keeps no snapshot: %s", self._service, why)
            return 0
        if why_not:
            WENT_BACK.labels("EVENTS").inc()
            log.error("%s reads the log from its beginning: %s", self._service, why_not)
            self._snapshot.drop(why_not, datetime.now(UTC))
            return 0
        found = self._snapshot.load(extent.epoch, extent.last)
        if found is None:
            return 0
        self.state, self._saved, self._mark = found.state, found.position, found.mark
        self._applied = {cause: Applied(*about) for cause, about in found.applied.items()}
        log.info("%s begins with its snapshot, which holds the log up to sequence %d", self._service, self._saved)
        return self._saved

    def _save(self, position: int) -> None:
        """``position`` is the sequence of the last event the state holds. The disk is waited for elsewhere."""
        busy = self._writing is not None and not self._writing.done()
        if self._snapshot is None or position <= self._saved or not self._stream or busy:
            return
        if self._outdated or self._void:
            return
        applied = {cause: (a.at, a.tag, a.sequence) for cause, a in self._applied.items()}
        data = self._snapshot.packed(self._stream, position, self._mark, self.state, applied)
        self._writing = asyncio.create_task(asyncio.to_thread(self._snapshot.write, data), name="snapshot")
        self._saved = position

    def poke(self) -> None:
        """Something outside the log changed that ``react`` looks at."""
        self._dirty.set()

    def examine(self, question: Examine) -> Examined:
        """What would become of a command now, or after other commands, without any of them being sent."""
        now = datetime.now(UTC)
        state = self._supposing(question.after, now) if question.after else self.state
        try:
            message = decode(question.command.encode())
            if not isinstance(message, Command):
                return Examined(problems=(Problem(path="type", message=f"{tag_of(message)} is not a command"),))
            event = self._decide(state, message, "examined", now)
        except Refused as refused:
            return Examined(problems=refused.problems)
        except (UnknownTag, BadPayload) as error:
            return Examined(problems=(Problem(path="", message=str(error)),))
        return Examined(unchanged=event is None)

    def _supposing(self, commands: tuple[str, ...], now: datetime) -> S:
        """The state there would be after these commands. Not to be changed: it may be asked for again.

        Whoever examines many commands asks about each after all before it: then only the last is new.
        """
        known, state = self._supposed if self._supposed is not None else ((), None)
        if state is None or commands[: len(known)] != known:
            known, state = (), copy.deepcopy(self.state)
        self._supposed = None
        for number, command in enumerate(commands[len(known) :], len(known)):
            with suppress(Refused, UnknownTag, BadPayload):
                event = self._decide(state, decode(command.encode()), f"examined-{number}", now)
                if event is not None:
                    state = self._evolve(state, event, self.position + 1 + number)
        self._supposed = commands, state
        return state

    # the log

    async def _fold(self, delivery: Delivery) -> None:
        event = delivery.message
        assert isinstance(event, Event)
        self._supposed = None
        self.state = self._evolve(self.state, event, delivery.sequence)
        self._mark = delivery.raw.mark
        if delivery.cause.startswith("c-"):
            self._remember(delivery)
        if self._fence and delivery.sequence > self._fence.sequence and delivery.subject == self._fence.subject:
            self._lose("a newer leader was elected")
        # Not while a long log is read for the first time: that would write all of it many times over.
        if self.caught_up and delivery.sequence - self._saved >= SNAPSHOT_EVERY:
            self._save(delivery.sequence)
        self._dirty.set()

    def _remember(self, delivery: Delivery) -> None:
        self._applied[delivery.cause] = Applied(delivery.time, delivery.tag, delivery.sequence)
        for cause, applied in list(self._applied.items()):
            if delivery.time - applied.at <= REMEMBER:
                break
            del self._applied[cause]

    async def _unread(self, raw: RawMessage) -> None:
        self._mark = raw.mark
        aggregate = raw.subject.split(".")[2]
        if aggregate in self._owns and not self._outdated:
            self._outdated = (
                f"the log holds {raw.subject} at {raw.sequence}, which this version does not know: "
                f"start a {self._service} as new as the one that wrote it"
            )
            log.error("%s cannot lead: %s", self._service, self._outdated)
            self._lose(self._outdated)

    def _went_back(self, why: str) -> None:
        self._void = f"{why}; beginning anew"
        self._lose(self._void)
        if self._snapshot is not None:
            self._snapshot.drop(why, datetime.now(UTC))
        self._bus.begin_anew(why)

    # leading

    def _lose(self, why: str) -> None:
        if self.leading:
            log.warning("%s stops leading: %s", self._service, why)
        self._lost.set()

    async def _run(self) -> None:
        assert self._follower is not None
        await self._follower.caught_up.wait()
        try:
            while True:
                if self._outdated:
                    await stand_aside(self._bus, self._service, self._lease, self._outdated)
                    await asyncio.sleep(0.5)
                    continue
                if self._void or not (await self._lease.renew() or await self._lease.take()):
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

    async def _lead(self) -> None:
        assert self._follower is not None
        self._lost.clear()
        if not self._sure():
            raise BusAway("whether the log went back is not known yet")
        event = ELECTIONS[self._service](at=await self._later(), instance=self.instance)
        sequence = await self._bus.append(event, cause=f"{self._service}:elected:{os.urandom(8).hex()}")
        self._fence = Fence(elected_subject(self._service), sequence, self._sure)
        renewing = supervise(self._renew, name=f"{self._service} lease", fail=self._bus.fail)
        worker: Worker | None = None
        try:
            await self._follower.reached(sequence)
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
        if self._void:
            raise NotLeader(self._void)
        return self._follower is not None and self._follower.sure

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
        assert self._follower is not None
        sequence = 0
        try:
            for cause, event, actor in decisions:
                sequence = await self._bus.append(event, cause=cause, actor=actor, fence=self._fence)
            await self._follower.reached(sequence)
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
        applied = self._applied.get(command_id)
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
