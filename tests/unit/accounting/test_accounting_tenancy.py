"""Commands to events to state: given what has happened, when somebody wishes, then this."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from libs.events import Command, Event, commands, state_hash, tenancy
from libs.events.budget import Budget, accounts
from libs.events.leadership import AccountingElected
from libs.events.refusal import Refused
from libs.events.tenancy import Allowance, OrgSpec, Price, ProjectSpec, TeamSpec
from libs.events.views import KeyView
from services.accounting.core.decide import decide
from services.accounting.core.effective import key_view, of_project
from services.accounting.core.state import State, evolve

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
ORG = commands.DefineOrg(spec=OrgSpec(name="acme", allowance=Allowance(rpm=100, models=("big", "small"))))
TEAM = commands.DefineTeam(spec=TeamSpec(org="acme", name="research", allowance=Allowance(policies=("no-secrets",))))
PROJECT = commands.DefineProject(
    spec=ProjectSpec(org="acme", team="research", name="chat", allowance=Allowance(rpm=60, policies=("pii",)))
)
KEY = commands.CreateKey(
    key_id="k-abcdefghij",
    key_sha256="a" * 64,
    shown="sk-llmgw-abcd",
    project="acme/research/chat",
    allowance=Allowance(rpm=10, models=("small",)),
)
TREE = (ORG, TEAM, PROJECT, KEY)


def given_(*wishes: Command, now: datetime = NOW) -> State:
    state = State()
    for position, wish in enumerate(wishes, start=1):
        event = decide(state, wish, f"c-{position}", now)
        assert event is not None, wish
        state = evolve(state, event, position)
    return state


def refused(state: State, wish: Command) -> dict[str, str]:
    with pytest.raises(Refused) as caught:
        decide(state, wish, "c-x", NOW)
    return {problem.path: problem.message for problem in caught.value.problems}


def view(state: State, key_id: str = "k-abcdefghij") -> KeyView:
    key = state.keys[key_id]
    return key_view(key, of_project(state, key.project), 9)


def test_a_tree_comes_to_be() -> None:
    state = given_(*TREE)
    assert set(state.orgs) == {"acme"}
    assert set(state.teams) == {"acme/research"}
    assert set(state.projects) == {"acme/research/chat"}
    assert state.key_ids == {"a" * 64: "k-abcdefghij"}


def test_the_same_again_changes_nothing() -> None:
    state = given_(*TREE)
    for wish in TREE:
        assert decide(state, wish, "c-again", NOW) is None


def test_the_view_of_a_key_is_the_whole_tree() -> None:
    assert view(given_(*TREE)) == KeyView(
        key_id="k-abcdefghij",
        project="acme/research/chat",
        models=("small",),
        rpm=10,
        project_rpm=60,
        policies=("no-secrets", "pii"),
        position=9,
    )


def test_budgets_of_every_level_reach_the_key() -> None:
    monthly, daily = Budget(amount_micros=5_000_000, period="month"), Budget(amount_micros=1, period="day")
    org = commands.DefineOrg(spec=OrgSpec(name="acme", allowance=Allowance(budgets=(monthly,))))
    key = msgspec.structs.replace(KEY, allowance=Allowance(budgets=(daily, monthly)))
    found = view(given_(org, TEAM, PROJECT, key)).budgets
    assert [(one.account, one.period, one.amount_micros) for one in found] == [
        ("acme/*", "month", 5_000_000),
        ("k-abcdefghij", "day", 1),
        ("k-abcdefghij", "month", 5_000_000),
    ]
    assert {one.account for one in found} <= set(accounts("k-abcdefghij", "acme/research/chat"))


def test_a_budget_is_judged_whole() -> None:
    wrong = Allowance(budgets=(Budget(amount_micros=0, period="day"), Budget(amount_micros=5, period="day")))
    problems = refused(given_(), commands.DefineOrg(spec=OrgSpec(name="acme", allowance=wrong)))
    assert "0 micro-units are not a budget; give 1 to" in problems["spec.allowance.budgets[0].amount_micros"]
    assert problems["spec.allowance.budgets[1].period"] == "there is a budget for 'day' already; leave one out"


def test_a_level_above_may_be_cut_at_any_time_and_reaches_the_keys() -> None:
    cut = commands.DefineOrg(spec=OrgSpec(name="acme", allowance=Allowance(rpm=5, models=("big",))))
    state = given_(*TREE, cut)
    assert view(state).models == ()
    assert view(state).project_rpm == 5
    assert decide(state, PROJECT, "c-again", NOW) is None, "a declared project that is now wider is not refused"


def test_names_and_parents_are_judged_all_at_once() -> None:
    problems = refused(
        given_(*TREE),
        commands.DefineTeam(
            spec=TeamSpec(org="acmee", name="Research Team", allowance=Allowance(rpm=0, models=("what?",)))
        ),
    )
    assert set(problems) == {"spec.org", "spec.name", "spec.allowance.rpm", "spec.allowance.models[0]"}
    assert problems["spec.org"] == "there is no organisation 'acmee'; is 'acme' meant?"


def test_a_project_needs_its_team() -> None:
    wish = commands.DefineProject(spec=ProjectSpec(org="acme", team="sales", name="crm"))
    assert "there is no team 'acme/sales'" in refused(given_(*TREE), wish)["spec.team"]
    assert "there is no organisation 'acme'" in refused(State(), wish)["spec.org"]


def test_nothing_is_removed_while_something_is_under_it() -> None:
    state = given_(*TREE)
    assert "still has a team (acme/research); remove it first" in refused(state, commands.RemoveOrg(org="acme"))["org"]
    assert "still has a project" in refused(state, commands.RemoveTeam(team="acme/research"))["team"]
    assert "k-abcdefghij" in refused(state, commands.RemoveProject(project="acme/research/chat"))["project"]
    assert "there is no team" in refused(state, commands.RemoveTeam(team="acme/other"))["team"]


def test_a_tree_is_taken_down_from_below() -> None:
    state = given_(
        *TREE,
        commands.RevokeKey(key_id="k-abcdefghij"),
        commands.RemoveProject(project="acme/research/chat"),
        commands.RemoveTeam(team="acme/research"),
        commands.RemoveOrg(org="acme"),
    )
    assert not state.orgs
    assert not state.teams
    assert not state.projects
    assert view(state).revoked, "the key is still known, as revoked"


def test_an_organisation_whose_name_begins_another_is_not_its_parent() -> None:
    state = given_(
        ORG,
        commands.DefineOrg(spec=OrgSpec(name="acme.eu")),
        commands.DefineTeam(spec=TeamSpec(org="acme.eu", name="t")),
    )
    assert decide(state, commands.RemoveOrg(org="acme"), "c-1", NOW) is not None


def test_a_key_is_judged_whole() -> None:
    state = given_(*TREE)
    problems = refused(
        state,
        commands.CreateKey(
            key_id="abc",
            key_sha256="sk-llmgw-this-is-the-key-itself",
            shown="sk-llmgw-far-too-much-of-the-key",
            project="acme/research/chat",
            roles=(),
            allowance=Allowance(rpm=61, models=("huge",)),
            expires_at=NOW,
        ),
    )
    assert set(problems) == {
        "key_id",
        "key_sha256",
        "shown",
        "roles",
        "allowance.rpm",
        "allowance.models[0]",
        "expires_at",
    }
    assert "itself" not in problems["key_sha256"].replace("send the key itself", ""), "a key is never repeated"
    assert "project acme/research/chat" in problems["allowance.rpm"]


def test_keys_are_told_apart_by_id_and_by_hash() -> None:
    state = given_(*TREE)
    other_hash = commands.CreateKey(
        key_id="k-abcdefghij", key_sha256="b" * 64, shown="sk-llmgw-b", project="acme/research/chat"
    )
    assert "another key's id" in refused(state, other_hash)["key_id"]
    same_hash = commands.CreateKey(
        key_id="k-bbbbbbbbbb", key_sha256="a" * 64, shown="sk-llmgw-a", project="acme/research/chat"
    )
    assert "known already as k-abcdefghij" in refused(state, same_hash)["key_sha256"]


def test_an_expiry_needs_a_zone() -> None:
    wish = commands.ChangeKey(key_id="k-abcdefghij", expires_at=datetime(2027, 1, 1))  # noqa: DTZ001
    assert "no time zone" in refused(given_(*TREE), wish)["expires_at"]


def test_a_key_changes() -> None:
    wish = commands.ChangeKey(
        key_id="k-abcdefghij", name="robot", allowance=Allowance(rpm=20), expires_at=NOW + timedelta(days=1)
    )
    state = given_(*TREE, wish)
    assert view(state).rpm == 20
    assert view(state).models == ("big", "small")
    assert view(state).expires_at == NOW + timedelta(days=1)
    assert decide(state, wish, "c-again", NOW + timedelta(days=9)) is None, "the same again, though it has expired"


def test_a_revoked_key_stays_listed_with_nothing_left() -> None:
    state = given_(*TREE, commands.RevokeKey(key_id="k-abcdefghij", reason="leaked"))
    assert view(state) == KeyView(
        key_id="k-abcdefghij", project="acme/research/chat", roles=(), models=(), revoked=True, position=9
    )
    assert decide(state, commands.RevokeKey(key_id="k-abcdefghij"), "c-1", NOW) is None
    assert "for ever" in refused(state, commands.ChangeKey(key_id="k-abcdefghij"))["key_id"]
    assert "another key's id" in refused(state, KEY)["key_id"], "it cannot come back by being created again"


def test_prices_have_versions() -> None:
    price = commands.DefinePrice(price=Price(model="small", prompt_micros=5))
    state = given_(price)
    assert decide(state, price, "c-again", NOW) is None
    event = decide(state, commands.DefinePrice(price=Price(model="*", completion_micros=1)), "c-2", NOW)
    assert isinstance(event, tenancy.PriceDefined)
    state = evolve(state, event, 40)
    assert state.prices["*"][0].version == 40


def test_a_price_is_judged_whole() -> None:
    wish = commands.DefinePrice(price=Price(model="Big Model", prompt_micros=-1, completion_micros=10**10))
    assert set(refused(State(), wish)) == {"price.model", "price.prompt_micros", "price.completion_micros"}


def test_the_log_alone_gives_the_state() -> None:
    wishes = (*TREE, commands.RevokeKey(key_id="k-abcdefghij"), commands.DefinePrice(price=Price(model="*")))
    log: list[Event] = []
    state = State()
    for wish in wishes:
        event = decide(state, wish, "c", NOW)
        assert event is not None
        log.append(event)
        state = evolve(state, event, len(log))
    again = State()
    for position, event in enumerate(log, start=1):
        again = evolve(again, event, position)
    assert state_hash(again) == state_hash(state)


def test_an_election_marks_the_views_as_somebody_elses() -> None:
    assert evolve(State(), AccountingElected(at=NOW, instance="one"), 12).elected_at == 12


# changing a part


def amended(state: State, command: Command) -> Event:
    event = decide(state, command, "c-x", NOW)
    assert event is not None
    evolve(state, event, 99)
    return event


def test_a_change_of_a_key_keeps_what_it_does_not_name() -> None:
    whole = Allowance(
        rpm=10,
        tpm=1000,
        models=("small",),
        policies=("no-secrets",),
        budgets=(Budget(amount_micros=1, period="day"), Budget(amount_micros=2, period="total")),
    )
    later = NOW + timedelta(days=3)
    key = msgspec.structs.replace(KEY, allowance=whole, name="old", expires_at=later)
    state = given_(ORG, TEAM, PROJECT, key)
    assert decide(state, commands.AmendKey(key_id=key.key_id), "c-x", NOW) is None
    amended(state, commands.AmendKey(key_id=key.key_id, name="new"))
    changed = state.keys[key.key_id]
    assert (changed.name, changed.allowance, changed.expires_at) == ("new", whole, later)

    day = Budget(amount_micros=9, period="day")
    part = commands.Amendment(tpm=500, budgets=(day,), clear=("models",))
    amended(state, commands.AmendKey(key_id=key.key_id, allowance=part, never_expires=True))
    changed = state.keys[key.key_id]
    assert changed.expires_at is None
    assert changed.allowance == msgspec.structs.replace(
        whole, tpm=500, models=None, budgets=(Budget(amount_micros=2, period="total"), day)
    )
    wide = commands.AmendKey(key_id=key.key_id, allowance=commands.Amendment(rpm=10**6))
    assert refused(state, wide).keys() == {"allowance.rpm"}
    both = commands.AmendKey(key_id=key.key_id, expires_at=later, never_expires=True)
    assert refused(state, both).keys() == {"expires_at"}


def test_a_change_of_a_level_keeps_what_it_does_not_name() -> None:
    state = given_(*TREE)
    amended(state, commands.AmendLevel(level="acme", allowance=commands.Amendment(tpm=9)))
    assert state.orgs["acme"].allowance == Allowance(rpm=100, models=("big", "small"), tpm=9)
    amended(state, commands.AmendLevel(level="acme/research", allowance=commands.Amendment(rpm=70)))
    assert state.teams["acme/research"].allowance == Allowance(policies=("no-secrets",), rpm=70)
    amended(state, commands.AmendLevel(level="acme/research/chat", allowance=commands.Amendment(clear=("rpm",))))
    assert state.projects["acme/research/chat"].allowance == Allowance(policies=("pii",))
    unknown = commands.AmendLevel(level="acme/nobody", allowance=commands.Amendment(rpm=1))
    assert refused(state, unknown) == {"level": "there is no team 'acme/nobody'; there is acme/research"}
