"""The part of one repository that the file system needs, in plain values and functions."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from d7yfs.cache.filler import NewFiller
from d7yfs.cache.version import CachedVersion
from d7yfs.fs.rights import Rights
from d7yfs.objects import ObjectVersion, StoreIdentity
from d7yfs.stats.failures import FailuresStatus
from d7yfs.stats.models import Models
from d7yfs.tree.source import LIMIT, ListingMode, ListingSource, NothingPublished, PublishedSource


@dataclass(frozen=True, slots=True)
class RepositoryBackend:
    """The store, the filler and the options of one repository, for the file system."""

    url: str
    """The bucket's name for people, without secrets."""
    identity: StoreIdentity
    """The store's part of every cache key."""
    listings: ListingSource
    new_filler: NewFiller
    fills_blank: bool = False
    """True if its fillers may begin before a version has files in the cache."""
    listing: ListingMode = ListingMode.AUTO
    listing_limit: int = LIMIT
    published: PublishedSource = field(default_factory=NothingPublished)
    """The published tree, from which `listings` may answer."""
    revalidates: Callable[[str], bool] | None = None
    """True for a path below the repository that is asked for at every use; None: no path is."""
    route: Callable[[ObjectVersion], str] = lambda _: "origin"
    """The way by which a version came, or would come, in a word."""
    admit: Callable[[CachedVersion], Awaitable[None]] | None = None
    """Asked for each version that is opened, before a byte of it is read. Raises D7yfsError."""
    task_id: Callable[[ObjectVersion], Awaitable[str]] | None = None
    """The id of Dragonfly's task for a version, empty without one; None if Dragonfly has no
    part. Raises D7yfsError."""
    expected_s: Callable[[int], float] = lambda _: math.inf
    """Seconds until so many bytes of a version are there, if they are asked for now."""
    rights: Rights | None = None
    """The right of its credentials to read what is cached; None: they may read all of it."""
    models: Models = field(default_factory=Models)
    """The counters of the bytes that readers of each model were given."""
    failures: FailuresStatus = field(default_factory=FailuresStatus)
