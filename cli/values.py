"""Everything that is wrong with one declared value, not only the first of it."""

from __future__ import annotations

import types
from collections.abc import Iterator
from datetime import date
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from libs.runtime.yaml_values import wrong

MISSING = "it is missing"


def below(path: str, name: object) -> str:
    """The path of what has this name in what has that path."""
    return f"{path}.{name}" if path else str(name)


def faults_of(value: Any, kind: Any, path: str) -> Iterator[tuple[str, str]]:
    """Path and words of every fault of ``value`` as a ``kind``. Keys that the kind does not know are left to others."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and isinstance(value, dict):
        faults = [fault for field in msgspec.structs.fields(kind) for fault in _of_field(value, field, path)]
        known = {field.encode_name for field in msgspec.structs.fields(kind)}
        yield from faults or _of_whole({key: element for key, element in value.items() if key in known}, kind, path)
        return
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        kinds = [argument for argument in arguments if argument is not types.NoneType]
        if len(kinds) == 1 and value is not None:
            yield from faults_of(value, kinds[0], path)
            return
    elif origin in (tuple, list) and isinstance(value, list):
        for number, element in enumerate(value):
            yield from faults_of(element, arguments[0], f"{path}[{number}]")
        return
    elif origin is dict and isinstance(value, dict):
        for key, element in value.items():
            if not isinstance(key, bool | date):  # written without quotes: that is told where the text is looked at
                yield from _of_whole(key, arguments[0], below(path, key))
            yield from faults_of(element, arguments[1], below(path, key))
        return
    yield from _of_whole(value, kind, path)


def _of_field(value: dict[str, Any], field: msgspec.structs.FieldInfo, path: str) -> Iterator[tuple[str, str]]:
    if field.encode_name in value:
        yield from faults_of(value[field.encode_name], field.type, below(path, field.encode_name))
    elif field.required:
        yield below(path, field.encode_name), MISSING


def _of_whole(value: Any, kind: Any, path: str) -> Iterator[tuple[str, str]]:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if str(error).startswith("Object contains unknown field"):
            return
        known = get_args(kind) if get_origin(kind) is Literal else ()
        yield path, wrong(str(error), value, path.rpartition(".")[2], known)
