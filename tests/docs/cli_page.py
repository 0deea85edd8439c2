"""``docs/cli.md``: every command as the command line declares it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

from cli.main import llmgw
from cli.times import HOW_DURATION, HOW_TIME

from .table import cell, code, table

HEAD = f"""# Command line

Every command, with its arguments, options and defaults. This page is generated from the commands by `make docs`; a
test fails when it is out of date. `llmgw COMMAND --help` says the same. How they are used is in the
[quickstart](quickstart.md) and in the pages for [operators](operate.md).

A command ends with 0 when it is done, with 1 when it was refused or failed (the reason is on stderr), and with 2 when
it was used wrongly. What destroys something asks first; with `--yes` it does not, and without a terminal it needs it.

TIME stands for a point in time: {HOW_TIME}.
`20m` is twenty minutes ago, or from now where it lies ahead. DURATION stands for a length of time: {HOW_DURATION}.
"""
COMMON = """## Options of most commands

These mean the same wherever a command has them, and are not repeated below.
"""
NUMBERS = (click.IntRange, click.FloatRange, click.types.IntParamType, click.types.FloatParamType)


def commands(
    command: click.Command = llmgw, parent: click.Context | None = None, path: tuple[str, ...] = ("llmgw",)
) -> Iterator[tuple[tuple[str, ...], click.Command, click.Context]]:
    """Every command and group, in the order help lists them: its words, itself, and its context."""
    context = click.Context(command, parent=parent, info_name=path[-1])
    yield path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            if below is not None and not below.hidden:
                yield from commands(below, context, (*path, name))


def _names(option: click.Option, context: click.Context) -> str:
    names = ", ".join(option.opts) + ("" if not option.secondary_opts else " / " + ", ".join(option.secondary_opts))
    if option.is_flag or option.count:
        return names
    return f"{names} {'NUMBER' if isinstance(option.type, NUMBERS) else option.make_metavar(context)}"


def _default(option: click.Option, context: click.Context) -> str:
    if option.required:
        return "required"
    value: Any = option.get_default(context, call=False)
    # click marks "no default" with a sentinel of its own.
    if option.is_flag or value is None or value == () or callable(value) or type(value).__module__.startswith("click"):
        return ""
    return code(str(value))


def _meaning(option: click.Option) -> str:
    text = cell(option.help or "")
    notes = []
    if isinstance(option.type, click.IntRange | click.FloatRange):
        least, most = option.type.min, option.type.max
        notes += [f"from {least}"] if most is None else [f"{least} to {most}"]
    if option.multiple and "repeated" not in text:
        notes.append("may be given more than once")
    if option.envvar:
        names = [option.envvar] if isinstance(option.envvar, str) else list(option.envvar)
        notes.append("variable " + ", ".join(code(name) for name in names))
    return f"{text} ({'; '.join(notes)})".strip() if notes else text


def _row(option: click.Option, context: click.Context) -> tuple[str, str, str]:
    return code(_names(option, context)), _default(option, context), _meaning(option)


def _options(command: click.Command) -> list[click.Option]:
    return [p for p in command.params if isinstance(p, click.Option) and not p.hidden]


def _usage(path: tuple[str, ...], command: click.Command, context: click.Context) -> str:
    return " ".join([*path, *command.collect_usage_pieces(context)])


def _help(command: click.Command) -> list[str]:
    """Paragraphs of a command's help; what is set as it is (after a line with ``\\b``) stays so."""
    lines: list[str] = []
    for paragraph in (command.help or "").split("\f")[0].strip().split("\n\n"):
        if paragraph.startswith("\b"):
            lines += ["```", *paragraph.splitlines()[1:], "```", ""]
        else:
            lines += [" ".join(paragraph.split()), ""]
    return lines


def page() -> str:
    """The whole page."""
    every = [(path, command, context) for path, command, context in commands() if not isinstance(command, click.Group)]
    seen = Counter(_row(option, context) for _, command, context in every for option in _options(command))
    common = {row for row, times in seen.items() if times > len(every) / 2}
    lines = [HEAD, COMMON, *table(("option", "default", "meaning"), [row for row in seen if row in common])]
    lines += ["## Commands", ""]
    for path, command, context in commands():
        words = " ".join(path)
        if isinstance(command, click.Group):
            if len(path) > 1:
                lines += [f"### {words}", "", *_help(command)]
            continue
        lines += [f"{'#' * (len(path) + 1)} {words}", "", "```", _usage(path, command, context), "```", ""]
        lines += _help(command)
        rows = [_row(option, context) for option in _options(command)]
        lines += table(("option", "default", "meaning"), [row for row in rows if row not in common])
    return "\n".join(lines).rstrip() + "\n"
