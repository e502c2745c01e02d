"""The part of the dry run that is about Dragonfly: each proxy asked for a real range, the socket for a real file, and what that proves.

Every proxy is tried by itself, whatever the others and their breakers say. The hand-over is tried in a directory made for it on the
cache's file system, which is gone again afterwards.

Called by `check`.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import trio

from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory, footprint_bytes
from d7yfs.cache.disk import Disk
from d7yfs.cache.filler import Filler, FillTarget
from d7yfs.check.findings import Finding, Verdict
from d7yfs.config.schema import Config
from d7yfs.errors import CacheUnusable, D7yfsError, VersionUnbound
from d7yfs.fetch.dragonfly_proxy import HEALTH_PORT, Proxy, address_meant_instead
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.proxies import Proxies
from d7yfs.fill.handover import Handover
from d7yfs.objects import ByteRange, ObjectVersion, StoreIdentity
from d7yfs.repository.repository import Repository

_PROBE_BYTES = 4096
_PATIENCE_S = 3.0
_UNBOUND = (
    "does not answer for the task of the version that is asked for: it does not heed content ids (dfdaemon before 1.1, its older Go "
    "client, or another proxy); versions are told apart by their ids in the URL, else by a tag"
)
_WHERE_LINKS_WORK = (
    "the cache must lie on the file system of dfdaemon's storage, and dfdaemon must see it under the same path and be allowed into it; "
    "d7yfs must be allowed to read dfdaemon's files; see docs/dragonfly.md"
)


class Nowhere:
    """A sink for bytes of which only that they come is of interest."""

    async def write(self, offset: int, data: memoryview) -> None:
        """Forget them."""

    def retract(self, wanted: ByteRange) -> int:
        """Nothing is kept."""
        return wanted.start


async def check_dragonfly(
    repository: Repository, version: ObjectVersion, small: ObjectVersion, config: Config
) -> AsyncGenerator[Finding, None]:
    """Try the repository's ways through dfdaemon: with the beginning of `version`, and with all of `small`."""
    proxies, handover = repository.fetcher.proxy, repository.handover
    if proxies is None and handover is None:
        said = f"{repository.config.url}: none configured, reads go straight to {repository.origin.url}"
        yield Finding("proxy", Verdict.OK, said)
        return
    if handover is not None:
        yield await _hand_over(repository, handover, small, config)
    if proxies is not None:
        for proxy in proxies.all:
            yield await _stream(repository, proxies, proxy, version)
    if repository.origin.describe().get("endpoint", "").startswith("https:"):
        yield _tls(repository, config)


def _tls(repository: Repository, config: Config) -> Finding:
    said = f"{repository.config.url}: dfdaemon does not verify the certificate of an https store"
    if config.verify == "off":
        hint = "leave --verify on, which compares whole files with the store's checksums"
        return Finding("tls", Verdict.WARNING, f"{said}, and nothing else protects what comes through it", hint)
    return Finding("tls", Verdict.OK, f"{said}: the store's checksums protect, where it has them (--verify)")


async def _stream(repository: Repository, proxies: Proxies, proxy: Proxy, version: ObjectVersion) -> Finding:
    """The beginning of `version` through `proxy` alone."""
    alone = Proxy(proxy.url, proxy.transport)
    fetcher = Fetcher(
        repository.origin,
        repository.transport,
        proxy=Proxies([alone], required=False, options=proxies.options),
        read_timeout_s=repository.fetcher.read_timeout_s,
        max_connections=1,
    )
    wanted = ByteRange(0, min(_PROBE_BYTES, version.size_bytes))
    health = await _health(proxy)
    unbound = ""
    try:
        try:
            await fetcher.stream(version, wanted, Nowhere())
        except VersionUnbound:
            unbound = f"{proxy.url} {_UNBOUND}"
            await fetcher.stream(version, wanted, Nowhere())
    except D7yfsError as error:
        hint = error.hint or "is dfdaemon running there, with its proxy on this port (4001 by default)?"
        meant = address_meant_instead(proxy.url)
        if meant and await _answers(meant):
            hint = f"nothing of use listens there, but {meant} answers: that is where dfdaemon's proxy is today (--proxy {meant})"
        return Finding("proxy", Verdict.FAILED, f"{unbound or error.message}; {health}", hint)
    if unbound:
        return Finding(
            "proxy", Verdict.WARNING, unbound, "use dfdaemon 1.3 or later, or a bucket with versioning and --versioned"
        )
    return Finding(
        "proxy", Verdict.OK, f"{proxy.url}: {wanted.size} bytes through it, as this very version's task; {health}"
    )


async def _health(proxy: Proxy) -> str:
    try:
        async with httpx.AsyncClient(trust_env=False, timeout=_PATIENCE_S) as client:
            status = (await client.get(proxy.health_url)).status_code
    except httpx.HTTPError:
        return f"no dfdaemon on health port {HEALTH_PORT}, which may be another one"
    return f"dfdaemon answers {status} on its health port"


async def _answers(url: str) -> bool:
    """Whether somebody listens at `url`."""
    place = urlsplit(url)
    try:
        with trio.fail_after(_PATIENCE_S):
            stream = await trio.open_tcp_stream(place.hostname or "", place.port or 80)
    except (OSError, trio.TooSlowError):
        return False
    await stream.aclose()
    return True


async def _hand_over(repository: Repository, handover: Handover, version: ObjectVersion, config: Config) -> Finding:
    """All of `version` over the socket, linked next to the cache."""
    url, name = handover.url, repository.fetcher.name(version)
    verdict = Verdict.FAILED if handover.required and repository.fetcher.proxy is None else Verdict.WARNING
    instead = (
        "files come through the proxy instead"
        if repository.fetcher.proxy is not None
        else "files come from the store instead"
    )
    if refusal := _refusal(url):
        hint = "is dfdaemon running, and is its socket shared with this host or container, under this path?"
        return Finding("hand-over", verdict, f"{url}: {refusal}; {instead}", hint)
    try:
        with tempfile.TemporaryDirectory(prefix=".d7yfs-check-", dir=_existing(config.cache_dir)) as place:
            directory = CacheDirectory(
                Path(place), size_limit_bytes=2 * footprint_bytes(version.size_bytes), min_free_bytes=0
            )
            directory.prepare()
            with trio.fail_after(repository.fetcher.read_timeout_s):
                await _bring(handover, directory, repository.origin.identity, version)
    except (OSError, CacheUnusable) as error:
        return Finding("hand-over", verdict, f"could not be tried beside {config.cache_dir}: {error}")
    except D7yfsError as error:
        return Finding("hand-over", verdict, f"{error.message}; {instead}", error.hint or _WHERE_LINKS_WORK)
    except trio.TooSlowError:
        return Finding(
            "hand-over", verdict, f"{name}: not handed over within {repository.fetcher.read_timeout_s:g} s; {instead}"
        )
    return Finding("hand-over", Verdict.OK, f"{url}: {name} linked into the cache, {version.size_bytes} bytes")


async def _bring(handover: Handover, directory: CacheDirectory, store: StoreIdentity, version: ObjectVersion) -> None:
    cache = Cache(directory, memory_buffer_bytes=0, read_timeout_s=0, disk=Disk())
    cached = await cache.open(store, version, _Idle)
    try:
        await handover.bring(cached, lambda _: None, small_too=False)
    finally:
        cached.drop()


class _Idle:
    """A filler where nobody reads."""

    window_bytes = 0

    def __init__(self, target: FillTarget) -> None:
        pass

    def request(self, wanted: ByteRange, ahead: ByteRange | None) -> None:
        """Nobody waits."""

    def fill(self) -> None:
        """Nobody asks."""

    def relent(self) -> None:
        """Nobody has asked."""

    def prefetch(self, ahead: ByteRange) -> None:
        """Nobody asks."""


_: type[Filler] = _Idle


def _refusal(url: str) -> str:
    """Why the socket at `url` cannot be connected to, in words; empty when it can."""
    path = url.removeprefix("unix://")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_PATIENCE_S)
        try:
            client.connect(path)
        except OSError as error:
            return os.strerror(error.errno) if error.errno else str(error)
    return ""


def _existing(path: Path) -> Path:
    return next(each for each in (path, *path.parents) if each.exists())
