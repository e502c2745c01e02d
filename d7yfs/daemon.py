"""One mount from start to end: builds the object graph, runs it, tells when the mount answers, and
takes it down.

The only module that knows all rooms. Everything runs in one nursery that ends with the mount.
Shutdown lets running reads finish within a deadline, unmounts (lazily if the mount is still in
use), fails the reads that still wait, and only then cancels fills and listings.

Called by the command line, in the process that becomes the daemon.
"""

from __future__ import annotations

import codecs
import itertools
import logging
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import trio

from d7yfs import checksum, logs
from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory
from d7yfs.config.schema import Config
from d7yfs.config.sources import Settings
from d7yfs.control import control_socket, server
from d7yfs.control.commands import Commands
from d7yfs.control.preheat import Preheats
from d7yfs.control.refresh import Refreshes
from d7yfs.control.reload import Reloader
from d7yfs.control.warm import WarmUps
from d7yfs.errors import ConfigError, D7yfsError, MountError, Stopped
from d7yfs.fs.filesystem import Filesystem
from d7yfs.fuse import engine
from d7yfs.fuse.notices import Invalidator
from d7yfs.fuse.succession import Succession
from d7yfs.host import mount_table, process
from d7yfs.host.fuse_helper import HandedMount
from d7yfs.host.privileges import mounter
from d7yfs.monitor.probe import Probe
from d7yfs.monitor.reporter import Reporter
from d7yfs.movers.pool import MoverPool, make_pool
from d7yfs.objects import ObjectVersion
from d7yfs.repository import latecomer
from d7yfs.repository.backend import make_backend
from d7yfs.repository.latecomer import Latecomer
from d7yfs.repository.repository import Repository, open_repositories
from d7yfs.repository.tree_keeper import TreeKeepers
from d7yfs.stats.status import ReloadStatus
from d7yfs.supervisor.link import Role
from d7yfs.tree import tree
from d7yfs.tree.nodes import Directory, NameChanges

log = logging.getLogger(__name__)

_BUSY_RETRY_S = 0.2
_LAST_NOTICE_S = 1.0
_SETTLE_S = 2.0
"""Longest wait for the cache's last writes to disk; names and bytes that are lost are asked for again."""


async def run(
    settings: Settings,
    read_again: Callable[[], Settings],
    role: Role,
) -> None:
    """Mount, serve until the mount is gone or SIGTERM or SIGINT comes, unmount. A supervisor's
    connection is only served.

    `read_again` reads the settings at SIGHUP. Raises D7yfsError if there is no mount: MountError, CacheUnusable, ConfigError, or
    an error of the origin.
    """
    work = partial(_serve, settings, read_again, role)
    await (work() if role.link is None else role.link.run(work))


async def _serve(settings: Settings, read_again: Callable[[], Settings], role: Role) -> None:
    config = settings.config
    mountpoint = settings.require_mountpoint()
    handed, link = role.handed, role.link
    if link is not None:
        link.check(mountpoint, config.mount_source)
        link.shutdown_timeout_s = config.shutdown_timeout_s
    from_others = HandedMount.is_expected(config.fuse_helper, mountpoint)
    if from_others and config.noexec:
        what = "--noexec has no effect on a mount that another program makes"
        hint = "give --noexec to d7yfs fuse-helper, or to that program"
        raise settings.locate(ConfigError(what, hint=hint, settings=("noexec",)))
    is_first = handed is None or (link is not None and handed.generation == 1)
    directory = CacheDirectory.bounded(config.cache_dir, config.cache_size, config.cache_min_free)
    directory.prepare()
    directory.take_grant_key()
    process.prepare()
    for warning in settings.warnings:
        log.warning("%s", warning)
    repositories = open_repositories(settings, movers := make_pool(config.movers, config.read_timeout_s))
    keepers = TreeKeepers.open(repositories, config, directory)
    for each in repositories:
        each.publication.kept = directory if config.tree_cache != "off" else None
    cache = Cache(directory, memory_buffer_bytes=config.memory_buffer_bytes, read_timeout_s=config.read_timeout_s)
    if not is_first:  # a standby has the time for what the first bytes would wait for
        checksum.load()
        codecs.lookup("idna")  # an import of the first connection to a store
    process.spare_collector()
    if link is not None:
        await link.wait_for_turn()
    directory.join()
    succession = None
    try:
        if handed is not None:
            backings = link if link is not None and link.is_split else None
            succession = await trio.to_thread.run_sync(Succession.begin, handed, config.mount_source, backings)
        tops = succession.known.tops if succession else {}
        present, late = await latecomer.locate(repositories, config, tops, keepers, role.tell_wait)
        async with trio.open_nursery() as nursery:
            mount = _Mount(
                nursery, settings, mountpoint, present, late, cache, read_again, role, movers, succession, keepers
            )
            await mount.serve()
        if not mount.leaves:
            log.info("%s is unmounted", mountpoint)
        elif link is not None:
            link.tell_left()
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(config.shutdown_timeout_s):
            with trio.move_on_after(_SETTLE_S):
                await keepers.save()
                await cache.settle()
            for repository in repositories:
                await repository.aclose()


class _Mount:
    """The object graph of one running mount, and its life."""

    def __init__(
        self,
        nursery: trio.Nursery,
        settings: Settings,
        mountpoint: Path,
        repositories: list[tuple[Repository, str]],
        late: list[Latecomer],
        cache: Cache,
        read_again: Callable[[], Settings],
        role: Role,
        movers: MoverPool,
        succession: Succession | None,
        keepers: TreeKeepers,
    ) -> None:
        config = settings.config
        self._keepers = keepers
        self._nursery = nursery
        self._mountpoint = mountpoint
        self._repositories = repositories
        self._late = {each.repository.config.name: each for each in late}
        self._cache = cache
        self._readiness, self._link = role.readiness, role.link
        self._succession = succession
        self._stderr = role.stderr
        self._unmounted = False
        self.leaves = False
        """True once the mount is left to the supervisor."""
        self._handed: HandedMount | None = None
        self._session_scope = trio.CancelScope()
        seen = mountpoint if HandedMount.from_path(mountpoint) is None else None
        send = role.link.send_child if role.link is not None else mount_table.send_child
        self._probe = Probe(seen, send)
        self._reporter = Reporter(
            lambda: self._commands.snapshot(), self._probe, role.readiness, lambda: self._commands.try_again()
        )
        self._reloader = Reloader(
            mountpoint, settings, read_again, self._apply, role.readiness, self._reporter.describe
        )
        inodes = tree.Tree(
            [tree.TreeRoot(each.config.name, prefix) for each, prefix in self._repositories],
            metadata_ttl_s=config.metadata_ttl_s,
            negative_ttl_s=config.negative_ttl_s,
            created_ns=time.time_ns(),
            max_entries=config.max_inodes,
        )
        sources = {
            each.config.name: make_backend(each, config, cache, nursery, self._forget_pages) for each, _ in repositories
        }
        self._rights = {name: each.rights for name, each in sources.items() if each.rights is not None}
        self._invalidator = Invalidator(lambda directory, names: self._engine.forget_entries(directory, names))
        self._filesystem = Filesystem(
            inodes,
            sources,
            cache,
            nursery,
            changed=self._entries_changed,
            forget_names=self._invalidator.changed,
            told=self._invalidator.settle,
            open_wait_s=min(config.open_wait_s, config.read_timeout_s / 2),
        )
        refreshers = self._filesystem.refreshers
        self._engine = engine.make_engine(config, self._filesystem, self._invalidator)
        self._commands = Commands(
            mountpoint=mountpoint,
            reloader=self._reloader,
            repositories=[each for each, _ in repositories],
            late=self._late,
            keepers=keepers,
            refreshers=refreshers,
            cache=cache,
            filesystem=self._filesystem,
            notices=self._invalidator.counters,
            refreshes=Refreshes(inodes, refreshers, self._invalidator),
            warm_ups=WarmUps(self._filesystem, nursery),
            preheats=Preheats(self._filesystem, [each for each, _ in repositories], self._reloader, nursery),
            operations=self._engine.guard.counters,
            reporter=self._reporter,
            forget_pages=self._forget_pages_of,
            nursery=nursery,
            end=self._session_scope.cancel,
            role=role,
            movers=movers,
        )

    async def serve(self) -> None:
        """Mount, and serve to the end."""
        nursery = self._nursery
        refreshing = [each.run for each in self._filesystem.refreshers.values()]
        for run in (self._cache.room.run, self._invalidator.run, self._commands.movers.run, *refreshing):
            nursery.start_soon(run)
        for repository, _ in self._repositories:
            if repository.config.name in self._late:
                nursery.start_soon(self._await_latecomer, self._late[repository.config.name])
            else:
                nursery.start_soon(repository.fetcher.stay_prepared)
        path, control = control_socket.socket_path(self._mountpoint), self._link.control if self._link else None
        await nursery.start(server.serve, path, self._commands.handlers(), control)
        if self._succession is not None:
            if self._link is not None and not self._succession.follows:
                await self._link.mount()
            self._succession.restore(self._filesystem)
            self._note_tops()
        follows = self._succession is not None and self._succession.follows
        await self._keepers.recall(self._filesystem, nursery, follows=follows)
        if self._succession is not None:
            self._engine.follow(self._succession)
        else:
            self._handed = await trio.to_thread.run_sync(self._receive_mount)
            handed_fd = self._handed.fd if self._handed is not None else None
            self._engine.mount(self._mountpoint, self._config.mount_flags, handed_fd)
        try:
            with self._session_scope:
                async with trio.open_nursery() as session:
                    session.start_soon(self._serve_kernel)
                    session.start_soon(self._until_signalled)
                    session.start_soon(self._until_stopped)
                    session.start_soon(self._reloader.run)
                    await self._announce()
                    session.start_soon(self._reporter.run, self._config.metrics_listen)
                    # 30 ms that the first bytes should not wait for, and the mount neither.
                    session.start_soon(trio.to_thread.run_sync, checksum.load)
        finally:
            self._engine.close()
            if (
                not self._unmounted
                and self._succession is None
                and mount_table.mounted_at(self._mountpoint) is not None
            ):
                self._take_away(lazy=True)
            nursery.cancel_scope.cancel()

    @property
    def _config(self) -> Config:
        return self._reloader.settings.config

    def _distrust(self, name: str, *, names: bool = False) -> None:
        """Believe no grant to a repository's credentials any more, keep no name, and show none if `names`."""
        if names:
            self._filesystem.tree.distrust(self._filesystem.tree.top(name))
        for each in (self._rights.get(name), self._keepers.get(name)):
            if each is not None:
                each.begin_anew()

    async def _await_latecomer(self, late: Latecomer) -> None:
        name = late.repository.config.name
        await late.wait(self._filesystem.listers[name].relocate, partial(self._distrust, name, names=True))
        self._note_tops()
        await late.repository.fetcher.stay_prepared()

    def _note_tops(self) -> None:
        if self._succession is not None:
            names = (each.config.name for each, _ in self._repositories)
            known = [name for name in names if name not in self._late or self._late[name].failure is None]
            self._succession.note_tops({name: self._filesystem.tree.top(name).prefix for name in known})

    async def _forget_pages(self, version: ObjectVersion) -> None:
        for inode in self._filesystem.tree.inodes_of(version):
            await self._forget_pages_of(inode)

    async def _forget_pages_of(self, inode: int) -> None:
        await trio.to_thread.run_sync(self._engine.forget_pages, inode, abandon_on_cancel=True)

    def _receive_mount(self) -> HandedMount | None:
        """The mount that a helper hands over; None if the daemon mounts by itself."""
        helper = self._config.fuse_helper
        return HandedMount.ask(helper) if helper is not None else HandedMount.from_path(self._mountpoint)

    def _take_away(self, *, lazy: bool = False) -> None:
        if self._link is not None:
            trio.from_thread.run(partial(self._link.unmount, lazy=lazy))
        elif self._handed is not None:
            self._handed.unmount(lazy=lazy)
        else:
            mount_table.unmount(self._mountpoint, lazy=lazy)

    def _entries_changed(self, directory: Directory, changes: NameChanges) -> None:
        # The kernel does not know a directory without lookups. A listing without a time to live
        # is still cached there while the store fails.
        if directory.lookups:
            names = itertools.chain(changes.added, changes.removed, changes.replaced)
            self._invalidator.changed(directory.inode, names)

    async def _serve_kernel(self) -> None:
        await self._engine.serve()
        self._session_scope.cancel()

    async def _announce(self) -> None:
        """Wait until the mount answers, tune it, and report that it is ready."""
        follows = self._succession is not None and self._succession.follows
        is_visible = self._handed is None or self._handed.is_visible
        # What follows a worker has readers, who need no store that answers.
        if is_visible and not follows and await self._probe.begins() is False:
            raise MountError(f"{self._mountpoint} is mounted but does not answer", hint="see the log for the reason")
        if self._handed is not None:
            await trio.to_thread.run_sync(self._handed.tell_ready)
        else:
            for trouble in await self._tune():
                log.info("%s", trouble)
        process.spare_collector()
        names = ", ".join(str(each.config.url) for each, _ in self._repositories)
        log.info("%s is mounted on %s", names, self._mountpoint)
        missing = [f"{each.describe()}: {each.failure}" for each in self._late.values() if each.failure]
        await self._cache.room.until_known()
        missing += [each.line for each in self._commands.snapshot().problems if not each.repository]
        if self._handed is not None:
            readers = "for the users that its maker chose"
        else:
            readers = (
                "for all users" if self._config.allow_other else f"for uid {mounter()[0]} alone (see --allow-other)"
            )
        self._readiness.tell_ready(f"{names} mounted on {self._mountpoint}, {readers}", missing, self._stderr)

    async def _tune(self) -> list[str]:
        if self._link is not None and self._link.is_split:
            return await self._link.tune()
        return await trio.to_thread.run_sync(mount_table.tune, self._mountpoint)

    async def _until_signalled(self) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                if self._succession is not None:
                    self.leaves = True
                    log.info("%s: leaving %s to the supervisor", signal.Signals(number).name, self._mountpoint)
                else:
                    self._readiness.notify("STOPPING=1")
                    log.info("%s: unmounting %s", signal.Signals(number).name, self._mountpoint)
                    await self._unmount()
                self._session_scope.cancel()
                return

    async def _until_stopped(self) -> None:
        if self._link is None:
            return
        await self._link.stop_asked.wait()
        log.info("unmounting %s", self._mountpoint)
        await self._unmount()
        self._session_scope.cancel()

    async def _apply(self, settings: Settings, found: ReloadStatus) -> dict[str, str]:
        """Apply changed settings to the parts; returns why credentials could not be had, by
        repository.
        """
        config = settings.config
        if "log_level" in found.changed:
            logs.set_level(config.log_level)
        if self._link is not None:
            self._link.shutdown_timeout_s = config.shutdown_timeout_s
        self._reporter.listen_now()
        known = self._filesystem.tree
        known.set_ttls(metadata_ttl_s=config.metadata_ttl_s, negative_ttl_s=config.negative_ttl_s)
        known.max_entries = config.max_inodes
        for refresher in self._filesystem.refreshers.values():
            refresher.change_ttl()
        self._cache.set_limits(config.cache_size, config.cache_min_free, config.memory_buffer_bytes)
        for each in config.repositories:
            self._filesystem.listers[each.name].set_limit(each.listing_limit)
        refused: dict[str, str] = {}

        async def renew(repository: Repository, name: str) -> None:
            known = repository.origin.principal
            try:
                if name in found.credentials:
                    await repository.replace_credentials(settings.credentials[name])
                    self._distrust(name)  # before the next reader
                await repository.fetcher.renew_credentials()
            except D7yfsError as error:
                refused[name] = str(error)
            if repository.origin.principal != known:
                self._distrust(name)

        async with trio.open_nursery() as nursery:
            for repository, _ in self._repositories:
                repository.fetcher.set_connections(config.max_connections)
                repository.fetcher.models.limit = config.metrics_per_model
                repository.publication.ttl_s = config.metadata_ttl_s
                nursery.start_soon(renew, repository, repository.config.name)
        return refused

    async def _unmount(self) -> None:
        """Unmount once no file is open; after the deadline lazily, and fail the reads that wait."""
        deadline_s = self._config.shutdown_timeout_s
        self._invalidator.stop()
        with trio.move_on_after(deadline_s):
            while True:
                await self._filesystem.idle.wait()
                try:
                    # umount may stat the mount, and so wait for a store that does not answer.
                    await trio.to_thread.run_sync(self._take_away, abandon_on_cancel=True)
                except mount_table.Busy:
                    # A directory is open, or is a working directory. There is no event for that.
                    await trio.sleep(_BUSY_RETRY_S)
                except MountError as error:
                    if mount_table.mounted_at(self._mountpoint) is not None:
                        log.warning("%s", error)
                        break
                    return
                else:
                    self._unmounted = True
                    return
        log.warning(
            "%s is still in use after %g s (%d open files): unmounted lazily; its open files fail from now on",
            self._mountpoint,
            deadline_s,
            self._filesystem.open_files,
        )
        await trio.to_thread.run_sync(partial(self._take_away, lazy=True))
        self._unmounted = True
        self._cache.fail_waiters(Stopped("the mount is being taken down"))
        await self._engine.guard.answer_all()
        # While the kernel holds a thread that sends a notice, the connection and its waiters live on.
        with trio.move_on_after(_LAST_NOTICE_S):
            await self._invalidator.quiet()
