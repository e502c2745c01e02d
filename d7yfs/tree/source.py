"""The questions that a repository's store answers about names: pages of a listing, or one name
exactly.

`ListingSource` is what the lister needs of a repository; `repository` implements it over an origin.
`ask` owns the meaning of two answers about one name, and when a name is taken for a directory that
cannot be listed.
"""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Callable
from enum import StrEnum
from typing import Protocol

import trio

from d7yfs.errors import AccessDenied, BucketNotFound, D7yfsError, NotFound
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.tree.listing import Answer, NoObject

LIMIT = 20_000
"""The default of the most objects listed whole, and the most entries of a directory kept."""


class ListingMode(StrEnum):
    """The way in which directories are listed (`--listing`)."""

    AUTO = "auto"
    """As published, if it is; else whole up to the limit, else by directory; exactly where listing is
    denied."""
    WHOLE = "whole"
    DIRECTORY = "directory"
    EXACT = "exact"
    PUBLISHED = "published"
    """Not at all: names come from what `d7yfs publish` wrote."""


class ListingSource(Protocol):
    """The store of one repository, as far as names go. All methods raise D7yfsError."""

    def pages(self, prefix: str, *, delimiter: str = "/") -> AsyncGenerator[ListingPage, None]:
        """Every page under `prefix`, in key order; flat with `delimiter=""`. If `prefix` is the key
        of an object: that alone.

        A flat listing may raise `listing.Unordered`. Close it (`contextlib.aclosing`) when you
        leave early.
        """

    async def page(self, prefix: str, token: str) -> ListingPage:
        """One page of the delimiter listing of `prefix`: the first ("") or the one after a
        continuation token."""

    async def stat(self, key: str) -> ObjectVersion:
        """The current version of `key`. Raises NotFound."""

    async def holds(self, prefix: str) -> bool:
        """True if there is any key under `prefix`, which ends in a slash; itself included."""


class PublishedSource(Protocol):
    """The published tree of a repository, as far as the lister and the refresher see it."""

    on_switched: Callable[[], None]
    """Called once the source answers from another tree, or from the store again; it must not await."""
    on_confirmed: Callable[[float], None]
    """Called with the time of each question that was answered."""

    @property
    def is_followed(self) -> bool:
        """True if the source answers from what is published, by no request for a directory."""

    @property
    def asked_at(self) -> float:
        """When it was asked last what is published, in trio's seconds."""

    @property
    def answered_at(self) -> float | None:
        """When the store last answered that; None where nothing is followed."""

    async def renew(self) -> None:
        """Ask now whether something else is published. Raises D7yfsError."""

    def note_gone(self, version: ObjectVersion) -> None:
        """Note that a read found an object other than it was published."""


class NothingPublished:
    """The `PublishedSource` of a store that is listed."""

    is_followed = False
    asked_at = -math.inf
    answered_at = None

    def __init__(self) -> None:
        self.on_switched: Callable[[], None] = lambda: None
        self.on_confirmed: Callable[[float], None] = lambda _: None

    async def renew(self) -> None:
        """There is nothing to ask."""

    def note_gone(self, version: ObjectVersion) -> None:
        """Listings tell of it."""


async def ask(listings: ListingSource, key: str, *, trusting: bool) -> Answer:
    """Ask what there is at `key`; a directory wins over an object. Sends two requests at once, and
    raises their errors.

    A client without the right to list is not told of directories. So a name that is no object is
    taken for a directory: a path may lead through it, and opening it is refused. S3 and Google
    answer 403 to such a client for an absent object too. If the caller is `trusting`, that is taken
    for a directory as well.
    """
    version: ObjectVersion | D7yfsError | None = None
    failure: D7yfsError | None = None

    async def stat() -> None:
        nonlocal version
        try:
            version = await listings.stat(key)
        except D7yfsError as error:
            version = error

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stat)
        try:
            if await listings.holds(f"{key}/"):
                nursery.cancel_scope.cancel()  # whatever the object is
                return NoObject.DIRECTORY
        except D7yfsError as error:
            failure = error
    if failure is not None and not isinstance(failure, AccessDenied):
        raise failure
    assert version is not None
    if isinstance(version, ObjectVersion):
        return version
    absent = isinstance(version, NotFound) and not isinstance(version, BucketNotFound)
    if absent and failure is None:
        return NoObject.ABSENT
    if failure is not None and (absent or (trusting and isinstance(version, AccessDenied))):
        return NoObject.DIRECTORY
    raise version
