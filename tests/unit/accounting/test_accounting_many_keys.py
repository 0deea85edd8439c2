"""What accounting does is in proportion to what changed, not to the keys there ever were."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import services.accounting.projections as projections
from libs.bus import Bus, OwnedView
from libs.bus.memory import MemoryCluster
from libs.events import Event, commands, tenancy
from libs.events.budget import Budget
from libs.events.leadership import AccountingElected
from libs.events.questions import TenancyAnswer
from libs.events.refusal import Refused
from libs.events.tenancy import Allowance, OrgSpec, ProjectSpec, TeamSpec
from libs.events.views import KeyView
from services.accounting.core import pages
from services.accounting.core.decide import decide, react
from services.accounting.core.pages import PageCursor, budgets_page, tenancy_page
from services.accounting.core.state import KEPT, State, evolve
from services.accounting.projections import Keys

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
KEYS = 2_000
PROJECTS = 20


def key_id(number: int) -> str:
    return f"k-{number:08}"


def created(number: int, at: datetime = NOW, **fields: Any) -> tenancy.KeyCreated:
    project = f"acme/research/p{number % PROJECTS}"
    return tenancy.KeyCreated(
        at=at, key_id=key_id(number), key_sha256=f"{number:064x}", shown="sk-llmgw-", project=project, **fields
    )


def history() -> Iterator[Event]:
    yield AccountingElected(at=NOW, instance="one")
    yield tenancy.OrgDefined(at=NOW, org="acme", spec=OrgSpec(name="acme"))
    yield tenancy.TeamDefined(at=NOW, team="acme/research", spec=TeamSpec(org="acme", name="research"))
    for number in range(PROJECTS):
        spec = ProjectSpec(org="acme", team="research", name=f"p{number}")
        yield tenancy.ProjectDefined(at=NOW, project=f"acme/research/p{number}", spec=spec)
    for number in range(KEYS):
        yield created(number, allowance=Allowance(budgets=(Budget(amount_micros=5, period="day"),)))


def folded() -> State:
    state = State()
    for position, event in enumerate(history(), 1):
        state = evolve(state, event, position)
    return state


class Kept:
    """The state and the view as the leader keeps them, and what that took."""

    def __init__(self, bus: Bus, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bucket = bus.view("keys", KeyView)
        self.state = folded()
        self.position = len(self.state.keys) + 1000
        self.worked_out: list[str] = []
        self.keys = Keys(OwnedView(self.bucket))
        original = projections.key_view

        def counted(key: Any, *arguments: Any) -> KeyView:
            self.worked_out.append(key.key_id)
            return original(key, *arguments)

        monkeypatch.setattr(projections, "key_view", counted)

    async def after(self, *events: Event) -> int:
        """How many keys were worked out for some events."""
        self.worked_out.clear()
        for event in events:
            self.position += 1
            self.keys.note(self.state, event)
            self.state = evolve(self.state, event, self.position)
        await self.keys.refresh(self.state, self.position)
        return len(self.worked_out)

    async def says_what_the_log_says(self) -> bool:
        there = await self.bucket.all()
        self.worked_out.clear()
        again = Keys(OwnedView(self.bucket))
        await again.refresh(self.state, self.position + 1)
        return there == await self.bucket.all() and there.keys() == self.state.key_ids.keys()


@pytest.fixture
async def kept(memory_cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kept]:
    bus = memory_cluster.bus("accounting")
    kept = Kept(bus, monkeypatch)
    assert await kept.after() == KEYS, "a new leader looks at every key once"
    yield kept
    await bus.close()


async def test_what_an_event_changed_is_worked_out_and_nothing_else(kept: Kept) -> None:
    assert await kept.after() == 0
    assert await kept.after(created(KEYS)) == 1
    assert await kept.after(tenancy.KeyChanged(at=NOW, key_id=key_id(3), name="new")) == 1
    assert await kept.after(tenancy.KeyRevoked(at=NOW, key_id=key_id(4))) == 1
    assert await kept.after(tenancy.OrgDefined(at=NOW, org="other", spec=OrgSpec(name="other"))) == 0
    narrowed = ProjectSpec(org="acme", team="research", name="p7", allowance=Allowance(rpm=7))
    defined = tenancy.ProjectDefined(at=NOW, project="acme/research/p7", spec=narrowed)
    assert await kept.after(defined) == KEYS // PROJECTS
    view = await kept.bucket.get(f"{7:064x}")
    assert view is not None
    assert view.project_rpm == 7
    org = OrgSpec(name="acme", allowance=Allowance(rpm=5))
    assert await kept.after(tenancy.OrgDefined(at=NOW, org="acme", spec=org)) == KEYS, "all but the revoked one"
    assert await kept.says_what_the_log_says()


async def test_a_forgotten_key_leaves_the_view(kept: Kept) -> None:
    late = NOW + KEPT + timedelta(days=2)
    await kept.after(tenancy.KeyRevoked(at=NOW, key_id=key_id(4)))
    assert react(kept.state, NOW + KEPT - timedelta(days=1)) == []
    ((_, event),) = react(kept.state, late)
    assert await kept.after(event) == 0
    assert await kept.bucket.get(f"{4:064x}") is None
    assert react(kept.state, late) == []
    assert await kept.says_what_the_log_says()


async def test_what_was_not_written_is_written_when_the_bus_is_back(
    kept: Kept, memory_cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory_cluster.away = True
    monkeypatch.setattr("libs.bus.owned_view.RETRY_FOR_S", 0.0)
    with pytest.raises(projections.BusAway):
        await kept.after(tenancy.KeyRevoked(at=NOW, key_id=key_id(5)))
    memory_cluster.away = False
    assert await kept.after() == 1
    assert await kept.says_what_the_log_says()


def test_pages_hold_all_of_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES", 20_000)
    state = folded()
    every = pages.ORDER
    found: list[TenancyAnswer] = [tenancy_page(state, every, (), None)]
    while found[-1].next:
        # What happens between two pages neither repeats nor hides what was there.
        number = KEYS + len(found)
        state = evolve(state, created(number, name="while it was asked"), 100_000 + number)
        found.append(tenancy_page(state, every, (), PageCursor.of(found[-1].next)))
    assert len(found) > 10
    assert [org.name for page in found for org in page.orgs] == ["acme"]
    assert len({one.name for page in found for one in page.projects}) == PROJECTS
    assert [key.key_id for page in found for key in page.keys][:KEYS] == [key_id(number) for number in range(KEYS)]
    assert tenancy_page(state, ("key",), (key_id(9), "k-unknown", key_id(2)), None).keys[0].key_id == key_id(2)


def test_budgets_come_in_pages() -> None:
    state = folded()
    found, following = budgets_page(state, None, 900)
    accounts = [one.account for one in found]
    while following:
        found, following = budgets_page(state, PageCursor.of(following), 900)
        accounts += [one.account for one in found]
    assert accounts == [key_id(number) for number in range(KEYS)]


@pytest.mark.parametrize("text", ["key:x", "colour:red", "nothing"])
def test_a_place_that_is_none(text: str) -> None:
    assert PageCursor.of(text) is None


def test_an_unknown_key_is_not_compared_with_all_others() -> None:
    state = folded()
    with pytest.raises(Refused, match=r"there is no key 'k-00000zzz'; there are 2,000"):
        decide(state, commands.RevokeKey(key_id="k-00000zzz"), "c-1", NOW)


def test_ten_years_of_keys_leave_no_more_than_the_last_ones() -> None:
    """Every day keys are made; some are revoked, some expire, some are prolonged, a few stay for ever."""
    state = State()
    position = number = 0
    sizes: list[int] = []
    for day in range(3653):
        at = NOW + timedelta(days=day)
        events: list[Event] = [created(number, at, expires_at=at + timedelta(hours=12)), created(number + 1, at)]
        events.append(tenancy.KeyRevoked(at=at + timedelta(hours=1), key_id=key_id(number + 1)))
        if day % 7 == 0:
            prolonged = tenancy.KeyChanged(at=at, key_id=key_id(number), expires_at=at + timedelta(days=90))
            events.append(prolonged)
        if day % 365 == 0:
            events.append(created(10**7 + day, at))
        number += 2
        while due := react(state, at):
            events += [event for _, event in due]
            state = evolve(state, events.pop(), position := position + 1)
        for event in events:
            state = evolve(state, event, position := position + 1)
        sizes.append(len(state.keys))
    lasting = 11
    assert max(sizes) < 2 * 37 + 90 // 7 + 6 + lasting
    assert max(sizes[-365:]) - max(sizes[365:730]) <= lasting
    assert len(state.key_ids) == len(state.keys)
    assert sum(map(len, state.leaving.values())) == len(state.keys) - lasting
    assert sum(map(len, state.members.values())) <= len(state.keys)
