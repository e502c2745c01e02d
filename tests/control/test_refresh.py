"""The questions of `d7yfs refresh`, and that the kernel knows before it answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from d7yfs.control.refresh import Refreshes
from d7yfs.errors import OriginUnavailable, UsageError
from d7yfs.fuse.notices import Invalidator
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.stats.status import RefreshStatus
from d7yfs.tree.listing import NoObject
from d7yfs.tree.nodes import Directory, NameChanges
from d7yfs.tree.question import Refreshed
from d7yfs.tree.tree import Tree, TreeRoot
from tests.tree.listings import collect


class Asked:
    """Remembers what was to be refreshed, and says that it found `changes`."""

    def __init__(self) -> None:
        self.prefixes: list[str] = []
        self.changes: list[tuple[str, NameChanges]] = []
        self.error: Exception | None = None
        self.gate = trio.Event()
        self.gate.set()
        self.entries: list[str] = []
        self.on_entry: Callable[[Directory, str], NameChanges] = lambda _directory, _name: NameChanges()

    async def refresh(self, directory: Directory) -> Refreshed:
        self.prefixes.append(directory.prefix)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return Refreshed(directories=3, changes=self.changes)

    async def refresh_entry(self, directory: Directory, name: str) -> NameChanges:
        self.entries.append(f"{directory.prefix}{name}")
        return self.on_entry(directory, name)


class Scene:
    """Two repositories, of which `models/` and `models/a/` are known in the first: `models/a/1/`, `models/a/config`."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.tree = Tree(
            [TreeRoot("llm", "models/"), TreeRoot("vision", "")], metadata_ttl_s=60, negative_ttl_s=5, created_ns=1
        )
        self.asked = {"llm": Asked(), "vision": Asked()}
        self.told: list[tuple[int, list[bytes]]] = []
        self.invalidator = Invalidator(self._tell)
        self.refreshes = Refreshes(self.tree, self.asked, self.invalidator)
        self.list("llm", "models/", prefixes=["models/a/"])
        self.list("llm/a", "models/a/", prefixes=["models/a/1/"], keys=["models/a/config"])
        nursery.start_soon(self.invalidator.run)

    def _tell(self, directory: int, names: Sequence[bytes]) -> int:
        self.told.append((directory, list(names)))
        return 0

    def inode(self, path: str) -> int:
        node = self.tree.resolve(path)
        assert node is not None
        return node.inode

    def list(self, path: str, prefix: str, *, prefixes: Iterable[str], keys: Iterable[str] = ()) -> None:
        page = ListingPage(tuple(ObjectVersion(key, 1, "v", 1) for key in keys), tuple(prefixes), "", 1)
        listing = collect(prefix, [page])
        self.tree.apply(self.inode(path), listing, trio.current_time(), asked_at=trio.current_time())

    async def refresh(self, *paths: str) -> RefreshStatus:
        return await self.refreshes.refresh({"paths": [*paths]})


@asynccontextmanager
async def scene() -> AsyncIterator[Scene]:
    async with trio.open_nursery() as nursery:
        yield Scene(nursery)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("paths", "llm", "vision"),
    [
        (["llm/a"], ["models/a/"], []),
        (["llm/a/config"], ["models/a/"], []),
        (["llm/a/1"], ["models/a/1/"], []),
        (["llm/a/2/deep/file"], ["models/a/"], []),
        (["llm/new"], ["models/"], []),
        (["llm/a/1", "llm/a", "llm/a/config"], ["models/a/"], []),
        (["llm/a/1", "llm"], ["models/"], []),
        (["vision/x/y"], [], [""]),
        ([""], ["models/"], [""]),
        (["nothing"], ["models/"], [""]),
        (["llm/a", "vision"], ["models/a/"], [""]),
    ],
)
async def test_the_directory_that_a_path_stands_for(paths: list[str], llm: list[str], vision: list[str]) -> None:
    async with scene() as made:
        await made.refresh(*paths)
        assert (made.asked["llm"].prefixes, made.asked["vision"].prefixes) == (llm, vision)


async def test_whether_it_is_a_directory_at_all_is_asked_first() -> None:
    async with scene() as made:
        llm, vision = made.asked["llm"], made.asked["vision"]
        await made.refresh("llm/a/1")
        assert (llm.entries, llm.prefixes) == (["models/a/1"], ["models/a/1/"])

        def answer(directory: Directory, name: str) -> NameChanges:
            gone = f"{directory.prefix}{name}" in ("models/a", "models/a/1")
            found = NoObject.ABSENT if gone else NoObject.DIRECTORY
            now = trio.current_time()
            return made.tree.apply_name(directory.inode, name, found, now, asked_at=now)

        llm.on_entry = answer
        llm.entries.clear()
        llm.prefixes.clear()
        found = await made.refresh("llm/a/1", "vision")
        assert (llm.entries, llm.prefixes) == (["models/a/1", "models/a"], ["models/"])
        assert found.names["removed"] == ("llm/a", "llm/a/1")
        assert (vision.entries, vision.prefixes) == ([], [""])


async def test_what_it_found() -> None:
    async with scene() as made:
        made.asked["llm"].changes = [
            ("models/", NameChanges(added=("b",))),
            ("models/a/", NameChanges(removed=("config",), replaced=("1",))),
        ]
        made.asked["vision"].changes = [("x/", NameChanges(added=tuple(map(str, range(500)))))]
        found = await made.refresh("")
        assert (found.directories, found.added, found.removed, found.replaced) == (6, 501, 1, 1)
        assert found.names["removed"] == ("llm/a/config",)
        assert found.names["replaced"] == ("llm/a/1",)
        assert "vision/x/0" in found.names["added"]
        assert len(found.names["added"]) == 100, "a sample"


async def test_it_ends_when_the_kernel_knows_and_waits_for_no_other_repository() -> None:
    async with scene() as made:
        inode, other, ended = made.inode("llm/a"), made.inode("vision"), trio.Event()

        async def refresh() -> None:
            await made.refresh("llm")
            ended.set()

        with made.invalidator.holding(other):
            made.invalidator.changed(other, ["x"])
            async with trio.open_nursery() as nursery:
                with made.invalidator.holding(inode):
                    made.invalidator.changed(inode, ["config"])
                    nursery.start_soon(refresh)
                    await wait_all_tasks_blocked()
                    assert not ended.is_set()
                await ended.wait()
            assert made.told == [(inode, [b"config"])]


async def test_a_store_that_cannot_be_asked() -> None:
    async with scene() as made:
        made.asked["llm"].error = OriginUnavailable("no answer", hint="wait")
        with pytest.raises(OriginUnavailable, match="no answer"):
            await made.refresh("")
        assert made.asked["vision"].prefixes == [""], "the others are refreshed all the same"


@pytest.mark.parametrize("paths", [None, [], "llm", [1]])
async def test_what_is_no_request(paths: object) -> None:
    async with scene() as made:
        with pytest.raises(UsageError):
            await made.refreshes.refresh({"paths": paths})
