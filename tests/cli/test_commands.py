"""The commands as a user types them, where no daemon is needed: output, exit status, errors without traceback."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from d7yfs.cli import COMMANDS, main, ungrouped
from d7yfs.cli.daemons import UntouchedPath
from d7yfs.cli.mount import split_arguments
from d7yfs.cli.options import FIRST
from d7yfs.cli.paths import describe_stat
from d7yfs.config.schema import OPTIONS
from d7yfs.control import control_socket
from d7yfs.errors import ConfigError, MountError, NotFound
from d7yfs.host import mount_table
from d7yfs.stats.words import show_size_roughly
from tests.servers import faults
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults


def d7yfs(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments)])


@pytest.fixture
def store() -> Iterator[InThread[S3Faults]]:
    objects = {"b/models/a/model.onnx": b"m" * 5000, "b/models/ü b": b"t", "b/models/x": b"", "b/models/x/y": b"1"}
    with InThread(S3Faults(objects)) as running:
        yield running


@pytest.fixture
def _nothing_mounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(control_socket, "runtime_directory", lambda: tmp_path / "run")
    monkeypatch.setattr(mount_table, "mount_table", list)


def url_of(store: InThread[S3Faults], prefix: str) -> str:
    return f"s3://127.0.0.1:{store.server.port}/b/{prefix}"


# --- help ---


def test_help_lists_every_command() -> None:
    shown = d7yfs("--help")
    assert shown.exit_code == 0
    for name, line in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(line[:30])}", shown.output, re.MULTILINE), name


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    shown = d7yfs(name, "--help")
    assert shown.exit_code == 0
    assert f"{name} [OPTIONS]" in shown.output


@pytest.mark.parametrize("name", ["mount", "check"])
def test_help_shows_every_option_with_its_variable(name: str) -> None:
    shown = d7yfs(name, "--help-all").output
    for option in OPTIONS.values():
        assert option.variable in shown, option.name
    assert "--config" in shown


def test_help_begins_with_the_dozen_that_most_mounts_need() -> None:
    shown = d7yfs("mount", "--help").output
    assert [name for name, option in OPTIONS.items() if re.search(rf"\[{option.variable}[;=]", shown)] == [
        name for name in OPTIONS if name in FIRST
    ]
    assert len(FIRST) == 11
    assert f"{len(OPTIONS) - 11} more settings" in shown
    assert len(shown.splitlines()) < 80


def test_help_of_a_command_by_the_command_help() -> None:
    assert d7yfs("help").output == d7yfs("--help").output
    assert d7yfs("help", "warm").output == d7yfs("warm", "--help").output
    assert d7yfs("help", "wram").exit_code == 2


@pytest.mark.parametrize(
    ("said", "meant"), [("mont", "mount"), ("stats", "status"), ("list", "ls"), ("version", "--version")]
)
def test_a_command_that_is_none_names_the_nearest(said: str, meant: str) -> None:
    done = d7yfs(said)
    assert done.exit_code == 2
    assert done.output == f"d7yfs: error: there is no command {said!r}\nhint: did you mean `d7yfs {meant}`?\n"


def test_a_command_that_is_like_none_names_the_list() -> None:
    assert "`d7yfs --help` lists them" in d7yfs("frobnicate").output


def test_unmount_is_umount() -> None:
    assert d7yfs("unmount", "/nowhere").output == d7yfs("umount", "/nowhere").output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-o", "ro,umask=022"], "hint: file_mode=0444 and dir_mode=0555 say it"),
        (["-o", "use_cache=/x"], "hint: cache_dir=DIR"),
        (["-oallow_othr"], "did you mean allow_other?"),
        (["-o", "cache_size=much"], "--cache-size 'much' is not a size"),
        (["-o", "ro,nonempty,default_permissions,fsname=x", "-v", "-f", "--cache-size=much"], "is not a size"),
    ],
)
def test_mount_takes_the_options_of_fstab(arguments: list[str], words: str) -> None:
    done = d7yfs("mount", *arguments, "s3://bucket", "/nowhere/m")
    assert done.exit_code == 2
    assert words in done.output


@pytest.mark.parametrize("flag", ["--version", "-V"])
def test_version(flag: str) -> None:
    assert re.fullmatch(r"d7yfs, version \d+\.\d+\.\d+\S*\n", d7yfs(flag).output)


@pytest.mark.parametrize("arguments", [["mount", "--cash-size", "1"], ["ls"], ["completion", "tcsh"]])
def test_usage_errors_are_status_2(arguments: list[str]) -> None:
    done = d7yfs(*arguments)
    assert done.exit_code == 2
    assert "Usage:" in done.output


def _parameters(command: click.Command) -> Iterator[click.Parameter]:
    yield from command.params
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            below = command.get_command(click.Context(command), name)
            assert below is not None
            yield from _parameters(below)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_looks_at_what_may_lie_in_a_mount(name: str) -> None:
    command = main.get_command(click.Context(main), name)
    assert command is not None
    for each in _parameters(command):
        if isinstance(each, click.Argument) and isinstance(each.type, click.Path):
            assert isinstance(each.type, UntouchedPath), each.name
        if isinstance(each, click.Argument) and {"PATH", "MOUNTPOINT"} & set(
            re.findall(r"\w+", each.human_readable_name)
        ):
            assert isinstance(each.type, UntouchedPath) or each.type is click.STRING, each.name


# --- mount, as far as it goes without a daemon ---


def test_split_arguments() -> None:
    assert split_arguments(()) == ((), None)
    assert split_arguments(("s3://b",)) == (("s3://b",), None)
    assert split_arguments(("/mnt",)) == ((), Path("/mnt"))
    assert split_arguments(("a=s3://b", "c=s3://d", "mnt")) == (("a=s3://b", "c=s3://d"), Path("mnt"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["s3://b"], "no mount point is given"),
        (["/mnt"], "no repository is given"),
        (["ftp://b", "/mnt"], "s3"),
        (["s3://a", "s3://b", "/mnt"], "need a name each"),
        (["x=s3://a", "x=s3://b", "/mnt"], "given twice"),
        (["s3://b", "/mnt", "--cache-size", "much"], "--cache-size"),
        (["s3://b", "/mnt", "--proxy", "https://h"], "--proxy"),
        (["s3://b", "/mnt", "--config", "/absent.toml"], "/absent.toml"),
    ],
)
def test_mount_refuses_what_cannot_be(arguments: list[str], said: str) -> None:
    done = d7yfs("mount", *arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith("d7yfs: error: ")
    assert said in done.stderr
    assert done.stdout == ""


def test_the_exit_statuses_of_each_command_are_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    _, _, section = page.partition("## Exit statuses")
    cells = re.findall(r"^\| (`.*?) \|", section.partition("\n## ")[0], re.MULTILINE)
    named = {word.split()[0] for cell in cells for word in re.findall(r"`([^`]+)`", cell)}
    assert named == set(COMMANDS)


# --- umount, status, stat without mounts ---


@pytest.mark.usefixtures("_nothing_mounted")
def test_without_a_mount(tmp_path: Path) -> None:
    assert d7yfs("umount").exit_code == 2, "which one?"
    named = (("umount", tmp_path), ("stat", tmp_path / "file"), ("status", tmp_path), ("reload", tmp_path))
    for command, path in named:
        done = d7yfs(command, path)
        assert done.exit_code == 1, command
        assert str(tmp_path) in done.stderr or "no answer" in done.stderr
        assert done.stderr.startswith("d7yfs: error: ")
    for command in ("status", "log-level", "reload"):
        done = d7yfs(command)
        assert (done.exit_code, done.stdout) == (0, "nothing is mounted\n")
        assert json.loads(d7yfs(command, "--json").stdout) == []
    done = d7yfs("reload", tmp_path, "--pid", "1")
    assert (done.exit_code, done.stdout) == (2, "")
    done = d7yfs("reload", "--pid", "1")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("d7yfs: error: process 1 is no daemon of yours")


# --- ls ---


def test_ls(store: InThread[S3Faults]) -> None:
    done = d7yfs("ls", url_of(store, "models"), "--anonymous")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "       -  -                     a/",
        "       -  -                     x/",
        "     1 B  2023-11-14T22:13:20Z  ü b",
    ]
    assert "1 key cannot be shown" in done.stderr
    assert "models/x" in done.stderr


def test_ls_with_versions(store: InThread[S3Faults]) -> None:
    done = d7yfs("ls", "-l", url_of(store, "models/a"), "--anonymous")
    etag = store.server.etag("b/models/a/model.onnx")
    assert done.stdout.split() == ["5000", "2023-11-14T22:13:20Z", etag, "model.onnx"]


def test_ls_of_all_below(store: InThread[S3Faults]) -> None:
    names = ["a/", "a/model.onnx", "x/", "x/y", "ü b"]
    done = d7yfs("ls", "-R", url_of(store, "models"), "--anonymous")
    assert done.exit_code == 0
    assert [line[32:] for line in done.stdout.splitlines()] == names, "after columns of a fixed width"
    assert "1 key cannot be shown" in done.stderr
    told = json.loads(d7yfs("ls", "-R", url_of(store, "models"), "--anonymous", "--json").stdout)
    assert [each["name"] for each in told] == names
    lone = d7yfs("ls", "-R", url_of(store, "models/a/model.onnx"), "--anonymous")
    assert lone.stdout.endswith("  model.onnx\n")


@pytest.mark.parametrize(
    ("answer", "lines"),
    [
        (
            {"directory": True, "path": "", "url": "s3://b/"},
            ["directory: . in /mnt/m", "url: s3://b/"],
        ),
        (
            {"directory": False, "path": "a/w", "size_bytes": 3 << 20, "cached_bytes": 1 << 20, "version_id": "v"},
            [
                "file: a/w in /mnt/m",
                "size: 3 MiB (3145728 bytes)",
                "cached: 1 MiB (1048576 bytes), 33%",
                "version_id: v",
            ],
        ),
        (
            {"directory": False, "path": "e", "size_bytes": 0, "cached_bytes": 0},
            ["file: e in /mnt/m", "size: 0 bytes", "cached: all"],
        ),
    ],
)
def test_stat_for_people(answer: dict[str, object], lines: list[str]) -> None:
    told = {"schema": 1, "mountpoint": "/mnt/m", **answer}
    assert [f"{label}: {text}" for label, text in describe_stat(told)] == lines


def test_ls_as_json(store: InThread[S3Faults]) -> None:
    directory, *_ = json.loads(d7yfs("ls", url_of(store, "models"), "--anonymous", "--json").stdout)
    assert directory == {"schema": 1, "name": "a/", "size_bytes": None, "modified": None, "version": None}
    (row,) = json.loads(d7yfs("ls", url_of(store, "models/a/"), "--anonymous", "--json").stdout)
    assert row == {
        "schema": 1,
        "name": "model.onnx",
        "size_bytes": 5000,
        "modified": "2023-11-14T22:13:20Z",
        "version": store.server.etag("b/models/a/model.onnx"),
    }


def test_ls_of_one_object(store: InThread[S3Faults]) -> None:
    (line,) = d7yfs("ls", url_of(store, "models/a/model.onnx"), "--anonymous").stdout.splitlines()
    assert line.endswith("model.onnx")


def test_ls_of_nothing(store: InThread[S3Faults]) -> None:
    done = d7yfs("ls", url_of(store, "modles"), "--anonymous")
    assert done.exit_code == 1
    assert "b/models" in done.stderr
    assert "Traceback" not in done.output


# --- check ---


def test_check(store: InThread[S3Faults], tmp_path: Path) -> None:
    arguments = ("check", url_of(store, "models"), "--anonymous", "--cache-dir", tmp_path / "cache")
    done = d7yfs(*arguments, "--json", "--read-timeout", "1s")
    found = {row["probe"]: row for row in json.loads(done.stdout)}
    assert (found["list"]["verdict"], found["read"]["verdict"]) == ("ok", "ok")
    assert found["names"]["verdict"] == "warning"

    shown = d7yfs(*arguments, "--settings")
    assert re.search(r"^ok +read", shown.stdout, re.MULTILINE)
    assert re.search(r"^warning +names", shown.stdout, re.MULTILINE)
    assert f"cache_dir = {tmp_path / 'cache'}  (from --cache-dir)" in shown.stdout
    part = d7yfs(*arguments, "--settings", "--cache-size", "50%,9T", "--cache-min-free", "5%")
    assert re.search(r"cache_size = 50%,9TiB, now [0-9.]+ [KMGT]iB  \(from --cache-size\)", part.stdout)
    assert re.search(r"cache_min_free = 5%, now [0-9.]+ [KMGT]iB ", part.stdout)


def test_check_of_what_is_broken_is_status_1(store: InThread[S3Faults], tmp_path: Path) -> None:
    store.do(lambda: store.server.script(faults.status(403), key="b", forever=True))
    done = d7yfs("check", url_of(store, "models"), "--anonymous", "--cache-dir", tmp_path / "cache")
    assert done.exit_code == 1
    failed = re.search(r"^failed +list +(.+)\n +→ (.+)", done.stdout, re.MULTILINE)
    assert failed


# --- completion ---


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    done = d7yfs("completion", shell)
    assert done.exit_code == 0
    assert "_D7YFS_COMPLETE" in done.stdout


# --- parts ---


def test_ungrouped_raises_the_expected_failure_alone() -> None:
    nested = ExceptionGroup("outer", [ExceptionGroup("inner", [NotFound("it"), MountError("other")])])
    with pytest.raises(NotFound, match="it"), ungrouped():
        raise nested
    with pytest.raises(ExceptionGroup), ungrouped():
        raise ExceptionGroup("mixed", [NotFound("it"), ZeroDivisionError()])
    with pytest.raises(ConfigError), ungrouped():
        raise ConfigError("plain")


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def buggy(shell: str) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(importlib.import_module("d7yfs.cli.completion"), "get_completion_class", buggy)
    assert isinstance(d7yfs("completion", "bash").exception, ZeroDivisionError)


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (20 << 20, "20 MiB"),
        (3 << 40, "3 TiB"),
        (5 << 50, "5120 TiB"),
    ],
)
def test_sizes_for_people(size: int, shown: str) -> None:
    assert show_size_roughly(size) == shown
