"""List Blobs replies: XML to object versions and prefixes. Pure, and made for pages of thousands.

Format: https://learn.microsoft.com/rest/api/storageservices/list-blobs. Called by `azure` alone. The C parser builds the page's elements,
and each entry becomes its `ObjectVersion` in one step; what cannot be a listing is refused rather than taken for an empty one.

Directories that are things of their own come out as directory markers, keys that end in a slash, as other clouds have them: those of a
hierarchical namespace (ResourceType) and the empty stubs of blobfuse, Hadoop and AzCopy (metadata hdi_isfolder, which the listing has to
be asked for). Shown as they are they would be empty files in the place of directories.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote
from xml.etree import ElementTree

from d7yfs.objects import ObjectVersion

ARCHIVE_TIER = "Archive"
"""The one access tier whose blobs cannot be read until they are rehydrated."""


@dataclass(frozen=True, slots=True)
class Listing:
    """One page as the service sent it, but for directories."""

    objects: tuple[ObjectVersion, ...]
    prefixes: tuple[str, ...]
    next_marker: str


def parse(body: bytes) -> Listing:
    """Read one reply. Raises ValueError when it is no whole listing of blobs, and for document types, whose entities can make a
    small reply a huge one."""
    try:
        text = body.decode("utf-8-sig")  # here, lest the document chooses an encoding that hides the next line's word
        if "<!DOCTYPE" in text:
            raise ValueError("a document type, which no listing has")
        root = ElementTree.XML(text)
    except UnicodeDecodeError:
        raise ValueError("not in UTF-8") from None
    except ElementTree.ParseError as error:
        raise ValueError(f"broken XML: {error}") from None
    entries = root.find("Blobs")
    if root.tag != "EnumerationResults" or entries is None:
        raise ValueError("no listing of blobs")
    dates: dict[str, int] = {}
    objects = [_version(each, dates) for each in entries.iterfind("Blob")]
    if any(version.key.endswith("/") for version in objects):
        objects.sort(key=lambda version: version.key.encode())  # a directory's slash may move it behind its neighbours
    prefixes = tuple(_name(each.find("Name")) for each in entries.iterfind("BlobPrefix"))
    return Listing(tuple(objects), prefixes, root.findtext("NextMarker", ""))


def quoted(etag: str) -> str:
    """Listings leave out the quotes that an entity tag has everywhere else (RFC 9110, 8.8.3)."""
    return etag if etag.startswith(('"', "W/")) else f'"{etag}"'


def http_date_ns(text: str) -> int:
    """`Sat, 21 Nov 2026 10:55:00 GMT` in nanoseconds since the epoch. Raises ValueError."""
    return calendar.timegm(time.strptime(text, "%a, %d %b %Y %H:%M:%S GMT")) * 1_000_000_000


def is_directory(resource_type: str, hdi_isfolder: str) -> bool:
    """Whether what goes by a blob's name is a directory, by its resource type and its metadata."""
    return resource_type == "directory" or hdi_isfolder.lower() == "true"


def _version(blob: ElementTree.Element, dates: dict[str, int]) -> ObjectVersion:
    """`dates` are those read so far: blobs that were uploaded together share few."""
    parts = {each.tag: each for each in blob}
    fields = {each.tag: each.text or "" for each in parts.get("Properties", ())}
    # Metadata names keep the case that they were written in, and have no other meaning for it.
    metadata = {each.tag.lower(): each.text or "" for each in parts.get("Metadata", ())}
    key = _name(parts.get("Name"))
    if is_directory(fields.get("ResourceType", ""), metadata.get("hdi_isfolder", "")):
        key = key.rstrip("/") + "/"
    modified = _field(fields, "Last-Modified")
    if modified not in dates:
        dates[modified] = http_date_ns(modified)
    return ObjectVersion(
        key=key,
        size_bytes=int(_field(fields, "Content-Length")),
        validator=quoted(_field(fields, "Etag")),
        mtime_ns=dates[modified],
        archived=ARCHIVE_TIER if fields.get("AccessTier") == ARCHIVE_TIER else "",
        encoding=fields.get("Content-Encoding", ""),
    )


def _name(element: ElementTree.Element | None) -> str:
    if element is None or not element.text:
        raise ValueError("an entry leaves out its name")
    # Names with characters that XML has not are percent-encoded as a whole.
    return unquote(element.text) if element.get("Encoded") == "true" else element.text


def _field(fields: Mapping[str, str], name: str) -> str:
    if not fields.get(name):
        raise ValueError(f"an entry leaves out its {name}")
    return fields[name]
