"""The dry run of the ways through dfdaemon: what is said of each that does not work, and why."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from d7yfs.check import dragonfly
from d7yfs.check.dragonfly import _tls
from d7yfs.check.dry_run import check
from d7yfs.check.findings import Finding, Severity
from d7yfs.config.sources import load_settings
from d7yfs.repository.repository import open_repositories
from tests.check.test_dry_run import findings, settings_for
from tests.fetch.doubles import FakeOrigin
from tests.servers.dfdaemon import FakeDfdaemon, other_task
from tests.servers.dfdaemon_socket import FakeDfdaemonSocket, Fault
from tests.servers.s3_faults import S3Faults
from tests.servers.scripted import ScriptedServer

SIZE = 6 << 20


@pytest.fixture
async def store() -> AsyncIterator[S3Faults]:
    async with S3Faults({"b/models/a/model.onnx": b"m" * SIZE, "b/models/top": b"t"}).running() as running:
        yield running


@contextmanager
def nobody() -> Iterator[int]:
    """A port that refuses connections."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield listener.getsockname()[1]


# --- proxies ---


async def test_each_of_several_proxies_is_tried(store: S3Faults, tmp_path: Path) -> None:
    async with FakeDfdaemon().running() as dfdaemon:
        with nobody() as port:
            both: dict[str, Any] = {"proxy": f"http://127.0.0.1:{port},{dfdaemon.url}", "fallback": False}
            found = [each async for each in check(settings_for(store, tmp_path, **both)) if each.probe == "proxy"]
    assert [each.verdict for each in found] == [Severity.WARNING, Severity.OK]
    assert found[0].said.endswith("files come through another proxy meanwhile")
    assert dfdaemon.url in found[1].said


@pytest.mark.parametrize(("fallback", "verdict"), [(True, Severity.WARNING), (False, Severity.FAILED)])
async def test_a_proxy_that_is_down_fails_only_if_the_store_may_not_stand_in(
    store: S3Faults, tmp_path: Path, fallback: bool, verdict: Severity
) -> None:
    with nobody() as port:
        url = f"http://127.0.0.1:{port}"
        found = await findings(settings_for(store, tmp_path, proxy=url, fallback=fallback))
    assert found["proxy"].verdict is verdict
    assert ("files come straight from the store" in found["proxy"].said) is fallback
    assert found["proxy"].hint


@pytest.mark.parametrize(("fallback", "verdict"), [("true", Severity.WARNING), ("false", Severity.FAILED)])
async def test_credentials_that_send_a_token(store: S3Faults, tmp_path: Path, fallback: str, verdict: Severity) -> None:
    async with FakeDfdaemon().running() as dfdaemon, ScriptedServer({"a": b"1"}).running() as server:
        settings = settings_for(store, tmp_path, proxy=dfdaemon.url, fallback=fallback)
        (repository,) = open_repositories(settings)
        origin = FakeOrigin(server)
        origin.signs = False
        repository.fetcher.origin = origin
        version = origin.version("a")
        found = [each async for each in dragonfly.check_dragonfly(repository, version, version, settings.config)]
        assert [(each.probe, each.verdict) for each in found] == [("tokens", verdict)]
        assert "--p2p-tokens" in found[0].hint
        assert not dfdaemon.requests
        await repository.aclose()


async def test_a_proxy_at_its_old_port(store: S3Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """65001 refuses, and where dfdaemon listens today somebody answers."""
    async with FakeDfdaemon().running() as dfdaemon:
        monkeypatch.setattr(dragonfly, "address_meant_instead", lambda url: dfdaemon.url)
        with nobody() as port:
            found = await findings(settings_for(store, tmp_path, proxy=f"http://127.0.0.1:{port}"))
        assert found["proxy"].verdict is Severity.WARNING
        assert f"but {dfdaemon.url} answers" in found["proxy"].hint
        dfdaemon.kill()
        with nobody() as port:
            found = await findings(settings_for(store, tmp_path, proxy=f"http://127.0.0.1:{port}"))
        assert "answers" not in found["proxy"].hint


async def test_a_proxy_that_does_not_heed_content_ids(store: S3Faults, tmp_path: Path) -> None:
    async with FakeDfdaemon().running() as dfdaemon:
        dfdaemon.script(other_task())
        found = await findings(settings_for(store, tmp_path, proxy=dfdaemon.url))
        assert found["proxy"].verdict is Severity.WARNING, found["proxy"]
        assert "content ids" in found["proxy"].said
        assert "--versioned" in found["proxy"].hint
        dfdaemon.script(other_task(), forever=True)
        found = await findings(settings_for(store, tmp_path, proxy=dfdaemon.url, fallback=False))
        assert found["proxy"].verdict is Severity.FAILED
        assert "content ids" in found["proxy"].said


# --- TLS ---


def _of_https(tmp_path: Path, **flags: object) -> Finding:
    flags = {"anonymous": True, "cache_dir": tmp_path, "proxy": "http://h:4001", "region": "us-east-1", **flags}
    settings = load_settings(flags, ["s3://b/models"], None, {}, None)
    (repository,) = open_repositories(settings)
    return _tls(repository, settings.config)


async def test_what_protects_what_a_proxy_brings_from_an_https_store(tmp_path: Path, store: S3Faults) -> None:
    found = _of_https(tmp_path)
    assert (found.verdict, "does not verify the certificate" in found.said) == (Severity.OK, True)
    assert "checksums protect" in found.said
    found = _of_https(tmp_path, verify="off")
    assert found.verdict is Severity.WARNING
    assert "nothing else protects" in found.said
    async with FakeDfdaemon().running() as dfdaemon:
        assert "tls" not in await findings(settings_for(store, tmp_path, proxy=dfdaemon.url)), "the store speaks http"
    assert "tls" not in await findings(settings_for(store, tmp_path)), "nothing goes through dfdaemon"


# --- the socket ---


async def test_a_file_is_handed_over(store: S3Faults, tmp_path: Path) -> None:
    with FakeDfdaemonSocket(tmp_path / "d") as dfdaemon:
        found = await findings(settings_for(store, tmp_path, dfdaemon_socket=dfdaemon.url))
        assert found["hand-over"].verdict is Severity.OK, found["hand-over"]
        assert "b/models/top linked into the cache, 1 bytes" in found["hand-over"].said, "the smallest that was seen"
        (order,) = dfdaemon.orders
        assert not Path(order.output_path).exists()
    assert not (tmp_path / "cache").exists(), "a dry run makes nothing"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["d", "mnt"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault.OTHER_FILE_SYSTEM, "cross-device link"),
        (Fault.OTHER_NAMESPACE, "sees another directory"),
        (Fault.COPIES, "copied its file and not linked it"),
    ],
)
async def test_a_file_that_cannot_be_linked(store: S3Faults, tmp_path: Path, fault: Fault, said: str) -> None:
    with FakeDfdaemonSocket(tmp_path / "d") as dfdaemon, dfdaemon.failing(fault):
        found = await findings(settings_for(store, tmp_path, dfdaemon_socket=dfdaemon.url))
        assert found["hand-over"].verdict is Severity.WARNING
        assert said in found["hand-over"].said, found["hand-over"]
        assert found["hand-over"].said.endswith("files come from the store instead")
        assert "file system of dfdaemon's storage" in found["hand-over"].hint
        found = await findings(settings_for(store, tmp_path, dfdaemon_socket=dfdaemon.url, fallback=False))
        assert found["hand-over"].verdict is Severity.FAILED


async def test_a_socket_that_is_not_there(store: S3Faults, tmp_path: Path) -> None:
    async with FakeDfdaemon().running() as proxy:
        settings = settings_for(store, tmp_path, dfdaemon_socket=f"unix://{tmp_path}/absent.sock", proxy=proxy.url)
        found = await findings(settings)
    assert found["hand-over"].verdict is Severity.WARNING
    assert "No such file or directory; files come through the proxy instead" in found["hand-over"].said
    assert "is dfdaemon running" in found["hand-over"].hint
    assert found["proxy"].verdict is Severity.OK


async def test_a_daemon_that_hangs(store: S3Faults, tmp_path: Path) -> None:
    with FakeDfdaemonSocket(tmp_path / "d") as dfdaemon, dfdaemon.failing(Fault.HANGS):
        settings = settings_for(store, tmp_path, dfdaemon_socket=dfdaemon.url, read_timeout="0.3s")
        found = await findings(settings)
    assert "not handed over within 0.3 s" in found["hand-over"].said
