"""Values that every layer speaks: stores, object versions, listings, byte ranges, part arithmetic,
secrets. Pure, no I/O.

Ranges are half-open `[start, stop)` throughout. An `ObjectVersion` never changes: a changed object
is another `ObjectVersion`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

BLOCK_BYTES = 1 << 20
"""Unit of presence and checksum in the cache. Part of the cache's on-disk format."""

PART_BYTES = 8 << 20
"""Unit of a direct fetch: large enough that a request's latency is small against its transfer,
small enough that several in flight share a link. A multiple of BLOCK_BYTES."""


_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters (C0, C1), line separators, bidirectional controls (Unicode Standard Annex 9),
and halves of surrogates, which no encoding takes."""


def printable(text: str) -> str:
    """`text` as it may be shown in a terminal or in a line of a log, escaped as in Python.

    The names in a store are chosen by whoever can upload. Unescaped they could forge lines of the
    log and drive the terminal of an administrator.
    """
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


@dataclass(frozen=True, slots=True)
class SecretStr:
    """A text that is not shown when it, or a value that holds it, is printed or logged."""

    _text: str

    def get_secret_value(self) -> str:
        return self._text

    def __len__(self) -> int:
        return len(self._text)

    def __repr__(self) -> str:
        return "SecretStr('**********')" if self._text else "SecretStr('')"

    __str__ = __repr__


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
        """The part of this range inside an object of `size_bytes`; empty from the end on."""
        stop = min(self.stop, size_bytes)
        return ByteRange(min(self.start, stop), stop)

    def http(self) -> str:
        """Value of a `Range` header (RFC 9110, 14.2), last byte inclusive; not if empty."""
        if not self:
            raise ValueError("an empty range has no HTTP form")
        return f"bytes={self.start}-{self.stop - 1}"

    def aligned(self, unit: int, size_bytes: int) -> ByteRange:
        """The smallest range of whole `unit`s around this one, cut at `size_bytes`."""
        stop = min(-(-self.stop // unit) * unit, size_bytes)
        return ByteRange(min(self.start // unit * unit, stop), stop)

    def split(self, unit: int) -> list[ByteRange]:
        """This range cut at multiples of `unit`."""
        cuts = [self.start, *range((self.start // unit + 1) * unit, self.stop, unit), self.stop]
        return [ByteRange(a, b) for a, b in pairwise(cuts) if b > a]


@dataclass(frozen=True, slots=True, order=True)
class StoreIdentity:
    """One bucket or container of one store, equal on all hosts and for every spelling. Part of
    every cache key and Dragonfly task."""

    scheme: str
    endpoint: str
    """`http[s]://host[:port][/path]` in normal form, on Azure the account's; or one word for all
    endpoints of a provider: `aws`, `google`, `aliyuncs.com`, `myhuaweicloud.com`."""
    bucket: str
    account: str = ""
    """The storage account of an Azure container (`bucket`); empty for the other schemes."""

    @property
    def in_tasks(self) -> str:
        """The store's name in Dragonfly's content ids; never changes: all releases share tasks."""
        return f"{self.scheme} {self.endpoint} {self.bucket}"


WITHOUT_AGENT = " without Dragonfly's agent"
"""The edit of a model's configuration in which Dragonfly's repository agent is blanked."""


@dataclass(slots=True, unsafe_hash=True)
class ObjectVersion:
    """One version of one object, as a listing shows it.

    Identity is (key, validator, size), and what d7yfs changes of its bytes. `version_id` only pins
    GETs if the origin offers it; listings do not have it, and it is no part of the identity.

    Nothing of it changes. mypy sees to that: frozen ones take four times as long to make, and a listing
    makes thousands.
    """

    key: Final[str]
    """Whole key within the bucket, without leading slash added or removed."""
    size_bytes: Final[int]
    validator: Final[str]
    """Strong validator as the origin sends it: an ETag *with* its quotes, or a GCS generation."""
    mtime_ns: Final[int]
    version_id: Final[str] = ""
    archived: Final[str] = ""
    """The storage class, if the object must be restored before it can be read; else empty."""
    encoding: Final[str] = ""
    """The stored Content-Encoding, if the listing has it; stored bytes are never decoded."""
    fault: Final[str] = ""
    """The reason why a listed object cannot be shown, in words; it has no size and no time then."""
    edit: Final[str] = ""
    """The change that a mount's settings make to its bytes, never to its size: `WITHOUT_AGENT` or empty."""

    @property
    def identity(self) -> tuple[str, str, int]:
        """The identity of the bytes as they are served: no validator looks like one with an edit."""
        return (self.key, self.validator + self.edit, self.size_bytes)

    def is_stored_as(self, stored: ObjectVersion) -> bool:
        """True if `stored` is this version in its store, whatever is changed of it here."""
        return (self.key, self.validator, self.size_bytes) == (stored.key, stored.validator, stored.size_bytes)

    @property
    def whole(self) -> ByteRange:
        return ByteRange(0, self.size_bytes)


class Withheld(NamedTuple):
    """An entry that settings hide: an object's key or a directory's prefix, and the reason."""

    key: str
    reason: str


@dataclass(frozen=True, slots=True)
class ListingPage:
    """One page of a listing: objects and, with a delimiter, common prefixes (ending in it)."""

    objects: tuple[ObjectVersion, ...]
    prefixes: tuple[str, ...]
    next_token: str
    """Continuation token; empty on the last page."""
    date_ns: int
    """The reply's Date (the origin's clock) in ns since the epoch; local time if it sent none."""
    withheld: tuple[Withheld, ...] = ()
    """Entries that settings hide, and that are therefore no part of the page (see `visibility`)."""
    left_out: int = 0
    """Number of keys that the origin listed besides `objects`: withheld ones, and those below."""
