"""Matches a profile's arguments with what is refused, as the engine's own parser would read them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from libs.engines import traits_of
from libs.engines.refused import WORDS

NUMBER = re.compile(r"^-(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?$")


def argument_problem(engine: str, argument: str) -> str | None:
    """Why one argument is refused, or None. What is not an option (a value) is not judged."""
    if argument.startswith("@"):
        return f"the argument {argument} may name a file of arguments; leave it out"
    if not argument.startswith("-") or NUMBER.match(argument):
        return None
    if argument in ("-", "--"):
        return f"the argument {argument} ends the options; leave it out"
    why = _refusal(engine, name_of(argument))
    return f"the option {argument.partition('=')[0]} may not be set in a profile: {why}; leave it out" if why else None


def argument_problems(engine: str, args: Sequence[str]) -> dict[int, str]:
    """Index of each refused argument to the reason."""
    return {n: why for n, argument in enumerate(args) if (why := argument_problem(engine, argument)) is not None}


def name_of(argument: str) -> str:
    """The option's name as the parsers compare it: without a value, ``_`` in long names read as ``-``.

    vLLM takes ``--a-config.field=1`` and ``--a-list+`` for parts of one option.
    """
    name = argument.partition("=")[0]
    if not name.startswith("--"):
        return name
    return "--" + re.split(r"[.+]", name[2:], maxsplit=1)[0].replace("_", "-")


def _refusal(engine: str, name: str) -> str | None:
    options = traits_of(engine).arguments
    table = options.refused
    name = next((option for prefix, option in options.spellings.items() if name.startswith(prefix)), name)
    if name in table:
        return table[name] or None
    if options.abbreviates:
        if name.startswith("--"):
            # A beginning is the option, as long as no other begins so; refusing what is no option at all costs nothing.
            for refused, why in table.items():
                if why and refused.startswith(name):
                    return f"{why} (it reads as {refused})"
            for refused in options.refused_by_word:
                if refused.startswith(name):
                    return f"{_by_word(refused)} (it reads as {refused})"
        else:
            for refused, why in table.items():
                short = refused.startswith("-") and not refused.startswith("--")
                # -tp4 is -t with the value p4 where there is a -t; -t is -tp where there is none.
                if short and why and (refused.startswith(name) or name.startswith(refused)):
                    return f"{why} (it reads as {refused})"
    return _by_word(name) if name.startswith("--") else None


def _by_word(name: str) -> str | None:
    for word in name[2:].lower().split("-"):
        if word in WORDS:
            return f"{WORDS[word]}, by the word {word!r} in its name"
    return None
