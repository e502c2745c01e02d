"""One mount from start to end: builds the object graph, opens the nurseries, says when the mount answers, and takes it down.

The only module that knows all the others. Lifetimes: everything runs in one nursery that ends with the mount; shutdown lets running reads
finish within a deadline, unmounts (lazily when somebody holds on), answers who still waits, and only then cancels fills and listings.

Called by the command line, in the process that becomes the daemon.
"""

from __future__ import annotations

import logging
import os
import resource
import signal
import ssl
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import trio

from d7yfs import __version__, control, mounts
from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.filler import Filler, FillTarget
from d7yfs.config.schema import Config, RepositoryConfig
from d7yfs.config.sources import Settings
from d7yfs.errors import MountError, NotFound, OriginUnavailable
from d7yfs.fetch.direct import DirectFiller
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.proxy import FIRST_BYTE_TIMEOUT_S, Proxy
from d7yfs.fetch.stream import StreamFiller
from d7yfs.fetch.transport import Transport
from d7yfs.filesystem import Filesystem, Source
from d7yfs.fuse.pyfuse3_adapter import Adapter, Appearance
from d7yfs.listing import DirectoryListing
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.origins import open_origin
from d7yfs.origins.origin import Origin
from d7yfs.origins.survey import Empty, SingleObject, list_all, survey
from d7yfs.readiness import Readiness
from d7yfs.tree import Repository, Tree

log = logging.getLogger(__name__)

_BUSY_RETRY_S = 0.2


@dataclass(frozen=True, slots=True)
class _Part:
    """What belongs to one repository."""

    config: RepositoryConfig
    origin: Origin
    prefix: str
    fetcher: Fetcher


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
    parts = await _open_parts(settings)
    try:
        cache = Cache(directory, memory_buffer_bytes=config.memory_buffer_bytes, read_timeout_s=config.read_timeout_s)
        await _Mount(settings, mountpoint, parts, cache, readiness, stderr).serve()
    finally:
        with trio.CancelScope(shield=True), trio.move_on_after(config.shutdown_timeout_s):
            for part in parts:
                await part.origin.aclose()


async def _open_parts(settings: Settings) -> list[_Part]:
    """Open every repository and see what is there. Raises what its origin raises, and NotFound for an empty one."""
    config = settings.config
    proxies: dict[tuple[str, bool], Proxy] = {}
    parts = []
    for repository in config.repositories:
        origin = open_origin(repository, settings.credentials[repository.name])
        found = await survey(origin, repository.url.prefix)
        if isinstance(found, Empty):
            if not config.allow_empty:
                raise empty_repository(origin, repository, found)
            prefix = f"{repository.url.prefix}/" if repository.url.prefix else ""
        else:
            prefix = found.version.key if isinstance(found, SingleObject) else found.prefix
        transport = Transport(
            connect_timeout_s=config.connect_timeout_s,
            max_idle_connections=config.max_connections,
            ssl_context=ssl_context(repository),
            user_agent=f"d7yfs/{__version__}",
        )
        fetcher = Fetcher(
            origin,
            transport,
            proxy=_proxy(settings, repository, proxies),
            read_timeout_s=config.read_timeout_s,
            max_connections=config.max_connections,
        )
        parts.append(_Part(repository, origin, prefix, fetcher))
    return parts


def _proxy(settings: Settings, repository: RepositoryConfig, known: dict[tuple[str, bool], Proxy]) -> Proxy | None:
    """The repository's proxy; repositories that name the same one share it and its breaker."""
    if not repository.proxy:
        return None
    key = (repository.proxy, repository.fallback)
    if key not in known:
        known[key] = Proxy(
            repository.proxy,
            Transport(
                connect_timeout_s=min(settings.config.connect_timeout_s, FIRST_BYTE_TIMEOUT_S),
                first_byte_timeout_s=FIRST_BYTE_TIMEOUT_S,
                user_agent=f"d7yfs/{__version__}",
            ),
            required=not repository.fallback,
            headers={name: value.get_secret_value() for name, value in settings.headers.items()},
            filter=settings.filter,
        )
    return known[key]


def empty_repository(origin: Origin, repository: RepositoryConfig, found: Empty) -> NotFound:
    """The refusal of a prefix under which there is nothing, with what there is nearby."""
    nearest = ", ".join(f"{origin.url}/{prefix}" for prefix in found.nearest)
    return NotFound(
        f"{repository.url}: there is nothing under this prefix",
        hint=(f"nearest that exist: {nearest}; or " if nearest else "") + "--allow-empty mounts it all the same",
    )


def ssl_context(repository: RepositoryConfig) -> ssl.SSLContext:
    """How the data plane checks the store's certificate."""
    context = ssl.create_default_context(cafile=str(repository.ca_bundle) if repository.ca_bundle else None)
    if not repository.verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _raise_descriptor_limit() -> None:
    """An open file of the mount takes two descriptors, so take what the system allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def list_directory(origin: Origin, prefix: str) -> DirectoryListing:
    """Every entry under `prefix`; the one object when `prefix` is its key."""
    listing = DirectoryListing(prefix)
    if prefix and not prefix.endswith("/"):
        try:
            objects: tuple[ObjectVersion, ...] = (await origin.stat(prefix),)
        except NotFound:
            objects = ()
        listing.add(ListingPage(objects, (), "", time.time_ns()))
        return listing
    async for page in list_all(origin, prefix):
        listing.add(page)
    return listing


class _Mount:
    """The running mount."""

    def __init__(
        self,
        settings: Settings,
        mountpoint: Path,
        parts: list[_Part],
        cache: Cache,
        readiness: Readiness,
        stderr: Path | None,
    ) -> None:
        self._settings = settings
        self._config: Config = settings.config
        self._mountpoint = mountpoint
        self._parts = parts
        self._cache = cache
        self._readiness = readiness
        self._stderr = stderr
        self._started_at = time.time()
        self._filesystem: Filesystem
        self._adapter: Adapter

    async def serve(self) -> None:
        """From mount(2) to the end."""
        async with trio.open_nursery() as nursery:
            self._build(nursery)
            nursery.start_soon(self._cache.run)
            handlers: dict[str, control.Handler] = {"status": self._status, "stat": self._stat}
            nursery.start_soon(control.serve, control.socket_path(self._mountpoint), handlers)
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

    _unmounted = False

    def _build(self, nursery: trio.Nursery) -> None:
        config = self._config
        tree = Tree(
            [Repository(part.config.name, part.prefix) for part in self._parts],
            metadata_ttl_s=config.metadata_ttl_s,
            negative_ttl_s=config.negative_ttl_s,
            created_ns=time.time_ns(),
        )
        sources = {part.config.name: self._source(part, nursery) for part in self._parts}
        self._filesystem = Filesystem(tree, sources, self._cache, nursery)
        appearance = Appearance(config.uid, config.gid, config.file_mode, config.dir_mode, config.xattr)
        self._adapter = Adapter(self._filesystem, appearance, deadline_s=config.read_timeout_s)

    def _source(self, part: _Part, nursery: trio.Nursery) -> Source:
        def new_filler(target: FillTarget) -> Filler:
            filler = StreamFiller if part.fetcher.proxy is not None else DirectFiller
            return filler(target, part.fetcher, nursery)

        return Source(part.origin.url, part.origin.identity, partial(list_directory, part.origin), new_filler)

    def _mount_options(self) -> list[str]:
        source = ";".join(f"{part.config.name}={part.config.url}".removeprefix("=") for part in self._parts)
        escaped = source.replace("\\", "\\\\").replace(",", "\\,")
        options = [f"fsname={escaped}", "subtype=d7yfs", "ro", "nosuid", "nodev", "default_permissions"]
        return [*options, "allow_other"] if self._config.allow_other else options

    async def _session(self, scope: trio.CancelScope) -> None:
        await Adapter.serve()
        scope.cancel()

    async def _announce(self) -> None:
        """Wait until the mount answers, raise its limits, and say so."""
        if not await trio.to_thread.run_sync(mounts.answers, self._mountpoint, abandon_on_cancel=True):
            raise MountError(f"{self._mountpoint} is mounted but does not answer", hint="see the log for the reason")
        for trouble in await trio.to_thread.run_sync(mounts.tune, self._mountpoint):
            log.info("%s", trouble)
        names = ", ".join(str(part.config.url) for part in self._parts)
        log.info("%s is mounted on %s", names, self._mountpoint)
        self._readiness.ready(f"{names} mounted on {self._mountpoint}", self._settings.warnings, self._stderr)

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
        with trio.move_on_after(deadline_s):
            while True:
                await self._filesystem.idle.wait()
                try:
                    await trio.to_thread.run_sync(mounts.unmount, self._mountpoint)
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
        self._cache.fail_waiters(OriginUnavailable("the mount is being taken down"))
        await trio.lowlevel.checkpoint()

    # --- control ---

    async def _status(self, _request: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "mountpoint": str(self._mountpoint),
            "pid": os.getpid(),
            "version": __version__,
            "started_at": self._started_at,
            "uptime_s": round(time.time() - self._started_at, 3),
            "rss_bytes": _rss_bytes(),
            "repositories": [self._repository_status(part) for part in self._parts],
            "cache": asdict(self._cache.statistics()),
            "tree": self._filesystem.tree.statistics(),
            "fuse": asdict(self._adapter.counters)
            | {"open_files": self._filesystem.open_files, "read_bytes": self._filesystem.read_bytes},
            "settings": self._settings.describe(),
            "warnings": list(self._settings.warnings),
        }

    def _repository_status(self, part: _Part) -> dict[str, Any]:
        proxy = part.fetcher.proxy
        return {
            "name": part.config.name,
            "url": str(part.config.url),
            "proxy": proxy.url if proxy else "",
            "proxy_usable": proxy.usable if proxy else None,
            "proxy_trips": proxy.breaker.trips if proxy else 0,
            "fetched": asdict(part.fetcher.counters),
        }

    async def _stat(self, request: Mapping[str, Any]) -> dict[str, Any]:
        path = str(request.get("path", ""))
        node = await self._filesystem.resolve(path)
        return {"path": path, "directory": node.is_directory, **self._filesystem.describe(node)}


def _rss_bytes() -> int:
    """Resident memory of this process (proc_pid_statm(5))."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
