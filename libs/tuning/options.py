"""Options a profile may pass because the engine has them: those of programs of ours, and those recorded of others."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence

from libs.engines import Arguments, Option, traits_of

from .arguments import NUMBER, name_of

AS_SET = "as set"
"""Version of an engine that the settings name and nobody asked for its version."""


def has(args: Iterable[str], names: Collection[str]) -> bool:
    """Whether one of an option's spellings is among the arguments."""
    return any(name_of(argument) in names for argument in args)


def whole_inputs(engine: str, args: Iterable[str]) -> bool:
    """Whether an engine is told to make vectors in a way for which it reads every input in one physical batch."""
    return has(args, traits_of(engine).arguments.whole_inputs)


def knows(engine: str, version: str) -> bool:
    """Whether the options of this version of an engine are known here."""
    recorded = traits_of(engine).arguments.version
    return version != AS_SET and (recorded is None or version.partition("+")[0] == recorded)


def option_problems(engine: str, args: Sequence[str]) -> dict[int, str]:
    """Index of each argument that an engine of a version that is known does not understand, to the reason."""
    known = traits_of(engine).arguments
    if known.options is not None:
        return _of_ours(args, known.options)
    return {n: why for n, argument in enumerate(args) if (why := _unknown(engine, argument, known)) is not None}


def _of_ours(args: Sequence[str], options: Sequence[Option]) -> dict[int, str]:
    known = {name: option for option in options for name in option.names}
    problems: dict[int, str] = {}
    rest = list(enumerate(args))
    while rest:
        number, argument = rest.pop(0)
        name, equals, _ = argument.partition("=")
        option = known.get(name.replace("_", "-") if name.startswith("--") else name)
        if not argument.startswith("-"):
            problems[number] = f"the argument {argument!r} belongs to no option"
        elif option is None:
            all_names = ", ".join(sorted(other.names[0] for other in options))
            problems[number] = f"the option {name} is not one it takes from a profile; these are: {all_names}"
            if rest and not rest[0][1].startswith("-"):
                rest.pop(0)  # its value
        elif option.takes_value and not equals:
            if rest:
                rest.pop(0)
            else:
                problems[number] = f"the option {name} lacks its value"
        elif not option.takes_value and equals:
            problems[number] = f"the option {name} takes no value"
    return problems


def _unknown(engine: str, argument: str, known: Arguments) -> str | None:
    if known.recorded is None or not argument.startswith("-") or NUMBER.match(argument):
        return None
    name = name_of(argument)
    names = {name_of(recorded) for recorded in known.recorded}
    if name in names or (known.abbreviates and any(other.startswith(name) for other in names if name.startswith("--"))):
        return None
    if not name.startswith("--") and any(
        name.startswith(other) for other in (*names, "-O") if not other.startswith("--")
    ):
        return None  # -tp4 is -tp with its value
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.7)
    advice = f"did you mean {near[0]}?" if near else "leave it out"
    return f"{engine} {known.version} has no option {argument.partition('=')[0]}: {advice}"
