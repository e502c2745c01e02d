"""List Blobs replies, from XML to object versions and prefixes. Pure.

Format: https://learn.microsoft.com/rest/api/storageservices/list-blobs. A document that cannot be a
listing is refused, not taken for an empty one.

Some entries are directories: those of a hierarchical namespace (ResourceType), and the empty stubs
of blobfuse, Hadoop and AzCopy (metadata hdi_isfolder, which the request must ask for). They become
directory markers, keys that end in a slash, as on other clouds. Unchanged they would be empty files
in the place of directories.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote
from xml.etree import ElementTree

from d7yfs.bounds.values import bounded_text, read_size
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.origins.headers import entity_tag
from d7yfs.origins.xml_listing import faulty, parse_root, seconds_ns

ARCHIVE_TIER = "Archive"
"""The one access tier whose blobs cannot be read until they are rehydrated."""


def parse(body: bytes, date_ns: int) -> ListingPage:
    """The page in a reply of that date. Raises ValueError if it is no whole listing."""
    root = parse_root(body)
    entries = root.find("Blobs")
    if root.tag != "EnumerationResults" or entries is None:
        raise ValueError("no listing of blobs")
    objects = [_version(each) for each in entries.iterfind("Blob")]
    if any(version.key.endswith("/") for version in objects):
        objects.sort(key=lambda version: version.key.encode())  # a directory's slash may move it behind its neighbours
    prefixes = tuple(_name(each.find("Name")) for each in entries.iterfind("BlobPrefix"))
    return ListingPage(tuple(objects), prefixes, root.findtext("NextMarker", ""), date_ns)


def is_directory(resource_type: str, hdi_isfolder: str) -> bool:
    """True if a blob's resource type or metadata says that it is a directory."""
    return resource_type == "directory" or hdi_isfolder.lower() == "true"


def _version(blob: ElementTree.Element) -> ObjectVersion:
    parts = {each.tag: each for each in blob}
    fields = {each.tag: each.text or "" for each in parts.get("Properties", ())}
    # Metadata names keep the case of the upload, which has no meaning.
    metadata = {each.tag.lower(): each.text or "" for each in parts.get("Metadata", ())}
    key = _name(parts.get("Name"))
    if is_directory(fields.get("ResourceType", ""), metadata.get("hdi_isfolder", "")):
        key = key.rstrip("/") + "/"
    size, etag, time = (_field(fields, name) for name in ("Content-Length", "Etag", "Last-Modified"))
    try:
        size_bytes, mtime_ns, validator = read_size(size), seconds_ns(time), bounded_text(entity_tag(etag))
        encoding = bounded_text(fields.get("Content-Encoding", ""))
    except ValueError as error:
        return faulty(key, error)
    return ObjectVersion(
        key=key,
        size_bytes=size_bytes,
        validator=validator,
        mtime_ns=mtime_ns,
        archived=ARCHIVE_TIER if fields.get("AccessTier") == ARCHIVE_TIER else "",
        encoding=encoding,
    )


def _name(element: ElementTree.Element | None) -> str:
    if element is None or not element.text:
        raise ValueError("an entry leaves out its name")
    # Names with characters that XML lacks are percent-encoded as a whole.
    return unquote(element.text) if element.get("Encoded") == "true" else element.text


def _field(fields: Mapping[str, str], name: str) -> str:
    if not fields.get(name):
        raise ValueError(f"an entry leaves out its {name}")
    return fields[name]
