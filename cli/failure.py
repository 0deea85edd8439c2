"""How a command says that it could not be done: one sentence on stderr, exit code 1, never a traceback."""

from __future__ import annotations

from typing import IO, Any

import click

from libs.runtime.terminal_text import visible


class Failed(click.ClickException):
    """What was wrong, what was found, what to do."""

    exit_code = 1

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the sentence, to standard error unless a file is given. No control character in it goes out raw."""
        click.echo(visible(f"llmgw: {self.message}"), file=file, err=file is None)
