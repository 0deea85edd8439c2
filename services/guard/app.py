"""The guard: decides on policies while it leads, judges checks always."""

from __future__ import annotations

from libs.bus import Authority, Bus, OwnedView, Snapshot, Worker
from libs.events import Event
from libs.events.policy import PolicySpec

from . import core
from .checks import Checks
from .core.state import State, decide, evolve
from .questions import Questions
from .rulebook import Rulebook
from .settings import GuardSettings
from .verdict_publisher import VerdictPublisher

SUBJECTS = (
    "llmgw.evt.policy.>",
    "llmgw.evt.org.>",
    "llmgw.evt.team.>",
    "llmgw.evt.project.>",
    "llmgw.evt.key.>",
)
LANES = 2
"""Batches judged at the same time: one with a long text in it does not hold up the other."""
BATCH = 16


class Guard:
    """The service. ``Authority`` decides on policies, ``Checks`` judges texts by them."""

    def __init__(self, settings: GuardSettings, bus: Bus) -> None:
        self._bus = bus
        self._rulebook = Rulebook()
        self._publisher = VerdictPublisher(bus, settings.instance)
        self._checks = Checks(bus, self._rulebook, self._publisher, settings.threads)
        self._view = OwnedView(bus.view("policies", PolicySpec))
        self._lanes: list[Worker] = []
        self._authority: Authority[State] = Authority(
            bus,
            "guard",
            settings.instance,
            subjects=SUBJECTS,
            initial=State(),
            evolve=self._fold,
            decide=decide,
            on_change=self._publish,
            questions=Questions(lambda: self._authority.state).handlers,
            on_known=self._open,
            on_unreadable=self._close,
            owns=("policy", "guard"),
            snapshot=Snapshot(settings.data_dir / "snapshot.json", State, core),
        )

    async def start(self) -> None:
        await self._authority.start()
        self._rulebook.update(self._authority.state.policies)  # those of the snapshot

    async def _open(self) -> None:
        """Until now checks waited in their stream: the policies were not known."""
        for _ in range(LANES):
            self._lanes.append(await self._bus.work("guard-checks", self._checks.handle, batch=BATCH))

    async def _close(self) -> None:
        """Leave checks to guards that know the policies."""
        for lane in self._lanes:
            await lane.stop()

    async def stop(self) -> None:
        await self._authority.stop()
        await self._close()
        await self._publisher.stop()
        await self._checks.stop()

    async def _publish(self, state: State, position: int) -> None:
        await self._view.become(state.policies, state.election)

    def not_ready(self) -> list[str]:
        return self._authority.not_ready()

    def _fold(self, state: State, event: Event, position: int) -> State:
        folded = evolve(state, event, position)
        if folded.policies is not state.policies:
            self._rulebook.update(folded.policies)
        return folded


def build(settings: GuardSettings, bus: Bus) -> Guard:
    """The service, not started."""
    return Guard(settings, bus)
