"""Which names a mount keeps, and which of them the next one believes."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from d7yfs.cache import kept_names
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.kept_names import KeptNames
from d7yfs.config.globs import Globs
from d7yfs.config.markers import Markers
from d7yfs.errors import OriginUnavailable
from d7yfs.objects import SecretStr, StoreIdentity
from d7yfs.origins.origin import ANONYMOUS, SESSION
from d7yfs.repository.tree_keeper import TreeKeeper
from d7yfs.tree.lister import Lister
from d7yfs.tree.listing import NoObject
from d7yfs.tree.nodes import Expired, Found
from d7yfs.tree.tree import ROOT_INODE, Tree, TreeRoot
from tests.tree.listings import MemoryListings, names_in

TTL_S = 60.0


@dataclass
class Credentials:
    """An origin, as far as a keeper asks it."""

    principal: str = "key A"
    lasting_secret: SecretStr = field(default_factory=lambda: SecretStr("5ecre7"))
    identity: StoreIdentity = field(default_factory=lambda: StoreIdentity("s3", "aws", "b"))


class Scene:
    """One mount after another of one repository, on one cache directory."""

    def __init__(self, path: Path, nursery: trio.Nursery) -> None:
        self.directory = CacheDirectory(path, size_limit_bytes=1 << 30, min_free_bytes=0)
        self.directory.prepare()
        self.directory.take_grant_key()
        self.store = MemoryListings("m/a", "m/d/x")
        self.nursery = nursery
        self.tree: Tree
        self.lister: Lister

    async def begin(
        self,
        credentials: Credentials,
        *,
        shared: bool = False,
        most_names: int = 1000,
        follows: bool = False,
        exclude: str = "",
        prefix: str = "m/",
        away: OriginUnavailable | None = None,
    ) -> TreeKeeper:
        """A keeper that has read what there is, and given it to a new tree."""
        config = SimpleNamespace(
            name="",
            url=SimpleNamespace(prefix="m"),
            endpoint_url="",
            include=Globs(),
            exclude=Globs.parse(exclude),
            publish_marker=Markers(),
            listing="auto",
            listing_limit=1000,
        )
        repository = SimpleNamespace(
            config=config,
            origin=credentials,
            shown=SimpleNamespace(offline_since=None, served=lambda version: version, away=away),
            publication=SimpleNamespace(is_followed=False),
        )
        keeper = TreeKeeper(cast(Any, repository), self.directory, shared=shared, most_names=most_names)
        await keeper.read()
        self.tree = Tree([TreeRoot("", prefix)], metadata_ttl_s=TTL_S, negative_ttl_s=5, created_ns=1)
        self.lister = Lister(self.tree, "", self.store, self.nursery, url="s3://b")
        await keeper.recall(self.tree, self.lister, follows=follows)
        return keeper

    async def list(self) -> None:
        await self.lister.scan().wait()

    @property
    def names(self) -> tuple[str, ...]:
        return names_in(self.tree, ROOT_INODE)

    def knows(self, name: str) -> bool:
        """True if the tree believes that there is this name."""
        return isinstance(self.tree.lookup(ROOT_INODE, name, trio.current_time()), Found)


@asynccontextmanager
async def scene(path: Path) -> AsyncIterator[Scene]:
    async with trio.open_nursery() as nursery:
        yield Scene(path, nursery)
        nursery.cancel_scope.cancel()


async def test_what_was_listed_is_believed_by_the_next_mount(tmp_path: Path) -> None:
    async with scene(tmp_path) as one:
        keeper = await one.begin(Credentials())
        assert not one.names
        await one.list()
        assert await keeper.save()
        assert not await keeper.save(), "nothing is new"
        requests = len(one.store.requests)
        again = await one.begin(Credentials())
        assert one.names == ("a", "d")
        assert one.knows("a")
        assert (again.describe().recalled, one.lister.last_scan.objects) == (3, 2)
        assert not await again.save(), "it is kept already"
        assert len(one.store.requests) == requests


@pytest.mark.parametrize(
    "other",
    [
        Credentials("key B"),
        Credentials(identity=StoreIdentity("s3", "aws", "c")),
        Credentials(ANONYMOUS),
        Credentials(""),
    ],
)
async def test_nobody_else_has_it(tmp_path: Path, other: Credentials) -> None:
    async with scene(tmp_path) as one:
        keeper = await one.begin(Credentials())
        await one.list()
        await keeper.save()
        again = await one.begin(other)
        assert not one.names
        assert not again.is_proved
        assert (await one.begin(Credentials(), exclude="d")).describe().recalled == 0
        assert (await one.begin(Credentials(), shared=True)).describe().recalled == 0
        assert (await one.begin(Credentials(), most_names=2)).describe().recalled == 0
        assert (await one.begin(Credentials(), follows=True)).describe().recalled == 0
        assert (await one.begin(Credentials(), prefix="m")).describe().recalled == 0
        away = OriginUnavailable("nobody has accepted these credentials")
        again = await one.begin(Credentials(), away=away)
        assert again.describe().recalled == 0
        await one.list()
        assert not await again.save(), "its directory looks empty"


async def test_who_is_not_known_keeps_nothing_unless_all_share(tmp_path: Path) -> None:
    async with scene(tmp_path) as one:
        unknown = Credentials("", SecretStr(""))
        keeper = await one.begin(unknown)
        await one.list()
        assert not await keeper.save()
        keeper = await one.begin(unknown, shared=True)
        await one.list()
        assert await keeper.save()
        again = await one.begin(Credentials("key B"), shared=True)
        assert one.names == ("a", "d")
        await again.read()
        assert again.is_proved


async def test_only_the_secret_that_the_store_had_accepted_is_proof_without_it(tmp_path: Path) -> None:
    async with scene(tmp_path) as one:
        for principal, secret, proved in (
            ("key A", "5ecre7", True),
            ("role R", "", False),
            (f"{SESSION}ASIA", "", False),
            (ANONYMOUS, "", True),
        ):
            keeper = await one.begin(Credentials(principal, SecretStr(secret)))
            await one.list()
            assert await keeper.save()
            for given, is_proof in (
                (secret, proved),
                ("another", principal == ANONYMOUS),
                ("", principal == ANONYMOUS),
            ):
                again = await one.begin(Credentials(principal, SecretStr(given)))
                await again.read()
                assert again.snapshot is not None
                assert again.is_proved == is_proof


async def test_of_other_credentials_only_what_they_listed_is_kept(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with scene(tmp_path) as one:
        credentials = Credentials()
        keeper = await one.begin(credentials)
        await one.list()
        credentials.lasting_secret = SecretStr("another")
        assert not await keeper.save()
        await trio.sleep(1)
        await one.list()
        assert await keeper.save()
        keeper.begin_anew()
        one.tree.applied[""] += 1
        assert not await keeper.save()
        # An SDK renews keys of a session; they are the same owner's.
        credentials = Credentials(f"{SESSION}A", SecretStr(""))
        keeper = await one.begin(credentials)
        await one.list()
        credentials.principal = f"{SESSION}B"
        assert await keeper.save()
        assert (await one.begin(credentials)).describe().recalled == 3


async def test_a_name_that_was_absent_when_it_was_asked_for_alone_lives_no_longer(tmp_path: Path) -> None:
    async with scene(tmp_path) as one:
        keeper = await one.begin(Credentials())
        await one.list()
        now = trio.current_time()
        one.tree.apply_name(ROOT_INODE, "a", NoObject.ABSENT, now, asked_at=now)
        await keeper.save()
        for _ in range(2):
            again = await one.begin(Credentials())
            assert one.names == ("d",)
            assert isinstance(one.tree.lookup(ROOT_INODE, "d", trio.current_time()), Expired), "it is asked for anew"
            one.tree.applied[""] += 1
            await again.save()


async def test_names_of_the_future_are_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with scene(tmp_path) as one:
        keeper = await one.begin(Credentials())
        await one.list()
        await keeper.save()
        clock = time.time
        monkeypatch.setattr(time, "time", lambda: clock() - 3600)
        again = await one.begin(Credentials())
        assert one.names == ("a", "d")
        assert not one.knows("a")
        one.tree.applied[""] += 1
        await again.save()
        monkeypatch.undo()
        await one.begin(Credentials())
        assert not one.knows("a"), "nor later"


async def test_it_looks_each_second_and_rests_after_it_has_kept_something(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[float] = []

    async def save(_: TreeKeeper) -> bool:
        tries.append(trio.current_time())
        await trio.sleep(0.1 if len(tries) == 3 else 0)
        return len(tries) > 1

    monkeypatch.setattr(TreeKeeper, "save", save)
    async with scene(tmp_path) as one:
        keeper = await one.begin(Credentials())
        began_at = trio.current_time()
        one.nursery.start_soon(keeper.run)
        await trio.sleep(20)
        assert [at - began_at for at in tries] == pytest.approx([1, 2, 7, 13.1, 18.1])


async def test_a_try_that_is_given_up_is_made_again_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, may_write, writes = KeptNames.write, threading.Event(), trio.Event()

    def slow(kept: KeptNames, about: str, parts: Iterable[bytes], most_bytes: int) -> int:
        if not writes.is_set():
            trio.from_thread.run_sync(writes.set)
        assert may_write.wait(20)
        return write(kept, about, parts, most_bytes)

    monkeypatch.setattr(KeptNames, "write", slow)
    async with scene(tmp_path) as one:
        keeper = await one.begin(Credentials())
        await one.list()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.save)
            await writes.wait()
            nursery.cancel_scope.cancel()
        may_write.set()
        assert await keeper.save()
        assert not await keeper.save()
        assert (await one.begin(Credentials())).describe().recalled == 3


async def test_credentials_that_become_known_later_have_listed_what_was_listed(tmp_path: Path) -> None:
    async with scene(tmp_path) as one:
        credentials = Credentials("", SecretStr(""))
        keeper = await one.begin(credentials)
        await one.list()
        credentials.principal, credentials.lasting_secret = "key A", SecretStr("5ecre7")
        assert await keeper.save()
        assert (await one.begin(Credentials())).describe().recalled == 3


async def test_a_failure_to_keep_names_ends_no_mount(
    tmp_path: Path, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def save(_: TreeKeeper) -> bool:
        raise RuntimeError("a bug")

    async with scene(tmp_path) as one:
        keeper = await one.begin(Credentials())
        monkeypatch.setattr(TreeKeeper, "save", save)
        one.nursery.start_soon(keeper.run)
        await trio.sleep(12)
    assert sum("failed unexpectedly" in message for message in caplog.messages) == 3


@pytest.mark.parametrize(("most_bytes", "said"), [(10, "too many"), (1 << 20, "no room")])
async def test_what_cannot_be_kept_is_said_once(
    tmp_path: Path,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    most_bytes: int,
    said: str,
) -> None:
    monkeypatch.setattr(kept_names, "MAX_BYTES", most_bytes)
    async with scene(tmp_path) as one:
        keeper = await one.begin(Credentials())
        if said == "no room":
            one.directory.size_limit_bytes = 1000
        for _ in range(3):
            await one.list()
            assert await keeper.save()
            await trio.sleep(TTL_S)
        assert sum(said in message for message in caplog.messages) == 1
        assert keeper.describe().saved_at is None
