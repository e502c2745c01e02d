"""The exception tree: each failure in words for a person, and as an errno for the kernel.

Owns the mapping from failure to errno. Every failure that d7yfs expects is a `D7yfsError`. Anything
else that reaches the FUSE adapter is a bug: it is logged with its traceback, and that one caller
gets EIO.

A message says what failed, on which object, and why; `hint` says what to do about it, in one or more
lines. Neither ever holds a secret, a signed URL or a header value: callers name objects by
`s3://bucket/key`, never by the request that fetched them.
"""

from __future__ import annotations

import errno
from typing import ClassVar, Self


class D7yfsError(Exception):
    """Base of all expected failures; `errno` is what a reader of the mount sees."""

    errno: ClassVar[int] = errno.EIO
    transient: ClassVar[bool] = False
    """True if the same request may succeed a moment later; the fetcher retries only these."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts: dict[str, str] = {}
        """Its subject, for JSON logs: `object`, `repository`, `store_request`. No secrets."""

    def about(self, **facts: str) -> Self:
        """Add to its facts, but empty ones. One that is there stays: its caller was nearer."""
        self.facts = {name: value for name, value in facts.items() if value} | self.facts
        return self

    def __str__(self) -> str:
        hint = "; ".join(line.strip().rstrip(";") for line in self.hint.split("\n"))
        return f"{self.message} ({hint})" if hint else self.message


class UsageError(D7yfsError):
    """A wrong option, URL or file from the user. Shown without a traceback, exit status 2."""

    errno = errno.EINVAL


class ConfigError(UsageError):
    """A setting is unknown, malformed or contradictory; names source, key and what is allowed."""

    def __init__(self, message: str, *, hint: str = "", settings: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.settings = settings
        """The options that it is about, or `credentials`. `Settings.locate` adds where they came from."""


class MountError(D7yfsError):
    """The mount cannot be made or unmounted (mount point, FUSE prerequisites, permissions)."""


class CannotTakeOver(MountError):
    """This process cannot go on with the connection of another one, and no other like it can."""


class ModelServerError(D7yfsError):
    """A model server that reads from a mount cannot be reached, or refuses a request."""


class NotFound(D7yfsError):
    """No object or directory of that name; also a 404 for a key."""

    errno = errno.ENOENT


class BucketNotFound(NotFound):
    """The bucket or container does not exist. That says nothing about a name in it: no ENOENT."""

    errno = errno.EIO


class NotADirectory(D7yfsError):
    """A directory operation on a file."""

    errno = errno.ENOTDIR


class IsADirectory(D7yfsError):
    """A file operation on a directory."""

    errno = errno.EISDIR


class AccessDenied(D7yfsError):
    """The origin refused the credentials, or there are none."""

    errno = errno.EACCES


class NotPermitted(AccessDenied):
    """The origin accepts the credentials, and does not permit them this call."""


class ObjectArchived(AccessDenied):
    """The object lies in an archive storage class and must be restored before it can be read."""


class VersionGone(D7yfsError):
    """The pinned version was replaced or deleted at the origin; an open handle cannot go on."""

    errno = errno.ESTALE


class OriginUnavailable(D7yfsError):
    """The origin did not answer, cut the connection, throttled, or answered 5xx."""

    transient = True

    def __init__(self, message: str, *, hint: str = "", retry_after_s: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s
        """The wait that the origin asked for in Retry-After; 0 for none."""


class OriginUntrusted(OriginUnavailable):
    """The origin's TLS certificate does not verify. Not transient: retries would hide it."""

    transient = False


class MoverLost(OriginUnavailable):
    """A process of ours that had the connection has ended, which says nothing of the origin."""


class BadReply(D7yfsError):
    """A reply breaks HTTP or contradicts the request (range, total, encoding); it is not used."""

    transient = True

    def __init__(self, message: str, *, hint: str = "", lasting: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.lasting = lasting
        """True if the same server will most likely break the same rule again."""


class VersionUnbound(BadReply):
    """dfdaemon served another task than this version's: its bytes may be another version's."""


class ProxyUnavailable(D7yfsError):
    """dfdaemon's proxy itself failed; the origin may be healthy."""

    transient = True


class HandoverUnavailable(ProxyUnavailable):
    """dfdaemon's socket or its links into the cache fail; its proxy may work."""


class ManagerError(D7yfsError):
    """Dragonfly's manager cannot be asked, or refuses what it is asked for."""


class TokenWithheld(D7yfsError):
    """A request for dfdaemon carries a bearer token, which it may not have."""

    errno = errno.EACCES


class ReadTimeout(D7yfsError):
    """No byte that the reader waits for has come for `read_timeout` seconds."""


class TooManyReads(D7yfsError):
    """So many reads of one user wait that more of them would hold up other users."""

    errno = errno.EAGAIN


class TooManyOpenFiles(D7yfsError):
    """A user has his share of the open files, or the daemon's descriptors are used up."""

    errno = errno.EMFILE


class Stopped(D7yfsError):
    """The mount is being unmounted: the bytes will not come any more."""


class CacheFull(D7yfsError):
    """The cache has no room for the bytes; reads continue uncached."""

    errno = errno.ENOSPC


class CacheUnusable(D7yfsError):
    """The cache directory cannot be used at all (permissions, another format, read-only)."""


class CacheStalled(D7yfsError):
    """The cache's disk does not answer, so that what only it knows cannot be told."""
