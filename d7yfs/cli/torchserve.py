"""`d7yfs torchserve`: register, unregister and list models with a running TorchServe."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from d7yfs.cli.as_json import print_list
from d7yfs.cli.place import Place
from d7yfs.config import torchserve as plugin_files
from d7yfs.config import units
from d7yfs.config.sources import TORCHSERVE_VARIABLE, parse_source, split_sources
from d7yfs.config.url import RepositoryUrl
from d7yfs.errors import ConfigError, UsageError
from d7yfs.host.mount_table import FSTYPE, mount_table
from d7yfs.servers.model_store import ALL, choose, look
from d7yfs.servers.torchserve import Outcome, matching
from d7yfs.servers.torchserve_api import (
    DEFAULT_ADDRESS,
    Management,
    ServerConfig,
    check_store,
    read_config,
    read_token,
)

_CONFIG_VARIABLE = "TS_CONFIG_FILE"
"""TorchServe's own; its launcher and its server prefer it to --ts-config."""
_STYLE = {"failed": "red", "present": "yellow"}
_PARAMETERS = {
    "initial_workers": "Workers to start for each model at once.",
    "batch_size": "Most requests that a worker gets at once.",
    "max_batch_delay": "Longest wait for a batch to fill, in milliseconds.",
    "response_timeout": "Seconds after which a worker that does not answer is restarted.",
    "startup_timeout": "Seconds after which a worker that does not come up is given up.",
}
"""The API's own numbers. Those that are not given are not sent."""


@dataclass(frozen=True, slots=True)
class _Server:
    """Where TorchServe is, as the command line says."""

    management: str | None
    ts_config: Path | None
    token_file: Path | None
    ca_bundle: Path | None
    timeout: str

    def config(self) -> ServerConfig | None:
        return read_config(self.ts_config) if self.ts_config else None

    def open(self, config: ServerConfig | None) -> Management:
        try:
            timeout_s = units.parse_duration(self.timeout)
        except ValueError as error:
            raise UsageError(f"--timeout {self.timeout!r} {error}") from None
        return Management(
            self.management or (config.management_address if config else "") or DEFAULT_ADDRESS,
            token=read_token(self.token_file) if self.token_file else None,
            ca_bundle=self.ca_bundle,
            timeout_s=timeout_s,
        )


def _server_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(
        (
            click.option(
                "--management",
                metavar="URL",
                help="TorchServe's management API: http://host:port or unix:/path. "
                f"[default: management_address of --ts-config, else {DEFAULT_ADDRESS}]",
            ),
            click.option(
                "--ts-config",
                type=Place(),
                envvar=_CONFIG_VARIABLE,
                metavar="FILE",
                help=f"TorchServe's config.properties: its address, its model store. [{_CONFIG_VARIABLE}]",
            ),
            click.option(
                "--token-file",
                type=Place(),
                metavar="FILE",
                help="TorchServe's key_file.json, or a file with the token.",
            ),
            click.option(
                "--ca-bundle",
                type=Place(),
                metavar="FILE",
                help="PEM file with the authorities that may sign its certificate.",
            ),
            click.option(
                "--timeout",
                metavar="TIME",
                default="10m",
                show_default=True,
                help="Longest wait for one answer: TorchServe reads a whole archive before it gives one.",
            ),
            click.option("--json", "as_json", is_flag=True, help="Print a JSON list."),
        )
    ):
        function = option(function)
    return function


def _model_options(variable: str | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`variable` may name the plugin's file, too."""
    model = click.option("--model", metavar="all|NAME[,NAME…]", help="Which models. [default: load_model of --config]")
    config = click.option(
        "--config",
        type=Place(),
        envvar=variable,
        metavar="FILE",
        help=f"File of the earlier S3 plugin, for its load_model and minWorker.{f' [{variable}]' if variable else ''}",
    )
    return lambda function: model(config(function))


def _number_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for name, text in reversed(_PARAMETERS.items()):
        flag = f"--{name.replace('_', '-')}"
        function = click.option(flag, type=click.IntRange(min=0), metavar="N", help=text)(function)
    return function


@click.group()
def torchserve() -> None:
    """Register the models of a mount with a running TorchServe.

    Models are archives (.mar, .tar.gz) that lie directly in a directory, and directories with MAR-INF (no-archive). The directory must be
    TorchServe's model store.

    \b
    torchserve --start --model-store /mnt/models --enable-model-api
    d7yfs torchserve register --model all --initial-workers 1 --token-file key_file.json /mnt/models
    """


@torchserve.command()
@click.argument("path", required=False, type=Place())
@_model_options(TORCHSERVE_VARIABLE)
@_server_options
@_number_options
@click.option(
    "--synchronous/--no-synchronous", default=None, help="Wait for the workers, or do not. [default: TorchServe's own]"
)
@click.pass_context
def register(
    ctx: click.Context,
    /,
    path: Path | None,
    model: str | None,
    config: Path | None,
    as_json: bool,
    synchronous: bool | None,
    **others: Any,
) -> None:
    """Register models that lie in PATH, one line for each; exit status 1 when one fails.

    PATH is a mount point or a directory in it: by default the model store of the TorchServe that runs here, or of --ts-config, else the
    only d7yfs mount there is, or the only one of the bucket that --config names. What is not given is not sent, so TorchServe's own
    defaults hold. A model that is registered already gets the --initial-workers that it lacks.
    """
    numbers = {name: others.pop(name) for name in _PARAMETERS}
    server = _Server(**others)
    said = server.config()
    file = _plugin_file(config)
    parameters = {name: str(value) for name, value in numbers.items() if value is not None}
    if file and file.initial_workers is not None:
        parameters.setdefault("initial_workers", str(file.initial_workers))
    if synchronous is not None:
        parameters["synchronous"] = str(synchronous).lower()

    with server.open(said) as client:
        process = client.process()
        directory = path or (process and process.model_store) or (said and said.model_store) or _mounted(file)
        store = look(directory)
        if not (process.check_store(directory) if process else check_store(directory, said)):
            _note(f"nothing here says whether {directory} is TorchServe's model store; --ts-config FILE compares them")
        wanted = _wanted(model, file)
        models = choose(store, wanted)
        if ALL in wanted and (sentence := store.passed_over()):
            _note(sentence)
        ctx.exit(_report((client.register(each, parameters) for each in models), as_json=as_json))


@torchserve.command()
@_model_options(None)  # what is set for a whole host must not take models away
@_server_options
@click.pass_context
def unregister(ctx: click.Context, /, model: str | None, config: Path | None, as_json: bool, **server: Any) -> None:
    """Remove models, with all their versions, from TorchServe; exit status 1 when one fails.

    NAME is the name it is registered under, or the archive's. `all` means all that the server has.
    """
    where = _Server(**server)
    wanted = _wanted(model, _plugin_file(config))
    with where.open(where.config()) as client:
        rows = list(client.models())
        if not wanted:
            known = ", ".join(name for name, _ in rows) or "none"
            raise UsageError(f"no model is named; registered: {known}", hint=f"--model {ALL}, or --model NAME,NAME")
        names, lacking = matching(rows, wanted)

        def outcomes() -> Iterator[Outcome]:
            yield from (Outcome(name, "failed", "is not registered") for name in lacking)
            yield from map(client.unregister, names)

        ctx.exit(_report(outcomes(), as_json=as_json))


@torchserve.command("list")
@_server_options
def list_models(as_json: bool, **server: Any) -> None:
    """All versions of all registered models, with their archives and workers."""
    where = _Server(**server)
    with where.open(where.config()) as client:
        rows = [version for name, _ in client.models() for version in client.versions(name)]
    if as_json:
        print_list(map(asdict, rows))
        return
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        workers = f"{row.workers} of {max(row.workers, row.workers_wanted)} workers ready"
        click.echo(f"{row.name:<{width}}  {row.version:<8}  {workers:<22}  {row.url}")


def _wanted(model: str | None, file: plugin_files.TorchServeFile | None) -> tuple[str, ...]:
    """The names that the command line gives, else the file's."""
    if model is not None:
        return tuple(name for each in model.split(",") if (name := each.strip()))
    return file.models if file else ()


def _plugin_file(path: Path | None) -> plugin_files.TorchServeFile | None:
    if path is None:
        return None
    file = plugin_files.read(path)
    for warning in file.warnings:
        click.echo(f"d7yfs: warning: {warning}", err=True)
    return file


def _note(text: str) -> None:
    click.echo(f"d7yfs: note: {text}", err=True)


def _mounted(file: plugin_files.TorchServeFile | None) -> Path:
    """The directory of the only repository that is mounted, or of the only one that `file` can mean."""
    there = list(_repositories())
    if len(there) > 1 and file and file.storage:
        held = file.storage
        ours = [each for each in there if held.is_bucket_of(each[1])]
        there = [each for each in ours if each[1].prefix == held.url.prefix] or ours or there
    if len(there) != 1:
        words = ", ".join(f"{directory} ({url})" for directory, url in there) or "there is no d7yfs mount"
        raise UsageError(f"no directory is named: {words}", hint="name TorchServe's model store, such as /mnt/models")
    return there[0][0]


def _repositories() -> Iterator[tuple[Path, RepositoryUrl]]:
    """What is mounted, and where: several repositories of one mount are directories in it."""
    for mount in mount_table():
        if mount.fstype == FSTYPE:
            for source in split_sources(mount.source):
                with contextlib.suppress(ConfigError):
                    name, url = parse_source(source)
                    yield mount.point / name, url


def _report(outcomes: Iterable[Outcome], *, as_json: bool) -> int:
    """Print each outcome as it comes, or JSON when the series ends, however it ends; the exit status."""
    console = Console(soft_wrap=True, highlight=False)
    rows: list[Outcome] = []
    try:
        for outcome in outcomes:
            rows.append(outcome)
            if not as_json:
                console.print(f"[{_STYLE.get(outcome.result, 'green')}]{outcome.result:<12}[/] ", end="")
                console.print(f"{outcome.model}{': ' if outcome.said else ''}{outcome.said}", markup=False)
                if outcome.hint:
                    console.print(f"{'':<13}→ {outcome.hint}", markup=False)
    finally:
        if as_json:
            print_list(map(asdict, rows))
    return 1 if any(row.result == "failed" for row in rows) else 0
