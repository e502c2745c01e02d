"""What a request must say so that dfdaemon's proxy treats it as one task per object version. Pure.

Owns the headers of proxied requests, the names of query parameters that are no part of a task's identity, and the reading of dfdaemon's
error marks. The facts were measured on dfdaemon 1.5 (docs/design.md); header names: `dragonfly-client/src/proxy/header.rs` of its source.

dfdaemon never revalidates a task it knows. So the version is bound into the task by a content id, made of everything that identifies the
version and equal on all hosts; `If-Match` keeps a cold task from being made of another version.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from enum import Enum
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from d7yfs.objects import ObjectVersion

MAX_DIRECT_BYTES = 4 << 20
"""Ranges of at most this size skip scheduler and peers in dfdaemon anyway: they are fetched straight from the origin."""

DEFAULT_FILTERED_PARAMS = (
    "X-Amz-Algorithm",
    "X-Amz-Credential",
    "X-Amz-Date",
    "X-Amz-Expires",
    "X-Amz-Security-Token",
    "X-Amz-Signature",
    "X-Amz-SignedHeaders",
    "X-Amz-User-Agent",
)
"""Sent explicitly, because our list replaces the one of dfdaemon's rule; the origin's own signature parameters are added."""

ERROR_TYPE_HEADER = "x-dragonfly-error-type"


class Blame(Enum):
    """Whose failure a reply of the proxy reports."""

    ORIGIN = "origin"
    PROXY = "proxy"


def content_id(origin_identity: str, version: ObjectVersion) -> str:
    """Names one version of one object on all hosts: with it, the task id is a hash of this and nothing else, so it binds everything.

    The piece length is bound by the size, from which dfdaemon computes it: `X-Dragonfly-Piece-Length` is never sent.
    """
    fields = ("d7yfs-1", origin_identity, version.key, version.validator, version.size_bytes)
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()


def sorted_query(url: str) -> str:
    """`url` with its query sorted by name: dfdaemon before 1.5 keeps the order in a task's identity, and an order must be one."""
    parts = urlsplit(url)
    query = sorted(parse_qsl(parts.query, keep_blank_values=True), key=lambda pair: pair[0])
    return urlunsplit(parts._replace(query=urlencode(query)))


def proxy_headers(
    content: str, signature_params: Iterable[str], user_filter: Iterable[str], user_headers: Mapping[str, str]
) -> dict[str, str]:
    """Headers that a proxied GET carries beside the request's own. Ours win over the user's of the same name."""
    names = sorted({*DEFAULT_FILTERED_PARAMS, *signature_params, *user_filter})
    ours = {
        "X-Dragonfly-Use-P2P": "true",
        "X-Dragonfly-Filtered-Query-Params": ",".join(names),
        # Read by the older Go client, ignored by the Rust one.
        "X-Dragonfly-Filter": "&".join(names),
        "X-Dragonfly-Content-For-Calculating-Task-ID": content,
    }
    taken = {name.lower() for name in ours}
    return {name: value for name, value in user_headers.items() if name.lower() not in taken} | ours


def blame(status: int, error_type: str | None) -> Blame:
    """Who failed, by dfdaemon's `X-Dragonfly-Error-Type`: `backend` is the origin's own answer, `proxy` and `dfdaemon` are its own trouble.

    Without the mark (another proxy, an older client), 4xx statuses that an origin gives are the origin's (400 and 401 mean
    credentials that have ended); 5xx, 407 and 429 the proxy's.
    """
    if error_type is not None:
        return Blame.ORIGIN if error_type.strip().lower() == "backend" else Blame.PROXY
    return Blame.ORIGIN if status in (400, 401, 403, 404, 412, 416) else Blame.PROXY
