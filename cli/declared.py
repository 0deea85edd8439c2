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
from libs.events.contract import Value
from libs.events.model import ModelSpec
from libs.events.policy import PolicySpec
from libs.events.tenancy import Allowance, OrgSpec, Price, ProjectSpec, TeamSpec

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
    name: str
    allowance: Allowance = Allowance()


class TeamPart(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    allowance: Allowance = Allowance()
    projects: tuple[ProjectPart, ...] = ()


class OrgPart(Value, frozen=True, kw_only=True, forbid_unknown_fields=True):
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
        return f"{self.file}:{self.line(field)}"


class Item(msgspec.Struct, frozen=True):
    """One thing that is declared."""

    kind: Kind
    name: str
    spec: Spec
    place: Place


MOST_VALUES = 500_000
"""Of one document, with what its aliases repeat: a few of those, nested, stand for more than any machine holds."""


class _TooMuch(Exception):
    """More than ``MOST_VALUES``."""


class BadFile(Failed):
    """What is wrong with the files, a line for each fault."""

    def __init__(self, faults: Iterable[str]) -> None:
        super().__init__("nothing was applied, because of\n" + "\n".join(f"  {fault}" for fault in faults))


def read(texts: Iterable[tuple[str, str]], kind: type[Sections] = Sections) -> list[Item]:
    """The things declared in ``(file name, text)`` pairs, in the order they are to be applied. Raises BadFile.

    ``kind``: the sections a file may have; those beyond ``Sections`` are only checked for unknown keys.
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
            faults.append(f"{file}:1: it holds more than {MOST_VALUES} values, or aliases make so many: split it")
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
    found = len(faults)
    _check(file, node, inspect.type_info(kind), "", lines, faults)
    if len(faults) > found:
        return []
    # Only now: constructing resolves merge keys in the nodes themselves.
    value = construct(node)
    items: list[Item] = []
    for section, element in (
        ("library", Weights),
        ("policies", PolicySpec),
        ("orgs", OrgPart),
        ("models", ModelSpec),
        ("prices", Price),
    ):
        for number, raw in enumerate(value.get(section) or ()):
            place = Place(file, f"{section}[{number}]", lines)
            try:
                items += _things(msgspec.convert(raw, element), place)
            except msgspec.ValidationError as error:
                what, _, where = str(error).partition(" - at `$")
                faults.append(f"{place.at(where.rstrip('`').lstrip('.'))}: {place.path}{where.rstrip('`')}: {what}")
    return items


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


def _check(file: str, node: yaml.Node, kind: inspect.Type, path: str, lines: dict[str, int], faults: list[str]) -> None:
    """Note every line, and every key that the type of its mapping does not have; mend halves of characters."""
    lines[path] = node.start_mark.line + 1
    if len(lines) > MOST_VALUES:
        raise _TooMuch
    if isinstance(node, yaml.ScalarNode) and not _whole(node):
        faults.append(f"{file}:{node.start_mark.line + 1}: {path}: half of a character stands there: {node.value!r}")
    if isinstance(kind, inspect.UnionType):
        kind = next((one for one in kind.types if not isinstance(one, inspect.NoneType)), kind)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key_node, value_node in node.value:
            if isinstance(key_node, yaml.ScalarNode):
                _whole(key_node)
            key = str(key_node.value)
            here = f"{path}.{key}" if path else key
            at = f"{file}:{key_node.start_mark.line + 1}"
            if key in seen:
                faults.append(f"{at}: the key {here!r} stands twice: keep one")
            seen.add(key)
            below: inspect.Type = inspect.AnyType()
            if isinstance(kind, inspect.StructType):
                fields = {field.encode_name: field.type for field in kind.fields}
                if key not in fields and key_node.tag != "tag:yaml.org,2002:merge":
                    faults.append(f"{at}: unknown key {here!r}: {_nearest(key, fields)}")
                below = fields.get(key, below)
            elif isinstance(kind, inspect.DictType):
                below = kind.value_type
            _check(file, value_node, below, here, lines, faults)
            lines[here] = key_node.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        element = kind.item_type if isinstance(kind, inspect.VarTupleType) else inspect.AnyType()
        for number, child in enumerate(node.value):
            _check(file, child, element, f"{path}[{number}]", lines, faults)


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
