"""Which event is told in which sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from libs.events.contract import Contract, tag_of

E = TypeVar("E", bound=Contract)

_sentences: dict[str, Callable[[Any], str]] = {}


def known() -> frozenset[str]:
    """The tags that have a sentence."""
    return frozenset(_sentences)


def sentence(message: Contract) -> str:
    """A message as one line for a person, without its time; the tag of one that has no sentence."""
    tag = tag_of(message)
    words = _sentences.get(tag)
    return words(message) if words is not None else tag


def says(contract: type[E]) -> Callable[[Callable[[E], str]], Callable[[E], str]]:
    """Decorator: the function that tells messages of this contract."""

    def register(words: Callable[[E], str]) -> Callable[[E], str]:
        _sentences[tag_of(contract)] = words
        return words

    return register
