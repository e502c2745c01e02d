"""`d7yfs torchserve` as users type it, against a management API that answers as TorchServe does."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from click.testing import CliRunner, Result

from d7yfs.bounds.values import read_json
from d7yfs.cli import main
from d7yfs.host import mount_table
from d7yfs.servers import torchserve
from d7yfs.servers.torchserve_api import DEFAULT_ADDRESS
from tests.servers import fake_torchserve
from tests.servers.fake_torchserve import FakeTorchServe

TOKEN = "nez-ZZqI"
KEY_FILE = {
    "management": {"key": TOKEN, "expiration time": "2026-11-21T21:08:01.089764146Z"},
    "inference": {"key": "SIo5hryX"},
    "API": {"key": "Kx1439Ar"},
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A model store with two archives, an unpacked one, and what TorchServe does not look at."""
    path = tmp_path / "store"
    for directory in ("flat/MAR-INF", "sub", "plain", ".hidden/MAR-INF"):
        (path / directory).mkdir(parents=True)
    for name in ("one.mar", "two.mar", "sub/deep.mar", "README", ".dot.mar"):
        (path / name).write_bytes(b"x")
    return path


@pytest.fixture
def server() -> Iterator[FakeTorchServe]:
    made = FakeTorchServe({"one.mar": ("one", "1.0"), "two.mar": ("inner", "2.5"), "flat": ("flat", "1.0")})
    with fake_torchserve.running(made):
        yield made


def d7yfs(*arguments: str | Path, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["torchserve", *map(str, arguments)], env=env)


def register(server: FakeTorchServe, *arguments: str | Path, env: dict[str, str] | None = None) -> Result:
    return d7yfs("register", "--management", server.address, *arguments, env=env)


def written(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def posted(server: FakeTorchServe) -> list[dict[str, str]]:
    return [query for method, _, query in server.requests if method == "POST"]


# --- which models, with what ---


def test_all_models_are_registered_and_nothing_is_sent_that_was_not_given(server: FakeTorchServe, store: Path) -> None:
    done = register(server, "--model", "all", store)
    assert done.exit_code == 0, done.output
    assert posted(server) == [{"url": "flat"}, {"url": "one.mar"}, {"url": "two.mar"}]
    hint = "             → serves nothing until it has workers: --initial-workers N"
    assert done.stdout.splitlines() == [
        *("registered   flat: version 1.0, 0 workers", hint),
        *("registered   one: version 1.0, 0 workers", hint),
        *("registered   two: version 2.5 as inner, 0 workers", hint),
    ]


def test_what_is_given_is_sent(server: FakeTorchServe, store: Path) -> None:
    flags = ("--initial-workers", "2", "--batch-size", "4", "--max-batch-delay", "50")
    more = ("--response-timeout", "9", "--startup-timeout", "8", "--synchronous")
    assert register(server, "--model", "one.mar", *flags, *more, store).exit_code == 0
    expected = {"initial_workers": "2", "batch_size": "4", "max_batch_delay": "50"}
    expected |= {"response_timeout": "9", "startup_timeout": "8", "synchronous": "true"}
    assert posted(server) == [{"url": "one.mar"} | expected]


def test_workers_that_are_not_waited_for(server: FakeTorchServe, store: Path) -> None:
    done = register(server, "--model", "one", "--initial-workers", "1", "--no-synchronous", store)
    assert (done.exit_code, done.stdout.split()[0]) == (0, "accepted")
    assert posted(server) == [{"url": "one.mar", "initial_workers": "1", "synchronous": "false"}]
    assert "serves nothing" not in done.stdout


@pytest.mark.parametrize("load_model", ["two, flat", "all"])
def test_the_plugins_file_says_which_and_with_how_many_workers(
    server: FakeTorchServe, store: Path, tmp_path: Path, load_model: str
) -> None:
    content = f'{{ // as published\n "load_model": "{load_model}", "minWorker": "1", }}'
    file = written(tmp_path / "s3.json", content)
    assert register(server, "--config", file, store).exit_code == 0
    urls = ["flat", "one.mar", "two.mar"] if load_model == "all" else ["two.mar", "flat"]
    assert posted(server) == [{"url": url, "initial_workers": "1"} for url in urls]


def test_the_plugins_file_means_no_workers_where_it_says_nothing(
    server: FakeTorchServe, store: Path, tmp_path: Path
) -> None:
    file = written(tmp_path / "s3.json", {"load_model": "one"})
    assert register(server, store, env={"D7YFS_TORCHSERVE_CONFIG": str(file)}).exit_code == 0
    assert posted(server) == [{"url": "one.mar", "initial_workers": "0"}]


def test_the_command_line_overrides_the_plugins_file(server: FakeTorchServe, store: Path, tmp_path: Path) -> None:
    file = written(tmp_path / "s3.json", {"load_model": "all", "minWorker": 3})
    assert register(server, "--config", file, "--model", "one", "--initial-workers", "1", store).exit_code == 0
    assert posted(server) == [{"url": "one.mar", "initial_workers": "1"}]


@pytest.mark.parametrize("content", [None, {"load_model": ""}, {"addr": "h:1"}])
def test_no_word_about_models_is_an_error_that_lists_them(
    server: FakeTorchServe, store: Path, tmp_path: Path, content: Any
) -> None:
    files: list[str | Path] = ["--config", written(tmp_path / "file.json", content)] if content else []
    done = register(server, *files, store)
    assert done.exit_code == 2
    assert "no model is named; there is: flat, one, two\n" in done.output
    assert server.requests == []


def test_a_model_that_is_not_there_is_an_error_before_anything_is_registered(
    server: FakeTorchServe, store: Path
) -> None:
    done = register(server, "--model", "one,absent,deep", store)
    assert done.exit_code == 2
    assert f"{store} has no model absent, deep; there is: flat, one, two" in done.output
    assert (
        f"deep.mar lies in sub/: TorchServe takes archives only from its model store itself, so name {store}/sub"
        in (done.output)
    )
    assert server.requests == []


def test_all_that_there_is_is_listed(server: FakeTorchServe, tmp_path: Path) -> None:
    for number in range(101):
        (tmp_path / f"m{number:03}.mar").write_bytes(b"x")
    done = register(server, "--model", "absent", tmp_path)
    assert done.exit_code == 2
    assert "m098, m099 and 1 more\n" in done.output


def test_tarballs_are_archives_too(server: FakeTorchServe, store: Path) -> None:
    for name in ("packed.tar.gz", "other.tgz"):
        (store / name).write_bytes(b"x")
        server.store[name] = (name.partition(".")[0], "1.0")
    assert register(server, "--model", "packed,other.tgz", store).exit_code == 0
    assert posted(server) == [{"url": "packed.tar.gz"}, {"url": "other.tgz"}]
    assert register(server, "--model", "all", store).exit_code == 0
    assert len(server.models) == 5
    assert d7yfs("unregister", "--management", server.address, "--model", "packed.tar.gz,other").exit_code == 0
    assert len(server.models) == 3


def test_all_says_what_lies_too_deep(server: FakeTorchServe, store: Path) -> None:
    done = register(server, "--model", "all", store)
    assert done.exit_code == 0
    assert "not registered: sub/deep.mar: TorchServe takes archives only from its model store itself\n" in done.stderr
    assert "not registered" not in register(server, "--model", "one", store).stderr


def test_a_store_of_nothing_else_says_so(server: FakeTorchServe, store: Path) -> None:
    for name in ("one.mar", "two.mar"):
        (store / name).unlink()
    (store / "flat").rename(store / ".flat")
    done = register(server, "--model", "all", store)
    assert done.exit_code == 2
    assert "holds no model" in done.output
    assert (
        f"deep.mar lies in sub/: TorchServe takes archives only from its model store itself, so name {store}/sub"
        in (done.output)
    )


def test_a_directory_and_an_archive_of_one_name(server: FakeTorchServe, store: Path) -> None:
    (store / "flat.mar").write_bytes(b"x")
    server.store["flat.mar"] = ("flat", "2.0")
    assert register(server, "--model", "flat.mar", store).exit_code == 0
    assert register(server, "--model", "flat", store).exit_code == 0
    assert [each["url"] for each in posted(server)] == ["flat.mar", "flat"]


# --- one that fails ---


def test_one_that_fails_does_not_keep_the_others_and_counts(server: FakeTorchServe, store: Path) -> None:
    server.store |= {"flat": None}
    server.broken.add("one")
    done = register(server, "--model", "all", "--initial-workers", "1", store)
    assert done.exit_code == 1
    lines = done.output.splitlines()
    assert "failed       flat: Model name is not defined." in lines
    assert "failed       one: Failed to start workers for model one version: 1.0" in lines
    assert "registered   two: version 2.5 as inner, 1 worker" in lines


def test_one_without_an_answer_does_not_keep_the_others(server: FakeTorchServe, store: Path) -> None:
    server.silent.add("one.mar")
    done = register(server, "--model", "all", "--timeout", "1s", store)
    assert done.exit_code == 1
    lines = [line for line in done.stdout.splitlines() if "→" not in line]
    assert lines == [
        "registered   flat: version 1.0, 0 workers",
        f"failed       one: TorchServe at {server.address} did not answer in time",
        "registered   two: version 2.5 as inner, 0 workers",
    ]
    assert "TorchServe may still be loading it: d7yfs torchserve list" in done.stdout
    assert "--timeout waits longer, d7yfs warm beforehand" in done.stdout


def test_a_broken_connection_or_a_gateways_word_is_one_models_failure(server: FakeTorchServe, store: Path) -> None:
    server.cut.add("flat")
    server.gateway.add("one.mar")
    done = register(server, "--model", "all", "--json", store)
    assert done.exit_code == 1
    rows = json.loads(done.stdout)
    assert [row["result"] for row in rows] == ["failed", "failed", "registered"]
    assert "broke off its reply" in rows[0]["said"]
    assert "answered with status 502" in rows[1]["said"]
    assert all("may still be loading it" in row["hint"] for row in rows[:2])


def test_one_that_is_registered_already_is_no_failure(server: FakeTorchServe, store: Path) -> None:
    for workers, hint in (("0", "serves nothing until it has workers"), ("2", "unregister it first if its content")):
        server.models.clear()
        register(server, "--model", "one", "--initial-workers", workers, store)
        done = register(server, "--model", "one", "--json", store)
        assert done.exit_code == 0
        (row,) = json.loads(done.stdout)
        assert (row["model"], row["result"]) == ("one", "present")
        assert row["said"] == "Model version 1.0 is already registered for model one"
        assert hint in row["hint"]
    assert [method for method, _, _ in server.requests if method == "PUT"] == []


def test_one_that_is_registered_already_gets_the_workers_it_lacks(server: FakeTorchServe, store: Path) -> None:
    register(server, "--model", "all", store)
    done = register(server, "--model", "two", "--initial-workers", "2", store)
    assert done.exit_code == 0
    words = "present      two: Model version 2.5 is already registered for model inner; now 2 workers"
    assert done.stdout.splitlines()[0] == words
    method, path, query = server.requests[-1]
    assert (method, path, query) == ("PUT", "/models/inner/2.5", {"min_worker": "2", "synchronous": "true"})
    assert server.workers["inner"] == 2
    done = register(server, "--model", "two", "--initial-workers", "1", store)
    assert (done.exit_code, server.workers["inner"]) == (0, 2), "it keeps what it has"

    done = register(server, "--model", "one", "--initial-workers", "1", "--no-synchronous", store)
    assert (done.exit_code, done.stdout.split()[0]) == (0, "accepted")
    assert server.requests[-1][2]["synchronous"] == "false"
    server.broken.add("flat")
    done = register(server, "--model", "flat", "--initial-workers", "1", store)
    assert done.exit_code == 1
    assert "failed       flat: Failed to start workers for model flat version: 1.0" in done.stdout


def test_another_model_store_than_ours_shows_as_not_found(server: FakeTorchServe, store: Path) -> None:
    del server.store["one.mar"]
    done = register(server, "--model", "one", store)
    assert done.exit_code == 1
    assert "Model not found at: one.mar" in done.output
    assert "--ts-config FILE compares them" in done.output


# --- the server as a whole ---


def test_a_token_is_sent_and_a_missing_or_wrong_one_is_explained(
    server: FakeTorchServe, store: Path, tmp_path: Path
) -> None:
    server.token = TOKEN
    done = register(server, "--model", "all", store)
    assert done.exit_code == 1
    assert "wants a token" in done.output
    assert "key_file.json" in done.output
    assert len(server.requests) == 1, "the others would fare no better"
    for name, content in (("key_file.json", KEY_FILE), ("token", f"{TOKEN}\n")):
        file = written(tmp_path / name, content)
        done = register(server, "--model", "one", "--token-file", file, store)
        assert done.exit_code == 0, done.output
    server.token = "another"
    done = register(server, "--model", "one", "--token-file", file, store)
    assert done.exit_code == 1
    assert "refuses the token" in done.output
    assert "token_expiration_min minutes; GET /token?type=management" in done.output
    assert TOKEN not in done.output


@pytest.mark.parametrize("content", ["", "{broken", "{}", '{"management": {"key": 1}}', "two words", "ü", None])
def test_a_file_without_a_token_is_refused(
    server: FakeTorchServe, store: Path, tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "key_file.json"
    if content is not None:
        file.write_text(content)
    done = register(server, "--model", "one", "--token-file", file, store)
    assert done.exit_code == 2
    assert str(file) in done.output
    assert server.requests == []


def test_a_model_api_that_is_turned_off_is_explained(server: FakeTorchServe, store: Path) -> None:
    register(server, "--model", "one", store)
    server.model_api = False
    for command in (["register", "--model", "all", store], ["unregister", "--model", "one"]):
        done = d7yfs(*command, "--management", server.address)
        assert done.exit_code == 1
        assert "--enable-model-api" in done.output
    assert d7yfs("list", "--management", server.address).exit_code == 0, "reading is allowed"


def test_nobody_listens(store: Path) -> None:
    done = d7yfs(
        "register", "--management", f"http://127.0.0.1:{fake_torchserve.closed_port()}", "--model", "one", store
    )
    assert done.exit_code == 1
    assert "cannot be reached: Connection refused" in done.output
    assert "hint: is it running" in done.output


@pytest.mark.parametrize("path", ["/elsewhere", ""])
def test_another_server_than_torchserve(server: FakeTorchServe, store: Path, path: str) -> None:
    server.raw = b"" if path else b"<html>"
    done = d7yfs("register", "--management", server.address + path, "--model", "one", store)
    assert done.exit_code == 1
    assert "is not TorchServe's management API" in done.output


def test_json_holds_what_was_done_before_the_server_failed(server: FakeTorchServe, store: Path) -> None:
    server.token = TOKEN
    done = CliRunner().invoke(
        main, ["torchserve", "register", "--management", server.address, "--model", "all", "--json", str(store)]
    )
    assert done.exit_code == 1
    assert json.loads(done.stdout) == []
    assert "wants a token" in done.stderr


# --- where TorchServe is, and where the models are ---


def test_torchserves_own_configuration_says_both(server: FakeTorchServe, store: Path, tmp_path: Path) -> None:
    text = f"# comment\nmanagement_address = {server.address}\n#model_store=/x\nmodel_store={store}\nvmargs=-Da=b\n"
    config = written(tmp_path / "config.properties", text)
    assert d7yfs("register", "--ts-config", config, "--model", "one").exit_code == 0
    other = tmp_path / "other"
    other.mkdir()
    (other / "one.mar").write_bytes(b"x")
    done = d7yfs("register", "--ts-config", config, "--model", "one", other)
    assert done.exit_code == 2
    assert f"{other} is not TorchServe's model store: {config} says model_store={store}" in done.output
    (tmp_path / "link").symlink_to(store)
    assert d7yfs("register", "--ts-config", config, "--model", "two", tmp_path / "link").exit_code == 0


def test_torchserves_own_variable_names_its_configuration(server: FakeTorchServe, store: Path, tmp_path: Path) -> None:
    config = written(tmp_path / "c", f"management_address={server.address}\nmodel_store={store}")
    assert d7yfs("register", "--model", "one", env={"TS_CONFIG_FILE": str(config)}).exit_code == 0
    assert d7yfs("unregister", "--model", "one", env={"TS_CONFIG_FILE": str(config)}).exit_code == 0


def test_a_store_that_nothing_tells_of_is_said_once(server: FakeTorchServe, store: Path) -> None:
    done = register(server, "--model", "one,two", store)
    assert done.exit_code == 0
    assert done.stderr.count(f"nothing here says whether {store} is TorchServe's model store; --ts-config") == 1


@contextmanager
def process(server: FakeTorchServe, *options: str | Path, directory: Path | None = None) -> Iterator[None]:
    """A process that listens where `server` does, and is called as TorchServe's launcher calls Java.

    It speaks first: Popen returns when exec has closed the other files, which is before /proc shows the new arguments.
    """
    command: list[str | Path] = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    command += ["org.pytorch.serve.ModelServer", "--python", "python", *options]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, pass_fds=[server.listens_on], cwd=directory) as running:
        assert running.stdout is not None
        assert running.stdout.readline()
        yield


def test_the_running_servers_store_counts_and_not_its_files(
    server: FakeTorchServe, store: Path, tmp_path: Path
) -> None:
    """--model-store outdoes model_store, so the file must not make a right setup wrong, or a wrong one right."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "one.mar").write_bytes(b"x")
    config = written(tmp_path / "c", f"management_address={server.address}\nmodel_store={other}")
    with process(server, "-f", config, "-s", store, "-ncs"):
        done = d7yfs("register", "--ts-config", config, "--model", "one", store)
        assert done.exit_code == 0, done.output
        assert "d7yfs: note:" not in done.stderr
        done = d7yfs("register", "--ts-config", config, "--model", "one", other)
        assert done.exit_code == 2
        assert f"{other} is not TorchServe's model store: process " in done.output
        assert f"has --model-store {store}\n" in done.output
        assert d7yfs("register", "--ts-config", config, "--model", "two").exit_code == 0, "it is the default, too"
    assert d7yfs("register", "--ts-config", config, "--model", "one", store).exit_code == 2, "now the file counts"


def test_a_running_servers_store_may_be_relative(server: FakeTorchServe, store: Path) -> None:
    with process(server, "-s", store.name, directory=store.parent):
        assert register(server, "--model", "one", store).stderr == ""
        assert register(server, "--model", "two").exit_code == 0
        assert "is not TorchServe's model store" in register(server, "--model", "one", store.parent).output


def test_another_servers_store_says_nothing(server: FakeTorchServe, store: Path, tmp_path: Path) -> None:
    with fake_torchserve.running(FakeTorchServe({})) as other, process(other, "-s", tmp_path):
        done = register(server, "--model", "one", store)
        assert (done.exit_code, "nothing here says" in done.stderr) == (0, True)


def test_a_running_server_on_a_unix_socket(store: Path, tmp_path: Path) -> None:
    made = FakeTorchServe({"one.mar": ("one", "1.0")})
    with fake_torchserve.running(made, tmp_path / "s") as server, process(server, "-s", store):
        assert register(server, "--model", "one").exit_code == 0
        assert "is not TorchServe's model store" in register(server, "--model", "one", tmp_path).output


def test_an_address_to_listen_on_is_none_to_call(server: FakeTorchServe, store: Path, tmp_path: Path) -> None:
    config = written(tmp_path / "c", f"management_address={server.address.replace('127.0.0.1', '0.0.0.0')}")
    assert d7yfs("register", "--ts-config", config, "--model", "one", store).exit_code == 0
    assert server.hosts == [server.address.removeprefix("http://")]


def test_without_any_address_it_is_torchserves_own(
    server: FakeTorchServe, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert DEFAULT_ADDRESS == "http://127.0.0.1:8081"
    monkeypatch.setattr("d7yfs.cli.torchserve.DEFAULT_ADDRESS", server.address)
    assert d7yfs("register", "--model", "one", store).exit_code == 0
    assert len(posted(server)) == 1


def test_https_with_the_authority_that_signed(store: Path, tmp_path: Path) -> None:
    authority, bundle = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(bundle))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with fake_torchserve.running(FakeTorchServe({"one.mar": ("one", "1.0")}), tls=context) as server:
        done = register(server, "--model", "one", store)
        assert done.exit_code == 1
        assert "hint: name its authority with --ca-bundle" in done.output
        done = register(server, "--model", "one", "--ca-bundle", bundle, store)
        assert done.exit_code == 0, done.output


def test_a_unix_socket(store: Path, tmp_path: Path) -> None:
    with fake_torchserve.running(FakeTorchServe({"one.mar": ("one", "1.0")}), tmp_path / "s") as server:
        assert register(server, "--model", "one", store).exit_code == 0


def test_no_proxy_of_the_environment_is_asked(server: FakeTorchServe, store: Path) -> None:
    closed = f"http://127.0.0.1:{fake_torchserve.closed_port()}"
    assert register(server, "--model", "one", store, env={"HTTP_PROXY": closed, "ALL_PROXY": closed}).exit_code == 0


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:8081", "ftp://h", "http://", "http://u:secret@h", "unix:relative", "http://h:99999", "http://[x"],
)
def test_a_wrong_address(store: Path, address: str) -> None:
    done = d7yfs("register", "--management", address, "--model", "one", store)
    assert done.exit_code == 2
    assert "allowed: such as http://127.0.0.1:8081" in done.output
    assert "secret" not in done.output


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--timeout", "soon"], "--timeout 'soon'"),
        (["--ts-config", "/absent"], "/absent: cannot be read"),
        (["--ca-bundle", "/absent", "--management", "https://h"], "/absent holds no certificates"),
    ],
)
def test_wrong_arguments(store: Path, arguments: list[str], what: str) -> None:
    done = d7yfs("register", "--model", "one", *arguments, store)
    assert done.exit_code == 2
    assert what in done.output


def test_a_directory_that_cannot_be_read_or_holds_nothing(server: FakeTorchServe, tmp_path: Path) -> None:
    done = register(server, "--model", "all", tmp_path / "absent")
    assert (done.exit_code, "is not a directory" in done.output) == (2, True)
    done = register(server, "--model", "all", tmp_path)
    assert (done.exit_code, "holds no model" in done.output) == (2, True)


@pytest.mark.parametrize("count", [0, 1, 2])
def test_without_a_directory_it_is_the_only_mount(
    server: FakeTorchServe, store: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    table = [mount_table.Mount(store, "0:1", mount_table.FSTYPE, "s3://b")] * count
    table.append(mount_table.Mount(Path("/proc"), "0:2", "proc", "proc"))
    monkeypatch.setattr("d7yfs.cli.torchserve.mount_table", lambda: table)
    done = register(server, "--model", "one")
    assert done.exit_code == (0 if count == 1 else 2), done.output


def test_among_several_mounts_the_plugins_bucket_decides(
    server: FakeTorchServe, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mounted(point: Path, source: str) -> mount_table.Mount:
        return mount_table.Mount(point, "0:1", mount_table.FSTYPE, source)

    table = [mounted(tmp_path / "x", "s3://other"), mounted(store.parent, f"a=s3://b/c;d;{store.name}=s3://b/torch")]
    monkeypatch.setattr("d7yfs.cli.torchserve.mount_table", lambda: table)
    done = register(server, "--model", "one")
    assert done.exit_code == 2
    assert f"{tmp_path / 'x'} (s3://other), {store.parent / 'a'} (s3://b/c;d), {store} (s3://b/torch)" in done.output
    file = written(tmp_path / "s3.json", {"bucketName": "b", "key": "torch/one.mar", "load_model": "one"})
    assert register(server, "--config", file).exit_code == 0
    file = written(tmp_path / "s3.json", {"bucketName": "b", "key": "elsewhere", "load_model": "one"})
    assert register(server, "--config", file).exit_code == 2


# --- unregister, list ---


def test_list_shows_all_pages_and_versions(server: FakeTorchServe, store: Path) -> None:
    server.store |= {"one-v2.mar": ("one", "2.0")}
    (store / "one-v2.mar").write_bytes(b"x")
    register(server, "--model", "all", "--initial-workers", "2", store)
    done = d7yfs("list", "--management", server.address, "--json")
    assert done.exit_code == 0
    rows = json.loads(done.output)
    assert [(row["name"], row["version"], row["url"]) for row in rows] == [
        ("flat", "1.0", "flat"),
        ("inner", "2.5", "two.mar"),
        ("one", "1.0", "one.mar"),
        ("one", "2.0", "one-v2.mar"),
    ]
    assert {(row["workers"], row["workers_wanted"], row["batch_size"]) for row in rows} == {(2, 2, 1)}
    shown = d7yfs("list", "--management", server.address).output.splitlines()
    assert shown[1].split() == ["inner", "2.5", "2", "of", "2", "workers", "ready", "two.mar"]


def test_unregister_takes_every_version_and_knows_archives_too(server: FakeTorchServe, store: Path) -> None:
    server.store |= {"one-v2.mar": ("one", "2.0")}
    (store / "one-v2.mar").write_bytes(b"x")
    register(server, "--model", "all", store)
    done = d7yfs("unregister", "--management", server.address, "--model", "one,two")
    assert (done.exit_code, done.output) == (0, "unregistered one\nunregistered inner\n")
    assert list(server.models) == ["flat"]
    done = d7yfs("unregister", "--management", server.address, "--model", "absent,flat")
    assert done.exit_code == 1
    assert done.output.splitlines() == ["failed       absent: is not registered", "unregistered flat"]


def test_unregister_all_or_nothing_named(server: FakeTorchServe, store: Path) -> None:
    register(server, "--model", "all", store)
    done = d7yfs("unregister", "--management", server.address)
    assert done.exit_code == 2
    assert "no model is named; registered: flat, inner, one" in done.output
    assert d7yfs("unregister", "--management", server.address, "--model", "all").exit_code == 0
    assert server.models == {}


def test_unregister_takes_nothing_away_because_of_a_variable(
    server: FakeTorchServe, store: Path, tmp_path: Path
) -> None:
    """Variables of a whole host are for mount and register."""
    file = written(tmp_path / "s3.json", {"load_model": "all"})
    register(server, "--config", file, store)
    done = d7yfs("unregister", "--management", server.address, env={"D7YFS_TORCHSERVE_CONFIG": str(file)})
    assert done.exit_code == 2
    assert "no model is named; registered: flat, inner, one" in done.output
    assert len(server.models) == 3
    assert d7yfs("unregister", "--management", server.address, "--config", file).exit_code == 0
    assert server.models == {}


@pytest.mark.parametrize(
    "body",
    [b"[" * 100_000, b'{"status": 1e999}', b"9" * 5000, b"[" + b"[]," * 1_000_000 + b"[]]", b"\xff"],
)
def test_an_answer_that_no_server_gives(server: FakeTorchServe, store: Path, body: bytes) -> None:
    server.raw = body
    done = d7yfs("register", "--management", server.address, "--model", "one", store)
    assert done.exit_code == 1
    assert "is not TorchServe's management API" in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize("number", ["9" * 4000, "-1", "true", "1.5", '"x"'])
def test_numbers_that_no_server_gives(number: str) -> None:
    body = read_json(f'[{{"modelName": "a", "minWorkers": {number}, "batchSize": {number}, "workers": [1, null]}}]')
    (found,) = torchserve.described(torchserve.ApiReply(200, body))
    assert (found.workers, found.workers_wanted, found.batch_size) == (0, 0, 0)
