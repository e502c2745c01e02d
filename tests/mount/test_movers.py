"""Movers beside a real mount: right bytes whatever happens to them, and none left behind."""

from __future__ import annotations

import os
import shutil
import signal
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import trustme

from tests.mount.conftest import MIB, bytes_of, faulty_url
from tests.mount.mounted import D7YFS, Mounted, Mounter, ended, in_background, movers_of, run, until
from tests.mount.test_stalls import ANSWER_S, SMALL, Freezer, disk
from tests.servers import faults
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

__all__ = ["disk"]

pytestmark = pytest.mark.mount

BODY = bytes_of(3, 24 * MIB + 5)
FIRST = BODY[:MIB]
"""The smallest object that is worth a mover."""
ONE_REQUEST = BODY[: 4 * MIB]
"""An object that comes by one request, so that nothing but its mover writes."""


@pytest.fixture
def store(faulty: InThread[S3Faults]) -> InThread[S3Faults]:
    faulty.do(faulty.server.put, "b/file", BODY)
    faulty.do(faulty.server.put, "b/one", ONE_REQUEST)
    faulty.do(faulty.server.put, "b/first", FIRST)
    return faulty


def start_movers(mounted: Mounted, count: int) -> list[int]:
    """Have the movers of a mount started by its first bytes."""
    assert mounted.read("first") == FIRST
    until(lambda: mounted.status()["movers"]["ready"] == count, "movers that take jobs")
    return movers_of(mounted.worker_pid)


class Half:
    """A reader of a file whose first reply stops in the middle."""

    def __init__(self, mounted: Mounted, store: InThread[S3Faults], name: str = "file") -> None:
        self.stuck = faults.Hang(after_body_bytes=MIB + 100_000)
        store.do(lambda: store.server.script(self.stuck, key=f"b/{name}"))
        self.reader = in_background(lambda: mounted.read(name, timeout_s=ANSWER_S))
        store.wait(self.stuck.reached)
        until(lambda: mounted.status()["movers"]["jobs"] > 0, "a job of a mover")
        self._store = store

    def resume(self) -> None:
        self._store.do(self.stuck.resume.set)


def test_bytes_come_through_movers_and_status_tells(mounter: Mounter, store: InThread[S3Faults]) -> None:
    mounted = mounter.mount(faulty_url(store), "--anonymous", "--movers", "2")
    movers = start_movers(mounted, 2)
    assert len(movers) == 2
    for mover in movers:
        assert "Max core file size        0                    0" in Path(f"/proc/{mover}/limits").read_text()
    assert mounted.read("file") == BODY
    told = mounted.status()["movers"]
    assert told["received_bytes"] > len(BODY) / 2
    assert (told["processes"], told["processes_limit"], told["jobs"], told["lost"]) == (2, 2, 0, 0)
    assert "2 of 2 processes, 0 jobs" in run("status", mounted.point).stdout
    assert mounted.read_anew("file") == BODY
    assert store.server.sent_bytes["b/file"] == len(BODY), "each byte is fetched once"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_mover_that_is_killed_or_stopped_is_not_seen(
    mounter: Mounter, store: InThread[S3Faults], number: signal.Signals
) -> None:
    mounted = mounter.mount(faulty_url(store), "--anonymous", "--movers", "1")
    (mover,) = start_movers(mounted, 1)
    half = Half(mounted, store)
    os.kill(mover, number)
    assert half.reader.result(ANSWER_S) == BODY
    until(lambda: ended(mover), "the end of a mover that is of no use")
    assert mounted.status()["movers"]["lost"] == 1
    assert mounted.read_anew("file") == BODY
    assert mounted.log().count("a process that receives data") == 1


def test_a_mover_that_hangs_on_its_disk_holds_up_no_reader(
    mounter: Mounter, store: InThread[S3Faults], disk: Freezer
) -> None:
    mounted = mounter.mount(faulty_url(store), "--anonymous", *SMALL, "--movers", "1", cache_dir=disk.point / "cache")
    (mover,) = start_movers(mounted, 1)
    half = Half(mounted, store, "one")
    assert run("status", mounted.point).returncode == 0, "status takes longer than the last write counts as recent"
    with disk.frozen():
        half.resume()
        assert half.reader.result(ANSWER_S) == ONE_REQUEST
        assert run("status", mounted.point).returncode == 0
    until(lambda: ended(mover), "the end of the mover")
    assert mounted.read_anew("one") == ONE_REQUEST
    assert mounted.read("file") == BODY
    assert mounted.status()["movers"]["lost"] == 1


def test_movers_end_with_a_worker_that_is_killed_and_the_next_one_has_its_own(
    mounter: Mounter, store: InThread[S3Faults]
) -> None:
    mounted = mounter.mount(faulty_url(store), "--anonymous", "--movers", "2")
    first = start_movers(mounted, 2)
    half = Half(mounted, store)
    os.kill(mounted.worker_pid, signal.SIGKILL)
    until(lambda: all(map(ended, first)), "the end of the killed worker's movers")
    assert half.reader.result(ANSWER_S) == BODY
    second = movers_of(mounted.worker_pid)
    assert len(second) == 2
    upgraded = run("upgrade", mounted.point)
    assert upgraded.returncode == 0, upgraded
    until(lambda: all(map(ended, second)), "the end of the movers of the worker that has left")
    assert mounted.read_anew("file") == BODY


def test_movers_end_with_the_mount(mounter: Mounter, store: InThread[S3Faults]) -> None:
    mounted = mounter.mount(faulty_url(store), "--anonymous", "--movers", "2", "--takeover", "off")
    movers = start_movers(mounted, 2)
    assert len(movers) == 2
    assert run("umount", mounted.point).returncode == 0
    mounted.wait_ended()
    until(lambda: all(map(ended, movers)), "the end of the movers")


def test_two_mounts_with_movers_share_a_cache(mounter: Mounter, store: InThread[S3Faults]) -> None:
    one = mounter.mount(faulty_url(store), "--anonymous", "--movers", "1")
    other = mounter.mount(faulty_url(store), "--anonymous", "--movers", "1", cache_dir=one.cache_dir)
    start_movers(one, 1)
    assert other.read("first") == FIRST
    readers = [in_background(partial(each.read, "file", timeout_s=ANSWER_S)) for each in (one, other)]
    assert all(reader.result(ANSWER_S) == BODY for reader in readers)
    assert store.server.sent_bytes["b/file"] <= 1.01 * len(BODY)


@pytest.mark.parametrize("alone", [("--movers", "0"), ()], ids=["none are wanted", "there is one processor"])
def test_none_are_started(mounter: Mounter, store: InThread[S3Faults], alone: tuple[str, ...]) -> None:
    taskset = shutil.which("taskset")
    if taskset is None:
        pytest.skip("no taskset(1) here")
    mounted = mounter.foreground(
        faulty_url(store), "--anonymous", *alone, program=(*(() if alone else (taskset, "-c", "0")), *D7YFS)
    )
    assert mounted.read("file") == BODY
    assert mounted.status()["movers"]["processes_limit"] == 0
    assert movers_of(mounted.worker_pid) == []


@pytest.fixture
def tls_store(tmp_path: Path) -> Iterator[TlsStore]:
    ca, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.cert_pem.write_to_path(tmp_path / "ca.pem")
    ca.issue_cert("127.0.0.1").configure_cert(context)
    with InThread(S3Faults(ssl_context=context)) as running:
        for name, body in (("file", BODY), ("one", ONE_REQUEST), ("first", FIRST)):
            running.do(running.server.put, f"b/{name}", body)
        yield TlsStore(running, tmp_path / "ca.pem")


@dataclass
class TlsStore:
    """A store by https, and the file of its authority."""

    running: InThread[S3Faults]
    ca_file: Path

    @property
    def arguments(self) -> tuple[str, ...]:
        url = f"s3://https://127.0.0.1:{self.running.server.port}/b"
        return url, "--anonymous", "--ca-bundle", str(self.ca_file)


def test_tls_ends_in_movers_and_status_tells(mounter: Mounter, tls_store: TlsStore) -> None:
    mounted = mounter.mount(*tls_store.arguments, "--movers", "2")
    start_movers(mounted, 2)
    assert mounted.status()["movers"]["received_bytes"] == 0, "the first request waits for no mover"
    assert mounted.read("file") == BODY
    told = mounted.status()["movers"]
    assert told["received_bytes"] > len(BODY) / 2
    assert told["tls_connections"] > 0
    assert told["lost"] == 0
    assert "TLS connections" in run("status", mounted.point).stdout
    assert mounted.read_anew("file") == BODY
    assert tls_store.running.server.sent_bytes["b/file"] == len(BODY), "each byte is fetched once"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_mover_that_ends_tls_and_is_killed_or_stopped_is_not_seen(
    mounter: Mounter, tls_store: TlsStore, number: signal.Signals
) -> None:
    mounted = mounter.mount(*tls_store.arguments, "--movers", "1")
    (mover,) = start_movers(mounted, 1)
    half = Half(mounted, tls_store.running)
    os.kill(mover, number)
    assert half.reader.result(ANSWER_S) == BODY
    until(lambda: ended(mover), "the end of a mover that is of no use")
    status = mounted.status()
    assert status["movers"]["lost"] == 1
    assert status["repositories"][0]["fetched"]["retries"] == {}, "that was no failure of the store"
    assert mounted.read_anew("file") == BODY


def test_connections_of_movers_end_with_a_worker_that_is_killed(mounter: Mounter, tls_store: TlsStore) -> None:
    mounted = mounter.mount(*tls_store.arguments, "--movers", "2")
    first = start_movers(mounted, 2)
    half = Half(mounted, tls_store.running)
    os.kill(mounted.worker_pid, signal.SIGKILL)
    until(lambda: all(map(ended, first)), "the end of the killed worker's movers")
    assert half.reader.result(ANSWER_S) == BODY
