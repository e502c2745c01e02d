"""The names of one repository from mount to mount: kept in the cache directory, and recalled.

Owns who may have them. What is kept is bound to the repository, to the settings that choose its
names, and to the identity of the credentials (`Origin.principal`). A mount recalls it once the
store has accepted its credentials. While the store does not answer (`--offline serve`), the secret
of these credentials must be the one that the store had accepted: a key's id is no secret.

Called by `latecomer` and `daemon`. Files are read and written in worker threads.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from functools import partial

import trio

from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.grants import digest
from d7yfs.config.schema import Config
from d7yfs.fs.filesystem import Filesystem
from d7yfs.origins.origin import ANONYMOUS, SESSION
from d7yfs.repository.repository import Repository
from d7yfs.stats.repository_status import TreeCacheStatus
from d7yfs.tree.lister import Lister
from d7yfs.tree.nodes import FOREVER_S
from d7yfs.tree.snapshot import KnownDirectory, RecalledListing, Snapshot, SnapshotHead, decode, encode
from d7yfs.tree.source import ListingMode
from d7yfs.tree.tree import Tree

log = logging.getLogger(__name__)

_LOOK_S = 1.0
"""How often a mount looks whether something was listed."""
_REST = 50
"""The rest after names were kept, in multiples of the time that it took."""
_LEAST_REST_S = 4.0
_ROOM_BYTES = 1 << 20
"""The room that names need before it is known how much they take."""
_APPLIED_AT_ONCE = 500
"""Names that are recalled before other tasks run."""


class TreeKeeper:
    """The keeper of one repository's names. `most_names` bounds the names that it recalls."""

    def __init__(self, repository: Repository, directory: CacheDirectory, *, shared: bool, most_names: int) -> None:
        self.snapshot: Snapshot | None = None
        """The names that an earlier mount has kept, until they are recalled."""
        self._repository = repository
        self._directory = directory
        self._is_shared = shared
        self._most_names = most_names
        self._tree: Tree | None = None
        self._lister: Lister | None = None
        self._credentials = ("", "")
        """The principal and the seal that were seen last."""
        self._since = float("-inf")
        """When the present credentials came: what was listed before is not theirs."""
        self._kept = 0
        """The answers, by the tree's count, that are kept."""
        self._recalled = self._saved_bytes = 0
        self._listed_at: float | None = None
        self._saved_at: float | None = None
        self._told = ""
        self._writing = threading.Lock()
        """Held by the thread that writes, so that an older one does not come last."""

    # --- before the mount begins ---

    async def read(self) -> None:
        """Read what an earlier mount of these credentials has kept."""
        if about := self._about():
            self.snapshot = await trio.to_thread.run_sync(self._read, about, abandon_on_cancel=True)

    def _read(self, about: str) -> Snapshot | None:
        try:
            data = self._directory.names.read(about)
        except OSError as error:
            log.warning("%s: the kept names cannot be read: %s", self._repository.config.url, error.strerror)
            return None
        found = decode(data, about, self._most_names) if data is not None else None
        if data is not None and found is None:
            url = self._repository.config.url
            log.warning("%s: the names that an earlier mount has kept are damaged, or too many; listed anew", url)
        return found

    @property
    def is_proved(self) -> bool:
        """True if the snapshot was made with these very credentials, which needs no store to say so."""
        proved = self._is_shared or self._repository.origin.principal == ANONYMOUS
        seal = self._seal()
        return self.snapshot is not None and (proved or (seal != "" and seal == self.snapshot.head.seal))

    # --- in the mount ---

    async def recall(self, tree: Tree, lister: Lister, *, follows: bool) -> None:
        """Give the tree what was read. A worker that `follows` another believes nothing, unless the
        store is away."""
        self._tree, self._lister = tree, lister
        snapshot, self.snapshot = self.snapshot, None
        name, is_offline = self._repository.config.name, self._repository.shown.offline_since is not None
        self._credentials = (self._repository.origin.principal, self._seal())
        if snapshot is None or self._is_empty or (follows and not is_offline):
            return
        if snapshot.head.prefix != tree.top(name).prefix:
            return
        at_once = 0
        for each in snapshot.listings:
            self._recall_listing(tree, name, each)
            at_once += 1 + len(each.listing.entries)
            if at_once >= _APPLIED_AT_ONCE:
                at_once = 0
                await trio.lowlevel.checkpoint()
        lister.last_scan = snapshot.head.last_scan
        self._listed_at = snapshot.head.listed_at
        self._kept = tree.applied[name]

    def _recall_listing(self, tree: Tree, name: str, recalled: RecalledListing) -> None:
        listing, config = recalled.listing, self._repository.config
        directory = tree.find_directory(name, listing.prefix)
        too_large = len(listing.entries) > config.listing_limit and config.listing != ListingMode.WHOLE
        if directory is None or directory.prefix != listing.prefix or too_large:
            return
        served = self._repository.shown.served  # the settings may have been others
        listing.entries = {name: each and served(each) for name, each in listing.entries.items()}
        age_s = time.time() - recalled.listed_at
        is_believed = recalled.is_believed and age_s >= 0  # else the clock was set back
        is_believed = is_believed and not self._repository.publication.is_followed  # another tree may be published
        age_s = age_s if age_s >= 0 else FOREVER_S
        tree.recall(directory.inode, listing, trio.current_time(), age_s=age_s, is_believed=is_believed)
        self._recalled += len(listing.entries)

    async def run(self) -> None:
        """Keep what is listed, until cancelled."""
        while True:
            await trio.sleep(_LOOK_S)
            began_at = trio.current_time()
            try:
                tried = await self.save()
            except Exception:  # names that are not kept are listed again
                tried = True
                log.exception("keeping the names of %s failed unexpectedly", self._repository.config.url)
            if tried:
                await trio.sleep(max(_LEAST_REST_S, _REST * (trio.current_time() - began_at)))

    async def save(self) -> bool:
        """Keep what is known now, if there is anything new. True if it was tried."""
        self._notice_credentials()
        tree, lister, name = self._tree, self._lister, self._repository.config.name
        if tree is None or lister is None or self._is_empty:
            return False
        if tree.applied[name] == self._kept or not (about := self._about()):
            return False
        answers, directories = tree.applied[name], self._known_directories(tree, name)
        if not directories:
            return False
        entries = sum(len(each.children) for each in directories)
        head = SnapshotHead(
            about=about,
            seal=self._seal(),
            prefix=tree.top(name).prefix,
            listed_at=min(each.listed_at for each in directories),
            directories=len(directories),
            entries=entries,
            files=entries - sum(each.subdirectories for each in directories),
            last_scan=lister.last_scan,
        )
        before_bytes, write = self._saved_bytes, partial(self._write, head, directories)
        trouble = "the cache has no room"
        if self._directory.has_room(before_bytes or _ROOM_BYTES):
            trouble = await trio.to_thread.run_sync(write, abandon_on_cancel=True)
        self._kept = answers  # only now: a try that was given up counts for nothing
        self._directory.take(max(self._saved_bytes - before_bytes, 0))
        if trouble and trouble != self._told:
            log.warning("%s: its names are not kept for the next mount: %s", self._repository.config.url, trouble)
        self._told = trouble
        return True

    def _write(self, head: SnapshotHead, directories: Iterable[KnownDirectory]) -> str:
        """Write a snapshot; returns why that failed, or nothing."""
        directory = self._directory
        try:
            with self._writing:
                size_bytes = directory.names.write(head.about, encode(head, directories), directory.names_limit_bytes)
        except OSError as error:
            return error.strerror or str(error)
        except ValueError as error:
            return str(error)
        if not size_bytes:
            return "they are too many for the cache's size"
        self._saved_bytes, self._saved_at = size_bytes, time.time()
        return ""

    def _known_directories(self, tree: Tree, name: str) -> list[KnownDirectory]:
        """The listed directories, with what they have at this moment."""
        ahead_s = time.time() - trio.current_time()
        found = []
        for each in tree.listed_directories(name):
            if each.children is None or not each.linked or each.returned or each.asked_at <= self._since:
                continue
            listed_at = each.asked_at + ahead_s
            if listed_at <= 0:
                continue
            # A name that was asked for alone since, and was absent, lives shorter than a listing.
            singles = (each.singles or {}).values()
            is_doubtful = any(single.node is None and single.asked_at > each.asked_at for single in singles)
            is_believed = not (is_doubtful or each.stale or each.expires_at == float("-inf"))
            counts = (each.subdirectories, each.hidden_count, dict(each.withheld))
            found.append(KnownDirectory(each.prefix, listed_at, is_believed, each.children, *counts))
        return found

    @property
    def _is_empty(self) -> bool:
        """True while its directory is empty, and no store has accepted its credentials."""
        return self._repository.shown.away is not None and self._repository.shown.offline_since is None

    # --- whose names they are ---

    def begin_anew(self) -> None:
        """Keep nothing that was listed before now: other credentials have come."""
        self._since = trio.current_time()

    def _notice_credentials(self) -> None:
        """Begin anew where a file of keys, say, has others now. New keys of a session do not count as
        others: the SDK has renewed them."""
        (before, _), now = self._credentials, (self._repository.origin.principal, self._seal())
        if now[0] and now != self._credentials:
            self._credentials = now
            if before and not (now[0].startswith(SESSION) and before.startswith(SESSION)):
                self.begin_anew()

    def _about(self) -> str:
        """The subject of what is kept; empty where the identity of the credentials is not known."""
        principal, config = self._repository.origin.principal, self._repository.config
        if not principal and not self._is_shared:
            return ""
        identity = self._repository.origin.identity
        grantee = "shared" if self._is_shared else digest(self._directory.grant_key, principal)
        chosen = (config.url.prefix, config.include, config.exclude, config.publish_marker)
        store = (identity.scheme, identity.endpoint, identity.account, identity.bucket, config.endpoint_url)
        return json.dumps([*store, *map(str, chosen), grantee])

    def _seal(self) -> str:
        secret = self._repository.origin.lasting_secret
        return digest(self._directory.grant_key, f"secret {secret.get_secret_value()}") if secret else ""

    # --- what it says ---

    def describe(self) -> TreeCacheStatus:
        """The account of what was recalled and kept, for `status`."""
        shown = self._repository.shown
        return TreeCacheStatus(
            recalled=self._recalled,
            listed_at=self._listed_at,
            saved_at=self._saved_at,
            saved_bytes=self._saved_bytes,
            offline_since=shown.offline_since,
            offline_reason=shown.away.message if shown.away is not None and shown.offline_since is not None else "",
        )


class TreeKeepers:
    """The keepers of a mount's repositories, by name, as far as they have one."""

    def __init__(self, keepers: Mapping[str, TreeKeeper]) -> None:
        self.get = keepers.get
        self._keepers = keepers

    @classmethod
    def open(cls, repositories: Iterable[Repository], config: Config, directory: CacheDirectory) -> TreeKeepers:
        """The keepers that settings ask for. Where names are asked for one by one, nothing is listed."""
        if config.tree_cache == "off":
            return cls({})
        make = partial(
            TreeKeeper, directory=directory, shared=config.cache_trust == "shared", most_names=config.max_inodes
        )
        return cls({each.config.name: make(each) for each in repositories if each.config.listing != ListingMode.EXACT})

    async def recall(self, filesystem: Filesystem, nursery: trio.Nursery, *, follows: bool) -> None:
        """Give the tree what was read, and keep what it learns. See `TreeKeeper.recall`."""
        for name, keeper in self._keepers.items():
            await keeper.recall(filesystem.tree, filesystem.listers[name], follows=follows)
            nursery.start_soon(keeper.run)

    async def save(self) -> None:
        """Keep what is known at the end of a mount."""
        for keeper in self._keepers.values():
            await keeper.save()
