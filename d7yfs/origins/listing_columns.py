"""A page of a listing as columns: the form in which the process that parses hands it over. Pure.

A thousand entries are read from this in a tenth of the time that their XML takes. Lengths first, then
JSON for the page and for entries out of the ordinary, sizes and times as integers of 64 bits, and the
keys and validators as text, each column whole.
"""

from __future__ import annotations

import json
import struct
from array import array

from d7yfs.objects import ObjectVersion
from d7yfs.origins.xml_listing import XmlListing

_LENGTHS = struct.Struct("=III")
"""The bytes of the JSON, the number of entries, the bytes of the text."""
_BETWEEN = "\0"


def encode(listing: XmlListing) -> bytes:
    """The columns of a page. Raises ValueError for one that has no such form."""
    objects = listing.objects
    odd = [[index, each.archived, each.fault] for index, each in enumerate(objects) if each.archived or each.fault]
    text = _BETWEEN.join([*(each.key for each in objects), *(each.validator for each in objects)])
    if objects and text.count(_BETWEEN) != 2 * len(objects) - 1:
        raise ValueError("a key or a validator has a NUL")
    page = [listing.truncated, listing.next_token, listing.next_marker, listing.prefixes, odd]
    head, texts = json.dumps(page).encode(), text.encode()
    numbers = array("q", [each.size_bytes for each in objects] + [each.mtime_ns for each in objects])
    return b"".join((_LENGTHS.pack(len(head), len(objects), len(texts)), head, numbers.tobytes(), texts))


def decode(columns: bytes) -> XmlListing:
    """The page. Raises ValueError for anything else."""
    try:
        head_bytes, count, text_bytes = _LENGTHS.unpack_from(columns)
        numbers_at = _LENGTHS.size + head_bytes
        text_at = numbers_at + 2 * count * 8
        if len(columns) != text_at + text_bytes:
            raise ValueError("columns of another length")
        truncated, next_token, next_marker, prefixes, odd = json.loads(columns[_LENGTHS.size : numbers_at])
        numbers = array("q", columns[numbers_at:text_at])
        texts = columns[text_at:].decode().split(_BETWEEN) if count else []
        if len(texts) != 2 * count:
            raise ValueError("columns of different lengths")
        objects = list(map(ObjectVersion, texts[:count], numbers[:count], texts[count:], numbers[count:]))
        for index, archived, fault in odd:
            plain = objects[index]
            objects[index] = ObjectVersion(
                plain.key, plain.size_bytes, plain.validator, plain.mtime_ns, archived=archived, fault=fault
            )
        return XmlListing(truncated, next_token, next_marker, tuple(objects), tuple(prefixes))
    except (struct.error, TypeError, IndexError) as error:
        raise ValueError(f"no columns of a listing: {error}") from None
