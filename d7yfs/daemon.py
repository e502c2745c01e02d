"""One mount from start to end: builds the object graph, opens the nurseries, says when the mount answers, and takes it down.

The only module that knows all the others. Lifetimes: everything runs in one nursery that ends with the mount; shutdown lets running reads
finish within a deadline, unmounts (lazily when somebody holds on), answers who still waits, and only then cancels fills and listings.

Called by the command line, in the process that becomes the daemon.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import resource
import signal
import time
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import trio

from d7yfs import __version__, control, logs, mounts, status, tree
from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.filler import Filler, FillTarget
from d7yfs.config.p2p import Mode
from d7yfs.config.schema import Config
from d7yfs.config.sources import Settings
from d7yfs.errors import D7yfsError, MountError, Stopped
from d7yfs.fetch.direct import DirectFiller
from d7yfs.fetch.route import Reason
from d7yfs.fetch.stream import StreamFiller
from d7yfs.fetch.verification import Verifier
from d7yfs.filesystem import Filesystem, Source
from d7yfs.fuse.pyfuse3_adapter import Adapter, Appearance
from d7yfs.inodes import Directory
from d7yfs.invalidation import Invalidator
from d7yfs.latecomer import Latecomer
from d7yfs.listings import Mode as ListingMode
from d7yfs.objects import ObjectVersion
from d7yfs.readiness import Readiness
from d7yfs.refresh import Refreshes
from d7yfs.refreshing import Refresher
from d7yfs.repository import Repository, open_repositories
from d7yfs.tree import Changes
from d7yfs.warm import WarmUps

log = logging.getLogger(__name__)

_BUSY_RETRY_S = 0.2
_LAST_NOTICE_S = 1.0
_GARBAGE_THRESHOLD = 5000
"""Objects made, and not yet gone, between two collections; Python's own is 700, and a page of a listing has 7,000 elements for a moment."""


async def run(settings: Settings, readiness: Readiness, *, stderr: Path | None) -> None:
    """Mount, serve until the mount goes away or SIGTERM or SIGINT comes, unmount.

    Raises D7yfsError when there is no mount: MountError, CacheUnusable, ConfigError, or what the origin said. `stderr` is where a daemon in
    the background sends what C libraries print.
    """
    config = settings.config
    mountpoint = settings.require_mountpoint()
    if await trio.to_thread.run_sync(mounts.prepare_mountpoint, mountpoint):
        log.warning("%s was a dead mount; cleaned up", mountpoint)
    directory = CacheDirectory(
        config.cache_dir, size_limit_bytes=config.cache_size_bytes, min_free_bytes=config.cache_min_free_bytes
    )
    directory.prepare()
    _raise_descriptor_limit()
    for warning in settings.warnings:
        log.warning("%s", warning)
    repositories = open_repositories(settings)
    try:
        present, late = await _locate(repositories, config)
        cache = Cache(directory, memory_buffer_bytes=config.memory_buffer_bytes, read_timeout_s=config.read_timeout_s)
        await _Mount(settings, mountpoint, present, late, cache, readiness, stderr).serve()
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(config.shutdown_timeout_s):
            for repository in repositories:
                await repository.aclose()


async def _locate(
    repositories: list[Repository], config: Config
) -> tuple[list[tuple[Repository, str]], list[Latecomer]]:
    """All repositories with what each is to list, and those of several that cannot be reached, unless all must be.

    Raises what the origin said where there is no going on without it.
    """
    places: dict[str, str] = {}
    failures: dict[str, D7yfsError] = {}

    async def locate(repository: Repository) -> None:
        name = repository.config.name
        try:
            places[name] = await repository.locate(allow_empty=config.allow_empty)
        except D7yfsError as error:
            failures[name] = error
            prefix = repository.config.url.prefix
            places[name] = f"{prefix}/" if prefix else ""

    async with trio.open_nursery() as nursery:
        for repository in repositories:
            nursery.start_soon(locate, repository)
    if failures and (config.require_all or len(failures) == len(repositories)):
        raise next(failures[each.config.name] for each in repositories if each.config.name in failures)
    late = [
        Latecomer(each, failures[each.config.name], allow_empty=config.allow_empty)
        for each in repositories
        if each.config.name in failures
    ]
    for one in late:
        log.error("%s; %s is an empty directory until it can be read", one.failure, one.repository.config.name)
    return [(each, places[each.config.name]) for each in repositories], late


def _spare_collector() -> None:
    """Keep the garbage collector from walking what start-up made, and from walking each page of a listing while it is read.

    Otherwise a collection takes 70 ms now and then, in which nobody is answered, and a third of the time of a large listing.
    """
    gc.freeze()
    gc.set_threshold(_GARBAGE_THRESHOLD)


def _raise_descriptor_limit() -> None:
    """An open file of the mount takes two descriptors, so take what the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class _Mount:
    """The running mount."""

    def __init__(
        self,
        settings: Settings,
        mountpoint: Path,
        repositories: list[tuple[Repository, str]],
        late: list[Latecomer],
        cache: Cache,
        readiness: Readiness,
        stderr: Path | None,
    ) -> None:
        self._settings = settings
        self._config: Config = settings.config
        self._mountpoint = mountpoint
        self._repositories = repositories
        self._late = {each.repository.config.name: each for each in late}
        self._cache = cache
        self._readiness = readiness
        self._stderr = stderr
        self._started_at = time.time()
        self._unmounted = False
        self._filesystem: Filesystem
        self._warm_ups: WarmUps
        self._invalidator: Invalidator
        self._refreshers: dict[str, Refresher]
        self._refreshes: Refreshes
        self._adapter: Adapter

    async def serve(self) -> None:
        """From mount(2) to the end."""
        async with trio.open_nursery() as nursery:
            self._build(nursery)
            nursery.start_soon(self._cache.run)
            nursery.start_soon(self._invalidator.run)
            for refresher in self._refreshers.values():
                nursery.start_soon(refresher.run)
            for repository, _ in self._repositories:
                if repository.config.name in self._late:
                    nursery.start_soon(self._await_latecomer, self._late[repository.config.name])
                else:
                    nursery.start_soon(repository.fetcher.prepare)
            handlers: dict[str, control.Handler] = {
                "status": self._status,
                "stat": self._stat,
                "warm": self._warm_ups.report,
                "refresh": self._refreshes.report,
            }
            await nursery.start(control.serve, control.socket_path(self._mountpoint), handlers)
            try:
                Adapter.mount(self._adapter, str(self._mountpoint), self._mount_options())
            except RuntimeError as error:
                raise MountError(
                    f"{self._mountpoint} could not be mounted: {error}",
                    hint="d7yfs check says what FUSE lacks here (/dev/fuse, fusermount3, user_allow_other)",
                ) from error
            try:
                async with trio.open_nursery() as session:
                    session.start_soon(self._session, session.cancel_scope)
                    session.start_soon(self._until_signalled, session.cancel_scope)
                    await self._announce()
            finally:
                Adapter.close()
                if mounts.mounted_at(self._mountpoint) is not None and not self._unmounted:
                    mounts.unmount(self._mountpoint, lazy=True)
                nursery.cancel_scope.cancel()
        log.info("%s is unmounted", self._mountpoint)

    def _build(self, nursery: trio.Nursery) -> None:
        config = self._config
        inodes = tree.Tree(
            [tree.Repository(each.config.name, prefix) for each, prefix in self._repositories],
            metadata_ttl_s=config.metadata_ttl_s,
            negative_ttl_s=config.negative_ttl_s,
            created_ns=time.time_ns(),
            max_entries=config.max_inodes,
        )
        sources = {each.config.name: self._source(each, nursery) for each, _ in self._repositories}
        self._invalidator = Invalidator(Adapter.forget_entries)
        self._filesystem = Filesystem(
            inodes, sources, self._cache, nursery, changed=self._entries_changed, forget_names=self._invalidator.changed
        )
        listers = self._filesystem.listers
        self._refreshers = {
            name: Refresher(inodes, name, lister, ttl_s=config.metadata_ttl_s) for name, lister in listers.items()
        }
        self._refreshes = Refreshes(inodes, listers, self._invalidator, nursery)
        self._warm_ups = WarmUps(self._filesystem, nursery)
        appearance = Appearance(config.uid, config.gid, config.file_mode, config.dir_mode, config.xattr)
        self._adapter = Adapter(self._filesystem, self._invalidator, appearance, deadline_s=config.read_timeout_s)

    def _source(self, repository: Repository, nursery: trio.Nursery) -> Source:
        full = self._config.verify == "full"
        verifier = Verifier(repository.fetcher, nursery, full=full, forget_pages=self._forget_pages)

        def new_filler(target: FillTarget) -> Filler:
            if self._config.verify != "off":
                verifier.watch(target)
            fetcher, policy = repository.fetcher, repository.policy
            if fetcher.proxy is None and repository.handover is None:
                return DirectFiller(target, fetcher, nursery)
            if policy.mode_of(target.version.key) is Mode.NEVER:
                return DirectFiller(target, fetcher, nursery, reason=Reason.NEVER)
            return StreamFiller(target, fetcher, nursery, policy, repository.handover)

        return Source(
            repository.origin.url,
            repository.origin.identity,
            self._late.get(repository.config.name, repository.shown),
            new_filler,
            listing=ListingMode(repository.config.listing),
            listing_limit=repository.config.listing_limit,
            revalidates=repository.config.revalidate_on_open.match,
            route=repository.route,
            task_id=repository.task_id,
        )

    async def _await_latecomer(self, late: Latecomer) -> None:
        name = late.repository.config.name
        await late.wait(self._filesystem.listers[name].settle)
        await late.repository.fetcher.prepare()

    async def _forget_pages(self, version: ObjectVersion) -> None:
        for inode in self._filesystem.tree.inodes_of(version):
            await trio.to_thread.run_sync(Adapter.forget_pages, inode, abandon_on_cancel=True)

    def _entries_changed(self, directory: Directory, changes: Changes) -> None:
        # Otherwise the kernel does not know it, or believes nothing.
        if directory.lookups and self._config.metadata_ttl_s:
            names = itertools.chain(changes.added, changes.removed, changes.replaced)
            self._invalidator.changed(directory.inode, names)

    def _mount_options(self) -> list[str]:
        source = ";".join(f"{each.config.name}={each.config.url}".removeprefix("=") for each, _ in self._repositories)
        escaped = source.replace("\\", "\\\\").replace(",", "\\,")
        options = [f"fsname={escaped}", "subtype=d7yfs", "ro", "nosuid", "nodev", "default_permissions"]
        return [*options, "allow_other"] if self._config.allow_other else options

    async def _session(self, scope: trio.CancelScope) -> None:
        await self._adapter.serve()
        scope.cancel()

    async def _announce(self) -> None:
        """Wait until the mount answers, raise its limits, and say so."""
        if not await trio.to_thread.run_sync(mounts.answers, self._mountpoint, abandon_on_cancel=True):
            raise MountError(f"{self._mountpoint} is mounted but does not answer", hint="see the log for the reason")
        for trouble in await trio.to_thread.run_sync(mounts.tune, self._mountpoint):
            log.info("%s", trouble)
        _spare_collector()
        names = ", ".join(str(each.config.url) for each, _ in self._repositories)
        log.info("%s is mounted on %s", names, self._mountpoint)
        missing = [f"{name} is empty for now: {late.failure}" for name, late in self._late.items() if late.failure]
        self._readiness.ready(f"{names} mounted on {self._mountpoint}", missing, self._stderr)

    async def _until_signalled(self, scope: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                log.info("%s: unmounting %s", signal.Signals(number).name, self._mountpoint)
                self._readiness.notify("STOPPING=1")
                await self._unmount()
                scope.cancel()
                return

    async def _unmount(self) -> None:
        """Unmount once nobody reads any more; lazily after the deadline, and then answer whoever still waits."""
        deadline_s = self._config.shutdown_timeout_s
        self._invalidator.stop()
        with trio.move_on_after(deadline_s):
            while True:
                await self._filesystem.idle.wait()
                try:
                    # It may look at the mount, and so wait for us to ask a store that does not answer.
                    await trio.to_thread.run_sync(mounts.unmount, self._mountpoint, abandon_on_cancel=True)
                except mounts.Busy:
                    # No file is open: a directory is, or is somebody's working directory. There is no event for that.
                    await trio.sleep(_BUSY_RETRY_S)
                except MountError as error:
                    if mounts.mounted_at(self._mountpoint) is not None:
                        log.warning("%s", error)
                        break
                    return
                else:
                    self._unmounted = True
                    return
        log.warning(
            "%s is still in use after %g s (%d open files): unmounted lazily; what is open there fails from now on",
            self._mountpoint,
            deadline_s,
            self._filesystem.open_files,
        )
        await trio.to_thread.run_sync(partial(mounts.unmount, self._mountpoint, lazy=True))
        self._unmounted = True
        self._cache.fail_waiters(Stopped("the mount is being taken down"))
        await self._adapter.answer_all()
        # The connection lives on while the kernel holds up a thread that is telling it something, and with it whoever waits for us.
        with trio.move_on_after(_LAST_NOTICE_S):
            await self._invalidator.quiet()

    # --- control ---

    async def _status(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "mountpoint": str(self._mountpoint),
            "pid": os.getpid(),
            "version": __version__,
            "started_at": self._started_at,
            "uptime_s": round(time.time() - self._started_at, 3),
            "rss_bytes": _rss_bytes(),
            "log": logs.destination(),
            "repositories": [self._repository_status(each) for each, _ in self._repositories],
            "cache": asdict(self._cache.statistics()),
            "tree": self._filesystem.tree.statistics(),
            "kernel_notices": asdict(self._invalidator.counters),
            "warm_ups": self._warm_ups.running(),
            "fuse": asdict(self._adapter.counters)
            | {"open_files": self._filesystem.open_files, "read_bytes": self._filesystem.read_bytes},
            "settings": self._settings.describe(),
            "warnings": list(self._settings.warnings),
        }

    def _repository_status(self, repository: Repository) -> dict[str, Any]:
        name = repository.config.name
        late = self._late.get(name)
        hidden = self._filesystem.tree.hidden_by_reason(name)
        failure = late.failure if late is not None else None
        described = status.describe(repository, self._filesystem.served[name], hidden, failure)
        listing = self._filesystem.listers[name].describe()
        return described | {"listing": listing, "freshness": self._refreshers[name].describe()}

    async def _stat(self, request: Mapping[str, Any]) -> dict[str, Any]:
        path = str(request.get("path", ""))
        node = await self._filesystem.resolve(path)
        described = {"path": path, "directory": node.is_directory, **self._filesystem.describe(node)}
        task_id = await self._filesystem.task_id(node)
        return described | ({"task_id": task_id} if task_id else {})


def _rss_bytes() -> int:
    """Resident memory of this process (proc_pid_statm(5))."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
