"""The XML that S3 and its relatives list a bucket in, read into object versions. Pure; called by `s3`, `oss` and `obs`.

A page holds a thousand entries and a bucket many pages, so what is done per entry is as little as can be: the C parser
builds the page's elements, and each entry becomes its `ObjectVersion` in one step. Namespaces do not matter, unknown
elements are passed over, and what cannot be a listing is refused rather than taken for an empty one.

Elements: https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html; OSS calls the state of a restored object
RestoreInfo (https://www.alibabacloud.com/help/en/oss/developer-reference/listobjectsv2).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import lru_cache
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from d7yfs.objects import ObjectVersion


@dataclass(frozen=True, slots=True)
class XmlListing:
    """One page. Which of `next_token` (ContinuationToken) and `next_marker` counts depends on what was asked."""

    name: str
    """The bucket; empty where the store does not say."""
    truncated: bool
    next_token: str
    next_marker: str
    objects: tuple[ObjectVersion, ...]
    prefixes: tuple[str, ...]


def parse_listing(body: bytes, *, archives: Container[str] = ()) -> XmlListing:
    """The listing that `body` holds, keys decoded where it says that they are URL-encoded, times cut to seconds.

    `archives` are the storage classes without a readable copy until restored. Raises ValueError, in words that follow
    "s3://bucket/prefix: ", for anything else than a whole, well-formed listing, and for document types and their
    entities, which no store sends and which can make a small reply a huge one.
    """
    try:
        text = body.decode()  # here, lest the document chooses an encoding that hides the next line's word
        if "<!DOCTYPE" in text:
            raise ValueError("the listing has a document type, which is not accepted")
        root = ElementTree.XML(text)
    except (UnicodeDecodeError, ElementTree.ParseError) as error:
        raise ValueError(f"the listing is not XML: {error}") from None
    local = _LocalNames()
    if local[root.tag] != "ListBucketResult":
        raise ValueError(f"a listing was asked for, {local[root.tag]!r} came")
    page = _fields(root, local)
    truncated = page.get("IsTruncated", "false")
    if truncated not in ("true", "false"):
        raise ValueError(f"the listing is truncated: {truncated!r}")
    encoded = page.get("EncodingType") == "url"
    objects, prefixes = [], []
    try:
        for element in root:
            name = local[element.tag]
            if name == "Contents":
                fields = _fields(element, local)
                if encoded:
                    fields["Key"] = unquote_plus(fields["Key"])
                objects.append(_object(fields, element, archives))
            elif name == "CommonPrefixes":
                prefix = _fields(element, local)["Prefix"]
                prefixes.append(unquote_plus(prefix) if encoded else prefix)
    except KeyError as missing:
        raise ValueError(f"the listing leaves out {missing}") from None
    next_marker = page.get("NextMarker", "")
    return XmlListing(
        name=page.get("Name", ""),
        truncated=truncated == "true",
        next_token=page.get("NextContinuationToken", ""),
        next_marker=unquote_plus(next_marker) if encoded else next_marker,
        objects=tuple(objects),
        prefixes=tuple(prefixes),
    )


def entity_tag(etag: str) -> str:
    """Some stores leave out the quotes in listings; an entity tag has them (RFC 9110, 8.8.3)."""
    return etag if etag.startswith(('"', "W/")) else f'"{etag}"'


class _LocalNames(dict[str, str]):
    """Element names without their namespace, by the names with it; each is cut once."""

    def __missing__(self, name: str) -> str:
        local = self[name] = name.rpartition("}")[2]
        return local


def _fields(element: ElementTree.Element, local: _LocalNames) -> dict[str, str]:
    return {local[child.tag]: child.text or "" for child in element}


def _object(fields: dict[str, str], element: ElementTree.Element, archives: Container[str]) -> ObjectVersion:
    archived = fields.get("StorageClass", "")
    if archived and (archived not in archives or _restored(fields, element)):
        archived = ""
    size = fields["Size"]
    if not size.isdecimal():
        raise ValueError(f"the listing has an object of size {size!r}")
    return ObjectVersion(
        fields["Key"], int(size), entity_tag(fields["ETag"]), _seconds_ns(fields["LastModified"]), archived=archived
    )


def _restored(fields: dict[str, str], element: ElementTree.Element) -> bool:
    if 'ongoing-request="false"' in fields.get("RestoreInfo", ""):
        return True
    return any(child.tag.endswith("RestoreExpiryDate") for child in element.iter())


@lru_cache(maxsize=1024)  # what was uploaded together has few of them
def _seconds_ns(text: str) -> int:
    """A moment in ISO 8601, or in a header's form; in UTC where it names no zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        try:
            moment = parsedate_to_datetime(text)
        except ValueError:
            raise ValueError(f"the listing has an object of time {text!r}") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1_000_000_000
