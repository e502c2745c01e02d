"""Flags for the options of the schema: a command with `@settings_options(...)` has them all, and
their help.

Owns how an option looks on the command line. Values are passed on unparsed, and the D7YFS_*
variables are not read here: `d7yfs.config.sources` reads and ranks them, and so knows the source of
each setting.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import click

from d7yfs.cli.terminal import say
from d7yfs.config import kinds
from d7yfs.config.key_file import read_variables
from d7yfs.config.schema import GROUPS, OPTIONS, Option
from d7yfs.config.settings_file import exposure
from d7yfs.config.sources import CONFIG_VARIABLE, TORCHSERVE_VARIABLE, Settings, load_settings

FIRST = (
    *("endpoint_url", "region", "profile", "anonymous", "proxy", "cache_dir", "cache_size", "metadata_ttl"),
    *("allow_other", "foreground", "log_level"),
)
"""The options that most mounts need: `--help` shows these, `--help-all` all."""
_SHORT = {"foreground": "-f"}
_SHOWS_ALL = "d7yfs.help-all"


class Given(NamedTuple):
    """The part of the configuration that the command line gives."""

    flags: Mapping[str, object]
    """Values by option name; only those that were given."""
    config: Path | None
    torchserve_config: Path | None
    credentials: Path | None = None

    def load(
        self, sources: tuple[str, ...], mountpoint: Path | None, *, quiet: bool = False, here: Path | None = None
    ) -> Settings:
        """Join it with all other layers. Warnings go to stderr unless `quiet`; `here` as for
        `load_settings`. Variables of the file with credentials are this process's from then on. Raises
        ConfigError."""
        risk = ""
        if self.credentials is not None:
            path = (here or Path.cwd()) / self.credentials
            os.environ.update(read_variables(path))
            risk = exposure(path, secret=True)
        settings = load_settings(
            self.flags,
            sources,
            mountpoint,
            os.environ,
            self.config,
            torchserve_path=self.torchserve_config,
            here=here,
        )
        if risk:
            settings = replace(settings, warnings=(risk, *settings.warnings))
        for warning in () if quiet else settings.warnings:
            say(f"d7yfs: warning: {warning}", err=True)
        return settings


class Flag(click.Option):
    """The command-line flag of one schema option."""

    def __init__(self, option: Option) -> None:
        self.option = option
        declaration = f"{option.flag}/{option.off_flag}" if option.off_flag else option.flag
        if option.on_by_default is None:
            rest = f"[{option.variable}; default: {option.default}]"
        else:
            rest = f"[{option.variable}={'false' if option.on_by_default else 'true'}]"
        short = [_SHORT[option.name]] if option.name in _SHORT else []
        super().__init__(
            # Otherwise click names the parameter after the longer of the two spellings.
            [*short, declaration, option.name],
            type=None if option.off_flag else _click_type(option.kind),
            metavar=option.kind.metavar or None,
            default=None,
            help=f"{option.help} {rest}",
        )

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The help of a pair of spellings: only the one that changes the default."""
        if self.option.on_by_default is None:
            return super().get_help_record(ctx)
        spelling = self.option.off_flag if self.option.on_by_default else self.option.flag
        short = _SHORT.get(self.option.name)
        return f"{short}, {spelling}" if short else spelling, self.help or ""


class Command(click.Command):
    """A command whose help shows its own options, and those of the schema that come first;
    `--help-all` shows all of them under their groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One section for the command's own options, then the schema's."""
        shows_all = ctx.meta.get(_SHOWS_ALL, False)
        titles = GROUPS if shows_all else ("Settings",)
        sections: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Options", *titles)}
        hidden = 0
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or not isinstance(parameter, click.Option):
                continue
            if not isinstance(parameter, Flag):
                sections["Options"].append(record)
            elif shows_all or parameter.option.name in FIRST:
                sections[parameter.option.group if shows_all else "Settings"].append(record)
            else:
                hidden += 1
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
        if hidden:
            groups = {each.option.group: None for each in self.get_params(ctx) if isinstance(each, Flag)}
            formatter.write_paragraph()
            formatter.write_text(f"{hidden} more settings ({', '.join(groups)}): --help-all shows them.")


def _show_all(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        ctx.meta[_SHOWS_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


def settings_options(*groups: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a click command the flags of `groups` (all when none is named), `--config`,
    `--torchserve-config` and `--credentials`.

    The function gets them as one keyword argument `given`, a `Given`. Use it with
    `@click.command(cls=Command)`.
    """
    options = [option for option in OPTIONS.values() if not groups or option.group in groups]
    files = [
        click.Option(
            ["--config", "config"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            help=f"TOML file with the same options, and repositories. [{CONFIG_VARIABLE}]",
        ),
        click.Option(
            ["--torchserve-config", "torchserve_config"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="File of an earlier TorchServe plugin (S3 or Dragonfly endpoint): where the models are, and with which keys and "
            f"proxy to read them. [{TORCHSERVE_VARIABLE}]",
        ),
        click.Option(
            ["--credentials", "credentials"],
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="File with KEY=value lines, such as AWS_ACCESS_KEY_ID=…, that are read as variables. For root alone (mode 0600).",
        ),
        click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show all settings, and exit.",
        ),
    ]

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(
            *args: Any,
            config: Path | None,
            torchserve_config: Path | None,
            credentials: Path | None,
            **kwargs: Any,
        ) -> Any:
            flags = {option.name: value for option in options if (value := kwargs.pop(option.name)) is not None}
            return function(*args, given=Given(flags, config, torchserve_config, credentials), **kwargs)

        # Like click's own decorators: the list is in reverse order of the help.
        parameters = list(getattr(function, "__click_params__", ()))
        wrapper.__click_params__ = [*map(Flag, reversed(options)), *reversed(files), *parameters]  # type: ignore[attr-defined]
        return wrapper

    return decorate


def _click_type(kind: kinds.Kind) -> click.ParamType[Any] | None:
    """The type for shell completion; the value itself stays text."""
    if kind.choices:
        return click.Choice(kind.choices, case_sensitive=False)
    return click.Path(readable=False) if kind is kinds.PATH else click.STRING  # the workers' user reads it
