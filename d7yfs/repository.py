"""One repository of a mount, put together: its origin, its way to the bytes, the prefix where it lies.

What `mount`, `check` and `ls` have in common. Opening makes no request; `locate` and `list_directory` do.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import trio

from d7yfs import __version__
from d7yfs.config.schema import RepositoryConfig
from d7yfs.config.sources import Settings
from d7yfs.errors import NotFound
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.proxy import FIRST_BYTE_TIMEOUT_S, IDLE_TIMEOUT_S, Proxy
from d7yfs.fetch.transport import Transport
from d7yfs.listing import DirectoryListing
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.origins import open_origin
from d7yfs.origins.origin import Origin
from d7yfs.origins.survey import Empty, SingleObject, list_all, survey
from d7yfs.trust import ssl_context

USER_AGENT = f"d7yfs/{__version__}"
MAX_SILENCE_S = 30.0
_PREFETCHES = 64
"""At once, for all repositories of a mount: each has a megabyte in hand."""


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository as configured, and what speaks to its store."""

    config: RepositoryConfig
    origin: Origin
    transport: Transport
    fetcher: Fetcher

    async def aclose(self) -> None:
        """Close all connections, also those to the proxy, which other repositories may share."""
        await self.transport.aclose()
        if self.fetcher.proxy is not None:
            await self.fetcher.proxy.transport.aclose()
        await self.origin.aclose()

    async def locate(self, *, allow_empty: bool) -> str:
        """What to list: "" or `a/b/` for a directory, a key for that one object.

        Raises what the origin raises, and NotFound, with the nearest prefixes that exist, when nothing lies there.
        """
        prefix = self.config.url.prefix
        found = await survey(self.origin, prefix)
        if isinstance(found, SingleObject):
            return found.version.key
        if isinstance(found, Empty) and not allow_empty:
            nearest = ", ".join(f"{self.origin.url}/{each}" for each in found.nearest)
            raise NotFound(
                f"{self.config.url}: there is nothing under this prefix",
                hint=(f"nearest that exist: {nearest}; or " if nearest else "")
                + "--allow-empty mounts it all the same",
            )
        return f"{prefix}/" if prefix else ""

    async def list_directory(self, prefix: str) -> DirectoryListing:
        """Every entry under `prefix`; the one object when `prefix` is its key."""
        listing = DirectoryListing(prefix)
        if prefix and not prefix.endswith("/"):
            try:
                objects: tuple[ObjectVersion, ...] = (await self.origin.stat(prefix),)
            except NotFound:
                objects = ()
            listing.add(ListingPage(objects, (), "", time.time_ns()))
            return listing
        async for page in list_all(self.origin, prefix):
            listing.add(page)
        return listing


def open_repositories(settings: Settings) -> list[Repository]:
    """All repositories of a configuration. Those that name the same proxy share it and its breaker. Raises ConfigError."""
    config = settings.config
    proxies: dict[tuple[str, bool], Proxy] = {}
    all_prefetches = trio.CapacityLimiter(_PREFETCHES)
    repositories = []
    for repository in config.repositories:
        proxy = None
        if repository.proxy:
            key = (repository.proxy, repository.fallback)
            proxy = proxies.get(key)
            if proxy is None:
                proxy = proxies[key] = _proxy(settings, repository)
        origin = open_origin(repository, settings.credentials[repository.name])
        transport = Transport(
            connect_timeout_s=config.connect_timeout_s,
            first_byte_timeout_s=_silence_s(config.read_timeout_s),
            idle_timeout_s=_silence_s(config.read_timeout_s),
            max_idle_connections=config.max_connections,
            ssl_context=ssl_context(repository.ca_bundle, verify=repository.verify_tls),
            user_agent=USER_AGENT,
        )
        fetcher = Fetcher(
            origin,
            transport,
            proxy=proxy,
            read_timeout_s=config.read_timeout_s,
            max_connections=config.max_connections,
            all_prefetches=all_prefetches,
        )
        repositories.append(Repository(repository, origin, transport, fetcher))
    return repositories


def _silence_s(read_timeout_s: float) -> float:
    """When a silent connection is given up: while the reader still has patience for another one."""
    return min(MAX_SILENCE_S, read_timeout_s / 4)


def _proxy(settings: Settings, repository: RepositoryConfig) -> Proxy:
    transport = Transport(
        connect_timeout_s=min(settings.config.connect_timeout_s, FIRST_BYTE_TIMEOUT_S),
        first_byte_timeout_s=FIRST_BYTE_TIMEOUT_S,
        idle_timeout_s=min(IDLE_TIMEOUT_S, _silence_s(settings.config.read_timeout_s)),
        user_agent=USER_AGENT,
    )
    return Proxy(
        repository.proxy,
        transport,
        required=not repository.fallback,
        headers={name: value.get_secret_value() for name, value in settings.headers.items()},
        filter=settings.filter,
    )
