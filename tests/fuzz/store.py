"""An S3 server that knows every version it ever had: listings (flat and by delimiter, in pages),
HEAD, and ranged GET with If-Match.

It is correct on its own: one reply is about one immutable version. `lies` and `wire` spoil its
replies, and `churn` changes its objects. It runs as its own process (`serve`), which a `Settings`
describes. It writes `history` and a log of its replies.
"""

from __future__ import annotations

import base64
import random
import socket
import threading
import time
import traceback
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit
from xml.sax.saxutils import escape

from d7yfs.checksum import crc32c
from tests.fuzz import churn, content, lies, wire
from tests.fuzz.history import ABSENT, Writer
from tests.fuzz.phases import Phases
from tests.fuzz.reply import Reply, Span, error, plain, size_of

BUCKET = "b"


@dataclass(frozen=True)
class Settings:
    """The settings of a store's process."""

    directory: Path
    seed: int
    keys: tuple[str, ...]
    sizes: tuple[int, ...]
    phases: Phases
    churns: bool
    lie: float
    """Percentage of replies that are lies, in trouble."""
    without_lies: frozenset[str]
    network: float
    """Percentage of replies that the network spoils, in trouble."""
    spares_listings: bool
    page_keys: int


@dataclass(slots=True)
class Stored:
    serial: int
    size_bytes: int
    modified: float

    @property
    def etag(self) -> str:
        return f'"{self.serial:032x}"'


class Store:
    """The objects of the store; any thread may call every method."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.index = {key: index for index, key in enumerate(settings.keys)}
        self._history = Writer(settings.directory / "history")
        self._objects: dict[str, Stored] = {}
        self._sorted: list[str] = []
        self._lock = threading.Lock()
        self._serial = 0
        for key, size in zip(settings.keys, settings.sizes, strict=True):
            self.put(key, size)

    def put(self, key: str, size_bytes: int, serial: int | None = None) -> int:
        """Store a new version, or with `serial` an earlier one again."""
        with self._lock:
            if serial is None:
                self._serial += 1
                serial = self._serial
            self._history.write(self.index[key], serial, size_bytes, time.monotonic())
            self._objects[key] = Stored(serial, size_bytes, time.time())
            self._sorted = sorted(self._objects)
            return serial

    def delete(self, key: str) -> None:
        with self._lock:
            self._history.write(self.index[key], ABSENT, 0, time.monotonic())
            self._objects.pop(key, None)
            self._sorted = sorted(self._objects)

    def get(self, key: str) -> Stored | None:
        with self._lock:
            return self._objects.get(key)

    def answer(self, method: str, target: str, headers: Mapping[str, str]) -> Reply:
        """The honest reply to a request."""
        parts = urlsplit(target)
        bucket, _, key = unquote(parts.path).removeprefix("/").partition("/")
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        if method not in ("GET", "HEAD"):
            return error(405, "MethodNotAllowed")
        if bucket != BUCKET:
            return error(404, "NoSuchBucket")
        if not key:
            if "location" in query:
                return plain(200, b'<?xml version="1.0"?><LocationConstraint>us-east-1</LocationConstraint>')
            return self._list(query) if method == "GET" else plain(200)
        found = self.get(key)
        if found is None:
            return error(404, "NoSuchKey")
        if headers.get("if-match", found.etag) not in (found.etag, "*"):
            return error(412, "PreconditionFailed")
        described = {
            "ETag": found.etag,
            "Last-Modified": formatdate(found.modified, usegmt=True),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        asked = headers.get("range", "")
        if headers.get("x-amz-checksum-mode", "").upper() == "ENABLED":
            described |= {
                "x-amz-checksum-crc32c": self._crc32c(found),
                "x-amz-checksum-type": "FULL_OBJECT",
            }
        if not asked:
            # AWS sends the length last, so a head that is cut there has all other headers.
            whole = {**described, "Content-Length": str(found.size_bytes)}
            return Reply(200, whole, Span(found.serial, 0, found.size_bytes))
        first, _, last = asked.removeprefix("bytes=").partition("-")
        start = int(first) if first else max(found.size_bytes - int(last), 0)
        stop = min(int(last) + 1 if first and last else found.size_bytes, found.size_bytes)
        if start >= found.size_bytes:
            return error(416, "InvalidRange")
        span = {
            **described,
            "Content-Range": f"bytes {start}-{stop - 1}/{found.size_bytes}",
            "Content-Length": str(stop - start),
        }
        return Reply(206, span, Span(found.serial, start, stop - start))

    def _crc32c(self, found: Stored) -> str:
        crc = 0
        for at in range(0, found.size_bytes, 1 << 20):
            crc = crc32c(content.piece(found.serial, at, min(1 << 20, found.size_bytes - at)), crc)
        return base64.b64encode(crc.to_bytes(4, "big")).decode()

    def _list(self, query: Mapping[str, str]) -> Reply:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token") or query.get("start-after", "")
        limit = min(int(query.get("max-keys", "1000")), self.settings.page_keys)
        coded = quote if query.get("encoding-type") == "url" else escape
        shown: list[str] = []
        next_token = last = ""
        with self._lock:
            at = bisect_left(self._sorted, max(prefix, after))
            while at < len(self._sorted) and self._sorted[at].startswith(prefix):
                key = self._sorted[at]
                if key == after or (after.endswith("/") and key.startswith(after)):
                    at += 1
                    continue
                if len(shown) == limit:
                    next_token = last
                    break
                cut = key.find(delimiter, len(prefix)) if delimiter else -1
                if cut >= 0:
                    last = key[: cut + 1]
                    shown.append(f"<CommonPrefixes><Prefix>{coded(last)}</Prefix></CommonPrefixes>")
                    at = bisect_left(self._sorted, last[:-1] + "0", at)
                    continue
                last = key
                found = self._objects[key]
                modified = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(found.modified))
                shown.append(
                    f"<Contents><Key>{coded(key)}</Key><LastModified>{modified}</LastModified>"
                    f"<ETag>&quot;{found.etag[1:-1]}&quot;</ETag><Size>{found.size_bytes}</Size>"
                    f"<StorageClass>STANDARD</StorageClass></Contents>"
                )
                at += 1
        token = f"<NextContinuationToken>{escape(next_token)}</NextContinuationToken>" if next_token else ""
        body = (
            '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{BUCKET}</Name><Prefix>{coded(prefix)}</Prefix><KeyCount>{len(shown)}</KeyCount>"
            f"<MaxKeys>{limit}</MaxKeys><EncodingType>{query.get('encoding-type', '')}</EncodingType>"
            f"<IsTruncated>{'true' if next_token else 'false'}</IsTruncated>{''.join(shown)}{token}</ListBucketResult>"
        )
        return plain(200, body.encode(), Content_Type="application/xml")


class Server:
    """A server with one thread per connection, which answers until the connection ends."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._settings = store.settings
        self._log = (store.settings.directory / "store.log").open("a", buffering=1 << 14)
        self._log_lock = threading.Lock()
        self._liar = lies.Liar(store, self._settings.without_lies)
        self._open: set[socket.socket] = set()
        self._connections = 0
        self.port = 0

    def serve(self) -> None:
        """Listen, write the port into a file, and serve forever."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = listener.getsockname()[1]
        (self._settings.directory / "port.new").write_text(str(self.port))
        (self._settings.directory / "port.new").rename(self._settings.directory / "port")
        rng = random.Random(self._settings.seed ^ 0xACCE97)
        refuse_at = time.monotonic() + rng.uniform(5, 15)
        while True:
            if self._settings.network and time.monotonic() > refuse_at:
                if self._settings.phases.is_trouble(time.monotonic()):
                    listener.close()
                    if rng.random() < 0.5:
                        for each in list(self._open):
                            wire.hang_up(each)
                    self._note(f"refusing connections, {len(self._open)} open")
                    time.sleep(rng.uniform(0.1, 1.5))
                    listener = self._listen_again()
                refuse_at = time.monotonic() + rng.uniform(5, 15)
            listener.settimeout(0.5)
            try:
                accepted, _ = listener.accept()
            except OSError:
                continue
            self._connections += 1
            threading.Thread(target=self._converse, args=(accepted, self._connections), daemon=True).start()

    def _listen_again(self) -> socket.socket:
        while True:
            try:
                return socket.create_server(("127.0.0.1", self.port), backlog=256)
            except OSError:
                time.sleep(0.05)

    def _note(self, line: str) -> None:
        with self._log_lock:
            self._log.write(f"{time.monotonic():.4f} {line}\n")

    def _converse(self, connection: socket.socket, number: int) -> None:
        rng = random.Random(self._settings.seed << 24 ^ number)
        self._open.add(connection)
        connection.settimeout(60)
        received = b""
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            budget = wire.Budget(rng)
            while True:
                while b"\r\n\r\n" not in received:
                    new = connection.recv(8192)
                    if not new:
                        return
                    received += new
                head, _, received = received.partition(b"\r\n\r\n")
                if not self._reply(connection, number, head.decode("latin-1"), rng, budget):
                    return
        except OSError:
            return
        except Exception:
            (self._settings.directory / "store-failed").write_text(traceback.format_exc())
            raise
        finally:
            self._open.discard(connection)
            connection.close()

    def _reply(
        self, connection: socket.socket, number: int, head: str, rng: random.Random, budget: wire.Budget
    ) -> bool:
        """Answer one request. True if the connection may carry another."""
        line, *fields = head.split("\r\n")
        method, target, _ = line.split(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (each.partition(":") for each in fields)}
        parts = urlsplit(target)
        key = unquote(parts.path).removeprefix(f"/{BUCKET}").removeprefix("/")
        began = time.monotonic()
        trouble = self._settings.phases.is_trouble(began)
        spared = self._settings.spares_listings and not (method == "GET" and key)
        reply = self.store.answer(method, target, headers)
        lie = ""
        if trouble and not spared and rng.random() * 100 < self._settings.lie:
            lie, reply = self._liar.spoil(rng, method, key, headers, reply)
        honest = (reply.status, size_of(reply.body))
        fault: wire.Fault | None = None
        if trouble and not spared and rng.random() * 100 < self._settings.network:
            fault = wire.choose(rng, size_of(reply.body))
        limited = trouble and not spared and self._settings.network > 0
        keeps = False
        sent = 0
        try:
            sent, keeps = wire.send(
                connection,
                reply.chunks(without_body=method == "HEAD"),
                fault,
                budget if limited else None,
                rng,
            )
            keeps = keeps and not reply.hangs_up and reply.stop_after is None
            keeps = keeps and headers.get("connection", "").lower() != "close"
            if not keeps:
                connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            keeps = False
        finally:
            self._note(
                f"+{time.monotonic() - began:.3f} c{number} {method} {key or parts.query[:60]} {headers.get('range', '')}"
                f" if-match={headers.get('if-match', '')[-9:]} -> {honest[0]} {reply.headers.get('ETag', '')[-9:]}"
                f" {reply.headers.get('Content-Range', '')} body {honest[1]} sent {sent}"
                f"{' LIE ' + lie if lie else ''}{' FAULT ' + repr(fault) if fault else ''}{'' if keeps else ' closed'}"
            )
        return keeps


def serve(settings: Settings) -> None:
    """The store's process, for multiprocessing."""
    store = Store(settings)
    server = Server(store)
    if settings.churns:
        threading.Thread(target=churn.churn, args=(store, settings.seed), daemon=True).start()
    server.serve()
