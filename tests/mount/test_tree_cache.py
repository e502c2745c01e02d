"""Names that outlive a mount: who sees them, for how long, and what they are worth without the store."""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import trio

from tests.mount.conftest import bytes_of
from tests.mount.mounted import Mounted, Mounter, run, until, within
from tests.mount.test_trust import OWNER, STRANGER, Policies, keys
from tests.servers.http11 import Answer, Request
from tests.servers.in_thread import InThread

pytestmark = [pytest.mark.mount]

SERVE = ("--offline", "serve", "--read-timeout", "2s")
MANY = 10_000


class Directories(Policies):
    """A store with some directories that its owner may list and read."""

    def __init__(self) -> None:
        super().__init__()
        self.objects |= {"b/m/config": b"config", "b/m/1/weights": bytes_of(3, 5000)}
        self.is_silent = False

    async def answer(self, request: Request) -> Answer:
        if self.is_silent:
            await trio.sleep_forever()
        return await super().answer(request)

    def listings(self) -> list[str]:
        """The requests for names, without the first check of a mount, which asks for two."""
        targets = [each.target for each in self.requests if "list-type" in each.target]
        return [each for each in targets if "max-keys=20&" not in each and not each.endswith("max-keys=20")]


@pytest.fixture
def store() -> Iterator[InThread[Directories]]:
    with InThread(Directories()) as running:
        yield running


def url_of(store: InThread[Directories]) -> str:
    return f"s3://127.0.0.1:{store.server.port}/b"


def kept(mounted: Mounted) -> list[Path]:
    return [*mounted.cache_dir.glob("v2/names/*.names")]


def use(mounted: Mounted, store: InThread[Directories]) -> None:
    """Have a mount list and cache all but `large`."""
    assert walk(mounted) == ["large", "m", "m/1", "m/1/weights", "m/config", "small"]
    for name in ("small", "m/config", "m/1/weights"):
        assert mounted.read(name) == store.server.objects[f"b/{name}"]


def walk(mounted: Mounted) -> list[str]:
    def found() -> list[str]:
        return sorted(str(path.relative_to(mounted.point)) for path in mounted.point.rglob("*"))

    return within(20, found)


def end(mounted: Mounted) -> None:
    done = run("umount", mounted.point)
    assert done.returncode == 0, done.stderr
    mounted.wait_ended()


def again(mounter: Mounter, store: InThread[Directories], first: Mounted, *options: str, key: str = OWNER) -> Mounted:
    return mounter.mount(url_of(store), *options, env=keys(key), cache_dir=first.cache_dir)


@pytest.fixture
def first(mounter: Mounter, store: InThread[Directories]) -> Mounted:
    """A mount that has ended, and has kept what it listed."""
    mounted = mounter.mount(url_of(store), "--verify", "off", env=keys(OWNER))
    use(mounted, store)
    end(mounted)
    assert len(kept(mounted)) == 1
    return mounted


def test_a_restart_within_the_time_to_live_lists_nothing(
    mounter: Mounter, store: InThread[Directories], first: Mounted
) -> None:
    before = len(store.server.listings())
    store.do(partial(store.server.put, "b/new", b"new"))
    mounted = again(mounter, store, first)
    use(mounted, store)
    assert len(store.server.listings()) == before
    (status,) = mounted.status()["repositories"]
    assert status["tree_cache"]["recalled"] == 6
    assert 0 <= time.time() - status["tree_cache"]["listed_at"] < 60
    assert (status["state"], status["tree_cache"]["offline_since"]) == ("reachable", None)


def test_what_is_older_than_the_time_to_live_is_asked_for_first(
    mounter: Mounter, store: InThread[Directories], first: Mounted
) -> None:
    store.do(partial(store.server.put, "b/new", b"new"))
    store.do(partial(store.server.delete, "b/m/config"))
    mounted = again(mounter, store, first, "--metadata-ttl", "100ms")
    assert walk(mounted) == ["large", "m", "m/1", "m/1/weights", "new", "small"]


@pytest.mark.parametrize("lifetime", ["0", "forever"])
def test_a_mount_asks_at_least_once_where_names_live_for_no_time_or_for_ever(
    mounter: Mounter, store: InThread[Directories], first: Mounted, lifetime: str
) -> None:
    store.do(partial(store.server.put, "b/new", b"new"))
    mounted = again(mounter, store, first, "--metadata-ttl", lifetime)
    assert mounted.names() == ["large", "m", "new", "small"]


def test_a_killed_mount_has_kept_what_it_listed(mounter: Mounter, store: InThread[Directories]) -> None:
    mounted = mounter.mount(url_of(store), "--takeover", "off", env=keys(OWNER))
    use(mounted, store)
    until(lambda: len(kept(mounted)) == 1, "names are kept while the mount runs")
    mounted.kill()
    mounted.wait_ended()
    before = len(store.server.listings())
    use(mounter.mount(url_of(store), env=keys(OWNER), point=mounted.point, cache_dir=mounted.cache_dir), store)
    assert len(store.server.listings()) == before


def test_without_the_store_a_mount_is_refused_and_says_what_it_could_serve(
    mounter: Mounter, store: InThread[Directories], first: Mounted
) -> None:
    store.server.is_away = True
    done = mounter.refused(url_of(store), env=keys(OWNER), cache_dir=first.cache_dir)
    assert re.search(r"--offline serve could mount 4 files that were listed by \d\d:\d\d", done.stderr)


def test_without_the_store_what_is_cached_is_served(
    mounter: Mounter, store: InThread[Directories], first: Mounted
) -> None:
    store.server.is_away = True
    mounted = again(mounter, store, first, *SERVE, "--metadata-ttl", "200ms")
    assert "without its store" in mounted.said
    use(mounted, store)
    with pytest.raises(OSError) as failed:  # noqa: PT011  # its errno is looked at
        mounted.read("large")
    assert failed.value.errno == errno.EIO
    (status,) = mounted.status()["repositories"]
    assert status["state"] == "stale"
    assert status["tree_cache"]["listed_at"] <= status["tree_cache"]["offline_since"] <= time.time()
    assert "503" in status["tree_cache"]["offline_reason"]
    said = run("status", mounted.point).stdout
    assert "offline" in said
    assert "with names as of" in said

    store.do(partial(store.server.put, "b/new", b"new"))
    store.server.is_away = False
    until(lambda: "new" in mounted.names(), "the store is back", timeout_s=60)
    assert mounted.read("large") == store.server.objects["b/large"]
    (status,) = mounted.status()["repositories"]
    assert (status["state"], status["tree_cache"]["offline_since"]) == ("reachable", None)


def test_a_silent_store_is_given_up_soon_if_there_is_something_to_serve(
    mounter: Mounter, store: InThread[Directories], first: Mounted
) -> None:
    store.server.is_silent = True
    mounted = again(mounter, store, first, *SERVE)
    assert "no answer within 5 s" in mounted.said
    use(mounted, store)


def test_without_the_store_a_worker_that_follows_serves_the_same(
    mounter: Mounter, store: InThread[Directories], first: Mounted
) -> None:
    store.server.is_away = True
    mounted = again(mounter, store, first, *SERVE)
    if not mounted.status()["takeover"]["generation"]:
        pytest.skip("no worker can take over on this kernel")
    use(mounted, store)
    worker_pid = mounted.worker_pid
    with (mounted.point / "small").open("rb") as held:
        os.kill(worker_pid, signal.SIGKILL)
        use(mounted, store)
        assert within(20, held.read) == store.server.objects["b/small"]
    assert mounted.worker_pid != worker_pid
    store.server.is_away = False
    until(lambda: mounted.status()["repositories"][0]["state"] == "reachable", "the store is back", timeout_s=60)
    use(mounted, store)


def test_one_of_several_is_served_without_its_store_and_the_others_as_usual(
    mounter: Mounter, store: InThread[Directories], tmp_path: Path
) -> None:
    def mount(*options: str) -> Mounted:
        urls = (f"one={url_of(store)}/m", f"two=s3://127.0.0.1:{other.server.port}/b/m")
        return mounter.mount(*urls, "--verify", "off", *options, env=keys(OWNER), cache_dir=tmp_path / "cache")

    with InThread(Directories()) as other:
        mounted = mount()
        assert [mounted.read(f"{name}/config") for name in ("one", "two")] == [b"config"] * 2
        assert mounted.names("one") == mounted.names("two") == ["1", "config"]
        end(mounted)
        store.server.is_away = True
        mounted = mount()
        assert mounted.names("one") == []
        assert "one is empty for now" in mounted.said
        end(mounted)
        mounted = mount(*SERVE)
        assert [mounted.read(f"{name}/config") for name in ("one", "two")] == [b"config"] * 2
        assert mounted.read("two/1/weights") == bytes_of(3, 5000)
        assert [each["state"] for each in mounted.status()["repositories"]] == ["stale", "reachable"]


def test_without_the_store_another_secret_is_served_nothing(
    mounter: Mounter, store: InThread[Directories], first: Mounted
) -> None:
    store.server.is_away = True
    forged = keys(OWNER) | {"AWS_SECRET_ACCESS_KEY": "another"}
    done = mounter.refused(url_of(store), *SERVE, env=forged, cache_dir=first.cache_dir)
    assert "only lasting keys are proved without the store" in done.stderr
    temporary = keys(OWNER) | {"AWS_SESSION_TOKEN": "token"}
    mounter.refused(url_of(store), *SERVE, env=temporary, cache_dir=first.cache_dir)


def test_a_store_that_is_back_and_refuses_ends_what_was_served_without_it(
    mounter: Mounter, store: InThread[Directories], first: Mounted
) -> None:
    store.server.is_away = True
    mounted = again(mounter, store, first, *SERVE)
    use(mounted, store)
    store.do(partial(store.server.allow, OWNER, lists=False, reads=False))
    store.server.is_away = False

    def is_refused() -> bool:
        try:
            mounted.names()
            mounted.read_anew("small")
        except PermissionError:
            return True
        return False

    until(is_refused, "the refusal", timeout_s=60)


def test_other_credentials_see_nothing_of_it(mounter: Mounter, store: InThread[Directories], first: Mounted) -> None:
    before = len(store.server.listings())
    stranger = again(mounter, store, first, key=STRANGER)
    assert stranger.status()["repositories"][0]["tree_cache"]["recalled"] == 0
    assert stranger.names() == ["large", "m", "small"]
    assert len(store.server.listings()) > before
    end(stranger)
    store.do(partial(store.server.allow, OWNER, lists=False))
    done = mounter.refused(url_of(store), env=keys(OWNER), cache_dir=first.cache_dir)
    assert "AccessDenied (403)" in done.stderr
    store.server.is_away = True
    for name in ("owner", "other"):
        done = mounter.refused(url_of(store), *SERVE, env=keys(f"AKIA{name.upper()}"), cache_dir=first.cache_dir)
        assert "offline" not in done.stderr


def test_other_settings_of_what_is_shown_see_nothing_of_it(
    mounter: Mounter, store: InThread[Directories], first: Mounted
) -> None:
    mounted = again(mounter, store, first, "--exclude", "m")
    assert mounted.names() == ["large", "small"]


def test_shared_names_need_no_credentials_of_their_own(mounter: Mounter, store: InThread[Directories]) -> None:
    mounted = mounter.mount(url_of(store), "--cache-trust", "shared", env=keys(OWNER))
    use(mounted, store)
    end(mounted)
    store.server.is_away = True
    temporary = keys(STRANGER) | {"AWS_SESSION_TOKEN": "token"}
    options = (*SERVE, "--cache-trust", "shared")
    use(mounter.mount(url_of(store), *options, env=temporary, cache_dir=mounted.cache_dir), store)


def test_a_damaged_file_is_ignored(mounter: Mounter, store: InThread[Directories], first: Mounted) -> None:
    (file,) = kept(first)
    assert (file.stat().st_mode & 0o777, file.stat().st_uid) == (0o600, os.geteuid())
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    mounted = again(mounter, store, first)
    use(mounted, store)
    assert mounted.log().count("are damaged, or too many; listed anew") == 1


def test_a_file_that_others_can_read_or_have_made_is_ignored(
    mounter: Mounter, store: InThread[Directories], first: Mounted
) -> None:
    (file,) = kept(first)
    file.chmod(0o644)
    mounted = again(mounter, store, first)
    use(mounted, store)
    assert "can be entered by other users" in mounted.log()


def test_off_keeps_nothing_and_reads_nothing(mounter: Mounter, store: InThread[Directories], first: Mounted) -> None:
    (file,) = kept(first)
    written_at = file.stat().st_mtime_ns
    before = len(store.server.listings())
    mounted = again(mounter, store, first, "--tree-cache", "off")
    use(mounted, store)
    assert len(store.server.listings()) > before
    assert mounted.status()["repositories"][0]["tree_cache"] is None
    end(mounted)
    assert file.stat().st_mtime_ns == written_at


def test_dropping_the_whole_cache_drops_names(first: Mounted) -> None:
    assert run("cache", "drop", "--all", "--cache-dir", first.cache_dir).returncode == 0
    assert not kept(first)


def test_a_remount_of_many_names_is_quick(mounter: Mounter, store: InThread[Directories]) -> None:
    store.do(lambda: store.server.objects.update({f"b/many/{number:05}": b"x" for number in range(MANY)}))
    mounted = mounter.mount(url_of(store), env=keys(OWNER))
    assert len(mounted.names("many")) == MANY
    end(mounted)
    before = len(store.server.listings())
    mounted = again(mounter, store, mounted)
    began_at = time.monotonic()
    assert len(mounted.names("many")) == MANY
    took_s = time.monotonic() - began_at
    assert len(store.server.listings()) == before
    assert took_s < 2
