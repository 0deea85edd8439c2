"""The base of every message on the bus, and the registry that finds a contract by its tag.

A tag reads ``<aggregate>.<event>.v<n>`` and travels twice: in the ``Llmgw-Type`` header, and as the
first field of the JSON, so that a payload copied out of a terminal still says what it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, ClassVar, Self, TypeVar

import msgspec

TAG = re.compile(r"^[a-z_]+(\.[a-z_]+)+\.v[0-9]+$")


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of a message. What was not measured is left out of the JSON, never 0 or -1.

    Because defaults are left out, a default is part of the contract and never changes.
    """

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Nothing in it ever changes, so copies of what holds it share it."""
        return self


class Contract(Value, frozen=True, kw_only=True, omit_defaults=True, tag_field="type", tag="contract.v0"):
    """A whole message: a value with a tag and a subject.

    ``plane`` is the second token of its subject and decides which stream carries it. ``ids`` names the
    fields that stand in the subject between the aggregate and the last token, in order.
    """

    plane: ClassVar[str] = ""
    ids: ClassVar[tuple[str, ...]] = ()


class Event(Contract, frozen=True, kw_only=True, omit_defaults=True, tag="event.v0"):
    """Something that happened and changes state. Kept for ever in the stream EVENTS."""

    plane: ClassVar[str] = "evt"
    at: datetime
    """When it happened, UTC."""


class Command(Contract, frozen=True, kw_only=True, omit_defaults=True, tag="command.v0"):
    """A wish, sent to the one service that owns the matter. Its outcome comes back on the sender's inbox."""

    plane: ClassVar[str] = "cmd"


class Question(Contract, frozen=True, kw_only=True, omit_defaults=True, tag="question.v0"):
    """Something asked of a running service. Reads only."""

    plane: ClassVar[str] = "ask"


class Telemetry(Contract, frozen=True, kw_only=True, omit_defaults=True, tag="telemetry.v0"):
    """A measurement: only the latest matters."""

    plane: ClassVar[str] = "tel"
    at: datetime


C = TypeVar("C", bound=type[Contract])

_by_tag: dict[str, type[Contract]] = {}
_upcasts: dict[str, tuple[str, Callable[[dict[str, Any]], dict[str, Any]]]] = {}


class UnknownTag(LookupError):
    """The message is of a kind (or a version) this program does not know."""

    def __init__(self, tag: str) -> None:
        super().__init__(f"no contract is registered for the tag {tag!r}; the sender may be a newer version")
        self.tag = tag


def tag_of(contract: type[Contract] | Contract) -> str:
    """The tag of a contract or of a message of it: ``machine.registered.v1``."""
    tag = contract.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def registered(contract: C) -> C:
    """Class decorator: make a contract findable by its tag. Raises ValueError where its tag, its plane or its ids are
    not as they must be, or another contract has the tag."""
    tag = tag_of(contract)
    if not TAG.match(tag):
        raise ValueError(f"{contract.__name__}: tag {tag!r} is not <aggregate>.<event>.v<n>")
    if tag in _by_tag:
        raise ValueError(f"{contract.__name__}: tag {tag!r} already belongs to {_by_tag[tag].__name__}")
    if not contract.plane:
        raise ValueError(f"{contract.__name__}: has no plane")
    missing = [name for name in contract.ids if name not in contract.__struct_fields__]
    if missing:
        raise ValueError(f"{contract.__name__}: ids {missing} are not fields")
    _by_tag[tag] = contract
    return contract


def contract_of(tag: str) -> type[Contract]:
    """The contract for a tag. Raises UnknownTag."""
    try:
        return _by_tag[tag]
    except KeyError:
        raise UnknownTag(tag) from None


def contracts() -> Iterator[type[Contract]]:
    """Every registered contract, by tag."""
    for tag in sorted(_by_tag):
        yield _by_tag[tag]


def upcast(old: str, new: str) -> Callable[[Callable[[dict[str, Any]], dict[str, Any]]], Any]:
    """Decorator: how a message tagged ``old`` becomes one tagged ``new``. Pure, dict to dict."""

    def register(function: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[dict[str, Any]], dict[str, Any]]:
        _upcasts[old] = (new, function)
        return function

    return register


def newest(tag: str, fields: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Follow the upcasts from ``tag`` to the newest version known."""
    while tag in _upcasts:
        tag, function = _upcasts[tag]
        fields = function(fields) | {"type": tag}
    return tag, fields


def has_upcast(tag: str) -> bool:
    """Whether a tag is of an older version that ``newest`` brings up to date."""
    return tag in _upcasts
