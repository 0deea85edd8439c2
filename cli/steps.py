"""The steps from what is to what is declared, for ``plan`` and ``apply``. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from typing import Any, Literal

import msgspec

from cli.declared import KINDS, Item, Kind, OrgPart, ProjectPart, Sections, Spec, TeamPart, Weights
from libs.events import commands
from libs.events.contract import Command
from libs.events.model import ModelSpec
from libs.events.policy import PolicySpec
from libs.events.questions import KeyInfo
from libs.events.tenancy import OrgSpec, Price, ProjectSpec, TeamSpec


class Current(msgspec.Struct, frozen=True, kw_only=True):
    """What the owners say there is."""

    library: tuple[Weights, ...] = ()
    versions: dict[str, tuple[str, ...]] = {}
    """Library name to its versions."""
    policies: tuple[PolicySpec, ...] = ()
    orgs: tuple[OrgSpec, ...] = ()
    teams: tuple[TeamSpec, ...] = ()
    projects: tuple[ProjectSpec, ...] = ()
    models: tuple[ModelSpec, ...] = ()
    prices: tuple[Price, ...] = ()
    keys: tuple[KeyInfo, ...] = ()
    """Those that are not revoked."""

    def specs(self) -> dict[tuple[Kind, str], Spec]:
        """By kind and name."""
        specs: dict[tuple[Kind, str], Spec] = {}
        specs |= {("library", entry.name): entry for entry in self.library}
        specs |= {("policy", policy.name): policy for policy in self.policies}
        specs |= {("org", org.name): org for org in self.orgs}
        specs |= {("team", f"{team.org}/{team.name}"): team for team in self.teams}
        specs |= {("project", f"{project.org}/{project.team}/{project.name}"): project for project in self.projects}
        specs |= {("model", model.name): model for model in self.models}
        specs |= {("price", price.model): price for price in self.prices}
        return specs


class Change(msgspec.Struct, frozen=True):
    """One field, as text. ``None``: not there."""

    path: str
    before: str | None
    after: str | None


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One command to send."""

    action: Literal["add", "change", "remove"]
    kind: Kind
    name: str
    command: Command
    changes: tuple[Change, ...] = ()
    item: Item | None = None
    """Where it was declared; None for what is removed because no file declares it."""
    awaits: frozenset[str] = frozenset()
    """Fields of the command that refer to what an earlier step does at another owner, of which this one cannot
    know yet."""


def steps_to(items: Iterable[Item], current: Current) -> list[Step]:
    """What must be sent so that everything declared is so. What is declared nowhere stays."""
    there = current.specs()
    wanted = list(items)
    added = {(item.kind, item.name) for item in wanted if (item.kind, item.name) not in there}
    steps = []
    for item in wanted:
        before = there.get((item.kind, item.name))
        changes = differences(before, item.spec)
        if changes:
            steps.append(
                Step(
                    action="add" if before is None else "change",
                    kind=item.kind,
                    name=item.name,
                    command=command_for(item.spec),
                    changes=changes,
                    item=item,
                    awaits=_awaits(item.spec, added),
                )
            )
    return steps


def pruning(items: Iterable[Item], kinds: Collection[Kind], current: Current) -> list[Step]:
    """What must be removed so that nothing of these kinds is there which no file declares, users before what they use.

    Prices stay: they have no removal.
    """
    declared = {(item.kind, item.name) for item in items}
    steps: list[Step] = []
    there = current.specs()
    used = {use for spec in there.values() for use in uses(spec)}
    for kind, name in sorted(there, key=lambda named: (-KINDS.index(named[0]), named[1])):
        if kind not in kinds or (kind, name) in declared:
            continue
        # What stands below goes first: until then its owner still counts it.
        below = any(step.name.startswith(f"{name}/") for step in steps if step.kind in ("team", "project"))
        awaits = frozenset({kind}) if kind in ("org", "team") and below else frozenset[str]()
        if kind == "library" and (kind, name) in used:
            awaits = frozenset({"version"})
        for command in _removals(kind, name, current):
            changes = differences(there[kind, name], None)
            steps.append(Step(action="remove", kind=kind, name=name, command=command, changes=changes, awaits=awaits))
    return steps


def still_used(steps: Iterable[Step], items: Iterable[Item], current: Current) -> list[str]:
    """Faults of removals whose object something names that stays, at another owner, which cannot know it."""
    gone = {(step.kind, step.name) for step in steps if step.action == "remove"}
    stays = {place: spec for place, spec in current.specs().items() if place not in gone}
    stays |= {(item.kind, item.name): item.spec for item in items}
    users = [(f"{kind} {name}", used) for (kind, name), spec in stays.items() for used in uses(spec)]
    users += [(f"key {key.key_id}", ("policy", name)) for key in current.keys for name in key.allowance.policies]
    return [
        f"{used[0]} {used[1]} would be removed, and {user} still names it: declare it, or change what names it first"
        for user, used in users
        if used in gone
    ]


def uses(spec: Spec) -> set[tuple[Kind, str]]:
    """What a declaration names that another owner keeps, and cannot be without."""
    match spec:
        case ModelSpec():
            sources = [spec.source or "", *(lora.source for lora in spec.loras)]
            held = [source.removeprefix("library:") for source in sources if source.startswith("library:")]
            return {("library", weights.partition("@")[0]) for weights in held}
        case OrgSpec() | TeamSpec() | ProjectSpec():
            return {("policy", name) for name in spec.allowance.policies}
    return set()


def unknown_policies(items: Iterable[Item], known: Collection[str]) -> list[str]:
    """Faults of allowances that name a policy which will not be there: under a name that means nothing, no rule holds.
    Accounting, which keeps allowances, does not know the guard's policies.
    """
    faults = []
    for item in items:
        if isinstance(item.spec, OrgSpec | TeamSpec | ProjectSpec):
            at = item.place.at("allowance.policies")
            faults += [
                f"{at}: {item.kind} {item.name}: {no_policy(name, known)}"
                for name in item.spec.allowance.policies
                if name not in known
            ]
    return faults


def no_policy(name: str, known: Collection[str]) -> str:
    """What is said of a policy's name that is none."""
    near = difflib.get_close_matches(name, known, n=1)
    advice = f"did you mean {near[0]!r}?" if near else f"there is {', '.join(sorted(known)) or 'none'}"
    return f"there is no policy {name!r}: {advice}"


def sections(current: Current) -> Sections:
    """What is, in the form of a file."""
    teams = {
        (team.org, team.name): TeamPart(
            name=team.name,
            allowance=team.allowance,
            projects=tuple(
                ProjectPart(name=project.name, allowance=project.allowance)
                for project in current.projects
                if (project.org, project.team) == (team.org, team.name)
            ),
        )
        for team in current.teams
    }
    return Sections(
        library=current.library,
        policies=current.policies,
        orgs=tuple(
            OrgPart(
                name=org.name,
                allowance=org.allowance,
                teams=tuple(part for (owner, _), part in teams.items() if owner == org.name),
            )
            for org in current.orgs
        ),
        models=current.models,
        prices=current.prices,
    )


def command_for(spec: Spec) -> Command:
    """The command that makes it so."""
    match spec:
        case Weights():
            return commands.ImportVersion(name=spec.name, source=spec.source, licence=spec.licence)
        case PolicySpec():
            return commands.DefinePolicy(spec=spec)
        case OrgSpec():
            return commands.DefineOrg(spec=spec)
        case TeamSpec():
            return commands.DefineTeam(spec=spec)
        case ProjectSpec():
            return commands.DefineProject(spec=spec)
        case ModelSpec():
            return commands.DefineModel(spec=spec)
        case Price():
            return commands.DefinePrice(price=spec)


def _removals(kind: Kind, name: str, current: Current) -> list[Command]:
    match kind:
        case "library":
            versions = current.versions.get(name, ())
            return [commands.RemoveVersion(name=name, version=version) for version in versions]
        case "policy":
            return [commands.RemovePolicy(policy=name)]
        case "org":
            return [commands.RemoveOrg(org=name)]
        case "team":
            return [commands.RemoveTeam(team=name)]
        case "project":
            return [commands.RemoveProject(project=name)]
        case "model":
            return [commands.RemoveModel(model=name)]
        case "price":
            return []


def _awaits(spec: Spec, added: set[tuple[Kind, str]]) -> frozenset[str]:
    awaited = set()
    match spec:
        case ModelSpec() if spec.source:
            if ("library", spec.source.removeprefix("library:").partition("@")[0]) in added:
                awaited.add("source")
        case Price() if ("model", spec.model) in added:
            awaited.add("model")
    if isinstance(spec, OrgSpec | TeamSpec | ProjectSpec):
        if any(("policy", name) in added for name in spec.allowance.policies):
            awaited.add("allowance.policies")
        if any(("model", name) in added for name in spec.allowance.models or ()):
            awaited.add("allowance.models")
    return frozenset(awaited)


def document(value: Any) -> Any:
    """A declaration as a person would write it: plain mappings and lists, without what is at its default."""
    if isinstance(value, msgspec.Struct):
        fields = ((field, getattr(value, field.name)) for field in msgspec.structs.fields(value))
        return {field.encode_name: document(value) for field, value in fields if value != _default(field)}
    if isinstance(value, dict):
        return {name: document(element) for name, element in value.items()}
    return [document(element) or _told(element) for element in value] if isinstance(value, tuple) else value


def _told(element: Any) -> Any:
    """An element of a list that is all defaults, so that it says something: with those that are not empty."""
    if not isinstance(element, msgspec.Struct):
        return document(element)
    return {name: written for name in element.__struct_fields__ if (written := document(getattr(element, name)))}


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def differences(before: Any, after: Any) -> tuple[Change, ...]:
    """The fields that differ; of something new or gone, those that are not at their defaults."""
    if before is None or after is None:
        before, after = document(before), document(after)
    old, new = _flat(before), _flat(after)
    changes = []
    for path in [*new, *(path for path in old if path not in new)]:
        was, will = old.get(path), new.get(path)
        if was != will:
            changes.append(Change(path, None if was is None else _text(was), None if will is None else _text(will)))
    return tuple(changes)


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if value is None:
        return {}
    if isinstance(value, msgspec.Struct):
        fields = {name: child for name in value.__struct_fields__ if (child := getattr(value, name)) != {}}
    elif value == {} and path:
        return {path: "as by default"}
    elif isinstance(value, dict):
        fields = value
    elif isinstance(value, tuple | list) and any(isinstance(element, msgspec.Struct | dict) for element in value):
        fields = {f"[{_name(element, number)}]": element for number, element in enumerate(value)}
    else:
        return {} if value in ((), [], "") else {path: value}
    flat: dict[str, Any] = {}
    for name, child in fields.items():
        flat |= _flat(child, f"{path}{name}" if name.startswith("[") else f"{path}.{name}" if path else name)
    return flat


def _name(element: Any, number: int) -> Any:
    """What an element of a list is called in a path: its name, where it has one."""
    named = element.get("name") if isinstance(element, dict) else getattr(element, "name", None)
    return number if named is None else named


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(str(element) for element in value)
    return "yes" if value is True else "no" if value is False else str(value)
