"""Google Cloud Storage's XML API as far as reading needs it: the only one that HMAC keys are good for. Pure; an `Api` for `gs`.

https://cloud.google.com/storage/docs/xml-api/get-bucket-list and .../get-object-download. A listing names generations, but not how an
object is encoded. Times are cut to seconds, as a HEAD gives them.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote, unquote_plus
from xml.etree import ElementTree

from d7yfs.objects import ObjectVersion
from d7yfs.origins.gs.api import GsListing
from d7yfs.origins.origin import Checksums
from d7yfs.origins.refusal import xml_code
from d7yfs.origins.rest import Reply

ENCODING_IS_LISTED = False
STAT_METHOD = "HEAD"
STAT_HEADERS: Mapping[str, str] = {"Accept-Encoding": "gzip"}
"""Else the reply to HEAD leaves out the size of what it would decode."""

error_code = xml_code


def list_path(bucket: str) -> str:
    """See `Api`."""
    return f"/{quote(bucket, safe='')}"


def list_query(prefix: str, delimiter: str, token: str, page_size: int) -> dict[str, str]:
    """See `Api`."""
    query = {"list-type": "2", "encoding-type": "url", "prefix": prefix, "max-keys": str(page_size)}
    if delimiter:
        query["delimiter"] = delimiter
    if token:
        query["continuation-token"] = token
    return query


def stat_path(bucket: str, key: str) -> str:
    """See `Api`."""
    return f"/{quote(bucket, safe='')}/{quote(key, safe='/~')}"


def stat_query() -> dict[str, str]:
    """See `Api`."""
    return {}


def parse_list(reply: Reply) -> GsListing:
    """See `Api`."""
    if b"<!DOCTYPE" in reply.body:
        raise ValueError("the listing has a document type, which is not accepted")
    try:
        # The encoding is given so that the test above sees what the parser does.
        root = ElementTree.XML(reply.body, ElementTree.XMLParser(encoding="utf-8"))  # noqa: S314 - no entities without a document type
    except ElementTree.ParseError as error:
        raise ValueError(f"the listing is not XML: {error}") from None
    if root.tag.rpartition("}")[2] != "ListBucketResult":
        raise ValueError("what answers is not Cloud Storage")
    space = root.tag.rpartition("ListBucketResult")[0]
    decode = unquote_plus if root.findtext(f"{space}EncodingType") == "url" else str
    objects, prefixes = [], []
    for element in root:
        if element.tag == f"{space}Contents":
            fields = {child.tag.rpartition("}")[2]: child.text or "" for child in element}
            mtime_ns = int(datetime.fromisoformat(fields["LastModified"]).timestamp()) * 1_000_000_000
            objects.append(
                ObjectVersion(decode(fields["Key"]), int(fields["Size"]), fields["Generation"].strip(), mtime_ns)
            )
        elif element.tag == f"{space}CommonPrefixes":
            prefixes.append(decode(element.findtext(f"{space}Prefix") or ""))
    truncated = root.findtext(f"{space}IsTruncated") == "true"
    token = root.findtext(f"{space}NextContinuationToken", "") if truncated else ""
    if truncated and not token:
        raise ValueError("the listing is cut off and names no next page")
    return GsListing(tuple(objects), tuple(prefixes), token)


def parse_stat(reply: Reply, key: str) -> ObjectVersion:
    """See `Api`; without the encoding, as in listings."""
    headers = reply.headers
    modified = parsedate_to_datetime(headers["last-modified"])
    return ObjectVersion(
        key,
        int(headers.get("x-goog-stored-content-length") or headers["content-length"]),
        headers["x-goog-generation"],
        int(modified.timestamp()) * 1_000_000_000,
    )


def parse_checksums(reply: Reply) -> tuple[str, Checksums]:
    """See `Api`."""
    pairs = (pair.strip().partition("=") for pair in reply.headers.get("x-goog-hash", "").split(","))
    found = {name: b64decode(value) for name, _, value in pairs if name}
    crc32c, md5 = found.get("crc32c"), found.get("md5")
    return reply.headers["x-goog-generation"], Checksums(
        crc32c=int.from_bytes(crc32c, "big") if crc32c else None, md5=md5.hex() if md5 else None
    )
