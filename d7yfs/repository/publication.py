"""The published tree of one repository, and the asking for it: the names of a mount that lists nothing.

Owns the choice between a published tree and listings of the store (`--listing`), the pointer's age,
and the tree in hand. A question about names comes here first (`tree`). If the pointer was not asked
for within the metadata TTL, one HEAD tells whether it has changed. It says as much as a GET
with If-None-Match, and every kind of store has it. A new pointer brings its snapshot: from the cache
directory, or by the fetcher, so through Dragonfly where a proxy is set.

Invariants: names change only as a whole, in the moment that `on_switched` is called. A pointer or a
snapshot that cannot be used changes nothing: the last good tree stays, and `describe` says why.

Built by `repository`; trio thread only.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import trio

from d7yfs.cache.directory import CacheDirectory
from d7yfs.config.p2p import Mode
from d7yfs.config.schema import RepositoryConfig
from d7yfs.errors import AccessDenied, BadReply, BucketNotFound, D7yfsError, NotFound, ProxyUnavailable, VersionGone
from d7yfs.fetch.dragonfly_task import MAX_DIRECT_BYTES
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.transport import Transport
from d7yfs.fill.p2p_budget import Policy
from d7yfs.logs import show_time
from d7yfs.objects import ByteRange, ObjectVersion
from d7yfs.origins.rest import ask_again
from d7yfs.stats.repository_status import PublicationStatus
from d7yfs.tree.published import POINTER, POINTER_MAX_BYTES, Damaged, Pointer, PublishedTree
from d7yfs.tree.refresher import DUE
from d7yfs.tree.source import ListingMode

log = logging.getLogger(__name__)

_PATIENCE_S = 5.0
"""The longest time that a reader waits to be told whether the names in hand are the newest."""
_RETRY_S = 5.0
"""The pause after a pointer that could not be had, while a tree is in hand."""
_CHANGED_TWICE = 3
"""Tries for a pointer that changes while it is read."""
_TOLD = 100
"""The most objects of one snapshot that a log names as changed."""


class _Memory:
    """A sink that keeps all bytes."""

    def __init__(self, size_bytes: int) -> None:
        self.data = bytearray(size_bytes)

    async def write(self, offset: int, data: memoryview) -> None:
        """Keep them."""
        self.data[offset : offset + len(data)] = data

    def retract(self, wanted: ByteRange) -> int:
        """They are written again."""
        return wanted.start


class Publication:
    """The publication of one repository."""

    def __init__(
        self, config: RepositoryConfig, fetcher: Fetcher, transport: Transport, policy: Policy, *, ttl_s: float
    ) -> None:
        """`fetcher` has the origin in use, and the proxies. Its counters are about files that programs
        read: requests here are not among them."""
        self.ttl_s = ttl_s
        """The metadata TTL."""
        self.kept: CacheDirectory | None = None
        """Where the snapshot is kept for the next mount, if it is."""
        self.on_switched: Callable[[], None] = lambda: None
        """Called once other names count, at once; it must not await."""
        self.on_confirmed: Callable[[float], None] = lambda _: None
        """Called once the names in hand were found to be current, with the time of the question."""
        self._config = config
        self._main = fetcher
        self._fetcher = Fetcher(
            fetcher.origin,
            transport,
            proxy=fetcher.proxy,
            read_timeout_s=fetcher.read_timeout_s,
            max_connections=1,
            tokens=fetcher.tokens,
        )
        self._policy = policy
        self._base = f"{config.url.prefix}/" if config.url.prefix else ""
        self._is_required = config.listing == ListingMode.PUBLISHED
        self._is_undecided = config.listing == ListingMode.AUTO
        self._tree: PublishedTree | None = None
        self._pointer: ObjectVersion | None = None
        """The pointer that was read last."""
        self._fault = ""
        """Why that pointer, or its snapshot, cannot be used."""
        self._asked_at = -math.inf
        self._answered_at: float | None = None
        self._asking = trio.Lock()
        self._status = PublicationStatus()
        self._told: set[str] = set()

    @property
    def is_followed(self) -> bool:
        """True if names come from what is published, and from no listing. Until an `auto` mount has
        looked, it is not known: then nothing is listed whole."""
        return self._is_required or self._is_undecided or self._tree is not None

    def decline(self) -> None:
        """List the store: an `auto` mount has seen that nothing is published."""
        self._is_undecided = False

    @property
    def asked_at(self) -> float:
        """When the pointer was asked for last; after a failure so that the next question comes soon."""
        return self._asked_at

    @property
    def answered_at(self) -> float | None:
        """When the store last answered that; None where nothing is followed."""
        return self._answered_at if self._tree is not None else None

    async def tree(self, now: float) -> PublishedTree | None:
        """The names to answer from at `now`; None if the store is to be listed. Raises as `renew`.

        Once names are in hand, nobody waits long for the store.
        """
        if self._is_old(now):
            patience_s = _PATIENCE_S if self._tree is not None else math.inf
            with trio.move_on_after(patience_s) as waiting:
                await self._ask(lambda: self._is_old(now))
            if waiting.cancelled_caught:
                self._postpone()
        return self._tree

    def _is_old(self, now: float) -> bool:
        return self.is_followed and (self._asked_at == -math.inf or self._asked_at < now - self.ttl_s)

    def _postpone(self) -> None:
        """Have the next question come after a pause: the names in hand count on."""
        self._asked_at = trio.current_time() + _RETRY_S - (DUE * self.ttl_s if self.ttl_s < math.inf else 0.0)

    async def renew(self) -> None:
        """Ask for the pointer now, or share a request that begins later; take what it names.

        Raises the origin's errors unless names are in hand, and with `published` NotFound and BadReply
        where nothing can be followed. With `auto` the store is listed then.
        """
        now = trio.current_time()
        await self._ask(lambda: self.is_followed and self._asked_at < now)

    async def _ask(self, is_due: Callable[[], bool]) -> None:
        async with self._asking:
            if not is_due():
                return
            asked_at = trio.current_time()
            try:
                await self._follow(asked_at)
            except Damaged as fault:
                self._reject(str(fault))
            except D7yfsError as error:
                self._fail(error)
                if not isinstance(error, NotFound) and self._tree is not None:
                    self._postpone()
                    return
            self._asked_at = asked_at

    async def _follow(self, asked_at: float) -> None:
        """Take the pointer of now, if it is another one. Raises D7yfsError and Damaged."""
        for _ in range(_CHANGED_TWICE):
            self._status.pointer_requests += 1
            found = await ask_again(lambda: self._main.origin.stat(self._base + POINTER))
            self._main.failures.names.end()
            self._answered_at = trio.current_time()
            if self._pointer is not None and found.identity == self._pointer.identity:
                if self._fault:
                    raise Damaged(self._fault)
                self._confirm(asked_at)
                return
            try:
                pointer = await self._read_pointer(found)
                is_known = self._tree is not None and pointer.sha256 == self._tree.pointer.sha256
                tree = self._tree if is_known else await self._bring(pointer)
            except VersionGone:
                continue  # it was published again meanwhile
            except Damaged:
                self._pointer = found  # asked for once, by each of many hosts
                raise
            assert tree is not None
            self._pointer, self._fault = found, ""
            self._take(tree, pointer, asked_at)
            return
        raise BadReply(f"{self._name(POINTER)}: changes again and again while it is read")

    async def _read_pointer(self, found: ObjectVersion) -> Pointer:
        if found.size_bytes > POINTER_MAX_BYTES:
            raise Damaged(f"the pointer has more than {POINTER_MAX_BYTES >> 10} KiB")
        return Pointer.decode(await self._fetch(found))

    async def _bring(self, pointer: Pointer) -> PublishedTree:
        """The tree that a pointer names. Raises D7yfsError and Damaged."""
        kept = self.kept
        if kept is not None and (data := await trio.to_thread.run_sync(kept.names.read, self._about)) is not None:
            try:
                return await self._open(data, pointer)
            except Damaged:
                pass  # that of an earlier publication
        try:
            version = await ask_again(lambda: self._main.origin.stat(self._base + pointer.snapshot))
        except NotFound:
            raise Damaged(f"the snapshot {self._name(pointer.snapshot)} is not there") from None
        if version.size_bytes != pointer.size_bytes:
            raise Damaged("the snapshot has another size than the pointer says")
        proxied = self._main.proxy is not None and self._policy.mode_of(version.key) is not Mode.NEVER
        proxied = proxied and version.size_bytes > MAX_DIRECT_BYTES
        data = await self._fetch(version, proxied=proxied)
        try:
            tree = await self._open(data, pointer)
        except Damaged:
            if not proxied or self._proxy_is_required:
                raise
            log.warning("%s came damaged through the proxy; asking the store for it", self._name(pointer.snapshot))
            data = await self._fetch(version)
            tree = await self._open(data, pointer)
        self._status.snapshots_fetched += 1
        if kept is not None:
            await trio.to_thread.run_sync(self._keep, kept, data)
        return tree

    async def _open(self, data: bytes, pointer: Pointer) -> PublishedTree:
        return await trio.to_thread.run_sync(partial(PublishedTree.open, data, pointer, self._base, time.time()))

    async def _fetch(self, version: ObjectVersion, *, proxied: bool = False) -> bytes:
        if not version.size_bytes:
            return b""
        self._fetcher.origin = self._main.origin
        sink = _Memory(version.size_bytes)
        if proxied:
            try:
                await self._fetcher.stream(version, version.whole, sink)
                return bytes(sink.data)
            except ProxyUnavailable as error:
                if self._proxy_is_required:
                    raise
                log.info("%s; asking the store for it", error.message)
        await self._fetcher.fetch(version, version.whole, sink)
        return bytes(sink.data)

    @property
    def _proxy_is_required(self) -> bool:
        return self._main.proxy is not None and self._main.proxy.required

    def _keep(self, kept: CacheDirectory, data: bytes) -> None:
        try:
            kept.names.write(self._about, [data], kept.names_limit_bytes)
        except OSError as error:
            log.warning("%s: the snapshot is not kept: %s", self._config.url, error.strerror)

    @property
    def _about(self) -> str:
        """The subject of what is kept. The digest in the pointer, which the store gave to these very
        credentials, is the right to it."""
        identity = self._main.origin.identity
        place = (identity.scheme, identity.endpoint, identity.account, identity.bucket, self._base)
        return json.dumps(["published", *place])

    # --- what follows ---

    def _take(self, tree: PublishedTree, pointer: Pointer, asked_at: float) -> None:
        self._is_undecided = False
        status = self._status
        status.sha256, status.published_at, status.publisher = pointer.sha256, pointer.published_at, pointer.publisher
        status.files, status.size_bytes = pointer.files, pointer.size_bytes
        self._told.clear()
        status.unpublished = 0
        is_new, self._tree = tree is not self._tree, tree
        self._confirm(asked_at)
        if is_new:
            when = show_time(pointer.published_at)
            log.info("%s shows %d files as they were published at %s", self._config.url, pointer.files, when)
            self.on_switched()

    def _confirm(self, asked_at: float) -> None:
        self._status.checked_at = time.time()
        self._status.trouble, self._status.trouble_since = "", None
        self.on_confirmed(asked_at)

    def _reject(self, fault: str) -> None:
        """Follow no pointer that cannot be used. Raises BadReply where nothing else is to be shown."""
        self._fault = fault
        if self._tree is not None:
            self._note(fault)
        elif not self._is_required:
            self._is_undecided = False
            self._note(f"{fault}; the store is listed instead")
        else:
            url = self._config.url
            raise BadReply(f"{url}: {fault}", lasting=True, hint=f"run d7yfs publish {url} again") from None

    def _fail(self, error: D7yfsError) -> None:
        """Go on without an answer about the pointer. Raises what says so where nothing is to be shown."""
        is_gone, url = isinstance(error, NotFound), self._config.url
        if self._is_required:
            if self._tree is not None and is_gone:
                self._note("nothing is published any more")
            elif self._tree is not None:
                self._main.failures.names.note(error, time.time())
            elif is_gone and not isinstance(error, BucketNotFound):
                raise NotFound(
                    f"{url}: nothing is published there ({self._name(POINTER)} is absent)",
                    hint=f"run d7yfs publish {url} where models are uploaded, or mount with --listing auto",
                ) from None
            else:
                raise error
        elif is_gone:
            had_names = self._tree is not None
            self._tree = self._pointer = None
            self._is_undecided, self._status = False, PublicationStatus()
            if had_names:
                log.warning("%s: nothing is published any more; the store is listed", url)
                self.on_switched()
        elif self._tree is not None:
            self._main.failures.names.note(error, time.time())
        elif isinstance(error, AccessDenied):
            self._is_undecided = False
            self._note(f"{error.message}; the store is listed instead")
        else:
            raise error

    def _note(self, trouble: str) -> None:
        if self._status.trouble != trouble:
            log.warning("%s: %s", self._config.url, trouble)
            self._status.trouble_since = self._status.trouble_since or time.time()
        self._status.trouble = trouble

    def note_gone(self, version: ObjectVersion) -> None:
        """Note that a read found an object other than it was published."""
        if self._tree is None or version.key in self._told or len(self._told) >= _TOLD:
            return
        self._told.add(version.key)
        self._status.unpublished += 1
        name = self._main.name(version)
        log.warning("%s has changed since it was published: its readers get ESTALE; run d7yfs publish again", name)

    def _name(self, key: str) -> str:
        return f"{self._main.origin.url}/{self._base}{key}"

    def describe(self) -> PublicationStatus | None:
        """The account, for `status`; None where nothing is followed, and nothing is wrong."""
        is_used = self._tree is not None or self._is_required
        return replace(self._status, is_followed=is_used) if is_used or self._status.trouble else None
