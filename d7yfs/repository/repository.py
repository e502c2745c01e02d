"""One repository of a mount, put together: its origin, its way to the bytes, its prefix.

Shared by `mount`, `check` and `ls`. Opening makes no request; `locate` and `list_directory` do.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from d7yfs import __version__
from d7yfs.cache.filler import Filler, NewFiller
from d7yfs.cache.version import CachedVersion
from d7yfs.config.p2p import Mode
from d7yfs.config.schema import Credentials, RepositoryConfig
from d7yfs.config.settings_file import read_file
from d7yfs.config.sources import Settings
from d7yfs.errors import AccessDenied, BucketNotFound, ConfigError, NotFound, NotPermitted
from d7yfs.fetch.bearer_tokens import BearerTokens
from d7yfs.fetch.dragonfly_proxy import CONNECT_TIMEOUT_S, FIRST_BYTE_TIMEOUT_S, IDLE_TIMEOUT_S, Limits, Proxies, Proxy
from d7yfs.fetch.dragonfly_task import MAX_DIRECT_BYTES, Task, TaskOptions, task
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.transport import Transport
from d7yfs.fill.direct import DirectFiller
from d7yfs.fill.edited import EditedFiller
from d7yfs.fill.handover import Handover, open_handover
from d7yfs.fill.p2p_budget import Policy
from d7yfs.fill.stream import StreamFiller
from d7yfs.fill.verification import Verifier
from d7yfs.movers.pool import MoverPool
from d7yfs.objects import ObjectVersion
from d7yfs.origins import open_origin
from d7yfs.origins.origin import Checksums, Origin
from d7yfs.origins.rest import ask_again
from d7yfs.origins.survey import Empty, FoundDirectory, SingleObject, survey
from d7yfs.repository.publication import Publication
from d7yfs.repository.visible import VisibleListings
from d7yfs.stats.models import Models
from d7yfs.tls import Trust
from d7yfs.tree.listing import DirectoryListing
from d7yfs.tree.reserved import RESERVED
from d7yfs.tree.source import ListingMode
from d7yfs.tree.visibility import Visibility

USER_AGENT = f"d7yfs/{__version__}"
MAX_SILENCE_S = 30.0
_SECRET_BYTES = 16
"""Fewer bytes could be guessed."""
_PREFETCHES = 64
"""The concurrent prefetches of all repositories of a mount; each holds a megabyte."""


@dataclass(frozen=True, slots=True)
class Repository:
    """One repository as configured, with its connections to its store."""

    config: RepositoryConfig
    transport: Transport
    fetcher: Fetcher
    policy: Policy
    visibility: Visibility
    shown: VisibleListings
    """The keys that the mount shows."""
    publication: Publication
    """The names that are published, if they are followed."""
    handover: Handover | None = None
    """The way by dfdaemon's socket, if one is configured."""
    _replaced: list[Origin] = field(default_factory=list)
    """The origin before the present one; requests may still be signed with it."""

    @property
    def origin(self) -> Origin:
        """The origin; another one once credentials were replaced."""
        return self.fetcher.origin

    @property
    def directory_prefix(self) -> str:
        """The prefix to list if the URL names a directory."""
        prefix = self.config.url.prefix
        return f"{prefix}/" if prefix else ""

    async def replace_credentials(self, credentials: Credentials) -> None:
        """Go on with other credentials; requests under way end with the old ones."""
        replacement = open_origin(self.config, credentials)
        while self._replaced:
            await self._replaced.pop().aclose()
        self._replaced.append(self.fetcher.origin)
        self.fetcher.origin = self.shown.origin = replacement

    async def prove(self, version: ObjectVersion) -> Checksums:
        """Ask the store for `version`, which needs the right to read it. One request.

        It goes with listings, so that it arrives wherever names do. Raises the origin's errors.
        """
        # HEAD needs GetObject at S3, OSS and OBS, `storage.objects.get` at Google, Read at Azure.
        # S3 answers one for checksums only to credentials that may decrypt the object.
        return await ask_again(lambda: self.origin.checksums(version))

    async def aclose(self) -> None:
        """Close all connections, even those to the proxy, which other repositories may share."""
        await self.transport.aclose()
        for proxy in self.fetcher.proxy.all if self.fetcher.proxy is not None else ():
            await proxy.transport.aclose()
        if self.handover is not None:
            self.handover.close()
        for origin in (*self._replaced, self.origin):
            await origin.aclose()

    def route(self, version: ObjectVersion) -> str:
        """The way by which `version` was filled last, or would come: origin, proxy or socket."""
        if (known := self.fetcher.journal.route_of(version)) is not None:
            return known
        if self.is_direct(version) or self.fetcher.tokens.is_direct(trio.current_time()):
            return "origin"
        if self.handover is not None and self.handover.usable:
            return "socket"
        return "proxy" if self.fetcher.proxy is not None else "origin"

    def is_direct(self, version: ObjectVersion) -> bool:
        """True if `version` is for the store alone, as `p2p` and its size have it."""
        mode = self.policy.mode_of(version.key)
        return mode is Mode.NEVER or (version.size_bytes <= MAX_DIRECT_BYTES and mode is not Mode.ALWAYS)

    def make_fillers(self, nursery: trio.Nursery, verifier: Verifier | None) -> NewFiller:
        """Return what makes fillers, whose tasks run in `nursery`. `verifier` gets each version that
        has come whole.
        """
        filler: Callable[..., Filler] = DirectFiller
        if self.fetcher.proxy is not None or self.handover is not None:
            filler = partial(StreamFiller, policy=self.policy, handover=self.handover)
        compare = verifier.compare if verifier is not None else None
        make = partial(filler, fetcher=self.fetcher, nursery=nursery, compare=compare)

        def make_one(target: CachedVersion) -> Filler:
            if target.version.edit:
                return EditedFiller(target, self.fetcher, nursery, self.policy, verifier)
            return make(target)

        return make_one

    async def task_id(self, version: ObjectVersion) -> str:
        """The id of Dragonfly's task for `version`, on all hosts; empty if it does not go that
        way. Raises as signing does."""
        found = await self.find_task(version)
        return found.id if found is not None else ""

    async def find_task(self, version: ObjectVersion) -> Task | None:
        """Dragonfly's task for `version`, on all hosts, with a signature that lasts for some minutes;
        None if it does not go that way. Raises as signing does."""
        proxies, handover = self.fetcher.proxy, self.handover
        if (proxies is None and handover is None) or self.policy.mode_of(version.key) is Mode.NEVER:
            return None
        request = await self.origin.read_request(version, presigned=True)
        self.fetcher.tokens.note(request, trio.current_time())
        if self.fetcher.tokens.is_direct(trio.current_time()):
            return None
        if handover is not None and handover.usable:
            return handover.task(request, version)
        if proxies is None:
            return None
        trusted = all(proxy.binds_content_ids for proxy in proxies.all)
        return task(request, self.origin.identity, version, proxies.options, content_ids=trusted)

    async def locate(self, *, allow_empty: bool) -> str:
        """Find the prefix to list: "" or `a/b/` for a directory, a key for that one object.

        Raises the origin's errors, and NotFound, with the nearest prefixes that exist, when nothing
        lies there. With exact names nothing is listed, and a prefix that is no object is taken for
        a directory. Takes what is published: with `published` always, with `auto` where the listing
        shows that there may be something.
        """
        if self.config.listing == ListingMode.EXACT:
            return await self._believe(self.config.url.prefix)
        if self.config.listing == ListingMode.PUBLISHED:
            await self.publication.renew()
            return self.directory_prefix
        try:
            found = await survey(self.origin, self.config.url.prefix)
        except NotPermitted as error:
            exact = "--listing exact mounts without the right to list: then a name must be known to be found"
            hint = f"{error.hint}; {exact}" if error.hint else exact
            raise NotPermitted(error.message, hint=hint).about(**error.facts) from None
        if isinstance(found, SingleObject):
            self.publication.decline()
            return found.version.key
        if isinstance(found, Empty) and not allow_empty:
            nearest = ", ".join(f"{self.origin.url}/{each}" for each in found.nearest)
            raise NotFound(
                f"{self.config.url}: there is nothing under this prefix",
                hint=(f"nearest that exist: {nearest}; or " if nearest else "")
                + "--allow-empty mounts it all the same",
            )
        if isinstance(found, FoundDirectory) and self.directory_prefix + RESERVED in found.first:
            await self.publication.renew()
        else:
            self.publication.decline()
        return self.directory_prefix

    async def _believe(self, prefix: str) -> str:
        try:
            return (await self.origin.stat(prefix)).key if prefix else ""
        except BucketNotFound:
            raise
        except (NotFound, AccessDenied):
            return self.directory_prefix

    async def list_directory(self, prefix: str) -> DirectoryListing:
        """Every shown entry under `prefix`; the one object when `prefix` is its key."""
        listing = DirectoryListing(prefix)
        async with aclosing(self.shown.pages(prefix)) as pages:
            async for page in pages:
                listing.add(page)
        return listing


def open_repositories(settings: Settings, movers: MoverPool | None = None) -> list[Repository]:
    """Open all repositories of a configuration. Those with the same proxy share it and its
    circuit breaker, and all of them `movers`. Raises ConfigError."""
    config = settings.config
    proxies: dict[str, Proxy] = {}
    limits = Limits()
    through = _proxy_transport(settings)
    all_prefetches = trio.CapacityLimiter(_PREFETCHES)
    repositories = []
    for repository in config.repositories:
        addresses = [address for address in repository.proxy.split(",") if address]
        for address in addresses:
            proxies.setdefault(address, Proxy(address, through))
        proxy = None
        if addresses:
            proxy = Proxies(
                [proxies[address] for address in addresses],
                required=not repository.fallback,
                options=_task_options(settings, repository),
                limits=limits,
            )
        try:
            origin = open_origin(repository, settings.credentials[repository.name])
        except ConfigError as error:
            raise settings.locate(error, repository.name) from error
        transport = Transport(
            connect_timeout_s=config.connect_timeout_s,
            first_byte_timeout_s=_silence_s(config.read_timeout_s),
            idle_timeout_s=_silence_s(config.read_timeout_s),
            max_idle_connections=config.max_connections,
            trust=Trust(repository.ca_bundle, verify=repository.verify_tls),
            movers=movers,
            user_agent=USER_AGENT,
        )
        fetcher = Fetcher(
            origin,
            transport,
            proxy=proxy,
            read_timeout_s=config.read_timeout_s,
            max_connections=config.max_connections,
            all_prefetches=all_prefetches,
            models=Models(repository.url.prefix, limit=config.metrics_per_model),
            tokens=_tokens(repository),
            movers=movers,
        )
        policy = Policy(
            repository.p2p,
            prefix=repository.url.prefix,
            direct_percent=repository.p2p_direct_percent,
            hosts=repository.p2p_hosts,
        )
        handover = open_handover(repository, fetcher, _task_options(settings, repository), limits)
        visibility = Visibility(
            repository.url.prefix,
            include=repository.include,
            exclude=repository.exclude,
            markers=repository.publish_marker,
        )
        publication = Publication(repository, fetcher, transport, policy, ttl_s=config.metadata_ttl_s)
        base = f"{repository.url.prefix}/" if repository.url.prefix else ""
        shown = VisibleListings(
            origin, visibility, base=base, publication=publication, hides_agents=repository.hide_agents
        )
        made = Repository(repository, transport, fetcher, policy, visibility, shown, publication, handover)
        repositories.append(made)
    return repositories


def _tokens(repository: RepositoryConfig) -> BearerTokens:
    required = bool(repository.proxy or repository.dfdaemon_socket) and not repository.fallback
    return BearerTokens(str(repository.url), allowed=repository.p2p_tokens, required=required)


def _silence_s(read_timeout_s: float) -> float:
    """The silence after which a connection is given up, early enough for another try."""
    return min(MAX_SILENCE_S, read_timeout_s / 4)


def _proxy_transport(settings: Settings) -> Transport:
    """The transport to all proxies, in plain HTTP."""
    return Transport(
        connect_timeout_s=min(settings.config.connect_timeout_s, CONNECT_TIMEOUT_S),
        first_byte_timeout_s=min(FIRST_BYTE_TIMEOUT_S, settings.config.read_timeout_s / 2),
        idle_timeout_s=min(IDLE_TIMEOUT_S, _silence_s(settings.config.read_timeout_s)),
        user_agent=USER_AGENT,
    )


def _task_options(settings: Settings, repository: RepositoryConfig) -> TaskOptions:
    return TaskOptions(
        tag=repository.p2p_tag,
        application=repository.p2p_application,
        priority=repository.p2p_priority,
        piece_length_bytes=repository.p2p_piece_length_bytes or 0,
        filter=tuple(settings.filter),
        secret=_read_secret(settings, repository.name, repository.p2p_secret_file),
        headers={name: value.get_secret_value() for name, value in settings.headers.items()},
    )


def _read_secret(settings: Settings, repository: str, path: Path | None) -> bytes:
    """The secret in a file, without white space around it; empty without a file. Raises ConfigError."""
    if not path:
        return b""
    hint = "make one on one host, and copy it to all: head -c 32 /dev/urandom | base64"
    try:
        secret = read_file(path).strip()
    except OSError as error:
        fault = f"cannot be read: {error.strerror}"
    else:
        if len(secret) >= _SECRET_BYTES:
            return secret
        fault = f"has fewer than {_SECRET_BYTES} bytes"
    about = ("p2p_secret_file",)
    raise settings.locate(ConfigError(f"p2p_secret_file: {path} {fault}", hint=hint, settings=about), repository)
