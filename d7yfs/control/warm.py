"""Warming up: whole files below given paths are brought into the cache before anybody waits for them.

Owns the walk, the arithmetic of what fits, and the warm-ups that run. Files come by whatever way their repository has, behind what readers
wait for, and what is cached already is not fetched again: so a warm-up that was stopped goes on when it is asked for again.

There are two walks. The first adds up, so that totals are known and what will not fit is said before a byte moves; the second brings.
Neither remembers the files it has seen, however many there are: of a tree it holds one directory's entries, and the directories to come.

A warm-up never pushes out of the cache what it has itself brought: it takes files in the order of the walk as long as all of them, those
that were there before included, fit below the mark at which eviction stops.

Built by `daemon`; `commands` hands `WarmUps.report` to the control socket. Trio thread only.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

import trio

from d7yfs.cache.directory import footprint_bytes
from d7yfs.cache.version import CachedVersion
from d7yfs.control.control_socket import REPORT_PERIOD_S, paths_of
from d7yfs.errors import CacheFull, D7yfsError, Stopped, UsageError
from d7yfs.fs.filesystem import Filesystem
from d7yfs.objects import PART_BYTES
from d7yfs.tree.nodes import Directory, File

log = logging.getLogger(__name__)

_FILES_AT_ONCE = 32
"""Enough to hide the round trips of small files; each has two descriptors."""
_LARGE_FILES_AT_ONCE = 4
"""Of these: one alone may fill the link, and what is finished survives being stopped."""
_ADDED_UP_AT_ONCE = 256
"""Files whose maps are looked at in one go: a change of threads costs more than a look."""
_NAMED_PATHS = 100
_NAMED_FAILURES = 100
"""The others are counted, and in the log."""

Found = tuple[str, File]
"""A file and its path below the mount."""


class State(StrEnum):
    """Where a warm-up stands; the last two are its ends."""

    PLANNING = "planning"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"


@dataclass(slots=True)
class Plan:
    """What the first walk found. Pure."""

    files: int = 0
    size_bytes: int = 0
    missing_bytes: int = 0
    footprint_bytes: int = 0
    """On disk, when all of it is there."""

    def add(self, sizes: Sequence[int], cached_bytes: int) -> None:
        """More files, of which so much is cached."""
        self.files += len(sizes)
        self.size_bytes += sum(sizes)
        self.missing_bytes += sum(sizes) - cached_bytes
        self.footprint_bytes += sum(map(footprint_bytes, sizes))


@dataclass(frozen=True, slots=True)
class Progress:
    """A snapshot of a warm-up for its client and for `status`."""

    id: int
    paths: tuple[str, ...]
    """The first hundred."""
    background: bool
    state: State
    files: int
    files_done: int
    """Whole in the cache, whoever brought them."""
    size_bytes: int
    missing_bytes: int
    """What was not in the cache at the beginning."""
    fetched_bytes: int
    fits: bool
    """Whether all of it can be in the cache at once."""
    room_bytes: int
    files_left_out: int
    """For want of room, or because the warm-up was stopped; only at the end."""
    files_failed: int
    failures: Mapping[str, str]
    """Reasons by path, of the first hundred."""
    elapsed_s: float
    rate_bytes_s: float
    eta_s: float | None
    """None while nothing has come to judge it by."""


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """`paths` in normal form, relative to the mount, without those that lie below another. Raises UsageError for one that leaves it."""
    kept: list[PurePosixPath] = []
    # By their parts what lies below a path comes right behind it.
    for path in sorted({PurePosixPath(path.strip("/")) for path in paths}, key=lambda path: path.parts):
        if ".." in path.parts:
            raise UsageError(f"{path}: a path to warm must not leave the mount")
        if not kept or not path.is_relative_to(kept[-1]):
            kept.append(path)
    return tuple("" if path == PurePosixPath() else str(path) for path in kept)


async def walk(
    filesystem: Filesystem, paths: Iterable[str], failed: Callable[[str, D7yfsError], None]
) -> AsyncGenerator[Found, None]:
    """Every file at and below `paths`; `failed` hears of directories that cannot be listed.

    Raises NotFound for a path that is not there, and what its listings raise.
    """
    tree = filesystem.tree
    pending: list[tuple[str, Directory]] = []
    try:
        for path in paths:
            node = await filesystem.resolve(path)
            if isinstance(node, File):
                yield path, node
                continue
            tree.remember(node.inode)
            pending.append((path, node))
            while pending:
                above, directory = pending.pop()
                try:
                    async with aclosing(filesystem.children(directory)) as batches:
                        async for batch in batches:
                            files = []
                            for name, child in batch:
                                below = f"{above}/{name}".lstrip("/")
                                if isinstance(child, File):
                                    files.append((below, child))
                                else:
                                    # Remembered before anything is awaited, lest the tree drops it to make room.
                                    tree.remember(child.inode)
                                    pending.append((below, child))
                            for found in files:
                                yield found
                except D7yfsError as error:
                    failed(above, error)
                finally:
                    tree.forget(directory.inode)
    finally:
        for _, directory in pending:
            tree.forget(directory.inode)


class WarmUp:
    """One warm-up, from `run` to its end."""

    def __init__(self, number: int, paths: tuple[str, ...], filesystem: Filesystem, *, background: bool) -> None:
        self.state = State.PLANNING
        self.ended = trio.Event()
        self.planned = trio.Event()
        self.refusal: D7yfsError | None = None
        """Why there was nothing to begin with."""
        self._number = number
        self._paths = paths
        self._filesystem = filesystem
        self._background = background
        self._plan = Plan()
        self._room_bytes = filesystem.keepable_bytes
        self._footprint_bytes = 0
        self._no_room = False
        self._files_begun = self._files_done = self._fetched_bytes = 0
        self._failures: dict[str, str] = {}
        self._files_failed = 0
        self._under_way: dict[File, tuple[CachedVersion, int]] = {}
        """With what was cached of each when its turn came."""
        self._large = trio.CapacityLimiter(_LARGE_FILES_AT_ONCE)
        self._began_at = self._ended_at = trio.current_time()
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Plan and bring; whatever happens, `ended` is set at the end."""
        try:
            with self._scope:
                await self._add_up()
                self._began_at = trio.current_time()
                self.state = State.RUNNING
                self.planned.set()
                await self._bring_all()
                self.state = State.DONE
        except D7yfsError as error:
            self.refusal = error
        except Exception:
            log.exception("warm-up %d failed unexpectedly", self._number)
            self.refusal = Stopped("the warm-up failed unexpectedly; see the log")
        finally:
            if self.state is not State.DONE:
                self.state = State.STOPPED
            self._ended_at = trio.current_time()
            self.planned.set()
            self.ended.set()
            log.info("warm-up %d: %s", self._number, said(self.progress()))

    def stop(self) -> None:
        """Bring no more; what has come stays."""
        self._scope.cancel()

    async def _add_up(self) -> None:
        batch: list[File] = []
        async with aclosing(walk(self._filesystem, self._paths, lambda _path, _error: None)) as files:
            async for _, file in files:
                batch.append(file)
                if len(batch) == _ADDED_UP_AT_ONCE:
                    await self._add(batch)
                    batch.clear()
        await self._add(batch)

    async def _add(self, files: Sequence[File]) -> None:
        self._plan.add([file.size_bytes for file in files], await self._filesystem.cached_bytes(files))

    async def _bring_all(self) -> None:
        send, receive = trio.open_memory_channel[Found](0)
        async with trio.open_nursery() as nursery, send:
            async with receive:
                for _ in range(_FILES_AT_ONCE):
                    nursery.start_soon(self._work, receive.clone())
            async with aclosing(walk(self._filesystem, self._paths, self._failed)) as files:
                async for path, file in files:
                    self._footprint_bytes += footprint_bytes(file.size_bytes)
                    if self._no_room or self._footprint_bytes > self._room_bytes:
                        break
                    self._files_begun += 1
                    await send.send((path, file))

    async def _work(self, receive: trio.MemoryReceiveChannel[Found]) -> None:
        async with receive:
            async for path, file in receive:
                async with self._large if file.size_bytes > PART_BYTES else nullcontext():
                    await self._bring(path, file)

    async def _bring(self, path: str, file: File) -> None:
        try:
            async with self._filesystem.held(file) as cached:
                if cached is not None:
                    await self._fill(file, cached)
            self._files_done += 1
        except D7yfsError as error:
            self._no_room = self._no_room or isinstance(error, CacheFull)
            self._failed(path, error)

    async def _fill(self, file: File, cached: CachedVersion) -> None:
        before = cached.cached_bytes
        self._under_way[file] = (cached, before)
        try:
            await cached.fill_whole()
        finally:
            self._fetched_bytes += cached.cached_bytes - before
            del self._under_way[file]

    def _failed(self, path: str, error: D7yfsError) -> None:
        self._files_failed += 1
        if len(self._failures) < _NAMED_FAILURES:
            self._failures[path] = str(error)
        log.warning("warm-up %d: /%s: %s", self._number, path, error)

    def progress(self) -> Progress:
        """How far it is."""
        plan, ended = self._plan, self.ended.is_set()
        arriving = sum(cached.cached_bytes - before for cached, before in self._under_way.values())
        fetched_bytes = max(0, self._fetched_bytes + arriving)
        elapsed_s = (self._ended_at if ended else trio.current_time()) - self._began_at
        rate_bytes_s = fetched_bytes / elapsed_s if elapsed_s > 0 else 0.0
        rest_bytes = max(0, plan.missing_bytes - fetched_bytes)
        return Progress(
            id=self._number,
            paths=self._paths[:_NAMED_PATHS],
            background=self._background,
            state=self.state,
            files=plan.files,
            files_done=self._files_done,
            size_bytes=plan.size_bytes,
            missing_bytes=plan.missing_bytes,
            fetched_bytes=fetched_bytes,
            fits=plan.footprint_bytes <= self._room_bytes,
            room_bytes=self._room_bytes,
            files_left_out=max(0, plan.files - self._files_done - self._files_failed) if ended else 0,
            files_failed=self._files_failed,
            failures=dict(self._failures),
            elapsed_s=round(elapsed_s, 3),
            rate_bytes_s=round(rate_bytes_s),
            eta_s=round(rest_bytes / rate_bytes_s, 1) if rate_bytes_s else None,
        )


def said(progress: Progress) -> str:
    """One line for the log."""
    words = f"{progress.state}, {progress.files_done} of {progress.files} files, {progress.fetched_bytes} bytes fetched"
    if progress.files_failed:
        words += f", {progress.files_failed} failed"
    return words + (f", {progress.files_left_out} left out" if progress.files_left_out else "")


class WarmUps:
    """The warm-ups of one mount; several may run at once. `nursery` runs them, and cancelling it stops them."""

    def __init__(self, filesystem: Filesystem, nursery: trio.Nursery) -> None:
        self._filesystem = filesystem
        self._nursery = nursery
        self._numbers = itertools.count(1)
        self._running: dict[int, WarmUp] = {}

    async def report(self, request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Start what `request` asks for (`paths`, `background`) and tell how it goes on, until its end.

        In the background it tells until the plan is made. Closed before its end it stops the warm-up, unless that is in the background.
        Raises NotFound, UsageError, and what listing the paths raises.
        """
        paths, background = paths_of(request, "a warm-up"), bool(request.get("background"))
        number = next(self._numbers)
        warm_up = WarmUp(number, outermost(paths), self._filesystem, background=background)
        self._running[number] = warm_up
        self._nursery.start_soon(self._run, number, warm_up)
        enough = warm_up.planned if background else warm_up.ended
        try:
            while not enough.is_set():
                with trio.move_on_after(REPORT_PERIOD_S):
                    await (enough if warm_up.planned.is_set() else warm_up.planned).wait()
                if warm_up.refusal is not None:
                    raise warm_up.refusal
                yield asdict(warm_up.progress())
        finally:
            if not background:
                warm_up.stop()

    async def _run(self, number: int, warm_up: WarmUp) -> None:
        try:
            await warm_up.run()
        finally:
            del self._running[number]

    def running(self) -> list[dict[str, Any]]:
        """For `status`."""
        return [asdict(each.progress()) for each in self._running.values()]
