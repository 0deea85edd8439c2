"""Reading JSON whose shape a client promises: what is wrong is a 400 that names the field.

``at`` is the path of a value as clients write it: ``messages.0.content.1.type``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from services.gateway.core.faults import Fault, bad_body, too_deep

from .lossless import Number, encoded

Json = dict[str, Any]

_NAMES = {dict: "an object", list: "an array", str: "text", bool: "true or false", int: "a number", float: "a number"}
_KINDS = {
    "int": "an integer",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "an object",
    "array": "an array",
}
"""msgspec's name of a kind of value to how people who write JSON call it."""
_AT = re.compile(r" - at `\$\.?(.*)`$")
_INDEX = re.compile(r"\[([0-9]+)\]")
_MISSING = re.compile(r"missing required field `(.+?)`")
_EXPECTED = re.compile(r"Expected `([^`]+)`(?:, got `([^`]+)`)?(.*)$")
_decoder = msgspec.json.Decoder(dict[str, Any], float_hook=Number)


def decoded(body: bytes) -> Json:
    """The request in ``body``, numbers as they were spelt. Raises Fault."""
    try:
        return _decoder.decode(body)
    except msgspec.ValidationError as problem:
        raise misfit(str(problem)) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as problem:
        raise bad_body(f"The body is not valid JSON: {problem}. Send one JSON object.", code="invalid_json") from None
    except RecursionError:
        raise too_deep() from None


def misfit(problem: str, inside: str = "") -> Fault:
    """msgspec's words about a wrong value, as OpenAI would put them; ``inside`` is the field it was found in."""
    where = _AT.search(problem)
    at = ".".join(filter(None, (inside, _INDEX.sub(r".\1", where.group(1)).strip(".") if where else "")))
    if missing := _MISSING.search(problem):
        name = f"{at}.{missing.group(1)}" if at else missing.group(1)
        return bad_body(f"Missing required parameter: '{name}'.", param=name, code="missing_required_parameter")
    if at:
        return bad_body(f"Invalid value for '{at}': {in_words(problem)}.", param=at, code="invalid_type")
    return bad_body(f"The body must be one JSON object: {in_words(problem)}.", code="invalid_type")


def in_words(problem: str) -> str:
    """What msgspec says of a value, in the words of JSON and without its place."""
    reason = _AT.sub("", problem)
    if missing := _MISSING.search(reason):
        return f"the field '{missing.group(1)}' is missing"
    if match := _EXPECTED.match(reason):
        kinds = match[1].split(" | ")
        words = [
            _KINDS.get(kind, kind) for kind in kinds if kind != "null" and not (kind == "int" and "float" in kinds)
        ]
        found = f", got {_KINDS.get(match[2], match[2])}" if match[2] else ""
        return f"expected {' or '.join(words) or 'null'}{found}{match[3]}"
    return (reason[:1].lower() + reason[1:]).replace("`", "'")


def wrong(at: str, value: Any, wanted: str) -> Fault:
    """A field holds something else than it should."""
    kind = _NAMES.get(type(value), "null")
    return bad_body(f"{at}: send {wanted} here; {kind} was found.", param=at, code="invalid_type")


def missing(at: str) -> Fault:
    """A required field is not there."""
    return bad_body(f"{at}: this field is required and was not sent.", param=at, code="missing_required_parameter")


def unmappable(at: str, what: str) -> Fault:
    """A field asks for something the engine behind this gateway cannot be asked for."""
    return bad_body(f"{at}: {what}", param=at, code="unsupported_parameter")


def text(value: Any, at: str) -> str:
    """The value, a text. Raises Fault."""
    if not isinstance(value, str):
        raise missing(at) if value is None else wrong(at, value, "text")
    return value


def fields(value: Any, at: str) -> Json:
    """The value, an object. Raises Fault."""
    if not isinstance(value, dict):
        raise missing(at) if value is None else wrong(at, value, "an object")
    return value


def items(value: Any, at: str) -> list[Any]:
    """The value, an array. Raises Fault."""
    if not isinstance(value, list):
        raise missing(at) if value is None else wrong(at, value, "an array")
    return value


def number(value: Any, at: str) -> int:
    """The value, a whole number. Raises Fault."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise missing(at) if value is None else wrong(at, value, "a whole number")
    return value


def one_of(value: Any, meanings: Mapping[str, str], at: str) -> str:
    """What a word means in the other protocol."""
    meaning = meanings.get(text(value, at))
    if meaning is None:
        raise unmappable(at, f"{value!r} is none of {', '.join(meanings)}")
    return meaning


def left_out(value: Json, known: Collection[str], at: str, warnings: list[str]) -> None:
    """Say of the fields of an object that are not ``known`` that they are not passed on; not of empty ones."""
    for name, inner in value.items():
        if name not in known and inner not in (None, False, "", [], {}):
            warnings.append(f"{at}.{name} has no meaning for this model and was left out")


class Translated(msgspec.Struct):
    """A request in another protocol, and what of it could not be said there: sentences for the client."""

    body: Json
    warnings: list[str] = []

    def encoded(self) -> bytes:
        """The body's JSON."""
        return encoded(self.body)
