"""`--hide-agents`: a mount shows config.pbtxt without Dragonfly's agent, wherever its bytes come from,
and shares its cache with mounts that show the file as it is stored.
"""

from __future__ import annotations

import json
import mmap
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.mount.conftest import Bucket, faulty_url
from tests.mount.mounted import READ_TIMEOUT_S, Mounted, Mounter, in_background, run, until, within
from tests.mount.passthrough import told
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount]

HIDE = "--hide-agents"
AGENT = b'model_repository_agents { agents [ { name: "dragonfly" } ] }\n'
TWO = b'backend: "x"\nmodel_repository_agents { agents [ { name: "checksum" }, { name: "dragonfly" } ] }\n'


def stored(*, version: bytes = b"one", filler_bytes: int = 0) -> bytes:
    """A configuration that asks for the agent."""
    return b'name: "' + version + b'"\n' + b"#" * filler_bytes + b"\n" + AGENT + b"max_batch_size: 8\n"


def shown(body: bytes) -> bytes:
    """The same as a mount with the option shows it."""
    return body.replace(AGENT.strip(), b" " * len(AGENT.strip()))


LARGE = stored(filler_bytes=300_000)
FILES = {
    "m/config.pbtxt": stored(),
    "large/config.pbtxt": LARGE,
    "two/config.pbtxt": TWO,
    "broken/config.pbtxt": AGENT + b"name { \n",
    "huge/config.pbtxt": stored(filler_bytes=1 << 20),
    "m/configs/gpu.pbtxt": stored(),
    "m/1/notes.txt": stored(),
    "plain/config.pbtxt": b'name: "plain"\n',
}
SHOWN = FILES | {
    "m/config.pbtxt": shown(stored()),
    "m/configs/gpu.pbtxt": shown(stored()),
    "large/config.pbtxt": shown(LARGE),
    "two/config.pbtxt": TWO.replace(b', { name: "dragonfly" }', b" " * 23),
}


@pytest.fixture
def store(faulty: InThread[S3Faults]) -> InThread[S3Faults]:
    for name, body in FILES.items():
        faulty.do(faulty.server.put, f"b/{name}", body)
    return faulty


@pytest.fixture
def hiding(mounter: Mounter, store: InThread[S3Faults]) -> Mounted:
    return mounter.mount(faulty_url(store), "--anonymous", HIDE)


def sizes(mounted: Mounted) -> dict[str, int]:
    """The size of each file, as a walk of all directories has it from the kernel."""

    def walk() -> dict[str, int]:
        top = mounted.point
        found = (Path(at) / name for at, _, names in os.walk(top) for name in names)
        return {str(each.relative_to(top)): each.stat().st_size for each in found}

    return within(READ_TIMEOUT_S, walk)


def test_every_way_to_read_shows_the_file_without_the_agent(hiding: Mounted) -> None:
    before = sizes(hiding)
    assert before == {name: len(body) for name, body in FILES.items()}
    for name, body in SHOWN.items():
        assert hiding.pread(name, len(body) // 2, 60) == body[len(body) // 2 :][:60]
        assert hiding.read(name) == body, name
        assert hiding.read_anew(name) == body, name
        with (hiding.point / name).open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
            assert within(READ_TIMEOUT_S, partial(bytes, memoryview(mapped))) == body, name
    assert sizes(hiding) == before


def test_readers_at_once_are_given_one_download(hiding: Mounted) -> None:
    names = ["large/config.pbtxt"] * 8
    reading = [in_background((hiding.point / name).read_bytes) for name in names]
    assert {each.result(READ_TIMEOUT_S) for each in reading} == {SHOWN[names[0]]}
    assert hiding.data_requests() == 1


def test_what_the_kernel_reads_by_itself_has_no_agent_either(hiding: Mounted) -> None:
    name = "large/config.pbtxt"
    assert hiding.read(name) == SHOWN[name]
    until(lambda: not hiding.status()["fuse"]["open_files"], "the end of the handle that the daemon serves")
    opens, reads = told(hiding)
    assert hiding.read_anew(name) == SHOWN[name]
    if hiding.status()["fuse"]["passthrough_opens"] > opens:
        assert told(hiding)[1] == reads
    cached = [path.read_bytes() for path in hiding.cache_dir.rglob("*.data") if path.stat().st_size == len(LARGE)]
    assert cached == [SHOWN[name]], "the cache has the bytes that are shown, and no others"


def test_mounts_with_and_without_it_share_a_cache_and_never_bytes(
    hiding: Mounted, mounter: Mounter, store: InThread[S3Faults]
) -> None:
    plain = mounter.mount(faulty_url(store), "--anonymous", cache_dir=hiding.cache_dir)
    again = mounter.mount(faulty_url(store), "--anonymous", HIDE, cache_dir=hiding.cache_dir)
    for name, body in FILES.items():
        for mounted, expected in ((hiding, SHOWN[name]), (plain, body), (again, SHOWN[name])):
            assert mounted.read(name) == expected, name
    assert again.data_requests() == 0, "what another mount with the option has cached is used"


@pytest.mark.parametrize("first", [True, False], ids=["with it first", "without it first"])
def test_names_that_an_earlier_mount_has_kept_are_of_its_settings(
    mounter: Mounter, store: InThread[S3Faults], first: bool
) -> None:
    """The second mount knows the names before it asks, and must not take them for what it serves."""
    cache_dir = mounter.directory / "shared"
    for hides in (first, not first):
        options = ["--anonymous", "--metadata-ttl", "1h", *([HIDE] if hides else [])]
        mounted = mounter.mount(faulty_url(store), *options, cache_dir=cache_dir)
        assert sizes(mounted).keys() == FILES.keys()
        for name in FILES:
            assert mounted.read(name) == (SHOWN if hides else FILES)[name], name
        assert run("umount", mounted.point).returncode == 0


def test_a_new_version_is_shown_whole_and_without_the_agent(hiding: Mounted, store: InThread[S3Faults]) -> None:
    name = "m/config.pbtxt"
    old, new = SHOWN[name], stored(version=b"two")
    with (hiding.point / name).open("rb") as held:
        assert held.read() == old
        store.do(store.server.put, f"b/{name}", new)
        assert run("refresh", hiding.point).returncode == 0
        assert hiding.read(name) == shown(new)
        assert os.pread(held.fileno(), len(old), 0) == old, "an open file stays its version"


def test_its_readers_outlive_a_worker(mounter: Mounter, store: InThread[S3Faults]) -> None:
    mounted = mounter.mount(faulty_url(store), "--anonymous", HIDE, "--no-passthrough", "--takeover", "cold")
    name = "large/config.pbtxt"
    with (mounted.point / name).open("rb", buffering=0) as held:
        assert within(READ_TIMEOUT_S, lambda: os.pread(held.fileno(), 100, 0)) == SHOWN[name][:100]
        worker = mounted.worker_pid
        os.kill(worker, signal.SIGKILL)
        os.posix_fadvise(held.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        assert within(READ_TIMEOUT_S, lambda: os.pread(held.fileno(), len(LARGE), 0)) == SHOWN[name]
    assert mounted.worker_pid != worker


def test_warm_verify_and_drop_know_the_file(hiding: Mounted) -> None:
    assert run("warm", hiding.point).returncode == 0
    where = ("--cache-dir", str(hiding.cache_dir))
    verified = run("cache", "verify", "--md5", "--json", *where)
    rows = {row["name"].split("/b/")[1]: row for row in json.loads(verified.stdout)}
    assert verified.returncode == 0, verified.stdout
    assert rows.keys() == FILES.keys()
    assert rows["m/1/notes.txt"]["md5"], "its bytes are the store's"
    assert rows["m/config.pbtxt"]["md5"] is None, "its ETag is about bytes that are not cached"
    assert hiding.read("m/config.pbtxt") == SHOWN["m/config.pbtxt"]
    assert run("cache", "drop", hiding.point / "m").returncode == 0
    requests = hiding.data_requests()
    assert hiding.read("m/config.pbtxt") == SHOWN["m/config.pbtxt"]
    assert hiding.data_requests() == requests + 1


def test_stat_tells_of_it(hiding: Mounted, mounter: Mounter, store: InThread[S3Faults]) -> None:
    said = hiding.stat("m/config.pbtxt")
    assert said["served"] == "without Dragonfly's agent"
    assert said["etag"] == mounter.mount(faulty_url(store), "--anonymous").stat("m/config.pbtxt")["etag"]
    assert "without Dragonfly's agent" in run("stat", hiding.point / "m/config.pbtxt").stdout
    assert "served" not in hiding.stat("m/1/notes.txt")


@pytest.mark.store
def test_the_checksum_is_of_the_bytes_that_were_uploaded(bucket: Bucket, mounter: Mounter) -> None:
    """With `--verify full` the store's record of each file is compared, and here before the change."""
    body = stored()
    bucket.put("hidden/m/config.pbtxt", body)
    mounted = mounter.mount(bucket.url("hidden"), HIDE, "--verify", "full", env=bucket.env)
    assert mounted.read("m/config.pbtxt") == shown(body)
    assert mounted.status()["cache"]["checksum_mismatches"] == 0
    assert mounted.data_requests() == 1
