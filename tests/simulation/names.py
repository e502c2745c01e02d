"""A simulation of names: a kernel, and a store that changes, fails and delays.

Real are the tree, the lister, the questions, the refresher, `d7yfs refresh`, visibility, the file
system, the invalidator and the FUSE adapter's handlers. Simulated are the store (`names_store`) and
the kernel (`names_kernel`). `names_oracle` judges each answer. One seed is one run: the settings,
the store's changes, the readers, the time of each request, and the order of tasks.

    python -m tests.simulation.names FIRST LAST    # runs these seeds, and prints the faults
"""

from __future__ import annotations

import dataclasses
import errno
import logging
import math
import random
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast
from unittest import mock

import pyfuse3
import trio
from pyfuse3 import FUSEError, RequestContext

from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.filler import Filler
from d7yfs.cache.version import CachedVersion
from d7yfs.config.globs import Globs
from d7yfs.config.markers import Markers
from d7yfs.control.refresh import Refreshes
from d7yfs.errors import D7yfsError, VersionGone
from d7yfs.fs.backend import RepositoryBackend
from d7yfs.fs.filesystem import Filesystem
from d7yfs.fuse.adapter import Adapter
from d7yfs.fuse.appearance import Appearance
from d7yfs.fuse.notices import MAX_NAMES, Invalidator
from d7yfs.objects import StoreIdentity
from d7yfs.repository.visible import VisibleListings
from d7yfs.tree.nodes import Directory, NameChanges
from d7yfs.tree.source import LIMIT, ListingMode
from d7yfs.tree.tree import MAX_ENTRIES, ROOT_INODE, Tree, TreeRoot
from d7yfs.tree.visibility import Visibility
from tests.simulation import clock
from tests.simulation.names_kernel import Kernel
from tests.simulation.names_oracle import ABSENT, DIRECTORY, REMEMBERED, Oracle, Rules
from tests.simulation.names_store import ORDERS, Recorded, Store, Weather

_NOWHERE = CacheDirectory(Path("/nonexistent"), size_limit_bytes=0, min_free_bytes=0)
"""A cache directory for a run that opens no file."""

PATHS = (
    *("a", "a-b", "a-b/x", "a/b", "a/b/c", "a/b/d", "a/c", "a/c/e.tmp", "a/d"),
    *("d/1/x", "d/1/y", "d/2", "d/2/x", "d/READY", "d/x", "e", "e/", "e/READY", "e/x"),
    *("f0", "f1", "f2", "f3", "f4", "x.tmp", "z", "z/y", "z/y/x", "z0"),
)
"""Names of files and directories, with others before and behind them in the order of keys."""

DEADLINE_S = 120.0
CALLER = RequestContext()
"""Seconds; the longest wait for a request of the kernel, which no answer takes here."""


@dataclass(frozen=True)
class Setup:
    """The settings of one run."""

    mode: ListingMode
    limit: int
    page_size: int
    metadata_ttl_s: float
    negative_ttl_s: float
    delay_s: float
    max_entries: int
    max_notices: int
    """The largest number of notices that wait for the kernel at once."""
    refreshing: bool
    revalidates: bool
    order: str
    prefix: str
    marker: str
    excluded: str
    faulty: bool
    pace_s: float
    """Seconds between two changes of the store, on average."""
    readers: int
    lasts_s: float

    @classmethod
    def choose(cls, choose: random.Random) -> Setup:
        one = choose.choice
        order = one([*["utf-8"] * 5, *ORDERS])
        hiding = one([("", ""), ("", ""), ("", ""), ("READY", ""), ("", ".tmp"), ("READY", ".tmp")])
        return cls(
            mode=one([*[ListingMode.AUTO] * 3, ListingMode.WHOLE, *[ListingMode.DIRECTORY] * 2, ListingMode.EXACT]),
            limit=one([LIMIT, LIMIT, LIMIT, 4, 8, 12]),
            # A page of a few keys cannot show that a store has its own order.
            page_size=one([1, 2, 3, 5, 1000]) if order != "none" else 1000,
            metadata_ttl_s=one([0.0, 0.5, 2.0, 2.0, 8.0, 20.0, math.inf]),
            negative_ttl_s=one([0.0, 0.3, 1.0, 1.0, 3.0]),
            delay_s=one([0.001, 0.02, 0.02, 0.1, 0.5]),
            max_entries=one([MAX_ENTRIES, MAX_ENTRIES, 8, 20]),
            max_notices=one([MAX_NAMES] * 5 + [1]),
            refreshing=one([True, False]),
            revalidates=one([True, False, False, False, False]),
            order=order,
            prefix=one(["", "", "m/"]),
            marker=hiding[0],
            excluded=hiding[1],
            faulty=one([True, False]),
            pace_s=one([0.05, 0.2, 1.0, 4.0]),
            readers=one([1, 2, 4]),
            lasts_s=one([5.0, 20.0, 40.0]),
        )


@dataclass(slots=True)
class Outcome:
    """The result of one run."""

    setup: Setup
    wrong: list[str]
    judged: int
    questions: int
    answered_alone: int
    steps: int = 0
    trace: int = 0
    """A digest that is equal for equal runs."""


class _Log(logging.Handler):
    """A log handler that fails the run on d7yfs's unexpected errors."""

    def __init__(self, fail: Callable[[str], None]) -> None:
        super().__init__(logging.ERROR)
        self._fail = fail

    def emit(self, record: logging.LogRecord) -> None:
        self._fail(self.format(record))


class World:
    """One mount and its store, for the length of a run."""

    def __init__(self, setup: Setup, choose: random.Random, nursery: trio.Nursery) -> None:
        self.setup = setup
        self._choose = choose
        self._nursery = nursery
        self.store = Store(choose, order=setup.order, page_size=setup.page_size)
        self.store.weather.delay_s = setup.delay_s
        visibility = Visibility(
            setup.prefix.rstrip("/"),
            exclude=Globs.parse(f"*{setup.excluded}" if setup.excluded else ""),
            markers=Markers.parse(setup.marker),
        )
        self.recorded = Recorded(VisibleListings(cast(Any, self.store), visibility))
        rules = Rules(setup.prefix, setup.metadata_ttl_s, setup.negative_ttl_s, setup.marker, setup.excluded)
        self.oracle = Oracle(self.store, self.recorded, rules)
        self.kernel = Kernel(choose, nursery)
        self.tree = Tree(
            [TreeRoot("", setup.prefix)],
            metadata_ttl_s=setup.metadata_ttl_s,
            negative_ttl_s=setup.negative_ttl_s,
            created_ns=1,
            max_entries=setup.max_entries,
        )
        source = RepositoryBackend(
            "sim://b",
            StoreIdentity("sim", "", "b"),
            self.recorded,
            _no_filler,
            listing=setup.mode,
            listing_limit=setup.limit,
            revalidates=(lambda path: path.endswith("x")) if setup.revalidates else None,
        )
        self.invalidator = Invalidator(cast(Any, self.kernel.tell), max_names=setup.max_notices)
        self.filesystem = Filesystem(
            self.tree,
            {"": source},
            Cache(_NOWHERE, memory_buffer_bytes=0, read_timeout_s=1.0),
            nursery,
            changed=self._entries_changed,
            forget_names=self.invalidator.changed,
        )
        self.refreshes = Refreshes(self.tree, self.filesystem.refreshers, self.invalidator)
        appearance = Appearance(0, 0, 0o444, 0o555, xattr=False, is_executable=lambda _key: False)
        self.adapter: Any = Adapter(self.filesystem, self.invalidator, appearance, deadline_s=DEADLINE_S)
        self.kernel.filesystem, self.kernel.adapter = self.filesystem, self.adapter
        self._keys = [setup.prefix + path for path in choose.sample(PATHS, choose.choice([3, 6, 12, len(PATHS)]))]
        self._etags = _numbers()

    def _entries_changed(self, directory: Directory, changes: NameChanges) -> None:
        """Tell the kernel of changed entries, as `Daemon` does."""
        if directory.lookups:
            self.invalidator.changed(directory.inode, (*changes.added, *changes.removed, *changes.replaced))

    async def run(self) -> None:
        """Run until all earlier answers have expired and every name is right."""
        nursery, choose = self._nursery, self._choose
        for key in self._keys:
            if choose.random() < 0.6:
                self.store.put(key, self._etag())
        nursery.start_soon(self.invalidator.run)
        if self.setup.refreshing:
            nursery.start_soon(self.filesystem.refreshers[""].run)
        async with trio.open_nursery() as busy:
            busy.start_soon(self._for_a_while, self._change, self.setup.pace_s)
            for _ in range(self.setup.readers):
                busy.start_soon(self._for_a_while, self._read, choose.choice([0.02, 0.2, 1.0]))
            if choose.random() < 0.5:
                busy.start_soon(self._for_a_while, self._refresh, choose.choice([0.3, 2.0]))
            if choose.random() < 0.3:
                busy.start_soon(self._for_a_while, self._forget_some, 3.0)
            if choose.random() < 0.2:
                busy.start_soon(self._for_a_while, self._set_limit, 5.0)
            if self.setup.faulty:
                busy.start_soon(self._for_a_while, self._turn_weather, 3.0)
        self.store.weather = Weather(0.001)
        await trio.sleep(min(self.oracle.believed_s(), 10_000.0) + 6.0)
        if not math.isinf(self.setup.metadata_ttl_s):
            self.store.weather = Weather(0.001)
            for key in self._keys:
                await self._look(key.removeprefix(self.setup.prefix).rstrip("/"))

    async def _for_a_while(self, what: Callable[[], Awaitable[None]], pace_s: float) -> None:
        until = trio.current_time() + self.setup.lasts_s
        while trio.current_time() < until and not self.oracle.wrong:
            await trio.sleep(self._choose.expovariate(1.0) * pace_s)
            await what()

    # --- changes of the store ---

    def _etag(self) -> str:
        return f'"{next(self._etags)}"'

    async def _change(self) -> None:
        choose, store = self._choose, self.store
        key = choose.choice(self._keys)
        match choose.choice(["put", "put", "delete", "again", "blink", "move", "same"]):
            case "put":
                store.put(key, self._etag())
            case "delete":
                store.delete(key)
            case "same":
                if key in store.versions:
                    store.put(key, store.versions[key].validator)
            case "again" | "blink" as how:
                # Deleted, and back after a while, with the same version or another.
                etag = store.versions[key].validator if how == "blink" and key in store.versions else self._etag()
                store.delete(key)
                await trio.sleep(choose.expovariate(1.0) * choose.choice([0.001, 0.05, 1.0]))
                store.put(key, etag)
            case "move":
                if key in store.versions:
                    store.put(choose.choice(self._keys), store.versions[key].validator + "m")
                    store.delete(key)

    async def _turn_weather(self) -> None:
        choose, weather = self._choose, self.store.weather
        weather.failing = choose.choice([0.0, 0.0, 0.1, 0.5, 1.0])
        weather.hanging = choose.choice([0.0, 0.0, 0.05, 0.3])
        weather.denied = choose.choice([(), (), (), (self.setup.prefix + "d/",), ("",)])
        weather.delay_s = self.setup.delay_s * choose.choice([0.1, 1.0, 1.0, 5.0])

    # --- the readers ---

    async def _forget_some(self) -> None:
        self.kernel.shrink()

    async def _set_limit(self) -> None:
        self.filesystem.listers[""].set_limit(self._choose.choice([LIMIT, 4, 8, 12]))

    async def _read(self) -> None:
        choose = self._choose
        path = choose.choice(self._keys).removeprefix(self.setup.prefix).rstrip("/")
        if choose.random() < 0.2:
            path += "/absent"
        what = choose.random()
        with trio.move_on_after(choose.choice([math.inf, math.inf, self.setup.delay_s])):
            if what < 0.6:
                await self._look(path)
            elif what < 0.75:
                await self._look(path.rpartition("/")[0], attributes=True)
            else:
                await self._list(path.rpartition("/")[0])

    async def _look(self, path: str, *, attributes: bool = False) -> None:
        inode = await self._walk(path)
        if not inode:
            return
        try:
            if self.kernel.meaning(inode) is not None:
                opened = await self.adapter.open(inode, 0, CALLER)
                await self.adapter.release(opened.fh)
            elif attributes:
                asked_at = trio.current_time()
                try:
                    await self.adapter.getattr(inode, None)
                except FUSEError as error:
                    self._judge_error(error, f"attributes of {path}", asked_at)
        except FUSEError as error:
            self.oracle.fail(f"{path} cannot be opened: {error}")
        finally:
            self.kernel.leave(inode)

    async def _walk(self, path: str) -> int:
        """The inode of a path, which the caller must leave; 0 if there is none."""
        inode = ROOT_INODE
        self.kernel.use(inode)
        key = self.setup.prefix
        for name in filter(None, path.split("/")):
            if self.kernel.meaning(inode) is not None:
                self.kernel.leave(inode)
                return 0
            directory, asked_at = inode, trio.current_time()
            key = f"{key}{name}"
            try:
                inode, known = await self.kernel.entry(directory, name)
            except FUSEError as error:
                self._judge_error(error, f"lookup of {key}", asked_at)
                inode, known = 0, True
            else:
                how = REMEMBERED if known else "lookup"
                try:
                    meaning = self.kernel.meaning(inode) or DIRECTORY if inode else ABSENT
                except VersionGone:
                    self.oracle.fail(f"inode {inode} of {key} is not known to d7yfs any more")
                    meaning = DIRECTORY
                self.oracle.has_huge = self.oracle.has_huge or getattr(self.tree.nodes.get(directory), "huge", False)
                self.oracle.gives_up = bool(self.tree.statistics().dropped_inodes_total)
                self.oracle.loses = bool(self.invalidator.counters.overflow)
                self.oracle.entry(key, meaning, asked_at, how)
            finally:
                self.kernel.leave(directory)
            if not inode:
                return 0
            key += "/"
        return inode

    async def _list(self, path: str) -> None:
        inode = await self._walk(path)
        if not inode:
            return
        if self.kernel.meaning(inode) is not None:
            self.kernel.leave(inode)
            return
        prefix = f"{self.setup.prefix}{path}/" if path else self.setup.prefix
        asked_at = trio.current_time()
        shown: dict[str, bool] = {}
        handle = None
        try:
            handle = await self.adapter.opendir(inode, CALLER)
            index, room, pause_s = 0, self._choose.choice([3, 5, 1000]), self._choose.choice([0.0, 0.0, 0.1, 2.0])
            while entries := await self.kernel.read(inode, handle, index, room):
                index = entries[-1][2]
                for name, is_directory, _ in entries:
                    if name in shown:
                        self.oracle.fail(f"{prefix}{name} is shown twice")
                    shown[name] = is_directory
                await trio.sleep(self._choose.random() * pause_s)
            streamed = self.filesystem._directory_handles[handle].stream is not None
            self._compare(prefix, shown, asked_at, streamed=streamed)
        except FUSEError as error:
            self._judge_error(error, f"readdir of {prefix}", asked_at)
        finally:
            if handle is not None:
                await self.adapter.releasedir(handle)
            self.kernel.leave(inode)

    def _compare(self, prefix: str, shown: dict[str, bool], asked_at: float, *, streamed: bool) -> None:
        names = {key.removeprefix(prefix).partition("/")[0] for key in self._keys if key.startswith(prefix)}
        for name in sorted((names | set(shown)) - {""}):
            key = f"{prefix}{name}"
            if streamed:
                self.oracle.listed(key, name in shown, asked_at)
            elif name not in shown:
                self.oracle.entry(key, ABSENT, asked_at, "readdir", listed=True)
            elif shown[name]:
                self.oracle.entry(key, DIRECTORY, asked_at, "readdir", listed=True)

    def _judge_error(self, error: FUSEError, what: str, asked_at: float) -> None:
        if error.errno not in (errno.EIO, errno.EACCES):
            self.oracle.fail(f"{what}: {errno.errorcode[error.errno]}")
        else:
            self.oracle.error(f"{what}: {errno.errorcode[error.errno]}", asked_at)

    async def _refresh(self) -> None:
        path = self._choose.choice(["", *self._keys]).removeprefix(self.setup.prefix).strip("/")
        asked_at = trio.current_time()
        try:
            await self.refreshes.refresh({"paths": [path]})
        except VersionGone:
            pass  # Its node is gone.
        except D7yfsError:
            self.oracle.error(f"refresh of {path}", asked_at)
        else:
            self.oracle.refreshed(f"{self.setup.prefix}{path}/" if path else self.setup.prefix, asked_at)


def _numbers() -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


def _no_filler(_target: CachedVersion) -> Filler:
    raise AssertionError("nothing is read")


async def _in_no_thread(work: Callable[..., Any], *_: Any, **__: Any) -> Any:
    """Run the work here, in place of `trio.to_thread.run_sync`, which only tells the kernel here."""
    return await work()


@contextmanager
def _no_threads() -> Iterator[None]:
    with (
        mock.patch.object(trio.to_thread, "run_sync", _in_no_thread),
        mock.patch.object(pyfuse3, "readdir_reply", lambda reply, name, value, index: reply.take(name, value, index)),
    ):
        yield


def run(seed: int, **changes: Any) -> Outcome:
    """Run one seed; `changes` replace parts of its settings."""
    choose = random.Random(seed)
    setup = dataclasses.replace(Setup.choose(choose), **changes)

    async def main() -> Outcome:
        async with trio.open_nursery() as nursery:
            world = World(setup, choose, nursery)
            log = logging.getLogger("d7yfs")
            handler = _Log(world.oracle.fail)
            log.addHandler(handler)
            try:
                await world.run()
            finally:
                log.removeHandler(handler)
            nursery.cancel_scope.cancel()
        told = [(q.kind, q.prefix, q.asked_at, q.told_at) for q in world.recorded.questions]
        return Outcome(
            setup,
            world.oracle.wrong,
            world.oracle.judged,
            len(told),
            world.kernel.answered_alone,
            trace=hash((tuple(told), world.oracle.judged, world.kernel.answered_alone)),
        )

    with _no_threads():
        outcome, outcome_steps = clock.run(seed, main)
    outcome.steps = outcome_steps
    return outcome


_NOTHING: MappingProxyType[str, object] = MappingProxyType({})


def main() -> None:
    """Run the seeds of the command line, and print the faults."""
    logging.disable(logging.WARNING)
    first, last = (int(each) for each in sys.argv[1:3])
    began_at, steps, judged, wrong = time.monotonic(), 0, 0, 0
    for seed in range(first, last):
        outcome = run(seed)
        steps += outcome.steps
        judged += outcome.judged
        if outcome.wrong:
            wrong += 1
            print(seed, outcome.setup, *outcome.wrong[:2], sep="\n    ", flush=True)
    took_s = time.monotonic() - began_at
    print(
        f"{last - first} runs, {wrong} wrong, {judged} answers, {steps} steps, {steps / took_s:.0f} steps/s, {took_s:.0f} s"
    )


if __name__ == "__main__":
    main()
