"""What a running mount answers on its control socket: how it is, what a path is, warming up, refreshing, dropping, and its end by force.

Owns no state of its own: `Commands` asks the parts of the mount that `daemon` built. `snapshot` never waits, for scrapes and
systemd's watchdog rest on it; its fields are a promise (docs/status.md). No reply holds a secret. Expected failures are D7yfsErrors, which
`control_socket` sends to who asked.

Built by `daemon`; trio thread only.
"""

from __future__ import annotations

import logging
import os
import resource
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import trio

from d7yfs import __version__, logs
from d7yfs.cache.cache import Cache
from d7yfs.config.schema import OPTIONS
from d7yfs.control import control_socket, drop
from d7yfs.control.refresh import Refreshes
from d7yfs.control.reloading import Reloader
from d7yfs.control.warm import WarmUps
from d7yfs.errors import Stopped, UsageError
from d7yfs.fs.filesystem import Filesystem
from d7yfs.monitor import status
from d7yfs.monitor.monitoring import Monitoring
from d7yfs.repository.latecomer import Latecomer
from d7yfs.repository.repository import Repository
from d7yfs.stats.histogram import BOUNDS_S
from d7yfs.stats.kernel import NoticeCounters, OperationCounters
from d7yfs.tree.refresher import Refresher

log = logging.getLogger(__name__)

_NUMBERS = {"size": "size_bytes", "cached_bytes": "cached_bytes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """Those of one mount. Names of repositories are the keys of `latecomer` and `refreshers`."""

    mountpoint: Path
    reloader: Reloader
    """Has the settings as they are now."""
    repositories: Sequence[Repository]
    late: Mapping[str, Latecomer]
    refreshers: Mapping[str, Refresher]
    cache: Cache
    filesystem: Filesystem
    notices: NoticeCounters
    refreshes: Refreshes
    warm_ups: WarmUps
    operations: OperationCounters
    monitoring: Monitoring
    forget_pages: Callable[[int], Awaitable[None]]
    """Has the kernel forget what it keeps of an inode's bytes."""
    nursery: trio.Nursery
    """Runs what is to be done to its end whoever leaves."""
    end: Callable[[], None]
    """Ends the mount, without waiting for anybody."""
    started_at: float = field(default_factory=time.time)
    """Seconds since the epoch."""

    def handlers(self) -> dict[str, control_socket.Handler]:
        """By the name of the command, for `control_socket.serve`."""
        return {
            "status": self._status,
            "health": self._health,
            "stat": self._stat,
            "warm": self.warm_ups.report,
            "refresh": self.refreshes.report,
            "reload": self.reloader.report,
            "cache-drop": self._drop,
            "end-by-force": self._end_by_force,
            "log-level": self._log_level,
        }

    def snapshot(self) -> dict[str, Any]:
        """What `d7yfs status` and scrapes show (docs/status.md); nothing in it changes any more."""
        settings = self.reloader.settings
        in_use = self.cache.in_use()
        return {
            "schema": control_socket.SCHEMA,
            "mountpoint": str(self.mountpoint),
            "pid": os.getpid(),
            "version": __version__,
            "started_at": self.started_at,
            "uptime_s": round(time.time() - self.started_at, 3),
            "rss_bytes": _rss_bytes(),
            "log": logs.destination(),
            "log_level": logs.level(),
            "metrics": {"listens_on": self.monitoring.listens_on, "error": self.monitoring.trouble},
            "repositories": [self._repository_status(each, in_use) for each in self.repositories],
            "cache": asdict(self.cache.statistics()),
            "tree": self.filesystem.tree.statistics(),
            "kernel_notices": asdict(self.notices),
            "warm_ups": self.warm_ups.running(),
            "fuse": self._fuse_status(),
            "settings": settings.describe(),
            "last_reload": self.reloader.last,
            "warnings": list(settings.warnings),
        }

    def _repository_status(self, repository: Repository, in_use: status.InUse) -> dict[str, Any]:
        name = repository.config.name
        late = self.late.get(name)
        failure = late.failure if late is not None else None
        lister = self.filesystem.listers[name]
        described = status.describe(
            repository,
            self.filesystem.served[name],
            self.filesystem.tree.hidden_by_reason(name),
            lister.unanswered_since,
            failure,
            in_use,
            self.filesystem.fullness[name].describe(trio.current_time()),
        )
        return described | {"listing": lister.describe(), "freshness": self.refreshers[name].describe()}

    def _fuse_status(self) -> dict[str, Any]:
        counters = self.operations
        latency = {
            name: {"counts": [*took.counts], "sum_s": round(took.sum_s, 6)} for name, took in counters.took.items()
        }
        return {
            "calls": {**counters.calls},
            "errors": {**counters.errors},
            "in_flight": len(counters.under_way),
            "oldest_request_s": round(counters.oldest_s, 3),
            "latency_bounds_s": BOUNDS_S,
            "latency": latency,
            "open_files": self.filesystem.open_files,
            "read_bytes": self.filesystem.read_bytes,
        }

    async def _status(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        return self.snapshot()

    async def _health(self, _request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """A report, since a mount may take longer to answer than a command."""
        yield {"mountpoint": str(self.mountpoint), **await self.monitoring.health()}

    async def _stat(self, request: Mapping[str, Any]) -> dict[str, Any]:
        path = str(request.get("path", ""))
        node = await self.filesystem.resolve(path)
        described: dict[str, Any] = {"mountpoint": str(self.mountpoint), "path": path, "directory": node.is_directory}
        for name, value in (await self.filesystem.describe(node)).items():
            # As extended attributes they are text.
            number = _NUMBERS.get(name)
            described[number or name] = int(value) if number else value
        task_id = await self.filesystem.task_id(node)
        return described | ({"task_id": task_id} if task_id else {})

    def _drop(self, request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        directory = self.reloader.settings.config.cache_dir
        return control_socket.reporting(
            self.nursery, lambda: drop.drop(request, self.filesystem, directory, self.forget_pages)
        )

    async def _log_level(self, request: Mapping[str, Any]) -> dict[str, Any]:
        was, level = logs.level(), request.get("level")
        if level is not None:
            if level not in OPTIONS["log_level"].kind.choices:
                raise UsageError(f"{level!r} is no log level")
            logs.set_level(level)
        return {"mountpoint": str(self.mountpoint), "level": logs.level(), "was": was, "log": logs.destination()}

    async def _end_by_force(self, _request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Answer whoever waits, and end at once: who asks again finds nobody."""
        log.warning("%s is taken away by force", self.mountpoint)
        self.cache.fail_waiters(Stopped("the mount is being taken down by force"))
        try:
            yield {"pid": os.getpid()}
        finally:
            self.end()


def _rss_bytes() -> int:
    """Resident memory of this process (proc_pid_statm(5))."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
