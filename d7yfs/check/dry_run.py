"""The dry run of a mount: each prerequisite tried for real, each finding with what to do. Changes nothing, mounts nothing.

Called by `d7yfs check`. Every probe is independent: one that fails leaves the others to say what they can.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path

import trio

from d7yfs.cache.directory import CacheDirectory
from d7yfs.check.dragonfly import Nowhere, check_dragonfly
from d7yfs.check.filters import check_filters
from d7yfs.check.findings import Finding, Verdict, failed
from d7yfs.check.triton import check_triton
from d7yfs.config.schema import Config
from d7yfs.config.sources import Settings
from d7yfs.errors import AccessDenied, CacheUnusable, D7yfsError, MountError
from d7yfs.host import mount_table
from d7yfs.objects import ByteRange, ObjectVersion
from d7yfs.origins.survey import list_all
from d7yfs.repository.repository import Repository, open_repositories
from d7yfs.tree.listing import DirectoryListing

_PROBE_BYTES = 4096
_PATIENCE_S = 10.0
"""With a store that does not answer: a person waits for the findings."""
_LOOK_PAGES = 3
_NAMED = 3


async def check(settings: Settings) -> AsyncGenerator[Finding, None]:
    """Every finding, as soon as it is there."""
    for warning in settings.warnings:
        yield Finding("configuration", Verdict.WARNING, warning)
    for finding in check_host(settings.config):
        yield finding
    try:
        repositories = open_repositories(settings)
        for repository in repositories:
            repository.fetcher.read_timeout_s = min(repository.fetcher.read_timeout_s, _PATIENCE_S)
    except D7yfsError as error:
        yield failed("configuration", error)
        return
    try:
        for repository in repositories:
            async with aclosing(_check_repository(repository, settings)) as findings:
                async for finding in findings:
                    yield finding
    finally:
        for repository in repositories:
            await repository.aclose()


async def _check_repository(repository: Repository, settings: Settings) -> AsyncGenerator[Finding, None]:
    config, origin = repository.config, repository.origin
    where = str(config.url)
    try:
        prefix = await repository.locate(allow_empty=settings.config.allow_empty)
        listing = await _look(repository, prefix)
    except D7yfsError as error:
        if config.listing == "exact" and isinstance(error, AccessDenied):
            said = f"{where}: may not be listed; each name will be asked for"
            yield Finding(
                "list", Verdict.WARNING, said, "nothing is known to try a read on: read a file after mounting"
            )
            return
        yield failed("list", error)
        return
    found = origin.describe()
    said = f"{where}: {found.get('credentials', '')} ({_whence(settings, repository, 'credentials')})"
    yield Finding("credentials", Verdict.OK, said)
    said = f"{found['endpoint']} ({_whence(settings, repository, 'endpoint_url')})"
    if "region" in found:
        said += f", region {found['region']} ({_whence(settings, repository, 'region')})"
    yield Finding("endpoint", Verdict.OK, f"{where}: {said}")
    files = [version for version in listing.entries.values() if version is not None]
    directories = len(listing.entries) - len(files)
    yield Finding("list", Verdict.OK, f"{where}: {directories} directories, {len(files)} files at the top")
    if listing.hidden_count:
        named = "; ".join(f"{hidden.key!r}: {hidden.reason}" for hidden in listing.hidden[:_NAMED])
        yield Finding("names", Verdict.WARNING, f"{where}: {listing.hidden_count} keys cannot be shown ({named})")
    for finding in await check_filters(repository, prefix):
        yield finding
    sample = await _sample(repository, prefix)
    if encoded := [each for each in sample if each.encoding]:
        said = f"{where}: {len(encoded)} of {len(sample)} objects are stored compressed ({encoded[0].key!r}: {encoded[0].encoding})"
        yield Finding(
            "encoding", Verdict.WARNING, said, "they are read as they are stored and never decoded: store models plain"
        )
    async with aclosing(check_triton(repository, prefix)) as findings:
        async for finding in findings:
            yield finding
    version = next((each for each in sample if each.size_bytes and not each.archived), None)
    if version is None:
        yield Finding("read", Verdict.WARNING, f"{where}: no readable object found to try a ranged read on")
        return
    yield await _ranged_read(repository, version)
    small = min((each for each in sample if each.size_bytes and not each.archived), key=lambda each: each.size_bytes)
    async with aclosing(check_dragonfly(repository, version, small, settings.config)) as findings:
        async for finding in findings:
            yield finding


def _whence(settings: Settings, repository: Repository, setting: str) -> str:
    """Which source set this, in words."""
    name = repository.config.name
    whence = settings.provenance.get(f"{name}.{setting}" if name else setting, "default")
    return "found by itself" if whence == "default" else f"from {whence}"


async def _look(repository: Repository, prefix: str) -> DirectoryListing:
    """The first pages of the repository's top directory, as they are shown."""
    listing = DirectoryListing(prefix)
    async with aclosing(repository.shown.pages(prefix)) as pages:
        count = 0
        async for page in pages:
            listing.add(page)
            count += 1
            if count == _LOOK_PAGES:
                break
    return listing


async def _sample(repository: Repository, prefix: str) -> tuple[ObjectVersion, ...]:
    """Some objects under the prefix."""
    if prefix and not prefix.endswith("/"):
        return (await repository.origin.stat(prefix),)
    async with aclosing(list_all(repository.origin, prefix, delimiter="")) as pages:
        async for page in pages:
            return page.objects
    return ()


async def _ranged_read(repository: Repository, version: ObjectVersion) -> Finding:
    wanted = ByteRange(0, min(_PROBE_BYTES, version.size_bytes))
    name = repository.fetcher.name(version)
    try:
        # Later than the fetcher itself gives up, which says why.
        with trio.fail_after(2 * repository.fetcher.read_timeout_s):
            await repository.fetcher.fetch(version, wanted, Nowhere())
    except D7yfsError as error:
        return failed("read", error)
    except trio.TooSlowError:
        return Finding("read", Verdict.FAILED, f"{name}: no bytes within {repository.fetcher.read_timeout_s:g} s")
    return Finding("read", Verdict.OK, f"{name}: {wanted.size} bytes by range, of this very version")


def check_host(config: Config) -> Iterator[Finding]:
    """What this host lacks for a FUSE mount and for the cache."""
    yield from _check_fuse(config)
    if config.mountpoint is not None:
        yield _check_mountpoint(config.mountpoint)
    yield _check_cache(config)


def _check_cache(config: Config) -> Finding:
    path = config.cache_dir
    if not path.exists():
        parent = next(each for each in path.parents if each.exists())
        if os.access(parent, os.W_OK | os.X_OK):
            return Finding("cache", Verdict.OK, f"{path}: will be made, {_free(parent)}")
        hint = f"make it (install -d -m 700 -o UID {path}), or name another with --cache-dir"
        return Finding("cache", Verdict.FAILED, f"{path} does not exist and cannot be made in {parent}", hint)
    directory = CacheDirectory(
        path, size_limit_bytes=config.cache_size_bytes, min_free_bytes=config.cache_min_free_bytes
    )
    try:
        directory.prepare()
    except CacheUnusable as error:
        return failed("cache", error)
    if directory.shortfall_bytes:
        hint = "free space there, lower --cache-min-free, or name another directory with --cache-dir"
        return Finding("cache", Verdict.WARNING, f"{path}: too full to keep anything, reads go uncached", hint)
    return Finding("cache", Verdict.OK, f"{path}: writable, {_free(path)}")


def _free(path: Path) -> str:
    return f"{shutil.disk_usage(path).free / 2**30:.1f} GiB free on its disk"


def _check_fuse(config: Config) -> Iterator[Finding]:
    device = Path("/dev/fuse")
    if not device.exists():
        hint = (
            "load the module (modprobe fuse); in a container, run it privileged or pass the device (--device /dev/fuse)"
        )
        yield Finding("fuse", Verdict.FAILED, "/dev/fuse does not exist", hint)
        return
    try:
        os.close(os.open(device, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        yield Finding(
            "fuse", Verdict.FAILED, f"/dev/fuse cannot be opened: {error.strerror}", "run as root, or fix its mode"
        )
        return
    root = os.geteuid() == 0
    if not root and shutil.which("fusermount3") is None:
        yield Finding(
            "fuse", Verdict.FAILED, "fusermount3 is not installed", "install the package fuse3, or run as root"
        )
        return
    yield Finding(
        "fuse", Verdict.OK, "/dev/fuse can be opened" + (", and this is root" if root else " and fusermount3 is there")
    )
    if not root and config.allow_other and "user_allow_other" not in _settings_of(Path("/etc/fuse.conf")):
        hint = "add the line user_allow_other to /etc/fuse.conf, or mount as root"
        yield Finding("fuse", Verdict.FAILED, "--allow-other needs user_allow_other in /etc/fuse.conf", hint)
    if not root:
        said = (
            "without root the kernel's limits stay: 128 KiB reads, and 12 stalled reads block the others of the mount"
        )
        yield Finding("limits", Verdict.WARNING, said, "mount as root to have them raised")


def _settings_of(path: Path) -> set[str]:
    try:
        return {line.strip() for line in path.read_text().splitlines()}
    except OSError:
        return set()


def _check_mountpoint(point: Path) -> Finding:
    mount = mount_table.mounted_at(point)
    if mount is not None and mount.fstype.startswith("fuse") and not mount_table.answers(point):
        said = f"{point} is a dead mount ({mount.source}); mounting will clean it up"
        return Finding("mount point", Verdict.WARNING, said)
    try:
        mount_table.prepare_mountpoint(point)
    except MountError as error:
        return failed("mount point", error)
    return Finding("mount point", Verdict.OK, f"{point}: an empty directory")
