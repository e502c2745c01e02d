"""`d7yfs torchserve`: register, unregister and list models with a running TorchServe."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from d7yfs.cli.as_json import print_list
from d7yfs.cli.daemons import UntouchedPath
from d7yfs.cli.terminal import cell, say
from d7yfs.config import kinds
from d7yfs.config import torchserve as plugin_files
from d7yfs.config.sources import TORCHSERVE_VARIABLE, parse_source, split_sources
from d7yfs.config.url import RepositoryUrl
from d7yfs.errors import ConfigError, UsageError
from d7yfs.host.mount_table import FSTYPE, mount_table
from d7yfs.servers.model_store import ALL, choose, look
from d7yfs.servers.torchserve import ModelOutcome, matching
from d7yfs.servers.torchserve_api import (
    DEFAULT_ADDRESS,
    Management,
    ServerConfig,
    check_store,
    read_config,
    read_token,
)

_CONFIG_VARIABLE = "TS_CONFIG_FILE"
"""TorchServe's own variable; its launcher and its server prefer it to --ts-config."""
_STYLE = {"failed": "red", "present": "yellow"}
_file_option = functools.partial(click.option, type=UntouchedPath(), metavar="FILE")
# The API's own numbers. Only those that the user gives are sent.
_number_option = functools.partial(click.option, type=click.IntRange(min=0), metavar="N")


def _server_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options about the server, and `--json`; the function gets the `client` and its
    `config`."""

    @click.option(
        "--management",
        metavar="URL",
        help="TorchServe's management API: http://host:port or unix:/path. "
        f"[default: management_address of --ts-config, else {DEFAULT_ADDRESS}]",
    )
    @_file_option(
        "--ts-config",
        envvar=_CONFIG_VARIABLE,
        help=f"TorchServe's config.properties: its address, its model store. [{_CONFIG_VARIABLE}]",
    )
    @_file_option("--token-file", help="TorchServe's key_file.json, or a file with the token.")
    @_file_option("--ca-bundle", help="PEM file with the authorities that may sign its certificate.")
    @click.option(
        "--timeout",
        metavar="TIME",
        default="10m",
        show_default=True,
        help="Longest wait for one answer: TorchServe reads a whole archive before it gives one.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
    @functools.wraps(function)
    def wrapper(
        *,
        management: str | None,
        ts_config: Path | None,
        token_file: Path | None,
        ca_bundle: Path | None,
        timeout: str,
        **others: Any,
    ) -> None:
        config = read_config(ts_config) if ts_config else ServerConfig()
        try:
            timeout_s = kinds.parse_duration(timeout)
        except ValueError as error:
            raise UsageError(f"--timeout {timeout!r} {error}") from None
        address = management or config.management_address or DEFAULT_ADDRESS
        token = read_token(token_file) if token_file else None
        with Management(address, token=token, ca_bundle=ca_bundle, timeout_s=timeout_s) as client:
            function(client=client, config=config, **others)

    return wrapper


def _model_options(variable: str | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--model` and `--config`; `variable`, if given, may name the plugin's file too."""
    model = click.option("--model", metavar="all|NAME[,NAME…]", help="Which models. [default: load_model of --config]")
    config = _file_option(
        "--config",
        "plugin",
        envvar=variable,
        help=f"File of the earlier S3 plugin, for its load_model and minWorker.{f' [{variable}]' if variable else ''}",
    )
    return lambda function: model(config(function))


@click.group()
def torchserve() -> None:
    """Register the models of a mount with a running TorchServe.

    A model is an archive (.mar, .tar.gz) directly in the directory, or a directory with MAR-INF in
    it (no-archive). The directory must be TorchServe's model store.

    \b
    torchserve --start --model-store /mnt/models --enable-model-api
    d7yfs torchserve register --model all --initial-workers 1 --token-file key_file.json /mnt/models
    """


@torchserve.command()
@click.argument("path", required=False, type=UntouchedPath())
@_model_options(TORCHSERVE_VARIABLE)
@_server_options
@_number_option("--initial-workers", help="Workers to start for each model at once.")
@_number_option("--batch-size", help="Most requests that a worker gets at once.")
@_number_option("--max-batch-delay", help="Longest wait for a batch to fill, in milliseconds.")
@_number_option("--response-timeout", help="Seconds after which a worker that does not answer is restarted.")
@_number_option("--startup-timeout", help="Seconds after which a worker that does not start is given up.")
@click.option(
    "--synchronous/--no-synchronous", default=None, help="Wait for the workers, or do not. [default: TorchServe's own]"
)
def register(
    client: Management,
    config: ServerConfig,
    path: Path | None,
    model: str | None,
    plugin: Path | None,
    as_json: bool,
    synchronous: bool | None,
    **numbers: int | None,
) -> None:
    """Register models in PATH, with one line for each; exit status 1 if one fails.

    PATH is a mount point or a directory in it. The default is the model store of the TorchServe
    that runs here, or of --ts-config. Without one, it is the only d7yfs mount, or the only one of
    the bucket that --config names. Options that are not given are not sent, so TorchServe's own
    defaults apply. A model that is already registered gets its missing --initial-workers.
    """
    file = _plugin_file(plugin)
    parameters = {name: str(value) for name, value in numbers.items() if value is not None}
    if file and file.initial_workers is not None:
        parameters.setdefault("initial_workers", str(file.initial_workers))
    if synchronous is not None:
        parameters["synchronous"] = str(synchronous).lower()

    process = client.find_process()
    directory = path or (process and process.model_store) or config.model_store or _mounted(file)
    store = look(directory)
    if not (process.check_store(directory) if process else check_store(directory, config)):
        _note(f"nothing here says whether {directory} is TorchServe's model store; --ts-config FILE compares them")
    wanted = _wanted(model, file)
    models = choose(store, wanted)
    if ALL in wanted and (sentence := store.passed_over()):
        _note(sentence)
    _report((client.register(each, parameters) for each in models), as_json=as_json)


@torchserve.command()
@_model_options(None)  # a variable set for a whole host must not remove models
@_server_options
def unregister(client: Management, model: str | None, plugin: Path | None, as_json: bool, **_: Any) -> None:
    """Remove models, with all their versions, from TorchServe; exit status 1 if one fails.

    NAME is the registered name, or the archive's. `all` means all models of the server.
    """
    wanted = _wanted(model, _plugin_file(plugin))
    rows = list(client.list_models())
    if not wanted:
        known = ", ".join(name for name, _ in rows) or "none"
        raise UsageError(f"no model is named; registered: {known}", hint=f"--model {ALL}, or --model NAME,NAME")
    names, lacking = matching(rows, wanted)
    failed = (ModelOutcome(name, "failed", "is not registered") for name in lacking)
    _report(itertools.chain(failed, map(client.unregister, names)), as_json=as_json)


@torchserve.command("list")
@_server_options
def list_models(client: Management, as_json: bool, **_: Any) -> None:
    """List all versions of all registered models, with their archives and workers."""
    rows = [version for name, _ in client.list_models() for version in client.list_versions(name)]
    if as_json:
        print_list(map(asdict, rows))
        return
    width = max((len(row.name) for row in rows), default=0)
    for row in rows:
        workers = f"{row.workers} of {max(row.workers, row.workers_wanted)} workers ready"
        say(f"{row.name:<{width}}  {row.version:<8}  {workers:<22}  {row.url}")


def _wanted(model: str | None, file: plugin_files.TorchServeFile | None) -> tuple[str, ...]:
    """The names that the command line gives, else those of the file."""
    if model is not None:
        return tuple(name for each in model.split(",") if (name := each.strip()))
    return file.models if file else ()


def _plugin_file(path: Path | None) -> plugin_files.TorchServeFile | None:
    if path is None:
        return None
    file = plugin_files.read(path)
    for warning in file.warnings:
        say(f"d7yfs: warning: {warning}", err=True)
    return file


def _note(text: str) -> None:
    say(f"d7yfs: note: {text}", err=True)


def _mounted(file: plugin_files.TorchServeFile | None) -> Path:
    """The directory of the only mounted repository, or of the only one that `file` can mean."""
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
    """Each mounted repository with its directory: one of several is a directory in the mount."""
    for mount in mount_table():
        if mount.fstype == FSTYPE:
            for source in split_sources(mount.source):
                with contextlib.suppress(ConfigError):
                    name, url = parse_source(source)
                    yield mount.point / name, url


def _report(outcomes: Iterable[ModelOutcome], *, as_json: bool) -> None:
    """Print each outcome as it comes, or JSON at the end, after an error too. Exit status 1 if one
    failed."""
    console = Console(soft_wrap=True, highlight=False)
    rows: list[ModelOutcome] = []
    try:
        for outcome in outcomes:
            rows.append(outcome)
            if not as_json:
                console.print(f"[{_STYLE.get(outcome.result, 'green')}]{outcome.result:<12}[/] ", end="")
                console.print(cell(f"{outcome.model}{': ' if outcome.said else ''}{outcome.said}"))
                if outcome.hint:
                    console.print(cell(f"{'':<13}→ {outcome.hint}"))
    finally:
        if as_json:
            print_list(map(asdict, rows))
    if any(row.result == "failed" for row in rows):
        raise SystemExit(1)
