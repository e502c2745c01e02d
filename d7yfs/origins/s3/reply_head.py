"""Makes botocore refuse the head of a reply that was cut off.

http.client takes the end of the connection for the end of the header block, and urllib3 and botocore believe it. The reply to a
HEAD that was cut in `Content-Length: 178…` then tells another size, and no body contradicts it. RFC 9112, 8: it is incomplete.

Called once by `s3_client`, before the first connection. The other clouds' control calls and all data go through h11, which knows.
"""

from __future__ import annotations

from http.client import HTTPResponse, RemoteDisconnected
from typing import Any

from botocore.awsrequest import AWSHTTPConnection, AWSHTTPSConnection


class _HeadLines:
    """The lines of a head, read from `file`; the end of the file among them is an error."""

    def __init__(self, file: Any) -> None:
        self.file = file

    def readline(self, limit: int = -1) -> bytes:
        """As a file's. Raises RemoteDisconnected, which botocore takes for a connection that was closed."""
        line: bytes = self.file.readline(limit)
        if not line.endswith(b"\n") and len(line) != limit:
            raise RemoteDisconnected("the connection was closed in the head of a reply")
        return line

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class _WholeHead(HTTPResponse):
    """A reply whose head must come to its end."""

    def begin(self) -> None:
        self.fp = _HeadLines(self.fp)  # type: ignore[assignment]
        try:
            super().begin()
        finally:
            if isinstance(self.fp, _HeadLines):
                self.fp = self.fp.file


def refuse_cut_heads() -> None:
    """From now on botocore's connections take a head that was cut off for a connection that was closed."""
    for connection in (AWSHTTPConnection, AWSHTTPSConnection):
        connection.response_class = _WholeHead  # type: ignore[assignment]  # the stubs want botocore's own
