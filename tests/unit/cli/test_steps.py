"""What apply would do, against what is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml

from cli import fleet
from cli.declared import Item, Kind, Weights, kinds_held, read
from cli.demo import demo_items
from cli.plan import step_lines
from cli.steps import Change, Current, differences, document, pruning, sections, steps_to, still_used, unknown_policies
from libs.events.budget import Budget
from libs.events.commands import DefineModel, DefineTeam, ImportVersion, RemoveModel, RemoveVersion
from libs.events.model import AntiAffinity, ModelSpec, Profile, Scaling
from libs.events.policy import DenyRule, InputRules, PolicySpec, SecretsRule
from libs.events.questions import KeyInfo
from libs.events.tenancy import Allowance, OrgSpec, Price, ProjectSpec, TeamSpec

EXAMPLES = Path(__file__).parents[3] / "examples"
SECTION = {
    "library": "library",
    "policy": "policies",
    "org": "orgs",
    "team": "teams",
    "project": "projects",
    "model": "models",
    "price": "prices",
}
WHOLE = frozenset[Kind](get_args(Kind))
MODEL = ModelSpec(name="tiny", source="library:w", profiles=(Profile(name="cpu", engine="sim", memory_mb=100),))


def holding(items: list[Item]) -> Current:
    """A cluster in which exactly these things are."""
    specs: dict[str, list[Any]] = {}
    for item in items:
        specs.setdefault(SECTION[item.kind], []).append(item.spec)
    return Current(**{section: tuple(found) for section, found in specs.items()})


def test_nothing_is_planned_for_what_was_exported() -> None:
    text = yaml.safe_dump(document(sections(EVERYTHING)), sort_keys=False)

    assert "{}" not in text.replace("secrets: {}", "")

    items = read([("export.yaml", text)])

    assert len(items) == 10
    assert steps_to(items, EVERYTHING) == []
    assert pruning(items, WHOLE, EVERYTHING) == []


def test_a_change_is_shown_with_before_and_after() -> None:
    changed = msgspec.structs.replace(MODEL, context_length=8192, scaling=Scaling(min=3))
    items = read([("f.yaml", yaml.safe_dump({"models": [msgspec.to_builtins(changed)]}))])

    (step,) = steps_to(items, Current(models=(MODEL,)))

    assert step.action == "change"
    assert step.command == DefineModel(spec=changed)
    assert step.changes == (Change("context_length", "4096", "8192"), Change("scaling.min", "1", "3"))
    assert list(step_lines([step])) == [
        "~ model tiny",
        "    context_length: 4096 -> 8192",
        "    scaling.min: 1 -> 3",
        "0 to add, 1 to change, 0 to remove",
    ]


def test_a_part_that_is_there_with_its_defaults_only_is_shown_and_kept() -> None:
    spec = PolicySpec(name="p", input=InputRules(secrets=SecretsRule()))

    assert document(spec) == {"name": "p", "input": {"secrets": {}}}
    assert differences(None, spec)[1:] == (Change("input.secrets", None, "as by default"),)
    assert differences(PolicySpec(name="p"), spec) == (Change("input.secrets.action", None, "block"),)
    assert differences(spec, spec) == ()


def test_profiles_and_rules_are_compared_by_name() -> None:
    second = Profile(name="gpu", engine="sim", gpu_class="h100-80g", gpus_per_node=1)
    wider = msgspec.structs.replace(MODEL, profiles=(second, *MODEL.profiles))
    items = read([("f.yaml", yaml.safe_dump({"models": [msgspec.to_builtins(wider)]}))])

    (step,) = steps_to(items, Current(models=(MODEL,)))

    assert {change.path.partition("]")[0] for change in step.changes} == {"profiles[gpu"}


def test_what_stands_later_awaits_what_an_earlier_step_adds_at_another_owner() -> None:
    steps = {(step.kind, step.name): step for step in steps_to(demo_items(), Current())}

    assert [kind for kind, _ in steps] == ["library", "policy", "org", "team", "project", "model", "price"]
    assert isinstance(steps["library", "gemma3-270m"].command, ImportVersion)
    assert isinstance(steps["team", "demo/demo"].command, DefineTeam)
    assert steps["org", "demo"].awaits == frozenset()
    assert steps["project", "demo/demo/demo"].awaits == frozenset()
    assert steps["model", "gemma3-270m"].awaits == {"source"}


def test_an_owner_is_believed_about_what_is_there_already() -> None:
    there = Current(orgs=(OrgSpec(name="demo"),))

    steps = {(step.kind, step.name): step for step in steps_to(demo_items(), there)}

    assert ("org", "demo") not in steps
    assert steps["team", "demo/demo"].awaits == frozenset()


def test_what_no_file_declares_stays_unless_it_is_pruned() -> None:
    items = read([("f.yaml", "orgs:\n  - {name: acme, allowance: {rpm: 9}}\n")])

    assert steps_to(items, EVERYTHING) == []
    commands = [step.command for step in pruning(items, WHOLE, EVERYTHING)]

    assert commands[0] == RemoveModel(model="tiny")
    assert [(step.kind, step.name) for step in pruning(items, WHOLE, EVERYTHING)] == [
        ("model", "tiny"),
        ("project", "acme/web/shop"),
        ("team", "acme/ops"),
        ("team", "acme/web"),
        ("org", "lone"),
        ("policy", "watch"),
        ("library", "w"),
        ("library", "w"),
    ]
    assert commands[-2:] == [RemoveVersion(name="w", version="v1"), RemoveVersion(name="w", version="v2")]


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("orgs:\n  - {name: acme}\n", {"project", "team", "org"}),
        ("orgs: []\n", {"project", "team", "org"}),
        ("models: []\n", {"model"}),
        ("models:\n", set()),
        ("---\nprices: []\n---\npolicies: []\n", {"policy"}),
    ],
)
def test_pruning_touches_the_kinds_whose_section_a_file_has(text: str, kinds: set[str]) -> None:
    texts = [("f.yaml", text)]

    steps = pruning(read(texts), kinds_held(texts), EVERYTHING)

    assert {step.kind for step in steps} == kinds


def test_a_level_waits_for_what_is_removed_below_it() -> None:
    steps = {(step.kind, step.name): step.awaits for step in pruning([], WHOLE, EVERYTHING)}

    assert steps["team", "acme/web"] == {"team"}
    assert steps["team", "acme/ops"] == frozenset()
    assert steps["org", "acme"] == {"org"}
    assert steps["project", "acme/web/shop"] == frozenset()


def test_weights_wait_for_the_models_that_are_removed_with_them() -> None:
    steps = [step for step in pruning([], WHOLE, EVERYTHING) if step.kind == "library"]
    unused = [
        step for step in pruning([], WHOLE, msgspec.structs.replace(EVERYTHING, models=())) if step.kind == "library"
    ]

    assert [step.awaits for step in steps] == [{"version"}, {"version"}]
    assert [step.awaits for step in unused] == [frozenset(), frozenset()]


def test_what_something_else_still_names_is_not_pruned() -> None:
    watched = Allowance(policies=("watch",))
    key = KeyInfo(key_id="k-1", shown="", name="", project="a/b/c", roles=(), allowance=watched, revoked=False)
    there = msgspec.structs.replace(
        EVERYTHING,
        orgs=(OrgSpec(name="acme", allowance=watched),),
        models=(msgspec.structs.replace(MODEL, source="library:w@v1"),),
        keys=(key,),
    )

    def faults(kinds: set[Kind]) -> list[str]:
        return [line.partition(":")[0] for line in still_used(pruning([], kinds, there), [], there)]

    assert faults({"policy", "library"}) == [
        "policy watch would be removed, and org acme still names it",
        "policy watch would be removed, and project acme/web/shop still names it",
        "library w would be removed, and model tiny still names it",
        "policy watch would be removed, and key k-1 still names it",
    ]
    assert faults({"library", "model"}) == []


def test_the_example_only_adds_to_the_demo() -> None:
    items = read([("cluster.yaml", (EXAMPLES / "cluster.yaml").read_text())])
    there = holding(demo_items())

    steps = steps_to(items, there)

    assert {step.action for step in steps} == {"add"}
    assert [(step.kind, step.name) for step in steps] == [
        ("policy", "protect-people"),
        ("team", "demo/research"),
        ("project", "demo/research/assistants"),
        ("price", "*"),
    ]


def test_an_allowance_names_policies_that_are_there() -> None:
    text = """orgs:
  - name: acme
    teams:
      - name: web
        allowance:
          policies: [wach, strict]
"""
    items = read([("file.yaml", text)])

    assert unknown_policies(items, {"wach", "strict"}) == []
    assert unknown_policies(items, {"watch", "strict"}) == [
        "file.yaml:6: team acme/web: there is no policy 'wach': did you mean 'watch'?"
    ]
    assert unknown_policies(items, set())[1] == "file.yaml:6: team acme/web: there is no policy 'strict': there is none"


def test_the_example_fleet_is_two_machines_and_a_model() -> None:
    loaded = fleet.load(EXAMPLES / "fleet.yaml")

    assert [machine.id for machine in loaded.machines] == ["sim-1", "sim-2"]
    assert [(item.kind, item.name) for item in loaded.items] == [("model", "sim-chat"), ("price", "sim-chat")]


MONTHLY = Budget(amount_micros=5_000_000, period="month")
EVERYTHING = Current(
    library=(Weights(name="w", source="path:/w"),),
    versions={"w": ("v1", "v2")},
    policies=(
        PolicySpec(
            name="watch", default=True, input=InputRules(secrets=SecretsRule(), deny=(DenyRule(name="x", pattern="y"),))
        ),
    ),
    orgs=(OrgSpec(name="acme", allowance=Allowance(rpm=9)), OrgSpec(name="lone")),
    teams=(TeamSpec(org="acme", name="web"), TeamSpec(org="acme", name="ops", allowance=Allowance(models=("tiny",)))),
    projects=(
        ProjectSpec(org="acme", team="web", name="shop", allowance=Allowance(policies=("watch",), budgets=(MONTHLY,))),
    ),
    models=(MODEL,),
    prices=(Price(model="tiny", prompt_micros=5), Price(model="*")),
)


def test_an_element_that_is_all_defaults_is_written_so_that_it_says_something() -> None:
    spec = msgspec.structs.replace(MODEL, anti_affinity=(AntiAffinity(),))

    assert document(spec)["anti_affinity"] == [{"within": "node"}]
    text = yaml.safe_dump({"models": [document(spec)]})
    assert steps_to(read([("f.yaml", text)]), Current(models=(spec,))) == []
