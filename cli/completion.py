"""``llmgw completion``: what a shell needs to complete commands, options and names."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from cli.failure import Failed
from cli.output import Text

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_LLMGW_COMPLETE"
"""click asks for completions with it."""


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script with which a shell completes commands, options and names.

    \b
    eval "$(llmgw completion bash)"      # in ~/.bashrc
    eval "$(llmgw completion zsh)"       # in ~/.zshrc, after compinit
    llmgw completion fish | source       # in ~/.config/fish/config.fish
    """
    shell_class = get_completion_class(shell)
    if shell_class is None:
        raise Failed(f"click knows no completion for {shell}: there is {', '.join(SHELLS)}")
    script = shell_class(context.find_root().command, {}, "llmgw", VARIABLE)
    Text().result(None, [script.source_template % script.source_vars()])
