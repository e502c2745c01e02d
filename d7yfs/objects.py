"""Values that every layer speaks: stores, object versions, listings, byte ranges, part arithmetic. Pure, no I/O.

Ranges are half-open `[start, stop)` throughout. An `ObjectVersion` never changes: a changed object is another
`ObjectVersion`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

BLOCK_BYTES = 1 << 20
"""Unit of presence and checksum in the cache. Part of the cache's on-disk format."""

PART_BYTES = 8 << 20
"""Unit of a direct fetch: large enough that a request's latency is small beside its transfer, small enough that several
in flight share a link. A multiple of BLOCK_BYTES."""


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """Half-open range of bytes `[start, stop)` with `0 <= start <= stop`."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"not a byte range: [{self.start}, {self.stop})")

    @property
    def size(self) -> int:
        return self.stop - self.start

    def __bool__(self) -> bool:
        return self.stop > self.start

    def __str__(self) -> str:
        return f"[{self.start}, {self.stop})"

    def intersects(self, other: ByteRange) -> bool:
        return self.start < other.stop and other.start < self.stop

    def clip(self, size_bytes: int) -> ByteRange:
        """The part of this range inside an object of `size_bytes`; empty when it starts at or after the end."""
        stop = min(self.stop, size_bytes)
        return ByteRange(min(self.start, stop), stop)

    def http(self) -> str:
        """Value of a `Range` header (RFC 9110, 14.2), whose last byte is inclusive. The range must not be empty."""
        if not self:
            raise ValueError("an empty range has no HTTP form")
        return f"bytes={self.start}-{self.stop - 1}"

    def aligned(self, unit: int, size_bytes: int) -> ByteRange:
        """The smallest range of whole `unit`s (the last one cut at `size_bytes`) that holds this one."""
        stop = min(-(-self.stop // unit) * unit, size_bytes)
        return ByteRange(min(self.start // unit * unit, stop), stop)

    def split(self, unit: int) -> list[ByteRange]:
        """This range cut at multiples of `unit`."""
        cuts = [self.start, *range((self.start // unit + 1) * unit, self.stop, unit), self.stop]
        return [ByteRange(a, b) for a, b in pairwise(cuts) if b > a]


@dataclass(frozen=True, slots=True, order=True)
class StoreIdentity:
    """One bucket or container of one store: equal on all hosts and for every way to name it. Part of every cache key and Dragonfly task."""

    scheme: str
    endpoint: str
    """`http[s]://host[:port][/path]` in normal form, on Azure the account's; or one word for all endpoints of a provider: `aws`, `google`,
    `aliyuncs.com`, `myhuaweicloud.com`."""
    bucket: str
    account: str = ""
    """The storage account that an Azure container (`bucket`) belongs to; empty for the other schemes."""

    @property
    def in_tasks(self) -> str:
        """How Dragonfly's content ids name the store. Never to be read back, nor to be changed: hosts of all releases share tasks."""
        return f"{self.scheme} {self.endpoint} {self.bucket}"


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """One version of one object, as a listing shows it.

    Identity is (key, validator, size). `version_id` only pins GETs where the origin offers it; listings do not carry it
    and it is no part of the identity.
    """

    key: str
    """Whole key within the bucket, without leading slash added or removed."""
    size_bytes: int
    validator: str
    """Strong validator as the origin sends it: an S3/OSS/OBS/Azure ETag *with* its quotes, or a GCS generation."""
    mtime_ns: int
    version_id: str = ""
    archived: str = ""
    """Name of the storage class when the object must be restored before it can be read, else empty."""
    encoding: str = ""
    """The Content-Encoding it is stored with, where the listing tells; the size is that of the stored bytes, which are never decoded."""

    @property
    def identity(self) -> tuple[str, str, int]:
        return (self.key, self.validator, self.size_bytes)

    @property
    def whole(self) -> ByteRange:
        return ByteRange(0, self.size_bytes)


class Withheld(NamedTuple):
    """An entry that exists and that settings hide: an object's key, or a directory's prefix, and why in a word."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class ListingPage:
    """One page of a listing: objects and, with a delimiter, common prefixes (ending in the delimiter)."""

    objects: tuple[ObjectVersion, ...]
    prefixes: tuple[str, ...]
    next_token: str
    """Continuation token; empty on the last page."""
    date_ns: int
    """The reply's Date in nanoseconds since the epoch (the origin's clock), or the local time where it sent none."""
    withheld: tuple[Withheld, ...] = ()
    """Entries that are no part of the page because settings say so (see `visibility`)."""
    left_out: int = 0
    """How many keys more than `objects` the origin listed: of what is withheld, and of what is below it."""
