"""A published tree: what mounts show of it, how they follow it, and what they do when it is no good."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import random
import signal
import threading
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from d7yfs.fetch.dragonfly_task import MAX_DIRECT_BYTES
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.tree.listing import Scan
from d7yfs.tree.published import Pointer, encode_listings
from tests.mount.conftest import Bucket, environment
from tests.mount.mounted import Mounted, Mounter, run, until, within
from tests.mount.test_tree_cache import Directories, walk
from tests.mount.test_trust import ANONYMOUS, OWNER, keys
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.in_thread import InThread

pytestmark = [pytest.mark.mount]

POINTER = ".d7yfs/published"
FOREVER = ("--listing", "published", "--metadata-ttl", "forever")
SOON = ("--listing", "published", "--metadata-ttl", "1s")


def publish(bucket: Bucket, prefix: str, *options: str) -> dict[str, object]:
    done = run("publish", bucket.url(prefix), "--json", *options, env=environment(bucket.server.writer))
    assert done.returncode == 0, done.stderr
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def put_all(bucket: Bucket, prefix: str, files: Mapping[str, bytes]) -> None:
    for name, body in files.items():
        bucket.put(f"{prefix}/{name}", body)


def account(mounted: Mounted) -> dict[str, object]:
    found: dict[str, object] = mounted.status()["repositories"][0]["publication"]
    return found


def refresh(mounted: Mounted) -> str:
    done = run("refresh", mounted.point)
    assert done.returncode == 0, done.stderr
    return done.stdout


OLD = {"m/config": b"old", "m/1/weights": b"1" * 100, "other/x": b"x"}


@pytest.fixture
def published(bucket: Bucket, request: pytest.FixtureRequest) -> str:
    """A prefix of its own with a published tree."""
    prefix = f"published-{request.node.name}"
    put_all(bucket, prefix, OLD)
    publish(bucket, prefix)
    return prefix


# --- a real store ---


def test_a_mount_shows_what_is_published_and_nothing_else(mounter: Mounter, bucket: Bucket, published: str) -> None:
    bucket.put(f"{published}/m/2/weights", b"half a model")
    mounted = mounter.mount(bucket.url(published), *FOREVER, env=bucket.env)
    assert walk(mounted) == ["m", "m/1", "m/1/weights", "m/config", "other", "other/x"]
    assert mounted.read("m/1/weights") == OLD["m/1/weights"]
    with pytest.raises(FileNotFoundError):
        mounted.read("m/2/weights")
    refresh(mounted)
    assert "m/2" not in walk(mounted)
    publish(bucket, published)
    assert "1 added" in refresh(mounted), "the directory m/2"
    assert mounted.read("m/2/weights") == b"half a model"
    assert "m/2/weights" in walk(mounted)


def test_auto_follows_what_is_published_and_says_so(mounter: Mounter, bucket: Bucket, published: str) -> None:
    bucket.put(f"{published}/late", b"late")
    mounted = mounter.mount(bucket.url(published), env=bucket.env)
    assert "late" not in walk(mounted)
    (status,) = mounted.status()["repositories"]
    assert (status["listing"]["in_use"], status["listing"]["scans"]) == ("published", 0)
    assert status["publication"]["files"] == len(OLD)
    bucket.delete(f"{published}/{POINTER}")
    refresh(mounted)
    assert "late" in walk(mounted), "nothing is published any more: the store is listed"
    assert mounted.status()["repositories"][0]["publication"] is None


@pytest.mark.parametrize("listing", ["whole", "directory", "exact"])
def test_what_is_reserved_is_hidden(mounter: Mounter, bucket: Bucket, published: str, listing: str) -> None:
    mounted = mounter.mount(bucket.url(published), "--listing", listing, env=bucket.env)
    if listing != "exact":
        assert walk(mounted) == ["m", "m/1", "m/1/weights", "m/config", "other", "other/x"]
    for name in (".d7yfs", POINTER):
        with pytest.raises(FileNotFoundError):
            within(20, (mounted.point / name).stat)
    assert ".d7yfs" not in run("ls", "-R", bucket.url(published), env=bucket.env).stdout


def test_it_is_followed_within_the_time_to_live(mounter: Mounter, bucket: Bucket, published: str) -> None:
    mounted = mounter.mount(bucket.url(published), *SOON, env=bucket.env)
    walk(mounted)
    bucket.put(f"{published}/m/new", b"new")
    bucket.delete(f"{published}/other/x")
    publish(bucket, published)
    until(lambda: "m/new" in walk(mounted), "the new tree is shown")
    assert walk(mounted) == ["m", "m/1", "m/1/weights", "m/config", "m/new"]


def test_the_same_tree_has_the_same_snapshot(bucket: Bucket, published: str) -> None:
    first, second = publish(bucket, published), publish(bucket, published)
    assert first["sha256"] == second["sha256"]
    bucket.put(f"{published}/more", b"more")
    assert publish(bucket, published)["sha256"] != first["sha256"]


def test_a_file_that_has_not_changed_keeps_its_inode_and_its_cache(
    mounter: Mounter, bucket: Bucket, published: str
) -> None:
    mounted = mounter.mount(bucket.url(published), *FOREVER, env=bucket.env)
    mounted.read("m/1/weights")
    before, requests = (mounted.point / "m/1/weights").stat().st_ino, mounted.data_requests()
    bucket.put(f"{published}/m/1/more", b"more")
    publish(bucket, published)
    refresh(mounted)
    assert mounted.read("m/1/more") == b"more"
    assert (mounted.point / "m/1/weights").stat().st_ino == before
    mounted.read("m/1/weights")
    assert mounted.data_requests() == requests + 1


def test_an_object_that_was_overwritten_without_publishing_is_stale(
    mounter: Mounter, bucket: Bucket, published: str
) -> None:
    mounted = mounter.mount(bucket.url(published), *FOREVER, env=bucket.env)
    bucket.put(f"{published}/m/1/weights", b"2" * 100)
    with pytest.raises(OSError, match=os.strerror(errno.ESTALE)):
        mounted.read("m/1/weights")
    assert mounted.read("m/config") == b"old"
    (problem,) = mounted.status()["problems"]
    assert problem["code"] == "version-changed"
    assert "d7yfs publish" in problem["hint"]
    assert "has changed since it was published" in mounted.log()
    publish(bucket, published)
    until(lambda: _reads(mounted, "m/1/weights", b"2" * 100), "the new version is read")


def _reads(mounted: Mounted, name: str, expected: bytes) -> bool:
    """A read that finds the file stale has the mount look for what is published."""
    try:
        return mounted.read(name) == expected
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return False


def test_a_reader_sees_all_old_or_all_new(mounter: Mounter, bucket: Bucket, published: str) -> None:
    """While somebody uploads and publishes, every model that is seen is complete, and of one version."""
    prefix, parts = f"{published}/model", 12

    def upload(version: int) -> None:
        for part in range(parts):
            bucket.put(f"{prefix}/v{version}/part-{part:02}", b"%d" % version)

    upload(0)
    publish(bucket, published)
    mounted = mounter.mount(bucket.url(published), *SOON, env=bucket.env)
    over = threading.Event()

    def work() -> None:
        for version in range(1, 5):
            upload(version)
            publish(bucket, published)
        over.set()

    worker = threading.Thread(target=work)
    worker.start()
    seen: set[str] = set()
    try:
        while not over.is_set() or "v4" not in seen:
            for version in mounted.names("model"):
                assert len(mounted.names(f"model/{version}")) == parts, version
                seen.add(version)
    finally:
        worker.join(60)
    assert seen == {f"v{number}" for number in range(5)}


def test_nothing_published_is_an_error_that_says_what_to_do(mounter: Mounter, bucket: Bucket) -> None:
    done = mounter.refused(bucket.url("library"), "--listing", "published", env=bucket.env)
    assert "nothing is published" in done.stderr
    assert "run d7yfs publish s3://" in done.stderr


def test_publishing_needs_the_right_to_write(bucket: Bucket) -> None:
    done = run("publish", bucket.url("library"), env=bucket.env)
    assert done.returncode == 1
    assert "must not be written" in done.stderr
    assert "s3:PutObject" in done.stderr


def test_publishing_nothing_is_refused(bucket: Bucket) -> None:
    done = run("publish", bucket.url("librar"), env=environment(bucket.server.writer))
    assert done.returncode == 1
    assert "nearest that exist: s3://" in done.stderr


def test_a_worker_that_takes_over_follows_the_same_tree(mounter: Mounter, bucket: Bucket, published: str) -> None:
    mounted = mounter.mount(bucket.url(published), "--takeover", "standby", "--metadata-ttl", "forever", env=bucket.env)
    assert walk(mounted)
    bucket.put(f"{published}/late", b"late")
    pid = mounted.worker_pid
    os.kill(pid, signal.SIGKILL)
    assert walk(mounted) == ["m", "m/1", "m/1/weights", "m/config", "other", "other/x"]
    assert mounted.read("m/config") == b"old"
    assert mounted.worker_pid != pid


# --- a store whose requests are counted ---


class Published(Directories):
    """A store whose files are published as `publish --to` wrote them."""

    def write(self, directory: Path) -> None:
        """Take the files of a publication."""
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                self.put(f"b/{path.relative_to(directory)}", path.read_bytes())

    def about_names(self) -> list[str]:
        """The requests for names, and for what is published: LIST, or the method and the key."""
        shown = []
        for each in self.requests:
            if "list-type" in each.target:
                shown.append("LIST")
            elif each.key.startswith("b/.d7yfs/"):
                shown.append(f"{each.method} {each.key.removeprefix('b/.d7yfs/').partition('/')[0]}")
        return shown


@pytest.fixture
def store() -> Iterator[InThread[Published]]:
    with InThread(Published()) as running:
        yield running


def url_of(store: InThread[Published]) -> str:
    return f"s3://127.0.0.1:{store.server.port}/b"


def publish_there(store: InThread[Published], directory: Path) -> dict[str, object]:
    done = run("publish", url_of(store), "--json", "--to", directory, env=keys(OWNER))
    assert done.returncode == 0, done.stderr
    store.do(partial(store.server.write, directory))
    answer: dict[str, object] = json.loads(done.stdout)
    return answer


def put_pointer(store: InThread[Published], **changes: object) -> None:
    pointer = json.loads(store.server.objects[f"b/{POINTER}"])
    store.do(partial(store.server.put, f"b/{POINTER}", json.dumps(pointer | changes).encode()))


EVERYTHING = ["large", "m", "m/1", "m/1/weights", "m/config", "small"]


def test_a_host_asks_for_the_pointer_and_the_snapshot_and_lists_nothing(
    mounter: Mounter, store: InThread[Published], tmp_path: Path
) -> None:
    publish_there(store, tmp_path / "tree")
    store.server.requests.clear()
    mounted = mounter.mount(url_of(store), *FOREVER, env=keys(OWNER))
    assert walk(mounted) == EVERYTHING
    assert store.server.about_names() == ["HEAD published", "GET published", "HEAD tree", "GET tree"]
    assert run("umount", mounted.point).returncode == 0
    mounted.wait_ended()
    store.server.requests.clear()
    again = mounter.mount(url_of(store), *FOREVER, env=keys(OWNER), cache_dir=mounted.cache_dir)
    assert walk(again) == EVERYTHING
    assert store.server.about_names() == ["HEAD published", "GET published"], "the snapshot was kept"


def test_a_large_tree_comes_through_the_proxy(mounter: Mounter, store: InThread[Published]) -> None:
    """And by its digest: what a peer has altered is fetched from the store."""
    listing = Scan("")
    chance = random.Random(1)
    made = (ObjectVersion(f"m/{at:06}", 5, f'"{chance.randbytes(32).hex()}"', 10**18) for at in range(130_000))
    listing.add(ListingPage(tuple(made), (), "", 0))
    data, entries, directories, found = encode_listings("", listing.listings(), 1)
    assert len(data) > MAX_DIRECT_BYTES
    sha256 = hashlib.sha256(data).hexdigest()
    pointer = Pointer(
        sha256=sha256, size_bytes=len(data), entries=entries, directories=directories, files=found, published_at=1.0
    )
    store.do(partial(store.server.put, f"b/{pointer.snapshot}", data))
    store.do(partial(store.server.put, f"b/{POINTER}", pointer.encode()))
    store.server.allow(ANONYMOUS)  # it knows no key that is in a URL
    with InThread(FakeDfdaemon()) as dfdaemon:
        mounted = mounter.mount(url_of(store), *FOREVER, "--proxy", dfdaemon.server.url, env=keys(OWNER))
        asked = [each.target for each in dfdaemon.server.requests if "snapshot" in each.target]
        assert mounted.names() == ["m"]
        assert len(asked) == 1
        for task in dfdaemon.server.tasks.values():
            task.pieces = {number: bytes(len(piece)) for number, piece in task.pieces.items()}
        again = mounter.mount(url_of(store), *FOREVER, "--proxy", dfdaemon.server.url, env=keys(OWNER))
        assert again.names() == ["m"]
        assert "came damaged through the proxy" in again.log()


def test_a_time_to_live_costs_one_request(mounter: Mounter, store: InThread[Published], tmp_path: Path) -> None:
    publish_there(store, tmp_path / "tree")
    mounted = mounter.mount(url_of(store), "--listing", "published", "--metadata-ttl", "2s", env=keys(OWNER))
    walk(mounted)
    store.server.requests.clear()
    asked = 3

    def heads() -> int:
        walk(mounted)
        return store.server.about_names().count("HEAD published")

    until(lambda: heads() >= asked, "the pointer is asked for")
    found = store.server.about_names()
    assert set(found) == {"HEAD published"}, "no listing, no snapshot"
    assert account(mounted)["pointer_requests"] == 1 + len(found)


def test_auto_costs_nothing_where_nothing_is_published(mounter: Mounter, store: InThread[Published]) -> None:
    mounted = mounter.mount(url_of(store), env=keys(OWNER))
    assert walk(mounted) == EVERYTHING
    assert set(store.server.about_names()) == {"LIST"}


def test_hosts_need_no_right_to_list(mounter: Mounter, store: InThread[Published], tmp_path: Path) -> None:
    publish_there(store, tmp_path / "tree")
    store.server.allow(OWNER, lists=False)
    mounted = mounter.mount(url_of(store), *FOREVER, env=keys(OWNER))
    assert walk(mounted) == EVERYTHING


BAD_POINTERS = {
    "no JSON": b"{",
    "too large": b" " * (70 << 10),
    "nested": b"[" * 60_000,
    "other format": b'{"format": 2}',
    "no object": b"[]",
}


@pytest.mark.parametrize("body", BAD_POINTERS.values(), ids=list(BAD_POINTERS))
def test_a_pointer_that_cannot_be_read_changes_nothing(
    mounter: Mounter, store: InThread[Published], tmp_path: Path, body: bytes
) -> None:
    publish_there(store, tmp_path / "tree")
    mounted = mounter.mount(url_of(store), *FOREVER, env=keys(OWNER))
    walk(mounted)
    store.do(partial(store.server.put, f"b/{POINTER}", body))
    refresh(mounted)
    assert walk(mounted) == EVERYTHING
    (problem,) = mounted.status()["problems"]
    assert problem["code"] == "publication-unusable"
    assert "d7yfs publish" in problem["hint"]
    refused = mounter.refused(url_of(store), *FOREVER, env=keys(OWNER))
    assert "d7yfs publish" in refused.stderr
    listed = mounter.mount(url_of(store), env=keys(OWNER))
    assert walk(listed) == EVERYTHING, "auto lists the store then"
    assert account(listed)["is_followed"] is False


@pytest.mark.parametrize(
    "changes",
    [
        {"snapshot": "../secret"},
        {"snapshot": "small"},
        {"sha256": "../../small"},
        {"size_bytes": 1 << 40},
        {"entries": 10**12},
        {"size_bytes": -1},
        {"published_at": "now"},
        {"published_at": float("nan")},
    ],
    ids=str,
)
def test_a_pointer_cannot_lead_anywhere_else(
    mounter: Mounter, store: InThread[Published], tmp_path: Path, changes: dict[str, object]
) -> None:
    publish_there(store, tmp_path / "tree")
    put_pointer(store, **changes)
    store.server.requests.clear()
    mounter.refused(url_of(store), *FOREVER, env=keys(OWNER))
    assert set(store.server.about_names()) == {"HEAD published", "GET published"}


def test_a_snapshot_that_is_damaged_is_not_shown(mounter: Mounter, store: InThread[Published], tmp_path: Path) -> None:
    """Neither one of other bytes, nor one that the pointer's digest is of and that is none."""
    publish_there(store, tmp_path / "tree")
    mounted = mounter.mount(url_of(store), *FOREVER, env=keys(OWNER))
    walk(mounted)
    store.do(partial(store.server.put, "b/new", b"new"))
    made = publish_there(store, tmp_path / "next")
    key = f"b/.d7yfs/tree/{made['sha256']}.snapshot"
    whole = store.server.objects[key]
    store.do(partial(store.server.put, key, whole[:-1] + bytes([whole[-1] ^ 1])))
    refresh(mounted)
    assert walk(mounted) == EVERYTHING, "the last good one"
    assert "not those that were published" in str(account(mounted)["trouble"])
    junk = b"d7yfstr1" + b"\0" * 100
    digest = hashlib.sha256(junk).hexdigest()
    store.do(partial(store.server.put, f"b/.d7yfs/tree/{digest}.snapshot", junk))
    put_pointer(store, sha256=digest, size_bytes=len(junk), snapshot=f".d7yfs/tree/{digest}.snapshot")
    refresh(mounted)
    assert walk(mounted) == EVERYTHING
    assert "the snapshot cannot be read" in str(account(mounted)["trouble"])
    publish_there(store, tmp_path / "good")
    refresh(mounted)
    assert walk(mounted) == sorted([*EVERYTHING, "new"])
    assert account(mounted)["trouble"] == ""


def test_names_outlive_the_store(mounter: Mounter, store: InThread[Published], tmp_path: Path) -> None:
    """A directory that was never looked at is shown, too, while the store is away."""
    publish_there(store, tmp_path / "tree")
    mounted = mounter.mount(url_of(store), *SOON, "--read-timeout", "2s", env=keys(OWNER))
    assert mounted.read("small")
    store.server.is_away = True
    until(lambda: mounted.status()["repositories"][0]["state"] == "stale", "the store is missed", timeout_s=60)
    assert mounted.names("m/1") == ["weights"]
    store.server.is_away = False
    until(lambda: mounted.status()["repositories"][0]["state"] == "reachable", "the store is back", timeout_s=60)
