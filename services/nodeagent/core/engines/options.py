"""Options of engines that are started through programs of ours, which know a few and no others."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class Option(msgspec.Struct, frozen=True):
    """An option such a program takes from a profile."""

    names: tuple[str, ...]
    """Every spelling, the long one first; ``_`` in an argument is read as ``-``."""
    takes_value: bool = True


def refusal_of(args: Sequence[str], options: Sequence[Option]) -> str | None:
    """Why arguments are not understood, naming the first, or None."""
    known = {name: option for option in options for name in option.names}
    rest = list(args)
    while rest:
        argument = rest.pop(0)
        name, equals, _ = argument.partition("=")
        spelt = name.replace("_", "-") if name.startswith("--") else name
        if not argument.startswith("-"):
            return f"the argument {argument!r} belongs to no option"
        option = known.get(spelt)
        if option is None:
            return (
                f"the option {name} is not one it takes from a profile; these are: "
                f"{', '.join(sorted(option.names[0] for option in options))}"
            )
        if option.takes_value and not equals:
            if not rest:
                return f"the option {name} lacks its value"
            rest.pop(0)
        if not option.takes_value and equals:
            return f"the option {name} takes no value"
    return None
