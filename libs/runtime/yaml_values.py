"""Values that people write in YAML, and what is wrong with one, in words: used by settings files and by ``apply``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

UNITS = {
    "_mb_s": "megabytes a second",
    "_ms": "milliseconds",
    "_s": "seconds",
    "_mb": "megabytes",
    "_bytes": "bytes",
    "_watts": "watts",
    "_gbps": "gigabits a second",
    "_micros": "millionths of the currency's unit",
}
"""End of a field's name to the unit its number is in; the longest first where one ends with another."""

_YAML = "tag:yaml.org,2002:"
_RESOLVER = yaml.resolver.Resolver()
_YAML_12 = (
    ("null", re.compile(r"|~|null|Null|NULL")),
    ("bool", re.compile(r"true|True|TRUE|false|False|FALSE")),
    ("int", re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")),
    ("float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")),
)
"""The core schema of YAML 1.2."""
_NAMES = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "array": "a list",
    "object": "a mapping of names to values",
    "null": "nothing",
    "path": "a path",
}
_EXPECTED = re.compile(r"Expected `([^`]+)`(?:, got `[^`]+`)?( (?:>=|<=|>|<) [-0-9.]+)?(?: - at `.*`)?$")


def two_readings(node: yaml.ScalarNode) -> str | None:
    """What is wrong with a plain scalar that is not text to YAML 1.1 (which we read) and something else to YAML 1.2.

    ``0100`` is 64 to one and 100 to the other. None: both read the same, or it is quoted or tagged.
    """
    if node.style is not None or node.tag != _implicit(node.value):
        return None
    old = node.tag.removeprefix(_YAML)
    new = next((name for name, form in _YAML_12 if form.fullmatch(node.value)), "str")
    octal = old == new == "int" and re.fullmatch(r"[-+]?0[0-9]+", node.value) is not None
    if old in ("str", "merge") or (old == new and not (octal and int(node.value) != _of(node))):
        return None
    before, after = _read(old, _of(node)), str(int(node.value)) if octal else "text"
    advice = {"bool": "write true or false, or ", "int": "write the number in full, or "}.get(old, "")
    return f"{node.value} is {before} to YAML 1.1 and {after} to YAML 1.2: {advice}put it in quotes where text is meant"


def scalars(node: yaml.Node) -> Iterator[yaml.ScalarNode]:
    """Every single value in it, keys too."""
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.SequenceNode):
        for one in node.value:
            yield from scalars(one)
    elif isinstance(node, yaml.MappingNode):
        for pair in node.value:
            for one in pair:
                yield from scalars(one)


def _implicit(text: str) -> str:
    tag: str = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    return tag


def _of(node: yaml.ScalarNode) -> Any:
    constructor = yaml.SafeLoader("")
    try:
        return constructor.construct_object(node)
    except (ValueError, yaml.YAMLError):
        return None
    finally:
        constructor.dispose()


def _read(kind: str, value: Any) -> str:
    return {"bool": str(value).lower(), "timestamp": "a date"}.get(kind, str(value))


def wrong(message: str, value: Any, field: str, known: Iterable[Any] = ()) -> str:
    """msgspec's message about a value, in words for whoever wrote it. ``field``: its name, which says the unit;
    ``known``: the values it may have, where they are few.
    """
    if message.startswith("Invalid enum value") and known:
        return f"{shown(value)} is none of {', '.join(map(str, known))}"
    found = f"{shown(value)} stands there" if isinstance(value, dict | list) else shown(value)
    return f"{found}: {expected(message, field)}"


def expected(message: str, field: str) -> str:
    """What msgspec's message says is expected of a field, in words."""
    match = _EXPECTED.match(message)
    if not match:
        return message[0].lower() + message[1:].replace("`", "")
    kinds = [_NAMES.get(kind, kind) for kind in match[1].split(" | ") if kind != "null"]
    unit = next((unit for end, unit in UNITS.items() if field.endswith(end)), None)
    return f"{' or '.join(kinds)}{match[2] or ''} is expected" + (f", in {unit} and without a unit" if unit else "")


def shown(value: Any) -> str:
    """A value as one would write it, cut where it is long."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
