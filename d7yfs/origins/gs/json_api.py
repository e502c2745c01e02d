"""Google Cloud Storage's JSON API as far as reading needs it. Pure; an `Api` for `gs`.

https://cloud.google.com/storage/docs/json_api/v1/objects. An object's time is `timeCreated`, that of its generation: `updated` moves when
only metadata change, and a version's time must not.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from d7yfs.objects import ObjectVersion
from d7yfs.origins.gs.api import GsListing
from d7yfs.origins.origin import Checksums
from d7yfs.origins.rest import Reply

ENCODING_IS_LISTED = True
STAT_METHOD = "GET"
STAT_HEADERS: Mapping[str, str] = {}

_FIELDS = "name,size,generation,timeCreated,contentEncoding"


def list_path(bucket: str) -> str:
    """See `Api`."""
    return f"/storage/v1/b/{quote(bucket, safe='')}/o"


def list_query(prefix: str, delimiter: str, token: str, page_size: int) -> dict[str, str]:
    """See `Api`."""
    query = {"fields": f"kind,nextPageToken,prefixes,items({_FIELDS})", "prefix": prefix, "maxResults": str(page_size)}
    if delimiter:
        query["delimiter"] = delimiter
    if token:
        query["pageToken"] = token
    return query


def stat_path(bucket: str, key: str) -> str:
    """See `Api`."""
    return f"{list_path(bucket)}/{quote(key, safe='')}"


def stat_query() -> dict[str, str]:
    """See `Api`."""
    return {"fields": f"{_FIELDS},crc32c,md5Hash"}


def parse_list(reply: Reply) -> GsListing:
    """See `Api`."""
    page = _mapping(reply)
    if page.get("kind") != "storage#objects":
        raise ValueError("what answers is not Cloud Storage")
    return GsListing(
        tuple(_version(item) for item in page.get("items", ())),
        tuple(page.get("prefixes", ())),
        page.get("nextPageToken", ""),
    )


def parse_stat(reply: Reply, key: str) -> ObjectVersion:
    """See `Api`."""
    version = _version(_mapping(reply))
    if version.key != key:
        raise ValueError("the reply is about another object")
    return version


def parse_checksums(reply: Reply) -> tuple[str, Checksums]:
    """See `Api`."""
    item = _mapping(reply)
    crc32c, md5 = item.get("crc32c"), item.get("md5Hash")
    return str(item["generation"]), Checksums(
        crc32c=int.from_bytes(b64decode(crc32c), "big") if crc32c else None,
        md5=b64decode(md5).hex() if md5 else None,
    )


def error_code(reply: Reply) -> str:
    """The `reason` of an error (https://cloud.google.com/storage/docs/json_api/v1/status-codes); empty without one."""
    try:
        reason = json.loads(reply.body)["error"]["errors"][0]["reason"]
    except (ValueError, KeyError, IndexError, TypeError):
        return ""
    return reason if isinstance(reason, str) and reason.isalnum() and len(reason) < 80 else ""


def _mapping(reply: Reply) -> dict[str, Any]:
    found = json.loads(reply.body)
    if not isinstance(found, dict):
        raise ValueError("what answers is not Cloud Storage")
    return found


def _version(item: Mapping[str, str]) -> ObjectVersion:
    created = datetime.fromisoformat(item["timeCreated"])
    return ObjectVersion(
        item["name"],
        int(item["size"]),
        str(item["generation"]),
        int(created.timestamp()) * 1_000_000_000 + created.microsecond * 1000,
        encoding=item.get("contentEncoding", ""),
    )
