"""The headers by which dfdaemon makes one task of each object version, and the proof in its
replies. Pure.

Owns the headers of proxied requests, the names of query parameters that are no part of a task's
identity, the task's id as dfdaemon computes it, and the reading of dfdaemon's marks. The facts were
measured on dfdaemon 1.5 (docs/dragonfly-facts.md). Header names and formula:
`dragonfly-client/src/proxy/header.rs` and `dragonfly-client-util/src/id_generator` of its source.

dfdaemon never revalidates a task it knows. So the version is bound into the task:

- By the URL, where the origin puts the version there: the origin enforces it, and such a task can
  be preheated.
- Else by a content id, made of everything that identifies the version and equal on all hosts.
- With a cluster secret by such a content id in any case, keyed with the secret. All else about a
  version can be known to any client of a dfdaemon, which could put bytes under its task first.
- Else, at a proxy that is known to ignore content ids, by the tag. Any client makes it part of the
  task. But it is a label of dfdaemon's metrics too, and one label for each version burdens them.

`If-Match`, which origins add, keeps a cold task from being made of another version.

Called by the fetcher, and by the hand-over for the same task.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from d7yfs.objects import ObjectVersion, StoreIdentity
from d7yfs.origins.origin import ReadRequest

MAX_DIRECT_BYTES = 4 << 20
"""Ranges of up to this size skip scheduler and peers in dfdaemon: it fetches them straight from the
origin."""

_DEFAULT_FILTERED_PARAMS = """
    X-Amz-Algorithm X-Amz-Credential X-Amz-Date X-Amz-Expires X-Amz-Security-Token X-Amz-Signature X-Amz-SignedHeaders X-Amz-User-Agent
    X-Goog-Algorithm X-Goog-Credential X-Goog-Date X-Goog-Expires X-Goog-Signature X-Goog-SignedHeaders
    OSSAccessKeyId Expires Signature SecurityToken
    AccessKeyId X-Obs-Date X-Obs-Security-Token
    q-sign-algorithm q-ak q-sign-time q-key-time q-header-list q-url-param-list q-signature x-cos-security-token
    ns
"""
"""dfdaemon's own (`dragonfly-client-util/src/http/query_params.rs`), sent because our list replaces
its rule's."""

_MORE_FILTERED_PARAMS = """
    sv ss srt sp st se spr sip sr sig skoid sktid skt ske sks skv sdd scid
    x-oss-signature-version x-oss-credential x-oss-date x-oss-expires x-oss-signature x-oss-additional-headers x-oss-security-token
    security-token x-obs-security-token
    AWSAccessKeyId GoogleAccessId x-amz-security-token
"""
"""Parameters of signatures that dfdaemon's list lacks: Azure's, OSS V4 and V1, OBS in lower case,
V2 of AWS and Google."""

FILTERED_PARAMS = frozenset((_DEFAULT_FILTERED_PARAMS + _MORE_FILTERED_PARAMS).split())

_VERSION_PARAMS = frozenset({"generation", "versionId", "versionid"})
"""The parameters of Google, of S3, OSS and OBS, of Azure. Never filtered: they tell one version's
task from another's."""
_NO_VERSION = ("", "null")
"""`null` is the version of S3 and its like from before versioning, or while it is suspended: the
next one is `null` too."""

ERROR_TYPE_HEADER = "x-dragonfly-error-type"
TASK_ID_HEADER = "x-dragonfly-task-id"


@dataclass(frozen=True, slots=True, repr=False)
class TaskOptions:
    """The settings of a repository's tasks. `secret` and the values of `headers` are secrets."""

    tag: str = ""
    application: str = ""
    priority: int | None = None
    """None: dfdaemon's default, 6."""
    piece_length_bytes: int = 0
    """0: as dfdaemon computes it from the size; else at least 4 MiB, and the same on all hosts."""
    filter: tuple[str, ...] = ()
    """Further query parameters that are no part of a task's identity."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The user's own, for proxied requests only. Ours win over them."""
    secret: bytes = b""
    """The key of content ids; empty: any client can compute them."""


@dataclass(frozen=True, slots=True, repr=False)
class Task:
    """The task of one version, as dfdaemon is asked for it. `url` and `headers` hold secrets."""

    url: str
    """The URL with its query sorted."""
    filtered_params: tuple[str, ...]
    tag: str
    application: str
    priority: int | None
    piece_length_bytes: int
    content_id: str
    """Empty where the URL or the tag binds the version."""
    headers: Mapping[str, str]
    """Headers of a proxied GET besides its range: the request's own, Dragonfly's, the user's."""

    @property
    def id(self) -> str:
        """The task's id on all hosts, as dfdaemon 1.5 computes it."""
        if self.content_id:
            return task_id_of_content(self.content_id)
        return task_id(self.url, self.filtered_params, self.tag, self.application, self.piece_length_bytes)

    def is_proved_by(self, said_id: str | None) -> bool:
        """True if a reply that names task `said_id` (None: it names none) is about this version's
        task.

        Clients that name none (the Go one, early Rust ones) may not know content ids either, so
        there it is False with one. A URL or tag that binds the version is part of the task with
        every client. The formula of early clients has no type at its end.
        """
        if said_id is None:
            return not self.content_id
        if self.content_id:
            return said_id == self.id
        named = (self.url, self.filtered_params, self.tag, self.application, self.piece_length_bytes)
        return said_id in (task_id(*named), task_id(*named, kind=""))


def task(
    request: ReadRequest,
    store: StoreIdentity,
    version: ObjectVersion,
    options: TaskOptions,
    *,
    content_ids: bool = True,
    small_too: bool = False,
    rest_too: bool = False,
) -> Task:
    """Make the task of `version`, which `request` gets from its origin.

    `content_ids`: dfdaemon is trusted to use them. `small_too`: have dfdaemon (1.5 and later) ask
    scheduler and peers for ranges and objects of up to 4 MiB as well. `rest_too`: have it bring all
    of the object, for any range.
    """
    names = filtered_params(request.signature_params, options.filter)
    url = sorted_query(request.url)
    users = {name.lower(): value for name, value in options.headers.items()}
    tag = options.tag or users.get("x-dragonfly-tag", "")
    application = options.application or users.get("x-dragonfly-application", "")
    content = ""
    if options.secret or not names_version(url):
        content = content_id(store, version, options.piece_length_bytes, options.secret)
    if not content_ids and content:
        tag, content = (f"{tag}-{content}" if tag else content), ""
    ours = {
        "X-Dragonfly-Use-P2P": "true",
        "X-Dragonfly-Filtered-Query-Params": ",".join(names),
        # Read by the older Go client, ignored by the Rust one.
        "X-Dragonfly-Filter": "&".join(names),
        "X-Dragonfly-Content-For-Calculating-Task-ID": content,
        "X-Dragonfly-Piece-Length": str(options.piece_length_bytes or ""),
        "X-Dragonfly-Tag": tag,
        "X-Dragonfly-Application": application,
        "X-Dragonfly-Priority": "" if options.priority is None else str(options.priority),
        "X-Dragonfly-Scheduling-Policy": "always" if small_too else "",
        # The seed brings the range of its first request and is not sent for the rest: after a range
        # alone, every host gets that from the origin by itself. Used with a Range only.
        "X-Dragonfly-Prefetch": "true" if rest_too else "",
    }
    # Headers of the task's identity are ours even when we send none.
    taken = {name.lower() for name in (*request.headers, "Range", *_IDENTITY, *(name for name in ours if ours[name]))}
    headers = {name: value for name, value in options.headers.items() if name.lower() not in taken}
    headers |= request.headers
    headers |= {name: value for name, value in ours.items() if value}
    return Task(url, names, tag, application, options.priority, options.piece_length_bytes, content, headers)


_IDENTITY = (
    "X-Dragonfly-Content-For-Calculating-Task-ID",
    "X-Dragonfly-Piece-Length",
    "X-Dragonfly-Enable-Task-ID-Based-Blob-Digest",
)


def content_id(store: StoreIdentity, version: ObjectVersion, piece_length_bytes: int = 0, secret: bytes = b"") -> str:
    """Name one version of one object on all hosts: the task id is a hash of this and nothing else.

    A piece length of 0 is bound by the size, from which dfdaemon computes it. Only holders of a
    `secret` can compute the name (HMAC-SHA-256).
    """
    fields: tuple[str | int, ...] = ("d7yfs-1", store.in_tasks, version.key, version.validator, version.size_bytes)
    if piece_length_bytes:
        fields += (piece_length_bytes,)
    named = json.dumps(fields).encode()
    return (hmac.new(secret, named, hashlib.sha256) if secret else hashlib.sha256(named)).hexdigest()


def filtered_params(signature_params: Iterable[str], user_filter: Iterable[str]) -> tuple[str, ...]:
    """Names of query parameters that are no part of a task's identity, sorted."""
    return tuple(sorted({*FILTERED_PARAMS, *signature_params, *user_filter} - _VERSION_PARAMS))


def names_version(url: str) -> bool:
    """True if the query names the version, so that the origin sends no other."""
    return any(name in _VERSION_PARAMS and value not in _NO_VERSION for name, value in parse_qsl(urlsplit(url).query))


def sorted_query(url: str) -> str:
    """Sort the query of `url` by name: dfdaemon before 1.5 keeps the order in a task's identity."""
    parts = urlsplit(url)
    query = sorted(parse_qsl(parts.query, keep_blank_values=True), key=lambda pair: pair[0])
    return urlunsplit(parts._replace(query=urlencode(query)))


def task_id(
    url: str,
    filtered: Collection[str],
    tag: str = "",
    application: str = "",
    piece_length_bytes: int = 0,
    *,
    kind: str = "STANDARD",
) -> str:
    """The id of the task that dfdaemon 1.5 makes of these when no content id is given.

    `url` is percent-encoded. Golden values in our tests: those of dfdaemon's own.
    """
    parts = urlsplit(url)
    kept = [(name, value) for name, value in parse_qsl(parts.query, keep_blank_values=True) if name not in filtered]
    query = urlencode(sorted(kept, key=lambda pair: pair[0]))
    # As in the request line, and as dfdaemon's URL parser leaves it: host in lower case, no default
    # port, no fragment.
    default_port = {"http": 80, "https": 443}.get(parts.scheme)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    netloc = host if parts.port in (None, default_port) else f"{host}:{parts.port}"
    kept_url = urlunsplit(parts._replace(netloc=netloc, query=query, fragment=""))
    piece_length = str(piece_length_bytes or "")
    return hashlib.sha256(f"{kept_url}{tag}{application}{piece_length}{kind}".encode()).hexdigest()


def task_id_of_content(content: str) -> str:
    """The id of the task that dfdaemon makes of a content id, from nothing else."""
    return hashlib.sha256(content.encode()).hexdigest()


def blames_proxy(status: int, error_type: str | None) -> bool:
    """True if a status reports the proxy's failure and not the origin's, by dfdaemon's
    `X-Dragonfly-Error-Type`.

    `backend` is the origin's own answer; `proxy` and `dfdaemon` are dfdaemon's own trouble. Without
    the mark (another proxy, an older client), 4xx statuses that an origin gives are the origin's
    (400 and 401 mean expired credentials); 5xx, 407 and 429 the proxy's.
    """
    if error_type is not None:
        return error_type.strip().lower() != "backend"
    return status not in (400, 401, 403, 404, 412, 416)
