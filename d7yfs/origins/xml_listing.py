"""The XML listings of S3 and its relatives, read into object versions. Pure.

A page holds a thousand entries and a bucket many pages, so the work per entry is minimal. The C
parser builds the page's elements, and each entry becomes its `ObjectVersion` in one step.
Namespaces do not matter and unknown elements are passed over. A document that cannot be a listing
is refused, not taken for an empty one.

Elements: https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html; OSS calls the
state of a restored object RestoreInfo
(https://www.alibabacloud.com/help/en/oss/developer-reference/listobjectsv2), and Google names a
Generation (https://cloud.google.com/storage/docs/xml-api/get-bucket-list).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from d7yfs.bounds.values import bounded_text, excerpt, read_size, read_time
from d7yfs.objects import ObjectVersion
from d7yfs.origins.headers import entity_tag

_ELEMENTS_MAX = 1 << 18
"""The most tags of a page: 26 for each of 10,000 entries."""
_ATTRIBUTES_MAX = 1 << 20
"""The most equals signs of a page: a thousand keys may be made of them."""


@dataclass(frozen=True, slots=True)
class XmlListing:
    """One page; by the request, `next_token` (ContinuationToken) or `next_marker` counts."""

    truncated: bool
    next_token: str
    next_marker: str
    objects: tuple[ObjectVersion, ...]
    prefixes: tuple[str, ...]


def parse_root(body: bytes) -> ElementTree.Element:
    """The root element of a listing. Raises ValueError for anything but well-formed XML in UTF-8.

    Document types are refused too: no store sends them, and their entities can make a small reply a
    huge one.
    """
    try:
        # Decoded here, so that the document cannot choose an encoding that hides its document type.
        text = body.decode("utf-8-sig")
        if "<!DOCTYPE" in text:
            raise ValueError("the listing has a document type, which is not accepted")
        if text.count("<") > _ELEMENTS_MAX or text.count("=") > _ATTRIBUTES_MAX:
            raise ValueError("the listing has more elements than a page can have")
        return ElementTree.XML(text)
    except (UnicodeDecodeError, ElementTree.ParseError) as error:
        raise ValueError(f"the listing is not XML: {error}") from None


def parse_listing(body: bytes, *, archives: Container[str] = (), validator: str = "ETag") -> XmlListing:
    """The listing in `body`, with URL-encoded keys decoded and times cut to seconds.

    `archives` are the storage classes without a readable copy until restored; `validator` is the
    element that tells versions apart. Raises ValueError, in words that follow "s3://bucket/prefix:
    ", for anything but a whole, well-formed listing.
    """
    root = parse_root(body)
    local = _LocalNames()
    if local[root.tag] != "ListBucketResult":
        raise ValueError(f"a listing was asked for, {excerpt(local[root.tag])} came")
    page = _fields(root, local)
    truncated = page.get("IsTruncated", "false")
    if truncated not in ("true", "false"):
        raise ValueError(f"the listing is truncated: {excerpt(truncated)}")
    encoded = page.get("EncodingType") == "url"
    objects, prefixes = [], []
    try:
        for element in root:
            name = local[element.tag]
            if name == "Contents":
                fields = _fields(element, local)
                if encoded:
                    fields["Key"] = unquote_plus(fields["Key"])
                objects.append(_version(fields, element, archives, validator))
            elif name == "CommonPrefixes":
                prefix = _fields(element, local)["Prefix"]
                prefixes.append(unquote_plus(prefix) if encoded else prefix)
    except KeyError as missing:
        raise ValueError(f"the listing leaves out {missing}") from None
    next_marker = page.get("NextMarker", "")
    return XmlListing(
        truncated=truncated == "true",
        next_token=page.get("NextContinuationToken", ""),
        next_marker=unquote_plus(next_marker) if encoded else next_marker,
        objects=tuple(objects),
        prefixes=tuple(prefixes),
    )


class _LocalNames(dict[str, str]):
    """Element names without their namespace, by the names with it; each name is cut once."""

    def __missing__(self, name: str) -> str:
        local = self[name] = name.rpartition("}")[2]
        return local


def _fields(element: ElementTree.Element, local: _LocalNames) -> dict[str, str]:
    return {local[child.tag]: child.text or "" for child in element}


def _version(
    fields: dict[str, str], element: ElementTree.Element, archives: Container[str], validator: str
) -> ObjectVersion:
    archived = fields.get("StorageClass", "")
    if archived and (archived not in archives or _restored(fields, element)):
        archived = ""
    key, size, time = fields["Key"], fields["Size"], fields["LastModified"]
    proof = entity_tag(fields["ETag"]) if validator == "ETag" else fields[validator].strip()
    try:
        return ObjectVersion(key, read_size(size), bounded_text(proof), seconds_ns(time), archived=archived)
    except ValueError as error:
        return faulty(key, error)


def faulty(key: str, error: ValueError) -> ObjectVersion:
    """An object of a listing that says of it what cannot be."""
    return ObjectVersion(key, 0, "", 0, fault=f"the store lists {error}")


def _restored(fields: dict[str, str], element: ElementTree.Element) -> bool:
    if 'ongoing-request="false"' in fields.get("RestoreInfo", ""):
        return True
    return any(child.tag.endswith("RestoreExpiryDate") for child in element.iter())


@lru_cache(maxsize=1024)  # objects that were uploaded together share few times
def seconds_ns(text: str) -> int:
    """Nanoseconds since the epoch of an ISO 8601 or header time; UTC without a zone. Raises
    ValueError."""
    return int(read_time(text).timestamp()) * 1_000_000_000
