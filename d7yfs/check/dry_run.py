"""The dry run of a mount: each prerequisite is really tried, each finding says what to do. Changes
nothing, mounts nothing.

Called by `d7yfs check`. Every probe is independent: the others still run after one that fails. A
running mount has its repositories looked at by `check_running`, in its daemon.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from functools import partial
from pathlib import Path

import trio

from d7yfs.cache.directory import CacheDirectory, existing
from d7yfs.check.dragonfly import check_dragonfly
from d7yfs.check.filters import check_filters
from d7yfs.check.findings import Finding, count, failed, ok, warning
from d7yfs.check.fuse import check_fuse
from d7yfs.check.hidden import check_hidden
from d7yfs.check.model_repositories import ModelRepositories
from d7yfs.check.sample import Sample, make_sample
from d7yfs.check.triton import check_triton
from d7yfs.config.schema import Config
from d7yfs.config.sources import Settings
from d7yfs.errors import CacheUnusable, D7yfsError, MountError, NotPermitted
from d7yfs.fetch.transfer import Nowhere
from d7yfs.host import mount_table, privileges
from d7yfs.host.privileges import WorkerUser
from d7yfs.objects import ByteRange, ListingPage, ObjectVersion
from d7yfs.origins.survey import list_all
from d7yfs.repository.repository import Repository, open_repositories
from d7yfs.repository.slow_store import tell_while_slow
from d7yfs.tree.listing import DirectoryListing

_PROBE_BYTES = 4096
_PATIENCE_S = 10.0
"""Longest wait for a store that does not answer: a person waits for the findings."""
_LOOK_PAGES, _SAMPLE_PAGES = 3, 20

Tell = Callable[[str], None]
"""Says, in a line, what a person has been waiting for."""


async def check(
    settings: Settings,
    read_again: Callable[[], Settings] | None = None,
    tell: Tell = lambda _: None,
) -> AsyncGenerator[Finding, None]:
    """Yield each finding as soon as it is known; `tell` of stores that do not answer meanwhile. With
    `--worker-user` this process becomes that user once the host is checked, and reads the settings
    again."""
    for text in settings.warnings:
        yield warning("configuration", text)
    for finding in check_host(settings.config):
        yield finding
    if user := settings.config.worker_user:
        try:
            privileges.become(WorkerUser.find(user), os.environ)
            settings = read_again() if read_again is not None else settings
        except D7yfsError as error:
            yield failed("worker user", f"{user}: {error.message}", error.hint)
            return
        except OSError as error:
            yield failed("worker user", f"nobody can become {user} here: {error.strerror}", "run as root")
            return
        yield ok("worker user", f"{user}: can read the settings; the checks below were made as that user")
        if settings.config.cache_dir.exists():
            yield _check_cache(settings.config)
    try:
        repositories = open_repositories(settings)
        for repository in repositories:
            repository.fetcher.read_timeout_s = min(repository.fetcher.read_timeout_s, _PATIENCE_S)
    except D7yfsError as error:
        yield failed("configuration", error)
        return
    models = ModelRepositories()
    try:
        for repository in repositories:
            async with aclosing(_check_repository(repository, settings, tell, models)) as findings:
                async for finding in findings:
                    yield finding
        for finding in models.findings():
            yield finding
    finally:
        for repository in repositories:
            await repository.aclose()


async def check_running(repository: Repository, settings: Settings, tell: Tell) -> AsyncGenerator[Finding, None]:
    """Look at one repository of a running mount, in its daemon: with its connections and credentials,
    at its first keys alone, and at no disk."""
    models = ModelRepositories()
    models.has_all = not repository.config.name  # a mount of several may have a model elsewhere
    async with aclosing(_check_repository(repository, settings, tell, models, is_running=True)) as findings:
        async for finding in findings:
            yield finding
    for finding in models.findings():
        yield finding


async def _check_repository(
    repository: Repository, settings: Settings, tell: Tell, models: ModelRepositories, *, is_running: bool = False
) -> AsyncGenerator[Finding, None]:
    config, origin = repository.config, repository.origin
    where = str(config.url)

    async def look() -> tuple[str, DirectoryListing, Sample]:
        prefix = await repository.locate(allow_empty=settings.config.allow_empty or is_running)
        listing = await _look(repository, prefix)
        return prefix, listing, await _sample(repository, prefix, 1 if is_running else _SAMPLE_PAGES)

    try:
        prefix, listing, sample = await tell_while_slow(look, repository, tell)
    except D7yfsError as error:
        if config.listing == "exact" and isinstance(error, NotPermitted):
            said = f"{where}: may not be listed; each name will need a request"
            yield warning("list", said, "no object is known for a test read: read a file after mounting")
            return
        yield failed("list", error)
        return
    found = origin.describe()
    said = f"{where}: {found.get('credentials', '')} ({_source_of(settings, repository, 'credentials')})"
    yield ok("credentials", said)
    said = f"{found['endpoint']} ({_source_of(settings, repository, 'endpoint_url')})"
    if "region" in found:
        said += f", region {found['region']} ({_source_of(settings, repository, 'region')})"
    yield ok("endpoint", f"{where}: {said}")
    files = [version for version in listing.entries.values() if version is not None]
    directories = len(listing.entries) - len(files)
    top = f"{count(directories, 'directory', 'directories')}, {count(len(files), 'file', 'files')}"
    yield ok("list", f"{where}: {top} at the top")
    for finding in check_hidden(where, listing, sample):
        yield finding
    for finding in check_filters(repository, sample):
        yield finding
    if encoded := [each for each in sample.objects if each.encoding]:
        said = f"{where}: {len(encoded)} of {len(sample.objects)} objects are stored compressed ({encoded[0].key!r}: {encoded[0].encoding})"
        yield warning("encoding", said, "they are read as stored and never decoded: store models uncompressed")
    if not prefix or prefix.endswith("/"):
        for finding in await check_triton(repository, sample, prefix, models):
            yield finding
    readable = [each for each in sample.objects if each.size_bytes and not each.archived]
    if not readable:
        yield warning("read", f"{where}: no readable object found for a test of ranged reads")
        return
    read = partial(_ranged_read, repository, readable[0], patience_s=_PATIENCE_S if is_running else 2 * _PATIENCE_S)
    yield await tell_while_slow(read, repository, tell)
    # A running mount tells by its problems whether files are handed over.
    small = None if is_running else min(readable, key=lambda each: each.size_bytes)
    async with aclosing(check_dragonfly(repository, readable[0], small, settings.config)) as findings:
        async for finding in findings:
            yield finding


def _source_of(settings: Settings, repository: Repository, setting: str) -> str:
    """The source that set this, in words."""
    name = repository.config.name
    source = settings.provenance.get(f"{name}.{setting}" if name else setting, "default")
    return "auto-detected" if source == "default" else f"from {source}"


async def _look(repository: Repository, prefix: str) -> DirectoryListing:
    """The first pages of the repository's top directory, as a mount shows them."""
    listing = DirectoryListing(prefix, most_hidden=math.inf)
    for page in await _first(repository.shown.pages(prefix), _LOOK_PAGES):
        listing.add(page)
    return listing


async def _sample(repository: Repository, prefix: str, most_pages: int) -> Sample:
    """The first objects under the prefix, or the object itself."""
    if prefix and not prefix.endswith("/"):
        return Sample([await repository.origin.stat(prefix)])
    pages = await _first(list_all(repository.origin, prefix, delimiter=""), most_pages)
    return make_sample(pages, prefix, repository.visibility)


async def _first(pages: AsyncGenerator[ListingPage, None], count: int) -> list[ListingPage]:
    """The first pages, no more than `count`."""
    found: list[ListingPage] = []
    async with aclosing(pages):
        async for page in pages:
            found.append(page)
            if len(found) == count:
                break
    return found


async def _ranged_read(repository: Repository, version: ObjectVersion, *, patience_s: float) -> Finding:
    wanted = ByteRange(0, min(_PROBE_BYTES, version.size_bytes))
    name = repository.fetcher.name(version)
    try:
        # In a dry run longer than the fetcher itself takes to give up, because it says why.
        with trio.fail_after(min(patience_s, 2 * repository.fetcher.read_timeout_s)):
            await repository.fetcher.fetch(version, wanted, Nowhere())
    except D7yfsError as error:
        return failed("read", error)
    except trio.TooSlowError:
        return failed("read", f"{name}: no bytes within {min(patience_s, repository.fetcher.read_timeout_s):g} s")
    return ok("read", f"{name}: {wanted.size} bytes by range, of this version")


def check_host(config: Config) -> Iterator[Finding]:
    """Test what this host needs for a FUSE mount and for the cache."""
    yield from check_fuse(config)
    if config.mountpoint is not None:
        yield _check_mountpoint(config.mountpoint)
    if not config.worker_user or not config.cache_dir.exists():
        yield _check_cache(config)


def _check_cache(config: Config) -> Finding:
    path = config.cache_dir
    directory = CacheDirectory.bounded(path, config.cache_size, config.cache_min_free)
    if not path.exists():
        parent = existing(path)
        if os.access(parent, os.W_OK | os.X_OK):
            return _too_full(directory) or ok("cache", f"{path}: will be created, {_room(directory)}")
        hint = f"create it (install -d -m 700 -o UID {path}), or give another with --cache-dir"
        return failed("cache", f"{path} does not exist and cannot be created in {parent}", hint)
    try:
        directory.prepare()
    except CacheUnusable as error:
        return failed("cache", error)
    return _too_full(directory) or ok("cache", f"{path}: writable, {_room(directory)}")


def _too_full(directory: CacheDirectory) -> Finding | None:
    """The warning that a cache would keep nothing."""
    if not directory.shortfall_before(0):
        return None
    said = f"{directory.path}: too full to keep anything, reads are not cached: {_room(directory)}"
    return warning(
        "cache", said, "free space there, lower --cache-min-free, or give another directory with --cache-dir"
    )


def _room(directory: CacheDirectory) -> str:
    free, least, most = directory.free_bytes, directory.min_free_bytes, directory.size_limit_bytes
    return f"{free / 2**30:.1f} GiB free on its disk, of which it leaves {least / 2**30:.1f} GiB; it keeps {most / 2**30:.1f} GiB at most"


def _check_mountpoint(point: Path) -> Finding:
    mount = mount_table.mounted_at(point)
    if mount is not None and mount.fstype.startswith("fuse"):
        trouble = mount_table.stat_errno(point)
        if trouble == errno.ENOTCONN:
            said = f"{point} is a dead mount ({mount.source}); a new mount will clean it up"
            return warning("mount point", said)
        silent = ", which does not answer" * (trouble == errno.ETIMEDOUT)
        said = f"{point} is already mounted: {mount.fstype} of {mount.source}{silent}"
        return failed("mount point", said, "choose another directory, or unmount it first")
    try:
        mount_table.prepare_mountpoint(point)
    except MountError as error:
        return failed("mount point", error)
    top = f", the top of a file system ({mount.fstype} of {mount.source})" if mount is not None else ""
    return ok("mount point", f"{point}: an empty directory{top}")
