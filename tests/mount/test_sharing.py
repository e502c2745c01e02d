"""Two daemons on one cache directory: they fetch shared data once, and neither hangs when the other
ends.
"""

from __future__ import annotations

import contextlib
import json
import signal
from dataclasses import dataclass
from functools import partial

import pytest

from tests.mount.conftest import MIB, bytes_of, faulty_url
from tests.mount.mounted import Mounted, Mounter, in_background, run, until
from tests.servers import faults
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount]

SIZE = 48 * MIB + 17


@dataclass
class Pair:
    """Two mounts of one store with one cache directory, and the bytes of the store's only file."""

    store: InThread[S3Faults]
    one: Mounted
    other: Mounted
    body: bytes

    @property
    def sent_bytes(self) -> int:
        return self.store.server.sent_bytes.get("b/file", 0)


@pytest.fixture
def pair(mounter: Mounter, faulty: InThread[S3Faults]) -> Pair:
    body = bytes_of(5, SIZE)
    faulty.do(faulty.server.put, "b/file", body)
    one = mounter.mount(faulty_url(faulty), "--anonymous", "--takeover", "off")
    return Pair(
        faulty,
        one,
        mounter.mount(faulty_url(faulty), "--anonymous", "--takeover", "off", cache_dir=one.cache_dir),
        body,
    )


def test_a_cold_file_that_two_daemons_read_at_once_is_fetched_once(pair: Pair) -> None:
    readers = [in_background(partial(each.read, "file", timeout_s=60)) for each in (pair.one, pair.other)]
    assert [each.result(60) == pair.body for each in readers] == [True, True]
    assert pair.sent_bytes <= 1.05 * SIZE
    assert sum(each.status()["cache"]["taken_over_blocks"] for each in (pair.one, pair.other)) > 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_daemon_that_ends_in_the_middle_is_replaced(pair: Pair, number: signal.Signals) -> None:
    """A daemon's death is seen through the kernel. tests/fill/test_sharing.py tests the delay, with
    its own clock.
    """
    stuck = faults.Hang(after_body_bytes=MIB + 1000)
    pair.store.do(lambda: pair.store.server.script(stuck, key="b/file"))
    held = in_background(lambda: pair.one.pread("file", 0, 2 * MIB, timeout_s=60))
    pair.store.wait(stuck.reached)
    reader = in_background(lambda: pair.other.read("file", timeout_s=60))
    until(lambda: pair.other.status()["cache"]["misses"] > 0, "a reader that waits for the other daemon")
    assert pair.sent_bytes <= SIZE
    pair.one.kill(number)
    try:
        assert reader.result(60) == pair.body
        after = pair.other.status()
        (fetched,) = (repository["fetched"] for repository in after["repositories"])
        once = fetched["direct_bytes"] + after["cache"]["taken_over_blocks"] * MIB
        assert once < SIZE + MIB, "only the ended daemon's current block may be fetched twice"
    finally:
        pair.one.kill(signal.SIGKILL)
    with contextlib.suppress(OSError):  # the error depends on the progress
        assert len(held.result(20)) < 2 * MIB, "the rest of it is an error, which the next read gets"


def test_cache_commands_beside_a_live_mount(pair: Pair) -> None:
    assert pair.one.read("file") == pair.body
    directory = ("--cache-dir", pair.one.cache_dir)
    assert "100%" in run("cache", "ls", *directory).stdout
    assert run("cache", "verify", "--md5", *directory).stdout.startswith("1 file, 49 blocks: 0 bad, 1 MD5 sum compared")
    (data,) = pair.one.cache_dir.rglob("*.data")
    with data.open("r+b") as file:
        file.seek(5 * MIB)
        file.write(b"spoilt")
    found = run("cache", "verify", *directory)
    assert (found.returncode, "1 bad" in found.stdout) == (1, True), found
    before = pair.sent_bytes
    assert pair.one.read_anew("file") == pair.body
    assert pair.sent_bytes == before + MIB
    assert run("cache", "verify", *directory).returncode == 0
    until(lambda: run("cache", "drop", "--all", *directory).returncode == 0, "all handles to be closed")
    assert not list(pair.one.cache_dir.rglob("*.data"))
    assert pair.other.read("file") == pair.body


class _Encrypting(S3Faults):
    """A store with ETags that are no MD5, though one of them has 32 hex digits: as under a KMS key."""

    def etag(self, key: str) -> str:
        plain = super().etag(key)
        return {"b/kms": f'"{plain[-2:0:-1]}"', "b/parts": f'{plain[:-1]}-2"'}.get(key, plain)


def test_an_etag_that_is_no_md5_says_nothing_of_a_file(mounter: Mounter) -> None:
    running: InThread[S3Faults] = InThread(
        _Encrypting({f"b/{name}": bytes_of(7, MIB) for name in ("kms", "parts", "plain")})
    )
    with running as store:
        mounted = mounter.mount(faulty_url(store), "--anonymous")
        for name in ("kms", "parts", "plain"):
            assert mounted.read(name) == bytes_of(7, MIB)
        done = run("cache", "verify", "--md5", "--cache-dir", mounted.cache_dir)
        told = json.loads(run("cache", "verify", "--md5", "--json", "--cache-dir", mounted.cache_dir).stdout)
    assert (done.returncode, done.stderr) == (0, ""), "no file is damaged"
    first, *reasons = done.stdout.splitlines()
    assert first.startswith("3 files, 3 blocks: 0 bad, 1 MD5 sum compared, in ")
    assert any(each.startswith("not comparable: 1 file, because the ETag is no MD5: ") for each in reasons)
    assert any("where the store encrypts with keys of KMS" in each for each in reasons)
    compared = {each["name"].rpartition("/")[2]: (each["md5"], bool(each["not_comparable"])) for each in told}
    assert compared == {"kms": (None, True), "parts": (None, True), "plain": (True, False)}
