"""The cache below files that the kernel reads by itself, and the rights to read them: eviction, drop,
verify, several mounts, users and credentials.
"""

from __future__ import annotations

import contextlib
import mmap
import signal
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.mount import passthrough
from tests.mount.conftest import MIB, bytes_of, faulty_url
from tests.mount.mounted import READ_TIMEOUT_S, Mounted, Mounter, run, until, within
from tests.mount.passthrough import (
    BODY,
    NOBODY,
    data_files,
    fill,
    opened,
    pread,
    told,
)
from tests.mount.test_trust import OWNER, STRANGER, Policies, keys, read_all, url_of, write_credentials
from tests.servers import faults
from tests.servers.http11 import Answer, Request
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount]

kernel_reads_by_itself, mounted, store = passthrough.kernel_reads_by_itself, passthrough.mounted, passthrough.store


@pytest.mark.parametrize("what", ["the path", "everything"])
def test_a_file_that_is_dropped_while_it_is_open_reads_on(mounted: Mounted, what: str) -> None:
    place = [mounted.point / "file"] if what == "the path" else ["--all", "--cache-dir", mounted.cache_dir]
    with opened(mounted) as fd, mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
        assert pread(fd, 10) == BODY[:10]
        run("cache", "drop", *place)  # it may say that the file is in use
        assert pread(fd) == BODY
        assert within(READ_TIMEOUT_S, lambda: mapped[:]) == BODY
        assert mounted.read("file") == BODY
    assert mounted.read("file") == BODY


def test_a_file_whose_pair_is_gone_reads_on(mounted: Mounted) -> None:
    """Somebody has deleted it: the kernel keeps the file of a backing id."""
    with opened(mounted) as fd:
        for path in data_files(mounted):
            path.unlink()
        assert pread(fd) == BODY
        with opened(mounted) as second:
            assert pread(second) == BODY


def test_eviction_takes_no_file_that_is_open(mounter: Mounter, store: InThread[S3Faults]) -> None:
    for number in range(6):
        store.do(store.server.put, f"b/other{number}", bytes_of(number, 3 * MIB))
    options = ("--anonymous", "--cache-size", "8MiB", "--cache-min-free", "0")
    mounted = mounter.mount(faulty_url(store), *options)
    fill(mounted)
    with opened(mounted) as fd:
        assert told(mounted)[0] == 1
        for number in range(6):
            assert mounted.read(f"other{number}") == bytes_of(number, 3 * MIB)
        until(lambda: mounted.status()["cache"]["evicted_files"] > 0, "eviction")
        assert pread(fd) == BODY
        assert data_files(mounted)
    assert mounted.read("file") == BODY


def test_verify_leaves_a_good_file_as_it_is(mounted: Mounted) -> None:
    with opened(mounted) as fd:
        assert run("cache", "verify", "--cache-dir", mounted.cache_dir).returncode == 0
        assert pread(fd) == BODY
        assert mounted.read("file") == BODY
    assert told(mounted)[0] == 2


def test_verify_has_a_bad_file_fetched_again(mounted: Mounted) -> None:
    """Its bytes are wrong on disk, as after a fault of the disk."""
    (path,) = data_files(mounted)
    with path.open("r+b") as file:
        file.write(b"bad")
    assert run("cache", "verify", "--cache-dir", mounted.cache_dir).returncode == 1
    assert mounted.read_anew("file") == BODY
    until(lambda: not mounted.status()["fuse"]["open_files"], "the end of its handle")
    assert mounted.read_anew("file") == BODY
    assert told(mounted)[0] == 1


class Hesitant(S3Faults):
    """A store that does not tell of an object before `may_tell`."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        super().__init__(objects)
        self.may_tell = trio.Event()

    async def answer(self, request: Request) -> Answer:
        if request.method == "HEAD":
            await self.may_tell.wait()
        return await super().answer(request)


@pytest.mark.parametrize("comes", ["right", "wrong"])
def test_a_file_that_may_prove_wrong_is_not_the_kernels(mounter: Mounter, comes: str) -> None:
    """It is whole, and the comparison with the store's checksum is under way."""
    body = bytes_of(21, 6 * MIB + 17)
    with InThread(Hesitant({"b/large": body})) as store:
        store.do(store.server.record_crc32c, "b/large")
        if comes == "wrong":
            store.do(lambda: store.server.script(faults.altered(0), key="b/large"))
        mounted = mounter.mount(faulty_url(store), "--anonymous")  # type: ignore[arg-type]
        for _ in range(3):
            assert (mounted.read("large") == body) is (comes == "right")
            until(lambda: not mounted.status()["fuse"]["open_files"], "the end of its handle")
        assert mounted.stat("large")["cached_bytes"] == len(body)
        assert told(mounted)[0] == 0
        store.do(store.server.may_tell.set)
        until(lambda: mounted.read("large") == body and told(mounted)[0] > 0, "the end of the comparison")
        assert mounted.status()["cache"]["checksum_mismatches"] == (comes == "wrong")


def test_two_mounts_of_one_cache(mounter: Mounter, store: InThread[S3Faults], mounted: Mounted) -> None:
    other = mounter.mount(faulty_url(store), "--anonymous", cache_dir=mounted.cache_dir)
    with opened(other) as fd, opened(mounted) as second:
        assert pread(fd) == pread(second) == BODY
    assert (told(other), other.data_requests()) == ((1, 0), 0)
    mounted.kill(signal.SIGTERM)
    mounted.wait_ended()
    with opened(other) as fd:
        assert pread(fd) == BODY


# --- rights ---


def _cat_as_nobody(mounted: Mounted, name: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["cat", name], cwd=mounted.point, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, timeout=20
    )


def test_the_mounts_modes_decide_who_reads(mounter: Mounter, store: InThread[S3Faults], mounted: Mounted) -> None:
    """The cache's files are root's alone, and the kernel reads them by the daemon's right."""
    assert all(path.stat().st_mode & 0o077 == 0 for path in data_files(mounted))
    opens, reads = told(mounted)
    done = _cat_as_nobody(mounted, "file")
    assert (done.returncode, done.stdout) == (0, BODY)
    assert told(mounted) == (opens + 1, reads)
    private = ("--anonymous", "--allow-other", "--file-mode", "0400")
    refused = mounter.mount(faulty_url(store), *private, cache_dir=mounted.cache_dir)
    with opened(refused) as fd:
        assert pread(fd) == BODY
        done = _cat_as_nobody(refused, "file")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"Permission denied" in done.stderr


@pytest.fixture
def policies() -> Iterator[InThread[Policies]]:
    with InThread(Policies()) as running:
        yield running


def test_credentials_that_are_not_granted_read_no_byte(mounter: Mounter, policies: InThread[Policies]) -> None:
    owner = mounter.mount(url_of(policies), "--verify", "off", env=keys(OWNER))
    bodies = read_all(owner)
    assert read_all(owner) == bodies
    assert told(owner)[0] > 0
    stranger = mounter.mount(url_of(policies), env=keys(STRANGER), cache_dir=owner.cache_dir)
    for name in ("large", "small"):
        for _ in range(2):
            with pytest.raises(PermissionError):
                stranger.read(name)
    assert told(stranger)[0] == 0
    assert "Traceback" not in stranger.log()
    policies.do(partial(policies.server.allow, STRANGER))
    until(lambda: _reads(stranger) == bodies[1], "the end of the last refusal")
    assert told(stranger)[0] > 0


def test_a_file_that_is_open_gives_other_credentials_nothing(
    mounter: Mounter, policies: InThread[Policies], tmp_path: Path
) -> None:
    """All handles of a file are in one mode, and those that are open read on. The next one is asked
    about."""
    settings, credentials = tmp_path / "d7yfs.toml", tmp_path / "credentials"
    write_credentials(credentials)

    def choose(profile: str) -> None:
        settings.write_text(f'[repositories.models]\nurl = "{url_of(policies)}"\nprofile = "{profile}"\n')

    choose("owner")
    mounted = mounter.mount("--config", str(settings), env={"AWS_SHARED_CREDENTIALS_FILE": str(credentials)})
    body = policies.server.objects["b/small"]
    assert mounted.read("models/small") == body
    until(lambda: not mounted.status()["fuse"]["open_files"], "the end of its handle")
    with opened(mounted, "models/small") as fd:
        assert told(mounted)[0] == 1
        choose("stranger")
        assert run("reload", mounted.point).returncode == 0
        with pytest.raises(PermissionError):
            mounted.read("models/small")
        assert pread(fd, len(body)) == body
    assert told(mounted)[0] == 1


def _reads(mounted: Mounted) -> bytes | None:
    with contextlib.suppress(PermissionError):
        return mounted.read("small")
    return None
