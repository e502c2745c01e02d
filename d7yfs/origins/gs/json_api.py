"""The part of Google Cloud Storage's JSON API that reading needs. Pure.

https://cloud.google.com/storage/docs/json_api/v1/objects. An object's time is `timeCreated`, that
of its generation: `updated` moves when only metadata change, and a version's time must not.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from d7yfs.bounds.values import bounded_text, excerpt, read_integer, read_json, read_size, read_time
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.origins.origin import Checksums
from d7yfs.origins.rest import ControlReply
from d7yfs.origins.xml_listing import faulty

_FIELDS = "name,size,generation,timeCreated,contentEncoding"


class JsonApi:
    """The JSON API. Parsers raise ValueError and KeyError for replies of something else."""

    ENCODING_IS_LISTED = True
    STAT_METHOD = "GET"
    STAT_HEADERS: Mapping[str, str] = {}

    def list_path(self, bucket: str) -> str:
        return f"/storage/v1/b/{quote(bucket, safe='')}/o"

    def list_query(self, prefix: str, delimiter: str, token: str, page_size: int) -> dict[str, str]:
        fields = f"kind,nextPageToken,prefixes,items({_FIELDS})"
        asked = {"prefix": prefix, "delimiter": delimiter, "pageToken": token, "maxResults": str(page_size)}
        return {"fields": fields, **asked}

    def stat_path(self, bucket: str, key: str) -> str:
        return f"{self.list_path(bucket)}/{quote(key, safe='')}"

    def stat_query(self) -> dict[str, str]:
        return {"fields": f"{_FIELDS},crc32c,md5Hash"}

    def parse_list(self, reply: ControlReply, date_ns: int) -> ListingPage:
        page = _mapping(reply)
        if page.get("kind") != "storage#objects":
            raise ValueError("the reply is not Cloud Storage's")
        return ListingPage(
            tuple(_listed(item) for item in page.get("items", ())),
            tuple(map(_text, page.get("prefixes", ()))),
            page.get("nextPageToken", ""),
            date_ns,
        )

    def parse_stat(self, reply: ControlReply, key: str) -> ObjectVersion:
        version = _version(_mapping(reply))
        if version.key != key:
            raise ValueError("the reply is about another object")
        return version

    def parse_checksums(self, reply: ControlReply) -> tuple[str, Checksums]:
        item = _mapping(reply)
        crc32c, md5 = item.get("crc32c"), item.get("md5Hash")
        return str(item["generation"]), Checksums(
            crc32c=int.from_bytes(b64decode(crc32c), "big") if crc32c else None,
            md5=b64decode(md5).hex() if md5 else None,
        )

    def error_code(self, reply: ControlReply) -> str:
        """The `reason` of an error; empty without one."""
        try:
            reason = read_json(reply.body)["error"]["errors"][0]["reason"]
        except (ValueError, KeyError, IndexError, TypeError):
            return ""
        return reason if isinstance(reason, str) and reason.isalnum() and len(reason) < 80 else ""


def _mapping(reply: ControlReply) -> dict[str, Any]:
    found = read_json(reply.body)
    if not isinstance(found, dict):
        raise ValueError("the reply is not Cloud Storage's")
    return found


def _listed(item: Mapping[str, str]) -> ObjectVersion:
    try:
        return _version(item)
    except ValueError as error:
        return faulty(_text(item["name"]), error)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"it names an object {excerpt(value)}")
    return value


def _version(item: Mapping[str, str]) -> ObjectVersion:
    created = read_time(item["timeCreated"])
    return ObjectVersion(
        _text(item["name"]),
        read_size(item["size"]),
        str(read_integer(item["generation"])),
        int(created.timestamp()) * 1_000_000_000 + created.microsecond * 1000,
        encoding=bounded_text(item.get("contentEncoding", "")),
    )
