"""What the files of ``llmgw apply`` declare, with the line each thing stands on.

A file is YAML with the sections of ``Sections``; every section is a list. Keys that are not known are errors
with file, line and the nearest known key, and all of them are reported at once.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, get_args

import msgspec
import msgspec.inspect as inspect
import yaml

from cli.failure import Failed
from cli.values import MISSING, below, faults_of
from libs.events.contract import Value
from libs.events.model import ModelSpec
from libs.events.policy import PolicySpec
from libs.events.tenancy import Allowance, OrgSpec, Price, ProjectSpec, TeamSpec
from libs.runtime.yaml_values import two_readings

Kind = Literal["library", "policy", "org", "team", "project", "model", "price"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""In the order they are applied: what stands later may refer to what stands earlier."""


SECTIONS: dict[str, tuple[Kind, ...]] = {
    "library": ("library",),
    "policies": ("policy",),
    "orgs": ("org", "team", "project"),
    "models": ("model",),
    "prices": ("price",),
}
"""Section of a file to the kinds of things it declares."""


class Weights(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Weights the library should have."""

    name: str
    source: str
    """``path:/abs/file-or-folder`` or ``package:PYTHON_MODULE``, as the mirror sees it."""
    licence: str = ""


class ProjectPart(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A project, as it stands below its team."""

    name: str
    allowance: Allowance = Allowance()


class TeamPart(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A team, as it stands below its organisation, with its projects."""

    name: str
    allowance: Allowance = Allowance()
    projects: tuple[ProjectPart, ...] = ()


class OrgPart(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An organisation with its teams."""

    name: str
    allowance: Allowance = Allowance()
    teams: tuple[TeamPart, ...] = ()


class Sections(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file."""

    library: tuple[Weights, ...] = ()
    policies: tuple[PolicySpec, ...] = ()
    orgs: tuple[OrgPart, ...] = ()
    models: tuple[ModelSpec, ...] = ()
    prices: tuple[Price, ...] = ()


Spec = Weights | PolicySpec | OrgSpec | TeamSpec | ProjectSpec | ModelSpec | Price


class Place(msgspec.Struct, frozen=True):
    """Where in which file something stands."""

    file: str
    path: str
    """``models[0].profiles[1]``"""
    lines: dict[str, int]
    """Path to line, of the whole document."""

    def line(self, field: str = "") -> int:
        """The line of a field below, or of the nearest thing above it that is in the file."""
        path = f"{self.path}.{field}" if field else self.path
        while path and path not in self.lines:
            path = re.sub(r"(\.[^.\[]*|\[[^\]]*\]|^[^.\[]*)$", "", path)
        return self.lines.get(path, 1)

    def at(self, field: str = "") -> str:
        """``FILE:LINE`` of a field below, or of the nearest thing above it that is in the file."""
        return f"{self.file}:{self.line(field)}"


class Item(msgspec.Struct, frozen=True):
    """One thing that is declared."""

    kind: Kind
    name: str
    spec: Spec
    place: Place


MAX_VALUES = 500_000
"""Of one document, with what its aliases repeat: a few of those, nested, stand for more than any machine holds."""


class _TooMuch(Exception):
    """More than ``MAX_VALUES``."""


class BadFile(Failed):
    """What is wrong with the files, a line for each fault."""

    def __init__(self, faults: Iterable[str]) -> None:
        super().__init__("nothing was applied, because of\n" + "\n".join(f"  {fault}" for fault in faults))


def read(texts: Iterable[tuple[str, str]], kind: type[Sections] = Sections) -> list[Item]:
    """The things declared in ``(file name, text)`` pairs, in the order they are to be applied. Raises BadFile.

    ``kind``: the sections a file may have; those beyond ``Sections`` are only checked.
    """
    items: list[Item] = []
    faults: list[str] = []
    for file, text in texts:
        try:
            for node, value in _documents(text):
                items += _items(file, kind, node, value, faults)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            faults.append(f"{file}:{mark.line + 1 if mark else 1}: not YAML: {error.problem}")
        except yaml.YAMLError as error:
            faults.append(f"{file}:1: not YAML: {error}")
        except RecursionError:
            faults.append(f"{file}:1: it is nested too deeply, or an alias holds itself: write it out")
        except _TooMuch:
            faults.append(f"{file}:1: it holds more than {MAX_VALUES} values, or aliases make so many: split it")
    seen: dict[tuple[Kind, str], Item] = {}
    for item in items:
        first = seen.setdefault((item.kind, item.name), item)
        if first is not item:
            faults.append(
                f"{item.place.at()}: {item.kind} {item.name!r} is declared a second time, "
                f"first at {first.place.at()}: keep one"
            )
    if faults:
        raise BadFile(faults)
    return sorted(items, key=lambda item: KINDS.index(item.kind))


def kinds_held(texts: Iterable[tuple[str, str]]) -> set[Kind]:
    """The kinds whose section stands in one of these files, which ``read`` has found well-formed. An empty list is a
    section too; a key with nothing after it is none.
    """
    held: set[Kind] = set()
    for _, text in texts:
        for document in yaml.safe_load_all(text):
            for section, value in (document or {}).items():
                held |= set(SECTIONS.get(section, ())) if value is not None else set()
    return held


def _documents(text: str) -> Iterator[tuple[yaml.Node, Callable[[yaml.Node], Any]]]:
    loader = yaml.SafeLoader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is not None:
                yield node, loader.construct_document
    finally:
        loader.dispose()


def _items(
    file: str, kind: type[Sections], node: yaml.Node, construct: Callable[[yaml.Node], Any], faults: list[str]
) -> list[Item]:
    if node.tag == "tag:yaml.org,2002:null":
        return []
    if not isinstance(node, yaml.MappingNode):
        known = ", ".join(kind.__struct_fields__)
        faults.append(
            f"{file}:{node.start_mark.line + 1}: a file holds sections ({known}), each a list; found another form"
        )
        return []
    lines: dict[str, int] = {}
    faults_at: dict[str, str] = {}
    _check(node, inspect.type_info(kind), "", lines, faults_at)
    # Only now: constructing resolves merge keys in the nodes themselves.
    value = {section: content for section, content in construct(node).items() if content is not None}
    unknown = {path.rpartition(".")[0] for path, words in faults_at.items() if words.startswith("unknown key")}
    for path, words in faults_of(value, kind, ""):
        # What is missing beside an unknown key was probably meant by it.
        if not (words == MISSING and path.rpartition(".")[0] in unknown):
            faults_at.setdefault(path, f"{path}: {words}")
    at = sorted((Place(file, path, lines).line(), words) for path, words in faults_at.items())
    faults += [f"{file}:{line}: {words}" for line, words in at]
    if faults_at:
        return []
    declared = msgspec.convert(value, kind)
    return [
        thing
        for section in SECTIONS
        for number, part in enumerate(getattr(declared, section))
        for thing in _things(part, Place(file, f"{section}[{number}]", lines))
    ]


def _things(part: Any, place: Place) -> Iterator[Item]:
    def below(path: str) -> Place:
        return msgspec.structs.replace(place, path=f"{place.path}.{path}")

    match part:
        case Weights():
            yield Item("library", part.name, part, place)
        case PolicySpec():
            yield Item("policy", part.name, part, place)
        case ModelSpec():
            yield Item("model", part.name, part, place)
        case Price():
            yield Item("price", part.model, part, place)
        case OrgPart():
            yield Item("org", part.name, OrgSpec(name=part.name, allowance=part.allowance), place)
            for i, team in enumerate(part.teams):
                spec = TeamSpec(org=part.name, name=team.name, allowance=team.allowance)
                yield Item("team", f"{part.name}/{team.name}", spec, below(f"teams[{i}]"))
                for j, project in enumerate(team.projects):
                    yield Item(
                        "project",
                        f"{part.name}/{team.name}/{project.name}",
                        ProjectSpec(org=part.name, team=team.name, name=project.name, allowance=project.allowance),
                        below(f"teams[{i}].projects[{j}]"),
                    )


def _check(node: yaml.Node, kind: inspect.Type, path: str, lines: dict[str, int], faults_at: dict[str, str]) -> None:
    """Note every line, and what only the text shows: keys that the type of their mapping does not have or that stand
    twice, values that two versions of YAML read differently, halves of characters (two halves are put together).
    """
    lines[path] = node.start_mark.line + 1
    if len(lines) > MAX_VALUES:
        raise _TooMuch
    if isinstance(kind, inspect.UnionType):
        kind = next((variant for variant in kind.types if not isinstance(variant, inspect.NoneType)), kind)
    if isinstance(node, yaml.ScalarNode):
        if not _whole(node):
            faults_at[path] = f"{path}: half of a character stands there: {node.value!r}"
        differs = two_readings(node)
        meant = isinstance(kind, inspect.BoolType) and node.tag == "tag:yaml.org,2002:bool"
        if differs and not meant:
            faults_at[path] = f"{path}: {differs}"
    elif isinstance(node, yaml.MappingNode):
        fields = None
        if isinstance(kind, inspect.StructType):
            fields = {field.encode_name: field.type for field in kind.fields}
        seen: set[str] = set()
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                _whole(key_node)
            key = str(key_node.value)
            here = below(path, key)
            if key in seen:
                faults_at[here] = f"the key {here!r} stands twice: keep one"
            seen.add(key)
            lines[here] = key_node.start_mark.line + 1
            inner = kind.value_type if isinstance(kind, inspect.DictType) else inspect.AnyType()
            if fields is not None:
                if key not in fields and key_node.tag != "tag:yaml.org,2002:merge":
                    faults_at[here] = f"unknown key {here!r}: {_nearest(key, fields)}"
                inner = fields.get(key, inner)
            elif isinstance(key_node, yaml.ScalarNode) and (differs := two_readings(key_node)):
                faults_at[here] = f"{here}: {differs}"
            _check(value_node, inner, here, lines, faults_at)
            lines[here] = key_node.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        element = kind.item_type if isinstance(kind, inspect.VarTupleType) else inspect.AnyType()
        for number, child in enumerate(node.value):
            _check(child, element, f"{path}[{number}]", lines, faults_at)


def _whole(node: yaml.ScalarNode) -> bool:
    """Put the two escapes together that JSON writes for one character, which YAML takes for two.

    Whether every character of the value is one now.
    """
    if not any("\ud800" <= character <= "\udfff" for character in node.value):
        return True
    try:
        node.value = node.value.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        return False
    return True


def _nearest(key: str, known: Iterable[str]) -> str:
    names = sorted(known)
    close = difflib.get_close_matches(key, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known here are {', '.join(names)}"
