"""The time at which a mount shows a change in the store, and its effect on readers that have the
old version open.

Where a time to live is `forever`, only the tested event can have shown the change.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import signal
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from d7yfs.objects import PART_BYTES
from tests.mount.conftest import MIB, Bucket, both_engines, bytes_of, faulty_url
from tests.mount.mounted import READ_TIMEOUT_S, Mounted, Mounter, in_background, run, until, within
from tests.servers import faults
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, pytest.mark.store, both_engines]

OLD_FILES = {"old": b"old", "gone": b"gone", "d/f": b"f"}
FOREVER = ("--metadata-ttl", "forever", "--negative-ttl", "forever")


class Repository:
    """A test's own prefix of the real store, for each engine, and its mount."""

    def __init__(
        self, bucket: Bucket, mounter: Mounter, prefix: str, files: Mapping[str, bytes], *options: str
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix = f"{prefix}-{os.environ.get('D7YFS_FUSE_ENGINE')}"
        self.url = bucket.url(prefix)
        for name, body in files.items():
            self.put(name, body)
        self.put("README", b"so that it is never empty")
        self.mounted = mounter.mount(self.url, *options, env=bucket.env)

    @property
    def point(self) -> Path:
        return self.mounted.point

    def put(self, name: str, body: bytes) -> None:
        self._bucket.put(f"{self._prefix}/{name}", body)

    def delete(self, name: str) -> None:
        self._bucket.delete(f"{self._prefix}/{name}")

    def refresh(self, path: str = "") -> dict[str, object]:
        done = run("refresh", "--json", self.point / path)
        assert (done.returncode, done.stderr) == (0, "")
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def is_there(self, path: str) -> bool:
        return within(20, (self.point / path).exists)


def hold(path: Path) -> int:
    return within(20, partial(os.open, path, os.O_RDONLY))


def pread(fd: int, size_bytes: int, offset: int) -> bytes:
    return within(20, partial(os.pread, fd, size_bytes, offset))


# --- by time ---


def test_within_the_time_to_live_a_change_is_seen(bucket: Bucket, mounter: Mounter) -> None:
    made = Repository(bucket, mounter, "by-time", OLD_FILES, "--metadata-ttl", "1s")
    assert made.mounted.names() == ["README", "d", "gone", "old"]
    assert made.mounted.read("old") == b"old"
    assert not made.is_there("new")
    made.put("old", b"another")
    made.put("new", b"new")
    made.put("d/e/g", b"g")
    made.delete("gone")
    until(lambda: made.mounted.names() == ["README", "d", "new", "old"], "the names")
    until(lambda: made.mounted.read("old") == b"another", "the new version")
    until(lambda: made.is_there("d/e/g"), "a directory that was not there")
    assert made.mounted.read("new") == b"new"
    assert not made.is_there("gone")


def test_what_is_in_use_is_listed_ahead_of_its_expiry(faulty: InThread[S3Faults], mounter: Mounter) -> None:
    faulty.do(faulty.server.put, "b/d/f", b"f")
    mounted = mounter.mount(faulty_url(faulty), "--anonymous", "--metadata-ttl", "1s")
    path = mounted.point / "d/f"

    def refreshed() -> int:
        assert within(20, path.stat).st_size == 1
        (status,) = mounted.status()["repositories"]
        return int(status["freshness"]["refreshed_directories"])

    until(lambda: refreshed() > 4, "refreshes while a reader looks")
    assert mounted.read("d/f") == b"f"


# --- by command ---


@pytest.mark.parametrize("listing", ["whole", "directory", "exact"])
def test_refresh_sees_it_now(bucket: Bucket, mounter: Mounter, listing: str) -> None:
    made = Repository(bucket, mounter, f"by-command-{listing}", OLD_FILES, *FOREVER, "--listing", listing)
    assert made.mounted.names() == ["README", "d", "gone", "old"]
    assert made.mounted.names("d") == ["f"]
    assert (made.mounted.read("old"), made.mounted.read("gone")) == (b"old", b"gone")
    assert not made.is_there("new"), "the kernel caches the absence"
    assert not made.is_there("d/e")

    made.put("old", b"another")
    made.put("new", b"new")
    made.put("d/e/g", b"g")
    made.delete("gone")
    assert made.mounted.names() == ["README", "d", "gone", "old"]
    assert made.mounted.read("old") == b"old"
    assert not made.is_there("new")

    found = made.refresh()
    assert (found["added"], found["removed"], found["replaced"]) == (2, 1, 1)
    assert found["names"] == {"added": ["d/e", "new"], "removed": ["gone"], "replaced": ["old"]}
    assert within(20, lambda: (made.point / "new").read_bytes()) == b"new"
    assert made.mounted.read("old") == b"another"
    assert made.mounted.read("d/e/g") == b"g"
    assert not made.is_there("gone")
    assert made.mounted.names() == ["README", "d", "new", "old"]
    assert made.refresh()["names"] == {"added": [], "removed": [], "replaced": []}


def test_a_file_becomes_a_directory_and_back(bucket: Bucket, mounter: Mounter) -> None:
    made = Repository(bucket, mounter, "changing", {"x": b"file"}, *FOREVER)
    assert made.mounted.read("x") == b"file"
    fd = hold(made.point / "x")
    try:
        made.delete("x")
        made.put("x/y", b"inside")
        made.refresh("x")
        assert made.mounted.names("x") == ["y"]
        assert made.mounted.read("x/y") == b"inside"
        directory = hold(made.point / "x")
        try:
            made.delete("x/y")
            made.put("x", b"file again")
            made.refresh("x")
            assert made.mounted.read("x") == b"file again"
            with pytest.raises(NotADirectoryError):
                made.mounted.names("x")
        finally:
            os.close(directory)
        assert pread(fd, 10, 0) == b"file", "an open handle keeps its version"
    finally:
        os.close(fd)


def test_the_directory_of_a_file_and_the_nearest_of_what_is_not_there(bucket: Bucket, mounter: Mounter) -> None:
    made = Repository(bucket, mounter, "nearest", {"a/f": b"1", "b/f": b"1"}, *FOREVER)
    for path in ("a/f", "b/f"):
        assert made.mounted.read(path) == b"1"
    made.put("a/f", b"two")
    made.put("b/f", b"two")
    made.refresh("a/f")
    assert (made.mounted.read("a/f"), made.mounted.read("b/f")) == (b"two", b"1")
    made.refresh("b/not/there")
    assert made.mounted.read("b/f") == b"two"
    assert run("refresh", made.point.parent).returncode == 1, "the parent is no mount"


def test_a_store_that_cannot_be_asked(faulty: InThread[S3Faults], mounter: Mounter) -> None:
    faulty.do(faulty.server.put, "b/f", b"f")
    mounted = mounter.mount(faulty_url(faulty), "--anonymous", *FOREVER)
    assert mounted.read("f") == b"f"
    faulty.do(lambda: faulty.server.script(faults.status(403), key="b", forever=True))
    done = run("refresh", mounted.point)
    assert done.returncode == 1
    assert "d7yfs: error: " in done.stderr
    assert mounted.read("f") == b"f", "the mount serves the last listing"


# --- with readers ---


def test_a_reader_keeps_its_version(bucket: Bucket, mounter: Mounter) -> None:
    old, new = bytes_of(1, PART_BYTES + 3 * MIB), bytes_of(2, PART_BYTES + 3 * MIB)
    made = Repository(bucket, mounter, "held", {"weights": old}, *FOREVER)
    fd = hold(made.point / "weights")
    try:
        assert pread(fd, 4096, 0) == old[:4096]
        made.put("weights", new)
        assert made.refresh()["replaced"] == 1
        assert made.mounted.read("weights") == new, "a new open reads the new version"
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert pread(fd, 4096, 0) == old[:4096], "the handle keeps the cached bytes"
        with pytest.raises(OSError) as caught:  # noqa: PT011
            pread(fd, 4096, PART_BYTES + 2 * MIB)
        assert caught.value.errno == errno.ESTALE
        assert os.fstat(fd).st_size == len(old)
    finally:
        os.close(fd)


def test_a_mapping_keeps_its_version(bucket: Bucket, mounter: Mounter) -> None:
    old = bytes_of(3, 2 * MIB)
    made = Repository(bucket, mounter, "mapped", {"weights": old, "gone": old}, *FOREVER)
    for name in ("weights", "gone"):
        fd = hold(made.point / name)
        try:
            mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        assert within(20, lambda mapped=mapped: mapped[:]) == old  # type: ignore[misc]
        if name == "weights":
            made.put(name, bytes_of(4, 2 * MIB))
        else:
            made.delete(name)
        made.refresh()
        mapped.madvise(mmap.MADV_DONTNEED)
        assert within(20, lambda mapped=mapped: mapped[:]) == old  # type: ignore[misc]
        mapped.close()
    assert made.mounted.read("weights") == bytes_of(4, 2 * MIB)
    assert not made.is_there("gone")


def test_an_open_readdir_goes_on(bucket: Bucket, mounter: Mounter) -> None:
    files = {f"d/{number:03}": b"x" for number in range(300)}
    made = Repository(bucket, mounter, "readdir", files, *FOREVER)
    with within(20, partial(os.scandir, made.point / "d")) as entries:
        seen = [within(20, lambda: next(entries)).name for _ in range(3)]
        made.delete("d/299")
        made.put("d/300", b"y")
        made.refresh()
        seen += [each.name for each in within(20, lambda: list(entries))]
    assert len(seen) == len(set(seen)), "no name may occur twice"
    assert {f"{number:03}" for number in range(299)} <= set(seen), "no name that was there all the time may be missing"
    assert made.mounted.names("d") == [f"{number:03}" for number in range(301) if number != 299]


def test_the_same_content_again_is_not_fetched_again(bucket: Bucket, mounter: Mounter) -> None:
    body = bytes_of(5, 3 * MIB)
    made = Repository(bucket, mounter, "same", {"weights": body}, *FOREVER)
    assert made.mounted.read("weights") == body
    before, requests = within(20, (made.point / "weights").stat), made.mounted.data_requests()
    made.put("weights", body)
    assert made.refresh()["replaced"] == 0
    assert made.mounted.read_anew("weights") == body
    after = within(20, (made.point / "weights").stat)
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert made.mounted.data_requests() == requests


def test_what_was_replaced_can_be_evicted_once_it_is_closed(bucket: Bucket, mounter: Mounter) -> None:
    old = bytes_of(6, MIB)
    made = Repository(bucket, mounter, "evicted", {"weights": old}, *FOREVER)
    fd = hold(made.point / "weights")
    try:
        assert pread(fd, MIB, 0) == old
        made.delete("weights")
        made.refresh()
        drop = ("cache", "drop", made.url, "--cache-dir", made.mounted.cache_dir)
        assert run(*drop).returncode == 1, "the version is in use"
    finally:
        os.close(fd)
    until(lambda: run(*drop).returncode == 0, "the kernel to release it")


@pytest.fixture
def quiet(faulty: InThread[S3Faults], mounter: Mounter) -> Mounted:
    """A mount of a scriptable store; all its files have been read."""
    for number in range(20):
        faulty.do(faulty.server.put, f"b/d{number}/f", bytes_of(number, 1000))
    mounted = mounter.mount(faulty_url(faulty), "--anonymous", *FOREVER)
    for number in range(20):
        assert mounted.read(f"d{number}/f") == bytes_of(number, 1000)
    return mounted


def test_a_refresh_that_hangs_holds_up_no_reader(faulty: InThread[S3Faults], quiet: Mounted) -> None:
    stall = faults.Hang()
    faulty.do(lambda: faulty.server.script(stall, key="b", forever=True))
    refresh = in_background(partial(run, "refresh", quiet.point))
    faulty.wait(stall.reached)
    for number in range(20):
        assert quiet.read_anew(f"d{number}/f", timeout_s=5) == bytes_of(number, 1000)
    assert len(quiet.names(timeout_s=5)) == 20
    assert not refresh.done()
    faulty.do(lambda: faulty.server.script(key="b"))
    faulty.do(stall.resume.set)
    assert refresh.result(60).returncode == 0


def test_a_herd_of_refreshes_beside_readers(faulty: InThread[S3Faults], quiet: Mounted) -> None:
    def read(number: int) -> int:
        rounds = 0
        while not all(each.done() for each in refreshes):
            path = quiet.point / f"d{number}"
            assert (path / "f").read_bytes() == bytes_of(number, 1000)
            assert path / "f" in path.iterdir()
            assert not (path / f"absent{rounds}").exists()
            rounds += 1
        return rounds

    refreshes = [in_background(partial(run, "refresh", quiet.point)) for _ in range(6)]
    readers = [in_background(partial(read, number)) for number in range(8)]
    for number in range(100):
        faulty.do(faulty.server.put, f"b/d{number % 20}/new{number}", b"new")
    assert [each.result(60).returncode for each in refreshes] == [0] * 6
    assert all(each.result(60) > 0 for each in readers)
    assert run("refresh", quiet.point).returncode == 0
    assert quiet.names("d7") == ["f", *sorted(f"new{number}" for number in range(7, 100, 20))]
    told = quiet.status()["kernel_notices"]
    assert told["notices"] > 0
    assert told["overflow"] == 0


def test_it_ends_while_lookups_wait(faulty: InThread[S3Faults], mounter: Mounter) -> None:
    faulty.do(faulty.server.put, "b/d/f", b"f")
    options = ("--anonymous", "--metadata-ttl", "0", "--negative-ttl", "0", "--shutdown-timeout", "1s")
    mounted = mounter.mount(faulty_url(faulty), *options)
    assert mounted.read("d/f") == b"f"
    stall = faults.Hang()
    faulty.do(lambda: faulty.server.script(stall, key="b", forever=True))
    waiting = [in_background((mounted.point / f"absent{number}").stat) for number in range(3)]
    faulty.wait(stall.reached)
    mounted.kill(signal.SIGTERM)
    mounted.wait_ended()
    for each in waiting:
        with pytest.raises(OSError):  # noqa: PT011
            each.result(20)


# --- by opening ---


def test_what_is_revalidated_on_open_is_the_newest(bucket: Bucket, mounter: Mounter) -> None:
    names = ("m/config.pbtxt", "d/any", "m/weights", "other")
    files = dict.fromkeys(names, b"one")
    made = Repository(bucket, mounter, "opened", files, *FOREVER, "--revalidate-on-open", "config.pbtxt,d/*")
    assert [made.mounted.read(name) for name in names] == [b"one"] * 4
    for name in (*names, "m/2/new"):
        made.put(name, b"number two")
    assert (made.point / "m/config.pbtxt").stat().st_size == len(b"number two")
    assert made.mounted.names("m") == ["2", "config.pbtxt", "weights"], "a changed file refreshes its directory"
    assert [made.mounted.read(name) for name in names[:2]] == [b"number two"] * 2
    until(lambda: made.mounted.read("m/weights") == b"number two", "the notice to the kernel")
    assert made.mounted.read("other") == b"one"
    fd = hold(made.point / "m/config.pbtxt")
    try:
        made.delete("m/config.pbtxt")
        with pytest.raises(FileNotFoundError):
            made.mounted.read("m/config.pbtxt")
        assert pread(fd, 20, 0) == b"number two"
    finally:
        os.close(fd)
    assert made.mounted.names("m") == ["2", "weights"]


def test_opening_the_directory_of_such_a_file_shows_all_below_as_it_is_now(bucket: Bucket, mounter: Mounter) -> None:
    """A server that is told to load a model lists its directory first, and compares times."""
    files = dict.fromkeys(("m/config.pbtxt", "m/1/weights", "other/1/weights"), b"one")
    made = Repository(bucket, mounter, "listed", files, *FOREVER, "--revalidate-on-open", "config.pbtxt")
    names = ("m/1/weights", "other/1/weights")
    assert [made.mounted.read(name) for name in names] == [b"one"] * 2
    assert made.mounted.names("m") == ["1", "config.pbtxt"]
    assert made.mounted.names("other") == ["1"]
    for number in range(3):
        body = f"number {number}".encode()
        for name in (*names, f"m/{number + 2}/weights", f"other/{number + 2}/weights"):
            made.put(name, body)
        assert str(number + 2) in made.mounted.names("m")
        assert (made.point / names[0]).stat().st_size == len(body), "the kernel was told before the open returned"
        assert made.mounted.read(names[0]) == body
    assert made.mounted.names("other") == ["1"], "no such file lies there"
    assert made.mounted.read(names[1]) == b"one"


def test_a_model_that_was_absent_is_found_once_it_is_there(bucket: Bucket, mounter: Mounter) -> None:
    options = (*FOREVER, "--negative-ttl", "1h", "--revalidate-on-open", "config.pbtxt")
    made = Repository(bucket, mounter, "absent", {"m/config.pbtxt": b"one"}, *options)
    for number in range(3):
        assert not within(READ_TIMEOUT_S, (made.point / f"n{number}").exists)
        made.put(f"n{number}/config.pbtxt", b"new")
        assert within(READ_TIMEOUT_S, (made.point / f"n{number}").is_dir)
        assert made.mounted.read(f"n{number}/config.pbtxt") == b"new"
    assert not within(READ_TIMEOUT_S, (made.point / "m/absent").exists)


@pytest.mark.parametrize(
    ("server", "names"),
    [
        ("triton", ("m/config.pbtxt", "n/config.pbtxt", "n/1/model.onnx")),
        ("torchserve", ("bert.mar", "gpt.tar.gz", "new.mar")),
        ("vllm", ("llm/config.json", "llm/model-00001-of-00002.safetensors", "new/config.json")),
    ],
)
def test_the_settings_for_a_server_show_what_has_just_been_uploaded(
    bucket: Bucket, mounter: Mounter, server: str, names: tuple[str, ...]
) -> None:
    made = Repository(bucket, mounter, f"for-{server}", {names[0]: b"one"}, *FOREVER, "--for", server)
    top = names[0].partition("/")[0]
    assert made.mounted.read(names[0]) == b"one"
    made.mounted.names(".")
    for name in names:
        made.put(name, b"number two")
    if (made.point / top).is_dir():
        made.mounted.names(top)
    assert [made.mounted.read(name) for name in names] == [b"number two"] * len(names)


def test_a_store_that_is_away_is_no_reason_not_to_open(faulty: InThread[S3Faults], mounter: Mounter) -> None:
    faulty.do(faulty.server.put, "b/config.pbtxt", b"one")
    mounted = mounter.mount(faulty_url(faulty), "--anonymous", *FOREVER, "--revalidate-on-open", "*.pbtxt")
    assert mounted.read("config.pbtxt") == b"one"
    assert mounted.names() == ["config.pbtxt"]
    for key in ("b", "b/config.pbtxt"):
        faulty.do(lambda key=key: faulty.server.script(faults.status(403), key=key, forever=True))
    assert mounted.read_anew("config.pbtxt") == b"one"
    assert "b/config.pbtxt" in mounted.log()
    assert mounted.names() == ["config.pbtxt"]
