"""``llmgw``: every command, found by name and imported only when it is called."""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from typing import Any

import click

from cli.failure import Failed

COMMANDS = {
    "up": ("cli.up:up", "Start a whole cluster on this machine and keep it running."),
    "down": ("cli.up:down", "Stop the cluster that `up` started."),
    "status": ("cli.status:status", "What runs, what serves, and what is missing."),
    "apply": ("cli.apply:apply", "Make models, policies, tenancy and prices be as files declare them."),
    "export": ("cli.apply:export", "Write what is declared now, in the format of apply."),
    "model": ("cli.models:model", "Models: list, show, plan, define, scale, stop, start, restart, promote, remove."),
    "explain": ("cli.models:explain", "Why a model runs where it runs, or nowhere, now or at a time."),
    "plan": ("cli.whatif:plan", "What a change would start, stop and move, without making it."),
    "node": (
        "cli.nodes:node",
        "Nodes: list, show, cordon, drain, lend, retire, restart, settings, remove-weights, doctor.",
    ),
    "system": ("cli.nodes:system", "The whole cluster: stop, start; power of a rack."),
    "logs": ("cli.logs:logs", "What an agent or an engine printed, from the machine it is on."),
    "org": ("cli.tenancy:org", "Organisations: list, create, change, remove."),
    "team": ("cli.tenancy:team", "Teams: list, create, change, remove."),
    "project": ("cli.tenancy:project", "Projects: list, create, change, remove."),
    "key": ("cli.keys:key", "API keys: create, list, change, revoke."),
    "price": ("cli.billing:price", "Prices: list, set."),
    "usage": ("cli.billing:usage", "Requests, tokens and cost by organisation, team, project, key or model."),
    "budgets": ("cli.billing:budgets", "Every budget, and what is spent of it."),
    "policy": ("cli.policies:policy", "Guard policies: list, remove."),
    "library": ("cli.library:library", "Weights: list, import, cancel, remove."),
    "events": ("cli.events:events", "What happened: tail, show, replay."),
    "bus": ("cli.bus:bus", "The bus: create its streams, make identities."),
    "doctor": ("cli.doctor:doctor", "What is wrong with this machine, and how to mend it."),
    "run": ("cli.run:run", "Run one service in the foreground."),
    "settings": ("cli.run:settings", "Every setting of a service, and where its value comes from."),
}


OURS = ("cli", "libs", "services")


class Commands(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        close = [] if args[0] in COMMANDS else difflib.get_close_matches(args[0], COMMANDS, n=1)
        if close:
            raise click.UsageError(f"there is no command {args[0]!r}: did you mean {close[0]!r}?", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(package_name="llmgw", message="llmgw %(version)s")
def llmgw() -> None:
    """Language models on your own machines, behind one OpenAI- and Anthropic-compatible gateway."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit: 0 done, 1 refused or failed (the reason is on stderr), 2 wrong usage."""
    sys.exit(code_of(arguments))


def code_of(arguments: list[str] | None = None) -> int:
    """Run a command; its exit code."""
    try:
        result: Any = llmgw.main(args=arguments, standalone_mode=False)
        return result if isinstance(result, int) else 0
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
