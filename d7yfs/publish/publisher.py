"""Publishes one repository's tree: lists it once, and writes a snapshot and then the pointer to it.

The snapshot is whole in the store before anything names it, and no mount sees a state between two
publications. What is uploaded or deleted while the listing runs may or may not be in it, so publish
when uploads are over.

Called by `cli.publish`.
"""

from __future__ import annotations

import hashlib
import time
import zlib
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice

import trio

from d7yfs import __version__
from d7yfs.errors import NotFound, UsageError
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.origins.origin import Origin
from d7yfs.origins.survey import Empty, SingleObject, list_all, survey
from d7yfs.publish.writer import Writer
from d7yfs.tree.listing import HiddenKey, Scan
from d7yfs.tree.published import (
    ENTRIES_MAX,
    POINTER,
    SNAPSHOT_MAX_BYTES,
    Damaged,
    Pointer,
    PublishedTree,
    encode_listings,
)
from d7yfs.tree.reserved import hide_reserved

_PAGE = 1000
PUBLISHER = f"d7yfs/{__version__}"


@dataclass(frozen=True, slots=True)
class Published:
    """One publication that was made."""

    pointer: Pointer
    hidden: int
    """Keys that no name can show."""
    sample: HiddenKey | None
    requests: int
    """Requests of the listing."""


async def publish(origin: Origin, prefix: str, writer: Writer, *, allow_empty: bool) -> Published:
    """Publish the tree below `prefix` as it is now. Raises D7yfsError."""
    base = f"{prefix}/" if prefix else ""
    await _check_prefix(origin, prefix, allow_empty=allow_empty)
    before = await writer.find(POINTER)
    found, requests = await _list(origin, base)
    made, data = await trio.to_thread.run_sync(_encode, found, base, requests)
    await writer.write_snapshot(made.pointer.snapshot, data)
    await writer.write_pointer(POINTER, made.pointer.encode(), before)
    return made


async def _check_prefix(origin: Origin, prefix: str, *, allow_empty: bool) -> None:
    found = await survey(origin, prefix)
    if isinstance(found, SingleObject):
        raise UsageError(f"{origin.url}/{prefix}: is one object; publish the directory that it lies in")
    if isinstance(found, Empty) and not allow_empty:
        nearest = ", ".join(f"{origin.url}/{each}" for each in found.nearest)
        raise NotFound(
            f"{origin.url}/{prefix}: there is nothing under this prefix",
            hint=f"nearest that exist: {nearest}" if nearest else "--allow-empty publishes it all the same",
        )


async def _list(origin: Origin, base: str) -> tuple[list[ObjectVersion], int]:
    """All objects, and the number of requests. They need not come in order."""
    found: list[ObjectVersion] = []
    requests = 0
    async with aclosing(list_all(origin, base, delimiter="")) as pages:
        async for page in pages:
            requests += 1
            found += hide_reserved(page, base).objects
            if len(found) > ENTRIES_MAX:
                raise UsageError(f"{origin.url}/{base}: has more than {ENTRIES_MAX:,} objects: too many to publish")
    return found, requests


def _encode(found: list[ObjectVersion], base: str, requests: int) -> tuple[Published, bytes]:
    """The publication, and its snapshot."""
    scan = Scan(base)
    rest = iter(sorted(found, key=lambda each: each.key))
    while some := tuple(islice(rest, _PAGE)):
        scan.add(ListingPage(some, (), "more", 0))
    scan.add(ListingPage((), (), "", 0))
    listings = list(scan.listings())
    hidden = sum(each.hidden_count for each in listings)
    sample = next((key for each in listings for key in each.hidden), None)
    try:
        data, entries, directories, files = encode_listings(base, iter(listings), zlib.Z_DEFAULT_COMPRESSION)
        pointer = Pointer(
            sha256=hashlib.sha256(data).hexdigest(),
            size_bytes=len(data),
            entries=entries,
            directories=directories,
            files=files,
            published_at=round(time.time(), 3),
            publisher=PUBLISHER,
        )
        PublishedTree.open(data, Pointer.decode(pointer.encode()), base, time.time())  # as a mount will
    except (Damaged, ValueError) as error:
        most = f"at most {SNAPSHOT_MAX_BYTES >> 20} MiB and {ENTRIES_MAX:,} entries"
        raise UsageError(f"the tree cannot be published: {error} ({most})") from None
    return Published(pointer, hidden, sample, requests), data
