"""What a repository's store is asked about its names: pages of a listing, or about one name exactly.

`Listings` is what `lister` needs of a repository; it is implemented above it, over an origin. `ask` owns what two answers about one name
mean together, and when a name may be taken for a directory though nobody could see one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from enum import StrEnum
from typing import Protocol, TypeVar

import trio

from d7yfs.errors import AccessDenied, BucketNotFound, D7yfsError, NotFound
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.tree.listing import Answer, NoObject

T = TypeVar("T")


class Mode(StrEnum):
    """How directories are listed (`--listing`)."""

    AUTO = "auto"
    """Whole up to the limit, else by directory; exactly where listing is denied."""
    WHOLE = "whole"
    DIRECTORY = "directory"
    EXACT = "exact"


class Listings(Protocol):
    """What a repository can be asked. All raise D7yfsError."""

    def pages(self, prefix: str, *, delimiter: str = "/") -> AsyncGenerator[ListingPage, None]:
        """Every page of what lies under `prefix`, in key order; flat with `delimiter=""`. Where `prefix` is the key of one object: that.

        A flat one may raise `scan.Unordered`. Close it (`contextlib.aclosing`) when you leave early.
        """

    async def page(self, prefix: str, token: str) -> ListingPage:
        """One page of the delimiter listing of `prefix`: the first ("") or the one behind a continuation token."""

    async def stat(self, key: str) -> ObjectVersion:
        """The current version of `key`. Raises NotFound."""

    async def holds(self, prefix: str) -> bool:
        """Whether there is any key under `prefix`, which ends in a slash; itself included."""


async def ask(listings: Listings, key: str, *, trusting: bool) -> Answer:
    """What there is at `key`: of an object and a directory the directory. Two requests at once. Raises what they raise.

    Who may not list is not told of directories. So what is no object is taken for one then: it can be passed through, and who opens it is
    refused. Stores do not even tell those who may not list whether an object is absent or forbidden (S3 and Google answer 403 to both);
    that is taken for a directory too where the caller is `trusting`.
    """
    version: ObjectVersion | D7yfsError | None = None
    directory: bool | D7yfsError | None = None

    async def stat() -> None:
        nonlocal version
        version = await _outcome(lambda: listings.stat(key))

    async def look() -> None:
        nonlocal directory
        directory = await _outcome(lambda: listings.holds(f"{key}/"))
        if directory is True:
            nursery.cancel_scope.cancel()  # whatever the object is

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stat)
        nursery.start_soon(look)
    return _judge(version, directory, trusting=trusting)


async def _outcome(request: Callable[[], Awaitable[T]]) -> T | D7yfsError:
    try:
        return await request()
    except D7yfsError as error:
        return error


def _judge(
    version: ObjectVersion | D7yfsError | None, directory: bool | D7yfsError | None, *, trusting: bool
) -> Answer:
    assert directory is not None
    if directory is True:
        return NoObject.DIRECTORY
    if isinstance(directory, D7yfsError) and not isinstance(directory, AccessDenied):
        raise directory
    assert version is not None
    if isinstance(version, ObjectVersion):
        return version
    absent = isinstance(version, NotFound) and not isinstance(version, BucketNotFound)
    if absent and directory is False:
        return NoObject.ABSENT
    if directory is not False and (absent or (trusting and isinstance(version, AccessDenied))):
        return NoObject.DIRECTORY
    raise version
