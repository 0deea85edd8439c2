"""``llmgw``: every command, found by name and imported only when it is called."""

from __future__ import annotations

import difflib
import importlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cli.failure import Failed

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "up": "cli.up:up",
    "down": "cli.up:down",
    "status": "cli.status:status",
    "apply": "cli.apply:apply",
    "plan": "cli.plan:plan",
    "export": "cli.apply:export",
    "explain": "cli.models:explain",
    "model": "cli.models:model",
    "replica": "cli.replicas:replica",
    "shard": "cli.shards:shard",
    "node": "cli.nodes:node",
    "rack": "cli.racks:rack",
    "system": "cli.system:system",
    "org": "cli.tenancy:org",
    "team": "cli.tenancy:team",
    "project": "cli.tenancy:project",
    "key": "cli.keys:key",
    "price": "cli.billing:price",
    "budget": "cli.billing:budget",
    "usage": "cli.billing:usage",
    "policy": "cli.policies:policy",
    "library": "cli.library:library",
    "event": "cli.events:event",
    "bus": "cli.bus:bus",
    "doctor": "cli.doctor:doctor",
    "run": "cli.run:run",
    "settings": "cli.run:settings",
    "completion": "cli.completion:completion",
    "logs": "cli.logs:logs",
}
"""Where each command is, as ``module:name``: it is imported when it is called."""

HIDDEN = frozenset({"logs"})
"""Commands that help does not list: there is another way to the same."""

RENAMED = {
    ("budgets",): ("budget", "list"),
    ("events",): ("event",),
    ("model", "plan"): ("model", "fit"),
    ("node", "settings"): ("node", "change"),
    ("system", "cap-rack"): ("rack", "cap"),
}
"""Words of earlier versions that still work, and what they are now."""

OURS = ("cli", "libs", "services")


def summary(name: str) -> str:
    """The first sentence of a command's docstring, read from its source: no command is imported for it."""
    module, _, function = COMMANDS[name].partition(":")
    source = Path(__file__).with_name(f"{module.rpartition('.')[2]}.py").read_text()
    begin = rf'^(?:async )?def {function}\(.*?\) -> [^\n]*:\n    """'
    docstring = re.search(begin + r'(.*?)(?:"""|\n\n)', source, re.M | re.S)
    return re.split(r"(?<=\.)\s", " ".join(docstring[1].split()))[0] if docstring is not None else ""


class Commands(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands that are not hidden."""
        return [name for name in COMMANDS if name not in HIDDEN]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command; None when there is none of that name."""
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that arguments name. Raises UsageError with the nearest there is."""
        close = [] if args[0] in COMMANDS else difflib.get_close_matches(args[0], self.list_commands(ctx), n=1)
        if close:
            raise click.UsageError(f"there is no command {args[0]!r}: did you mean {close[0]!r}?", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Every command with its summary."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary(name)) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands that begin so, without importing any."""
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name, help=summary(name)) for name in self.list_commands(ctx) if name.startswith(incomplete)
        ]


def today(arguments: list[str]) -> list[str]:
    """Arguments with the words of an earlier version replaced, which is said on stderr."""
    for old, new in RENAMED.items():
        if tuple(arguments[: len(old)]) == old:
            click.echo(f"llmgw: `{' '.join(old)}` is called `{' '.join(new)}` now", err=True)
            return [*new, *arguments[len(old) :]]
    return arguments


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="llmgw", message="llmgw %(version)s")
def llmgw() -> None:
    """Language models on your own machines, behind one OpenAI- and Anthropic-compatible gateway.

    Times are written as 20m, 2h or 7d, as a date (2026-11-29), or as in 2026-11-29T14:03:20Z; without a zone they are
    UTC, as are all that are shown.
    """


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit: 0 done, 1 refused or failed (the reason is on stderr), 2 wrong usage."""
    sys.exit(code_of(arguments))


def code_of(arguments: list[str] | None = None) -> int:
    """Run a command; its exit code."""
    try:
        words = today(sys.argv[1:] if arguments is None else arguments)
        result: Any = llmgw.main(words, prog_name="llmgw", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.NoSuchOption as error:
        from cli.numbers import below_zero

        below_zero(error).show()
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.exceptions.Exit as error:
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("llmgw: interrupted", err=True)
        return 1
    except BrokenPipeError:
        # Whoever read our output has seen enough; what is still buffered must not raise at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if "LLMGW_TRACEBACK" in os.environ:
            raise
        Failed(_unexpected(error)).show()
        return 1


def _unexpected(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] not in OURS:
        return (
            f"the Python package {error.name} is not installed and this needs it: pip install 'llmgw[demo]' brings all "
            "of them, 'llmgw[SERVICE]' those of one service"
        )
    return (
        f"this should not have happened: {type(error).__name__}: {error} "
        "(LLMGW_TRACEBACK=1 shows where; please report it)"
    )


if __name__ == "__main__":
    main()
