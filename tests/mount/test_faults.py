"""A faulty store under a real mount: readers get an error or the right bytes in time. The cache
never keeps wrong bytes.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from d7yfs.objects import PART_BYTES
from tests.mount.conftest import MIB, Bucket, both_engines, bytes_of, faulty_url
from tests.mount.mounted import Mounted, Mounter, in_background, run, until, within
from tests.servers import faults
from tests.servers.http11 import Fault
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, pytest.mark.store, both_engines]

READ_TIMEOUT_S = 2.0
SIZE = PART_BYTES + 3 * MIB
"""Two parts, so that a request for one part does not ask for the whole object."""


@dataclass
class Scene:
    """A faulty store, a mount that never trusts a listing, and a second daemon on the same cache
    directory.
    """

    store: InThread[S3Faults]
    mounted: Mounted
    witness: Mounted

    def put(self, name: str, seed: int, size_bytes: int = SIZE) -> bytes:
        body = bytes_of(seed, size_bytes)
        self.store.do(self.store.server.put, f"b/{name}", body)
        return body

    def script(self, name: str, *plan: Fault, forever: bool = False) -> None:
        """Script the next answers for an object; for the listings if `name` is empty."""
        self.store.do(lambda: self.store.server.script(*plan, key=f"b/{name}".rstrip("/"), forever=forever))

    def read_when_healed(self, name: str) -> bytes:
        """Read again until a transfer on a dead connection has timed out, within twice the read
        timeout.
        """
        deadline = time.monotonic() + 2 * READ_TIMEOUT_S
        while True:
            try:
                return self.mounted.read(name)
            except OSError:
                if time.monotonic() > deadline:
                    raise

    def error_of_read(self, name: str) -> int | None:
        with pytest.raises(OSError) as caught:  # noqa: PT011  # the test checks the errno
            self.mounted.read(name, timeout_s=READ_TIMEOUT_S * 10)
        return caught.value.errno


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, fuse_engine: str) -> Iterator[Scene]:
    options = ("--anonymous", "--metadata-ttl", "0", "--negative-ttl", "0", "--read-timeout", f"{READ_TIMEOUT_S}s")
    with InThread(S3Faults({"b/other": b"x"})) as store, Mounter(tmp_path_factory.mktemp("faults")) as mounter:
        mounted = mounter.mount(faulty_url(store), *options)
        yield Scene(store, mounted, mounter.mount(faulty_url(store), *options, cache_dir=mounted.cache_dir))


def _whole(scene: Scene) -> Fault:
    return scene.store.server.whole_object


LASTING: dict[str, Fault] = {
    "too few bytes": faults.cut_after(0),
    "reset in the head": faults.reset_after(0),
    "too many bytes": faults.longer_body(3),
    "another range": faults.shifted_range(1),
    "another total": faults.other_total(1),
    "hanging head": faults.Hang(),
    "hanging body": faults.Hang(after_body_bytes=0),
    "server error": faults.status(500),
}


@pytest.mark.parametrize("kind", [*LASTING, "200 with the whole object"])
def test_a_lasting_fault_is_eio_and_leaves_nothing_wrong(scene: Scene, kind: str) -> None:
    name, fault = kind.replace(" ", "-"), LASTING.get(kind) or _whole(scene)
    body = scene.put(name, seed=len(kind))
    scene.script(name, fault, forever=True)
    assert scene.error_of_read(name) == errno.EIO

    scene.script(name)
    assert scene.read_when_healed(name) == body, "the same mount reads it once the store is healed"
    before = len(scene.store.server.data_requests(f"b/{name}"))
    assert scene.witness.read(name) == body, "another daemon finds the right bytes in the cache"
    assert len(scene.store.server.data_requests(f"b/{name}")) == before


def html(size_bytes: int) -> bytes:
    return b"<html>Log in!".ljust(size_bytes)


PAGES = {
    "short": lambda size: faults.page(html(100)),
    "of the object's length": lambda size: faults.page(html(size)),
    "chunked": lambda size: faults.page(html(size), chunked=True),
    "closed by the peer": lambda size: faults.page(html(size), closed=True),
    "with an ETag of its own": lambda size: faults.page(html(size), etag='"5f3-60a"'),
}


@pytest.mark.parametrize("size", [5_000, MIB, 3 * MIB, 6 * MIB])
@pytest.mark.parametrize("kind", PAGES)
def test_a_page_in_the_stores_place_is_never_the_object(scene: Scene, kind: str, size: int) -> None:
    """Captive portals, gateways and load balancers send pages for GET and HEAD. They are not
    served, not cached, and no new version.
    """
    name = f"page-{kind.replace(' ', '-')}-{size}"
    body = scene.put(name, seed=size, size_bytes=size)
    scene.script(name, PAGES[kind](size), forever=True)
    assert scene.error_of_read(name) == errno.EIO

    scene.script(name)
    assert scene.read_when_healed(name) == body, "the same mount reads it once the store is healed"
    before = len(scene.store.server.data_requests(f"b/{name}"))
    assert scene.witness.read(name) == body, "another daemon finds the right bytes in the cache"
    assert len(scene.store.server.data_requests(f"b/{name}")) == before


def test_a_page_is_not_warmed_up(scene: Scene) -> None:
    body = scene.put("warmed", seed=77, size_bytes=3 * MIB)
    scene.script("warmed", faults.page(html(3 * MIB)), forever=True)
    failed = run("warm", scene.mounted.point / "warmed")
    assert failed.returncode == 1
    assert "no ETag" in failed.stderr
    scene.script("warmed")
    assert run("warm", scene.mounted.point / "warmed").returncode == 0
    assert scene.witness.read("warmed") == body


PASSING: dict[str, Fault] = {
    "too few bytes": faults.cut_after(MIB + 17),
    "reset in the body": faults.reset_after(2 * MIB + 17),
    "too many bytes": faults.surplus(b"more"),
    "another range": faults.shifted_range(1),
    "another total": faults.other_total(1),
    "busy": faults.status(503, {"Retry-After": "1"}),
    "nothing": faults.drop,
    "hanging body": faults.Hang(after_body_bytes=MIB // 2),
}


@pytest.mark.parametrize("kind", [*PASSING, "200 with the whole object"])
def test_a_passing_fault_is_not_seen(scene: Scene, kind: str) -> None:
    name = f"passing-{kind.replace(' ', '-')}"
    body = scene.put(name, seed=len(kind) + 100)
    scene.script(name, PASSING.get(kind) or _whole(scene))
    assert scene.mounted.read(name) == body
    assert scene.witness.read(name) == body


def test_the_first_bytes_do_not_wait_for_the_rest_of_their_reply(scene: Scene) -> None:
    body, hang = scene.put("begins", seed=2), faults.Hang(after_body_bytes=128 << 10)
    scene.script("begins", hang)
    assert scene.mounted.pread("begins", 0, 4096) == body[:4096]
    assert len(scene.store.server.data_requests("b/begins")) == 1
    scene.store.wait(hang.reached)
    assert not hang.resume.is_set()
    scene.store.do(hang.resume.set)
    assert scene.mounted.read("begins") == body


def test_a_body_that_stops_in_the_middle_under_mmap_recovers(scene: Scene) -> None:
    body = scene.put("mapped", seed=1)
    scene.script("mapped", faults.cut_after(100_000), faults.cut_after(0), faults.status(503))
    program = (
        "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ);"
        "sys.stdout.buffer.write(m[:])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, scene.mounted.point / "mapped"], capture_output=True, timeout=30
    )
    assert done.stdout == body


def test_an_archived_object_says_so(scene: Scene) -> None:
    body = scene.put("cold", seed=2, size_bytes=4096)
    scene.store.do(scene.store.server.archive, "b/cold")
    assert within(20, (scene.mounted.point / "cold").stat).st_size == 4096
    assert scene.error_of_read("cold") == errno.EACCES
    (line,) = (line for line in scene.mounted.log().splitlines() if "GLACIER" in line)
    assert "/b/cold" in line
    assert "restore" in line
    assert scene.store.server.data_requests("b/cold") == []

    scene.store.do(scene.store.server.archive, "b/cold", "STANDARD")
    assert scene.mounted.read("cold") == body


def test_replaced_during_a_read(scene: Scene) -> None:
    old = scene.put("replaced", seed=3)
    path = scene.mounted.point / "replaced"
    fd = within(20, lambda: os.open(path, os.O_RDONLY))
    try:
        assert within(20, lambda: os.pread(fd, 4096, 0)) == old[:4096]
        new = scene.put("replaced", seed=4)
        with pytest.raises(OSError) as caught:  # noqa: PT011
            within(20, lambda: os.pread(fd, 4096, PART_BYTES + 2 * MIB))
        assert caught.value.errno == errno.ESTALE
        assert within(20, lambda: os.pread(fd, 4096, MIB)) == old[MIB : MIB + 4096], (
            "the handle keeps the cached bytes of its version"
        )
        assert scene.mounted.read("replaced") == new, "a new open reads the new version"
        assert within(20, lambda: os.pread(fd, 4096, MIB)) == old[MIB : MIB + 4096]
    finally:
        os.close(fd)


def test_a_read_that_the_kernel_splits_ends_where_its_version_is_gone(scene: Scene) -> None:
    """The kernel has the first part in its pages. The daemon answers the rest with ESTALE, and the
    next read gets that error.
    """
    old = scene.put("split", seed=13)
    fd = within(20, lambda: os.open(scene.mounted.point / "split", os.O_RDONLY))
    try:
        assert within(20, lambda: os.pread(fd, 4096, 0)) == old[:4096], "this read fetches the first 2 MiB"
        scene.put("split", seed=14)
        first = within(20, lambda: os.pread(fd, 8 * MIB, 0))
        assert first == old[: len(first)]
        assert len(first) < 8 * MIB
        with pytest.raises(OSError) as caught:  # noqa: PT011
            within(20, lambda: os.pread(fd, 8 * MIB, len(first)))
        assert caught.value.errno == errno.ESTALE
        scene.put("split", seed=13)  # The same content again.
        with pytest.raises(OSError) as caught:  # noqa: PT011
            within(20, lambda: os.pread(fd, 8 * MIB, len(first)))
        assert caught.value.errno == errno.ESTALE
        assert scene.mounted.read("split") == old
    finally:
        os.close(fd)


def test_replaced_after_it_was_read_whole(scene: Scene) -> None:
    old = scene.put("kept", seed=5, size_bytes=2 * MIB)
    fd = within(20, lambda: os.open(scene.mounted.point / "kept", os.O_RDONLY))
    try:
        assert within(20, lambda: os.pread(fd, 2 * MIB, 0)) == old
        new = scene.put("kept", seed=6, size_bytes=MIB)
        assert scene.mounted.read("kept") == new
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert within(20, lambda: os.pread(fd, 2 * MIB, 0)) == old
        assert os.fstat(fd).st_size == 2 * MIB
    finally:
        os.close(fd)


def test_deleted_during_a_read(scene: Scene) -> None:
    body = scene.put("deleted", seed=7)
    path = scene.mounted.point / "deleted"
    fd = within(20, lambda: os.open(path, os.O_RDONLY))
    try:
        assert within(20, lambda: os.pread(fd, 4096, 0)) == body[:4096]
        scene.store.do(scene.store.server.delete, "b/deleted")
        with pytest.raises(OSError) as caught:  # noqa: PT011
            within(20, lambda: os.pread(fd, 4096, PART_BYTES + 2 * MIB))
        assert caught.value.errno == errno.ESTALE
        with pytest.raises(FileNotFoundError):
            within(20, path.stat)
        assert "deleted" not in scene.mounted.names()
    finally:
        os.close(fd)


def test_a_listing_that_fails_is_served_stale(scene: Scene) -> None:
    body = scene.put("listed", seed=8, size_bytes=MIB)
    assert scene.mounted.read("listed") == body
    scene.script("", faults.status(403), forever=True)
    try:
        assert "listed" in scene.mounted.names()
        assert scene.mounted.read_anew("listed") == body
    finally:
        scene.script("")
    assert "serving the last listing" in scene.mounted.log()


def test_64_stalled_readers_leave_another_repository_alone(mounter: Mounter, bucket: Bucket) -> None:
    objects = {f"b/{number}": bytes_of(number, 64 << 10) for number in range(64)}
    stall = faults.Hang()
    with InThread(S3Faults(objects)) as store:
        mounted = mounter.mount(
            f"sick={faulty_url(store)}", f"well={bucket.url('library')}", "--read-timeout", "60s", env=bucket.env
        )
        assert mounted.read("well/over.bin") == bucket.files["over.bin"]
        for number in range(64):
            store.do(partial(store.server.script, stall, key=f"b/{number}", forever=True))
        before = mounted.status()["fuse"]["calls"]["read"]
        stalled = [in_background(partial(mounted.read, f"sick/{number}", timeout_s=90)) for number in range(64)]
        until(lambda: mounted.status()["fuse"]["calls"]["read"] >= before + 64, "64 reads in the daemon")
        store.wait(stall.reached)
        fuse = mounted.status()["fuse"]
        assert fuse["in_flight"] >= 64
        assert fuse["oldest_request_s"] > 0

        assert mounted.read_anew("well/over.bin", timeout_s=3) == bucket.files["over.bin"], "a cached file"
        assert mounted.read("well/twenty.bin", timeout_s=10) == bucket.files["twenty.bin"], "a file that is not cached"
        assert "config.pbtxt" in mounted.names("well/model", timeout_s=3), "a listing"
        assert not any(each.done() for each in stalled)

        store.do(stall.resume.set)
        assert [each.result(60) for each in stalled] == [objects[f"b/{number}"] for number in range(64)]


NOBODY = 65534


def _hoard(path: Path, size_bytes: int) -> int:
    """Ask for a file in pieces as another user, and wait for none of them; for a thread of its own."""
    directory = os.open(path.parent, os.O_PATH)
    ctypes.CDLL(None).setfsuid(NOBODY)  # of this thread alone, and FUSE goes by it: setfsuid(2)
    fd = os.open(path.name, os.O_RDONLY, dir_fd=directory)
    os.close(directory)
    for offset in range(0, size_bytes, 128 << 10):
        os.posix_fadvise(fd, offset, 128 << 10, os.POSIX_FADV_WILLNEED)
    return fd


def test_a_user_who_hoards_stalled_reads_holds_up_no_other(mounter: Mounter, bucket: Bucket) -> None:
    """1,500 reads of one user that the store never answers: more than the kernel's limit was."""
    stall = faults.Hang()
    with InThread(S3Faults({"b/file": bytes_of(1, 200 * MIB)})) as store:
        mounted = mounter.mount(
            f"sick={faulty_url(store)}", f"well={bucket.url('library')}", "--allow-other", env=bucket.env
        )
        assert mounted.read("well/over.bin") == bucket.files["over.bin"]
        mounted.names("sick")
        store.do(partial(store.server.script, stall, key="b/file", forever=True))
        hoard = in_background(partial(_hoard, mounted.point / "sick" / "file", 1500 * (128 << 10)))
        until(lambda: mounted.status()["fuse"]["waiting_reads"].get(str(NOBODY), 0) >= 1100, "the reads in the daemon")
        assert mounted.read_anew("well/over.bin", timeout_s=5) == bucket.files["over.bin"], "cached"
        assert mounted.read("well/twenty.bin", timeout_s=10) == bucket.files["twenty.bin"], "not cached"
        store.do(stall.resume.set)
        os.close(hoard.result(60))
