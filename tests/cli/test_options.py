"""Flags made from the schema, the help, errors as text and exit status, and the start-up cost."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner, Result

from d7yfs import cli
from d7yfs.cli.options import Command, Given, settings_options
from d7yfs.config.schema import GROUPS, OPTIONS, REPOSITORY
from d7yfs.errors import AccessDenied, UsageError


@click.command(cls=Command)
@click.argument("sources", nargs=-1)
@settings_options()
@click.option("--twice", is_flag=True, help="Its own option.")
def show(sources: tuple[str, ...], given: Given, twice: bool) -> None:
    """Show what was given."""
    flags = json.dumps(dict(given.flags), sort_keys=True)
    click.echo(f"{sources} {flags} {given.config} {twice}")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs `d7yfs ARGUMENTS` with `show` in the place of `mount`."""

    def invoke(*arguments: str, command: click.Command = show) -> Result:
        module = types.ModuleType("d7yfs.cli.mount")
        module.mount = command  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "d7yfs.cli.mount", module)
        return CliRunner().invoke(cli.main, arguments, prog_name="d7yfs")

    return invoke


@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ((), {}),
        (("--cache-size", "5G", "--cache-size", "6G"), {"cache_size": "6G"}),
        (("--anonymous",), {"anonymous": True}),
        (("--no-anonymous",), {"anonymous": False}),
        (("--no-fallback", "--insecure-skip-tls-verify"), {"fallback": False, "verify_tls": False}),
        (("--fallback", "--verify-tls"), {"fallback": True, "verify_tls": True}),
        (("--no-allow-other",), {"allow_other": False}),
        (("--log-level", "DEBUG"), {"log_level": "debug"}),
        (("--proxy", ""), {"proxy": ""}),
        (("--file-mode", "0400", "--log-file", "/l"), {"file_mode": "0400", "log_file": "/l"}),
    ],
)
def test_only_what_was_given_travels_on(
    run: Callable[..., Result], arguments: tuple[str, ...], flags: dict[str, object]
) -> None:
    result = run("mount", "s3://a", *arguments, "--config", "/c.toml")
    assert result.exit_code == 0, result.output
    assert result.output == f"('s3://a',) {json.dumps(flags, sort_keys=True)} /c.toml False\n"


def test_variables_are_left_to_the_configuration(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D7YFS_REGION", "r")
    monkeypatch.setenv("D7YFS_CONFIG", "/c.toml")
    assert run("mount").output == "() {} None False\n"


def test_help_has_every_option_once_under_its_group(run: Callable[..., Result]) -> None:
    text = run("mount", "--help-all").output
    for option in OPTIONS.values():
        shown = option.off_flag if option.on_by_default else option.flag
        # A name at the start of its line; texts may mention others.
        assert sum(line.strip().removeprefix("-f, ").split(" ")[0] == shown for line in text.splitlines()) == 1, shown
        assert f"[{option.variable}" in text
    titles = ["Options", *GROUPS]
    assert [line[:-1] for line in text.splitlines() if line[:-1] in titles and line.endswith(":")] == titles
    assert "default: 50GiB" in " ".join(text.split())
    assert "SOURCES" in text.splitlines()[0]
    assert "--twice" in text


def test_some_groups_only() -> None:
    @click.command(cls=Command)
    @settings_options(REPOSITORY)
    def command(given: Given) -> None:
        click.echo(dict(given.flags))

    runner = CliRunner()
    assert runner.invoke(command, ["--region", "r"]).output == "{'region': 'r'}\n"
    assert runner.invoke(command, ["--cache-size", "1G"]).exit_code == 2


@pytest.mark.parametrize(
    ("error", "status", "text"),
    [
        (UsageError("it cannot be", hint="try the other"), 2, "d7yfs: error: it cannot be\nhint: try the other\n"),
        (AccessDenied("s3://b: refused"), 1, "d7yfs: error: s3://b: refused\n"),
    ],
)
def test_expected_failures_are_text_and_status(
    run: Callable[..., Result], error: Exception, status: int, text: str
) -> None:
    @click.command()
    def failing() -> None:
        raise error

    result = run("mount", command=failing)
    assert result.exit_code == status
    assert result.stderr == text
    assert result.stdout == ""


def test_a_bug_keeps_its_traceback(run: Callable[..., Result]) -> None:
    @click.command()
    def failing() -> None:
        raise ZeroDivisionError

    assert isinstance(run("mount", command=failing).exception, ZeroDivisionError)


def test_loading_shows_warnings_and_refuses_wrong_values(
    run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    @click.command(cls=Command)
    @settings_options()
    def loading(given: Given) -> None:
        click.echo(given.load(("s3://a",), None).config.cache_size.size_bytes)

    monkeypatch.setenv("D7YFS_CACHE_SISE", "1")
    result = run("mount", "--cache-size", "1K", command=loading)
    assert result.stdout == "1024\n"
    assert result.stderr.startswith("d7yfs: warning: variable D7YFS_CACHE_SISE is unknown")
    result = run("mount", "--cache-size", "lots", command=loading)
    assert result.exit_code == 2
    assert "d7yfs: error: --cache-size 'lots' is not a size; allowed: " in result.stderr


@pytest.mark.parametrize(
    ("arguments", "incomplete", "found"),
    [
        ([], "mo", "mount"),
        (["mount"], "--log-f", "--log-format"),
        (["mount"], "--insecure", "--insecure-skip-tls-verify"),
        (["mount", "--log-format"], "j", "json"),
    ],
)
def test_shell_completion(run: Callable[..., Result], arguments: list[str], incomplete: str, found: str) -> None:
    run("mount")
    completion = BashComplete(cli.main, {}, "d7yfs", "_D7YFS_COMPLETE")
    assert found in [item.value for item in completion.get_completions(arguments, incomplete)]


def test_unknown_command_and_option(run: Callable[..., Result]) -> None:
    assert run("mont").exit_code == 2
    result = run("mount", "--cache-sise", "1")
    assert result.exit_code == 2
    assert "--cache-size" in result.output


def test_help_of_the_group_lists_all_commands_without_importing_them() -> None:
    code = "import sys; from d7yfs.cli import main; main(['--help'], standalone_mode=False); print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    text, _, modules = result.stdout.rpartition("\nsys ")
    for name, line in cli.COMMANDS.items():
        assert f"  {name} " in text
        assert line.split()[0] in text
        assert f"d7yfs.cli.{name}" not in modules.split()
