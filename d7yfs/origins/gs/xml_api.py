"""The part of Google Cloud Storage's XML API that reading needs. Pure.

It is the only API that takes HMAC keys. A listing names generations, but not how an object is
encoded. Times are cut to seconds, as a HEAD gives them.

https://cloud.google.com/storage/docs/xml-api/get-bucket-list and .../get-object-download.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from urllib.parse import quote

from d7yfs.bounds.values import read_size
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.origins.origin import Checksums
from d7yfs.origins.refusal import xml_code
from d7yfs.origins.rest import ControlReply
from d7yfs.origins.xml_listing import parse_listing, seconds_ns


class XmlApi:
    """The XML API. Parsers raise ValueError and KeyError for replies of something else."""

    ENCODING_IS_LISTED = False
    STAT_METHOD = "HEAD"
    STAT_HEADERS: Mapping[str, str] = {"Accept-Encoding": "gzip"}
    """Without it the reply to HEAD leaves out the size of an object that Google would decode."""

    def error_code(self, reply: ControlReply) -> str:
        """The code of a refusal; empty without one."""
        return xml_code(reply)

    def list_path(self, bucket: str) -> str:
        return f"/{quote(bucket, safe='')}"

    def list_query(self, prefix: str, delimiter: str, token: str, page_size: int) -> dict[str, str]:
        asked = {"prefix": prefix, "delimiter": delimiter, "continuation-token": token, "max-keys": str(page_size)}
        return {"list-type": "2", "encoding-type": "url", **asked}

    def stat_path(self, bucket: str, key: str) -> str:
        return f"/{quote(bucket, safe='')}/{quote(key, safe='/~')}"

    def stat_query(self) -> dict[str, str]:
        return {}

    def parse_list(self, reply: ControlReply, date_ns: int) -> ListingPage:
        page = parse_listing(reply.body, validator="Generation")
        token = page.next_token if page.truncated else ""
        if page.truncated and not token:
            raise ValueError("the listing is cut off and names no next page")
        return ListingPage(page.objects, page.prefixes, token, date_ns)

    def parse_stat(self, reply: ControlReply, key: str) -> ObjectVersion:
        headers = reply.headers
        return ObjectVersion(
            key,
            read_size(headers.get("x-goog-stored-content-length") or headers["content-length"]),
            headers["x-goog-generation"],
            seconds_ns(headers["last-modified"]),
        )

    def parse_checksums(self, reply: ControlReply) -> tuple[str, Checksums]:
        pairs = (pair.strip().partition("=") for pair in reply.headers.get("x-goog-hash", "").split(","))
        found = {name: b64decode(value) for name, _, value in pairs if name}
        crc32c, md5 = found.get("crc32c"), found.get("md5")
        return reply.headers["x-goog-generation"], Checksums(
            crc32c=int.from_bytes(crc32c, "big") if crc32c else None, md5=md5.hex() if md5 else None
        )
