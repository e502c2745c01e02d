"""The part of the dry run that is about Dragonfly: a real range from each proxy, a real file from
the socket.

Every proxy is tried by itself, whatever the others and their circuit breakers say. The hand-over is
tried in a temporary directory on the cache's file system.

Called by `check`.
"""

from __future__ import annotations

import os
import socket
import ssl
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import trio

from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory, existing, footprint_bytes
from d7yfs.cache.disk import Disk
from d7yfs.cache.filler import Filler
from d7yfs.cache.version import CachedVersion
from d7yfs.check.findings import Finding, Severity, failed, ok, warning
from d7yfs.config.schema import Config
from d7yfs.errors import CacheUnusable, D7yfsError, TokenWithheld, VersionUnbound
from d7yfs.fetch.dragonfly_proxy import HEALTH_PORT, Proxies, Proxy, address_meant_instead
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.transfer import Nowhere
from d7yfs.fill.handover import Handover
from d7yfs.objects import ByteRange, ObjectVersion, StoreIdentity
from d7yfs.repository.repository import Repository

_PROBE_BYTES = 4096
_PATIENCE_S = 3.0
_UNBOUND = (
    "does not answer for the task of the requested version: it ignores content ids (dfdaemon before 1.1, its older Go "
    "client, or another proxy); versions are told apart by their ids in the URL, else by a tag"
)
_WHERE_LINKS_WORK = (
    "the cache must be on the file system of dfdaemon's storage, and dfdaemon must see it under the same path and may write to it; "
    "d7yfs must have the right to read dfdaemon's files; see docs/dragonfly.md"
)


async def check_dragonfly(
    repository: Repository, version: ObjectVersion, small: ObjectVersion | None, config: Config
) -> AsyncGenerator[Finding, None]:
    """Test the ways through dfdaemon: with the beginning of `version`, and, if it is given, with all of
    `small`, by the disk. Only a way that reads cannot do without can fail."""
    proxies, handover = repository.fetcher.proxy, repository.handover
    if proxies is None and handover is None:
        said = f"{repository.config.url}: none configured, reads go directly to {repository.origin.url}"
        yield ok("proxy", said)
        return
    if (finding := await _tokens(repository, version)) is not None:
        yield finding
        return
    if handover is not None and small is not None:
        yield await _hand_over(repository, handover, small, config)
    if proxies is not None:
        found = [await _stream(repository, proxies, proxy, version) for proxy in proxies.all]
        works = any(each.verdict is not Severity.FAILED for each in found)
        instead = "through another proxy" if works else "" if proxies.required else "straight from the store"
        for each in found:
            yield _excuse(each, instead)
    if repository.origin.describe().get("endpoint", "").startswith("https:"):
        yield _tls(repository, config)


async def _tokens(repository: Repository, version: ObjectVersion) -> Finding | None:
    """The reason why dfdaemon gets no request; None if it gets them."""
    tokens = repository.fetcher.tokens
    try:
        tokens.judge(
            await repository.origin.read_request(version, presigned=True),
            str(repository.config.url),
            trio.current_time(),
        )
    except TokenWithheld as error:
        trouble = warning if tokens.is_direct(trio.current_time()) else failed
        return trouble("tokens", error.message, error.hint)
    except D7yfsError:
        pass  # the probes tell
    return None


def _tls(repository: Repository, config: Config) -> Finding:
    said = f"{repository.config.url}: dfdaemon does not verify the certificate of an https store"
    if config.verify == "off":
        hint = "keep --verify on, which compares whole files with the store's checksums"
        return warning("tls", f"{said}, and nothing else protects the data that comes through it", hint)
    return ok("tls", f"{said}: the store's checksums protect the data, where it has them (--verify)")


def _excuse(found: Finding, instead: str) -> Finding:
    """A proxy that does not work is a warning where files come `instead` in another way."""
    if found.verdict is not Severity.FAILED or not instead:
        return found
    return warning(found.probe, f"{found.said}; files come {instead} meanwhile", found.hint)


async def _stream(repository: Repository, proxies: Proxies, proxy: Proxy, version: ObjectVersion) -> Finding:
    """Read the beginning of `version` through `proxy` alone."""
    alone = Proxy(proxy.url, proxy.transport)
    fetcher = Fetcher(
        repository.origin,
        repository.transport,
        proxy=Proxies([alone], required=False, options=proxies.options),
        read_timeout_s=repository.fetcher.read_timeout_s,
        max_connections=1,
        tokens=repository.fetcher.tokens,
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
            hint = f"no proxy answers there, but {meant} answers: that is dfdaemon's proxy in current versions (--proxy {meant})"
        return failed("proxy", f"{unbound or error.message}; {health}", hint)
    if unbound:
        return warning("proxy", unbound, "use dfdaemon 1.3 or later, or a bucket with versioning and --versioned")
    return ok("proxy", f"{proxy.url}: {wanted.size} bytes through it, as this version's task; {health}")


async def _health(proxy: Proxy) -> str:
    try:
        # Plain HTTP: no certificates are loaded, which would take some 20 ms of a daemon.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        async with httpx.AsyncClient(trust_env=False, timeout=_PATIENCE_S, verify=context) as client:
            status = (await client.get(proxy.health_url)).status_code
    except httpx.HTTPError:
        return f"no dfdaemon on health port {HEALTH_PORT}; it may have another one"
    return f"dfdaemon answers {status} on its health port"


async def _answers(url: str) -> bool:
    """True if a server listens at `url`."""
    place = urlsplit(url)
    try:
        with trio.fail_after(_PATIENCE_S):
            stream = await trio.open_tcp_stream(place.hostname or "", place.port or 80)
    except (OSError, trio.TooSlowError):
        return False
    await stream.aclose()
    return True


async def _hand_over(repository: Repository, handover: Handover, version: ObjectVersion, config: Config) -> Finding:
    """Have all of `version` handed over by the socket, and linked next to the cache."""
    url, name = handover.url, repository.fetcher.name(version)
    trouble = failed if handover.required and repository.fetcher.proxy is None else warning
    instead = f"files come {'from the store' if repository.fetcher.proxy is None else 'through the proxy'} instead"
    if refusal := _refusal(url):
        hint = "is dfdaemon running, and is its socket shared with this host or container, under this path?"
        return trouble("hand-over", f"{url}: {refusal}; {instead}", hint)
    try:
        with tempfile.TemporaryDirectory(prefix=".d7yfs-check-", dir=existing(config.cache_dir)) as place:
            directory = CacheDirectory(
                Path(place), size_limit_bytes=2 * footprint_bytes(version.size_bytes), min_free_bytes=0
            )
            directory.prepare()
            with trio.fail_after(repository.fetcher.read_timeout_s):
                await _bring(handover, directory, repository.origin.identity, version)
    except (OSError, CacheUnusable) as error:
        return trouble("hand-over", f"could not be tried next to {config.cache_dir}: {error}")
    except D7yfsError as error:
        return trouble("hand-over", f"{error.message}; {instead}", error.hint or _WHERE_LINKS_WORK)
    except trio.TooSlowError:
        return trouble(
            "hand-over", f"{name}: not handed over within {repository.fetcher.read_timeout_s:g} s; {instead}"
        )
    return ok("hand-over", f"{url}: {name} linked into the cache, {version.size_bytes} bytes")


async def _bring(handover: Handover, directory: CacheDirectory, store: StoreIdentity, version: ObjectVersion) -> None:
    cache = Cache(directory, memory_buffer_bytes=0, read_timeout_s=0, disk=Disk())
    cached = await cache.open(store, version, _Idle)
    try:
        await handover.bring(cached, lambda _: None, small_too=False)
    finally:
        cached.drop()


class _Idle:
    """A filler of a file that nobody reads."""

    window_bytes = 0

    def __init__(self, target: CachedVersion) -> None:
        pass

    def request(self, wanted: ByteRange, ahead: ByteRange | None) -> None:
        """Nobody waits."""

    def fill(self) -> None:
        """Nobody asks."""

    def stop_filling(self) -> None:
        """Nobody has asked."""

    def prefetch(self, ahead: ByteRange) -> None:
        """Nobody asks."""


_: type[Filler] = _Idle


def _refusal(url: str) -> str:
    """The reason, in words, why the socket at `url` cannot be connected to; empty if it can."""
    path = url.removeprefix("unix://")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_PATIENCE_S)
        try:
            client.connect(path)
        except OSError as error:
            return os.strerror(error.errno) if error.errno else str(error)
    return ""
