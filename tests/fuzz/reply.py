"""One HTTP reply of the store as it goes out, possibly changed by a lie."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from http import HTTPStatus

from tests.fuzz import content

_PIECE_BYTES = 256 << 10


@dataclass(frozen=True)
class Span:
    """Bytes of a version that are generated when they are sent."""

    serial: int
    offset: int
    size_bytes: int


Body = bytes | Span


def size_of(body: Body) -> int:
    return len(body) if isinstance(body, bytes) else body.size_bytes


@dataclass
class Reply:
    """A reply whose `headers` are sent unchanged: an honest reply has its Content-Length among
    them.
    """

    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: Body = b""
    head: bytes | None = None
    """The raw head that replaces status and headers."""
    before: bytes = b""
    after: bytes = b""
    is_chunked: bool = False
    stop_after: int | None = None
    """The bytes of the body that are sent before the connection ends."""
    hangs_up: bool = False

    def chunks(self, *, without_body: bool) -> Iterator[bytes]:
        yield self.before + (self.head if self.head is not None else self._head())
        if not without_body:
            rest = size_of(self.body) if self.stop_after is None else min(self.stop_after, size_of(self.body))
            at = 0
            while at < rest:
                size = min(_PIECE_BYTES, rest - at)
                part = self._part(at, size)
                yield b"%x\r\n%s\r\n" % (size, part) if self.is_chunked else part
                at += size
            if self.is_chunked and self.stop_after is None:
                yield b"0\r\n\r\n"
        if self.after:
            yield self.after

    def whole(self) -> bytes:
        return self._part(0, size_of(self.body))

    def _part(self, at: int, size: int) -> bytes:
        if isinstance(self.body, bytes):
            return self.body[at : at + size]
        return content.piece(self.body.serial, self.body.offset + at, size)

    def _head(self) -> bytes:
        try:
            phrase = HTTPStatus(self.status).phrase
        except ValueError:
            phrase = "Whatever"
        lines = [f"HTTP/1.1 {self.status} {phrase}", *(f"{name}: {value}" for name, value in self.headers.items())]
        return "\r\n".join([*lines, "", ""]).encode("latin-1")


def plain(status: int, body: bytes = b"", **headers: str) -> Reply:
    return Reply(
        status, {"Content-Length": str(len(body)), **{name.replace("_", "-"): headers[name] for name in headers}}, body
    )


def error(status: int, code: str) -> Reply:
    body = f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{code}</Message></Error>'
    return plain(status, body.encode(), Content_Type="application/xml")
