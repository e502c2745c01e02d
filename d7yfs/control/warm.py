"""Warm-ups: whole files below given paths are brought into the cache before readers ask for them.

Owns the walk, the arithmetic of what fits, and the warm-ups that run. Files come by the way of
their repository, with less priority than readers. Cached bytes are not fetched again, so a warm-up
that was stopped can be resumed.

There are two walks. The first adds up sizes, so that the client hears the totals, and whether they
fit, before a byte moves; the second brings the files. Neither remembers the files it has seen: it
holds one directory's entries, and the directories to come.

A warm-up never evicts its own files: it takes files in the order of the walk as long as all of
them, those that were cached before included, fit below the mark at which eviction stops.

Built by `daemon`; `commands` hands `WarmUps.report` to the control socket. Trio thread only.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, nullcontext
from dataclasses import replace
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any

import trio

from d7yfs.cache.directory import footprint_bytes
from d7yfs.cache.version import CachedVersion
from d7yfs.control.server import REPORT_PERIOD_S, paths_of
from d7yfs.errors import CacheFull, D7yfsError, Stopped, UsageError
from d7yfs.fs.filesystem import Filesystem
from d7yfs.objects import PART_BYTES
from d7yfs.stats.status import WarmUpStatus, as_json, blank
from d7yfs.tree.nodes import Directory, File

log = logging.getLogger(__name__)

_FILES_AT_ONCE = 32
"""Files under way: enough to hide the round trips of small ones; each has two descriptors."""
_LARGE_FILES_AT_ONCE = 4
"""Large files among these: one alone may fill the link, and finished files survive a stop."""
_ADDED_UP_AT_ONCE = 256
"""Files whose maps are read in one go: a change of threads costs more than a read."""
_NAMED_PATHS = 100
_NAMED_FAILURES = 100
"""Most failures that are named; the others are counted, and in the log."""

Found = tuple[str, File]
"""A file and its path below the mount."""


class State(StrEnum):
    """The states of a warm-up; the last two are its ends."""

    PLANNING = "planning"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Normalise `paths` and drop those below another. Raises UsageError for one with `..`."""
    kept: list[PurePosixPath] = []
    # Sorted by parts, a path comes right before those below it.
    for path in sorted({PurePosixPath(path.strip("/")) for path in paths}, key=lambda path: path.parts):
        if ".." in path.parts:
            raise UsageError(f"{path}: a path to warm must not leave the mount")
        if not kept or not path.is_relative_to(kept[-1]):
            kept.append(path)
    return tuple("" if path == PurePosixPath() else str(path) for path in kept)


async def walk(
    filesystem: Filesystem, paths: Iterable[str], failed: Callable[[str, D7yfsError], None]
) -> AsyncGenerator[Found, None]:
    """Yield every file at and below `paths`; `failed` is called for directories that cannot be
    listed.

    Raises NotFound for a path that does not exist, and the errors of its listing.
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
                                    # Remembered at once, so that the tree does not drop it.
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
        self.ended = trio.Event()
        self.planned = trio.Event()
        self.refusal: D7yfsError | None = None
        """Why it could not begin."""
        self._planned_bytes = 0
        """Bytes on disk once all of it is cached."""
        self._status = blank(
            WarmUpStatus,
            id=number,
            paths=paths[:_NAMED_PATHS],
            background=background,
            state=State.PLANNING,
            room_bytes=filesystem.room.keepable_bytes,
        )
        self._paths = paths
        self._filesystem = filesystem
        self._no_room = False
        self._under_way: dict[File, tuple[CachedVersion, int]] = {}
        """The files under way, with the bytes that were cached when each began."""
        self._large = trio.CapacityLimiter(_LARGE_FILES_AT_ONCE)
        self._began_at = self._ended_at = trio.current_time()
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Plan and bring; `ended` is set at the end in any case."""
        try:
            with self._scope:
                await self._add_up()
                if self._planned_bytes > self._status.room_bytes:
                    # Others may have made room since the last count.
                    await self._filesystem.room.recount()
                    self._status.room_bytes = self._filesystem.room.keepable_bytes
                self._began_at = trio.current_time()
                self._status.state = State.RUNNING
                self.planned.set()
                await self._bring_all()
                self._status.state = State.DONE
        except D7yfsError as error:
            self.refusal = error
        except Exception:
            log.exception("warm-up %d failed unexpectedly", self._status.id)
            self.refusal = Stopped("the warm-up failed unexpectedly; see the log")
        finally:
            if self._status.state != State.DONE:
                self._status.state = State.STOPPED
            self._ended_at = trio.current_time()
            self.planned.set()
            self.ended.set()
            log.info("warm-up %d: %s", self._status.id, summarize(self.describe()))

    def stop(self) -> None:
        """Bring no more; cached bytes stay."""
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
        cached_bytes = await self._filesystem.describer.cached_bytes(files)
        sizes = [file.size_bytes for file in files]
        self._status.files += len(sizes)
        self._status.size_bytes += sum(sizes)
        self._status.missing_bytes += sum(sizes) - cached_bytes
        self._planned_bytes += sum(map(footprint_bytes, sizes))

    async def _bring_all(self) -> None:
        send, receive = trio.open_memory_channel[Found](0)
        async with trio.open_nursery() as nursery, send:
            async with receive:
                for _ in range(_FILES_AT_ONCE):
                    nursery.start_soon(self._work, receive.clone())
            async with aclosing(walk(self._filesystem, self._paths, self._failed)) as files:
                begun_bytes = 0
                async for path, file in files:
                    begun_bytes += footprint_bytes(file.size_bytes)
                    if self._no_room or begun_bytes > self._status.room_bytes:
                        break
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
            self._status.files_done += 1
        except D7yfsError as error:
            self._no_room = self._no_room or isinstance(error, CacheFull)
            self._failed(path, error)

    async def _fill(self, file: File, cached: CachedVersion) -> None:
        before = cached.cached_bytes
        self._under_way[file] = (cached, before)
        try:
            await cached.fill_whole()
        finally:
            self._status.fetched_bytes += cached.cached_bytes - before
            del self._under_way[file]

    def _failed(self, path: str, error: D7yfsError) -> None:
        self._status.files_failed += 1
        if len(self._status.failures) < _NAMED_FAILURES:
            self._status.failures[path] = str(error)
        log.warning("warm-up %d: /%s: %s", self._status.id, path, error)

    def describe(self) -> WarmUpStatus:
        """The account of this warm-up now."""
        counted, ended = self._status, self.ended.is_set()
        arriving = sum(cached.cached_bytes - before for cached, before in self._under_way.values())
        fetched_bytes = max(0, counted.fetched_bytes + arriving)
        elapsed_s = (self._ended_at if ended else trio.current_time()) - self._began_at
        rate_bytes_s = fetched_bytes / elapsed_s if elapsed_s > 0 else 0.0
        rest_bytes = max(0, counted.missing_bytes - fetched_bytes)
        return replace(
            counted,
            fetched_bytes=fetched_bytes,
            fits=self._planned_bytes <= counted.room_bytes,
            files_left_out=max(0, counted.files - counted.files_done - counted.files_failed) if ended else 0,
            failures={**counted.failures},
            elapsed_s=round(elapsed_s, 3),
            rate_bytes_s=round(rate_bytes_s),
            eta_s=round(rest_bytes / rate_bytes_s, 1) if rate_bytes_s else None,
        )


def summarize(progress: WarmUpStatus) -> str:
    """One line for the log."""
    words = f"{progress.state}, {progress.files_done} of {progress.files} files, {progress.fetched_bytes} bytes fetched"
    if progress.files_failed:
        words += f", {progress.files_failed} failed"
    return words + (f", {progress.files_left_out} left out" if progress.files_left_out else "")


class WarmUps:
    """The warm-ups of one mount; `nursery` runs them, and cancelling it stops them."""

    def __init__(self, filesystem: Filesystem, nursery: trio.Nursery) -> None:
        self._filesystem = filesystem
        self._nursery = nursery
        self._numbers = itertools.count(1)
        self._running: dict[int, WarmUp] = {}

    async def report(self, request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Start a warm-up as `request` says (`paths`, `background`) and report on it until its end.

        In the background the report ends with the first walk. Closing the report stops the warm-up,
        unless it is in the background. Raises NotFound, UsageError, and the errors of listing the
        paths.
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
                yield as_json(warm_up.describe())
        finally:
            if not background:
                warm_up.stop()

    async def _run(self, number: int, warm_up: WarmUp) -> None:
        try:
            await warm_up.run()
        finally:
            del self._running[number]

    def describe_running(self) -> list[WarmUpStatus]:
        """The warm-ups that run, for `status`."""
        return [each.describe() for each in self._running.values()]
