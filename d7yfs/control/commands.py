"""The commands that a running mount answers on its control socket: status, health, stat, warm,
preheat, refresh, reload, drop, recount, log level, trace, check, end.

Owns no state of its own: `Commands` asks the parts of the mount that `daemon` built. `snapshot`
never waits, because scrapes and systemd's watchdog rest on it. No reply holds a secret. Expected
failures are D7yfsErrors, which `control_socket` sends to the client.

Built by `daemon`; trio thread only.
"""

from __future__ import annotations

import logging
import resource
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import trio

from d7yfs import __version__, logs
from d7yfs.cache import inspection
from d7yfs.cache.cache import Cache
from d7yfs.cache.inspection import Stored
from d7yfs.config.place import Place
from d7yfs.config.schema import OPTIONS
from d7yfs.control import control_socket, server
from d7yfs.control.live_check import report_check
from d7yfs.control.preheat import Preheats
from d7yfs.control.refresh import Refreshes
from d7yfs.control.reload import Reloader
from d7yfs.control.tracing import follow_trace
from d7yfs.control.warm import WarmUps
from d7yfs.errors import Stopped, UsageError
from d7yfs.fs.filesystem import Filesystem
from d7yfs.monitor import retrial
from d7yfs.monitor.account import InUse, describe_repository
from d7yfs.monitor.reporter import Reporter
from d7yfs.movers.pool import MoverPool
from d7yfs.repository.latecomer import Latecomer
from d7yfs.repository.repository import Repository
from d7yfs.repository.tree_keeper import TreeKeepers
from d7yfs.stats.kernel import OperationCounters
from d7yfs.stats.repository_status import RepositoryStatus
from d7yfs.stats.status import (
    MetricsStatus,
    MountStatus,
    NoticesStatus,
    SettingStatus,
    as_json,
    parse,
)
from d7yfs.supervisor.link import Role
from d7yfs.tree.nodes import File
from d7yfs.tree.refresher import Refresher

log = logging.getLogger(__name__)

_NUMBERS = {"size": "size_bytes", "cached_bytes": "cached_bytes"}

_NAMED = 100
"""Most versions that a drop keeps and names; the others are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """The commands of one mount. Names of repositories are the keys of `late` and `refreshers`."""

    mountpoint: Path
    reloader: Reloader
    """Holds the present settings."""
    repositories: Sequence[Repository]
    late: Mapping[str, Latecomer]
    keepers: TreeKeepers
    refreshers: Mapping[str, Refresher]
    cache: Cache
    filesystem: Filesystem
    notices: NoticesStatus
    refreshes: Refreshes
    warm_ups: WarmUps
    preheats: Preheats
    operations: OperationCounters
    reporter: Reporter
    forget_pages: Callable[[int], Awaitable[None]]
    """Makes the kernel drop its pages of an inode."""
    nursery: trio.Nursery
    """Runs commands that are done to their end even if their client leaves."""
    end: Callable[[], None]
    """Ends the mount, without waiting for readers."""
    role: Role
    movers: MoverPool
    started_at: float = field(default_factory=time.time)
    """Seconds since the epoch."""

    def handlers(self) -> dict[str, server.Handler]:
        """The handlers by command, for `server.serve`."""
        return {
            "status": self._status,
            "health": self._health,
            "stat": self._stat,
            "warm": self.warm_ups.report,
            "preheat": self.preheats.report,
            "refresh": self._to_its_end(self._refresh),
            "reload": self._to_its_end(lambda _: self.reloader.reload()),
            "cache-drop": self._to_its_end(self._drop),
            "cache-recount": self._to_its_end(self._recount),
            "upgrade": self._upgrade,
            "end-by-force": self._end_by_force,
            "log-level": self._log_level,
            "trace": follow_trace,
            "check": lambda _: report_check(self.nursery, self.repositories, self.reloader.settings),
        }

    def _to_its_end(self, handle: Callable[[Mapping[str, Any]], Awaitable[control_socket.Reply]]) -> server.Handler:
        """A handler that reports on `handle`, which is done to its end even if the client leaves."""
        return lambda request: server.reporting(self.nursery, lambda: handle(request))

    def snapshot(self) -> MountStatus:
        """The account that `d7yfs status` and scrapes show (docs/status.md). Tells the log of problems."""
        in_use = self.cache.in_use()
        settings = self.reloader.settings
        account = MountStatus(
            schema=control_socket.SCHEMA,
            mountpoint=str(self.mountpoint),
            pid=self.role.pid,
            version=__version__,
            started_at=self.started_at,
            uptime_s=round(time.time() - self.started_at, 3),
            rss_bytes=_rss_bytes(),
            log=logs.destination(),
            log_level=logs.level(),
            metrics=MetricsStatus(listens_on=self.reporter.listens_on, error=self.reporter.trouble),
            repositories=tuple(self._describe_repository(each, in_use) for each in self.repositories),
            cache=self.cache.statistics(),
            tree=self.filesystem.tree.statistics(),
            kernel_notices=replace(self.notices),
            warm_ups=tuple(self.warm_ups.describe_running()),
            fuse=self.operations.describe(
                open_files=self.filesystem.open_files,
                open_directories=self.filesystem.open_directories,
                read_bytes=self.filesystem.read_bytes,
            ),
            settings={name: parse(SettingStatus, row) for name, row in settings.explain().items()},
            takeover=self.role.takeover,
            movers=self.movers.status(),
            last_reload=self.reloader.last,
            warnings=settings.warnings,
        )
        return self.reporter.watch.judge(account)

    async def try_again(self) -> None:
        """Try what fails again, if it is time, so that its end is noticed without a reader."""
        async with trio.open_nursery() as nursery:
            for each in self.repositories:
                name = each.config.name
                top = self.filesystem.tree.top(name)
                nursery.start_soon(retrial.try_again, each, self.filesystem.listers[name], top)

    def _describe_repository(self, repository: Repository, in_use: InUse) -> RepositoryStatus:
        name = repository.config.name
        failure = self.late[name].failure if name in self.late else None
        keeper = self.keepers.get(name)
        return describe_repository(repository, self.filesystem, self.refreshers[name], failure, keeper, in_use)

    async def _status(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = as_json(self.snapshot())
        return answer

    async def _health(self, _request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """A report, because a mount may take longer to answer than a command."""
        yield {"mountpoint": str(self.mountpoint), **as_json(await self.reporter.check_health())}

    async def _stat(self, request: Mapping[str, Any]) -> dict[str, Any]:
        path = str(request.get("path", ""))
        node = await self.filesystem.resolve(path)
        described: dict[str, Any] = {"mountpoint": str(self.mountpoint), "path": path, "directory": node.is_directory}
        for name, value in (await self.filesystem.describer.describe(node)).items():
            # As extended attributes they are text.
            number = _NUMBERS.get(name)
            described[number or name] = int(value) if number else value
        task_id = await self.filesystem.describer.task_id(node)
        return described | ({"task_id": task_id} if task_id else {})

    async def _refresh(self, request: Mapping[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = as_json(await self.refreshes.refresh(request))
        return answer

    async def _drop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Delete the cached bytes of files, and make the kernel forget their pages too.

        As `d7yfs cache drop URL` does on the directory alone: all versions at and below the `paths`
        of `request`, the present and older ones, apart from those that some process has open.
        Raises NotFound, UsageError, CacheUnusable.
        """
        paths, files = server.paths_of(request, "cache drop"), self.filesystem
        places = [place for path in paths for place in files.describer.places(await files.resolve(path))]
        directory = self.reloader.settings.config.cache_dir
        gone, kept = await trio.to_thread.run_sync(_drop_places, directory, places)
        await self.cache.room.recount()
        dropped = {each.map.identity for each in gone}
        known = [each for each in files.tree.remembered() if isinstance(each, File)]
        for file in known:
            if file.version.identity in dropped:
                await self.forget_pages(file.inode)
        freed_bytes = sum(each.disk_bytes for each in gone)
        log.info("cache drop: %d files, %d bytes; %d kept", len(gone), freed_bytes, len(kept))
        return {
            "files": len(gone),
            "disk_bytes": freed_bytes,
            "kept_files": len(kept),
            "kept": [each.name for each in kept[:_NAMED]],
        }

    async def _recount(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Count the files of the cache now: another process has deleted some."""
        await self.cache.room.recount()
        return {"used_bytes": self.cache.statistics().used_bytes}

    async def _log_level(self, request: Mapping[str, Any]) -> dict[str, Any]:
        was, level = logs.level(), request.get("level")
        if level is not None:
            if level not in OPTIONS["log_level"].kind.choices:
                raise UsageError(f"{level!r} is no log level")
            logs.set_level(level)
        return {"mountpoint": str(self.mountpoint), "level": logs.level(), "was": was, "log": logs.destination()}

    async def _upgrade(self, _request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Report until the new worker takes over: then this process ends, and with it the report."""
        yield {"state": "running"}
        await self.role.upgrade()

    async def _end_by_force(self, _request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Fail all waiting readers and end at once; a client that asks again finds no daemon."""
        log.warning("%s is unmounted by force", self.mountpoint)
        self.cache.fail_waiters(Stopped("the mount is being taken down by force"))
        try:
            yield {"pid": self.role.pid}
        finally:
            self.end()


def _rss_bytes() -> int:
    """Resident memory of this process (proc_pid_statm(5))."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _drop_places(directory: Path, places: Sequence[Place]) -> tuple[list[Stored], list[Stored]]:
    stored = inspection.stored(directory)
    return inspection.drop(each for each in stored if any(each.map.lies_in(place) for place in places))
