"""`d7yfs completion`: the completion script for a shell, made by click."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from d7yfs.cli import main


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    bash: d7yfs completion bash > ~/.local/share/bash-completion/completions/d7yfs
    zsh:  d7yfs completion zsh > "${fpath[1]}/_d7yfs"
    fish: d7yfs completion fish > ~/.config/fish/completions/d7yfs.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(main, {}, "d7yfs", "_D7YFS_COMPLETE").source())
