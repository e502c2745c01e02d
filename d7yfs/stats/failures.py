"""The failures of one repository, and their beginning: the facts that problems are judged by. Pure.

Each part has one owner, who notes its failures and ends them by a success. Names are the lister's,
data and proxies the fetcher's, reads and versions the file system's.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from d7yfs.errors import (
    AccessDenied,
    D7yfsError,
    NotFound,
    OriginUnavailable,
    ProxyUnavailable,
    VersionGone,
    VersionUnbound,
)

QUIET_S = 600.0
"""Seconds after which a reader's failure is no news: reads have no success that ends it."""
UNREACHABLE, REFUSED, UNUSABLE = "unreachable", "refused", "unusable"
"""The kinds of a failure."""


@dataclass(slots=True, kw_only=True)
class FailureStatus:
    """The failures of one part since it last succeeded."""

    count: int = 0
    """0 while it succeeds."""
    since: float | None = None
    """When the first of them was; null while there is none."""
    last_at: float | None = None
    """When the last of them was."""
    kind: str = ""
    """Of the last one: `unreachable`, `refused` (by the store), or `unusable` (any other)."""
    why: str = ""
    """Why the last one failed, in a few words."""
    object: str = ""
    """The URL of its object, if it was about one."""

    def note(self, error: D7yfsError, now: float) -> None:
        """Count a failure at `now`, in seconds since the epoch."""
        self.count += 1
        self.since = now if self.since is None else self.since
        self.last_at = now
        self.kind = kind_of(error)
        self.object = error.facts.get("object", "")
        # Errors name their object first and the reason last: `s3://b/k: no route: Connection refused`.
        said = error.message.rpartition(": ")[2]
        self.why = said[:1].lower() + said[1:] if said[1:2].islower() else said

    def note_rare(self, error: D7yfsError, now: float) -> None:
        """The same, where time ends what no success does."""
        if self.last_at is not None and now - self.last_at > QUIET_S:
            self.end()
        self.note(error, now)

    def end(self) -> None:
        """Note a success."""
        if self.count:
            self.count, self.since, self.last_at, self.kind, self.why, self.object = 0, None, None, "", "", ""


@dataclass(slots=True, kw_only=True)
class FailuresStatus:
    """The failures of one repository, by part."""

    names: FailureStatus = field(default_factory=FailureStatus)
    """Of questions about names."""
    data: FailureStatus = field(default_factory=FailureStatus)
    """Of requests for file data, by whatever way, that the store failed."""
    proxy: FailureStatus = field(default_factory=FailureStatus)
    """Of requests for file data that dfdaemon's proxies failed."""
    reads: FailureStatus = field(default_factory=FailureStatus)
    """Of reads by programs, in the last minutes: each of them got an error."""
    versions: FailureStatus = field(default_factory=FailureStatus)
    """Of these, those whose version was gone (ESTALE)."""

    def note_request(self, error: D7yfsError, now: float) -> None:
        """Count a request for file data that failed. That a version is gone is an answer."""
        if isinstance(error, ProxyUnavailable | VersionUnbound):
            self.proxy.note(error, now)
        elif isinstance(error, VersionGone | NotFound):
            self.data.end()
        else:
            self.data.note(error, now)

    def end_requests(self, name: str, *, proxied: bool) -> None:
        """Note that data of an object has come."""
        self.data.end()
        if self.reads.object == name:
            self.reads.end()
        if proxied:
            self.proxy.end()

    def note_read(self, error: D7yfsError, now: float) -> None:
        """Count a read that failed for its program."""
        (self.versions if isinstance(error, VersionGone) else self.reads).note_rare(error, now)

    @property
    def by_part(self) -> dict[str, int]:
        """Failures since the last success."""
        parts = ("names", "data", "proxy", "reads", "versions")
        return {part: getattr(self, part).count for part in parts}


def kind_of(error: D7yfsError) -> str:
    """The kind of a failure."""
    if isinstance(error, AccessDenied):
        return REFUSED
    return UNREACHABLE if isinstance(error, OriginUnavailable | ProxyUnavailable) else UNUSABLE
