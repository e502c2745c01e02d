"""A fake of dfdaemon's gRPC service on a real unix socket: tasks in a store on disk, hard links to
them, pieces as they land.

Its behaviour was measured on dfdaemon 1.5.10 and read in its source. It allocates a task's file in
full and links it before the first byte is there. Pieces come from the real origin in the URL,
several at a time, and are announced out of order. It never revalidates a known task. `fault` plays
one failure (`Fault`). `orders` holds every message that arrived.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import shutil
import threading
import zlib
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import grpc
from dragonfly_api import common_pb2, dfdaemon_pb2

_AT_ONCE = 8
_METHOD_SERVICE = "dfdaemon.v2.DfdaemonDownload"


class Fault(Enum):
    """A failure of the next downloads, until `fault` is None again."""

    WRONG_BYTES = auto()
    """The store is damaged: the third piece's bytes do not match their CRC32."""
    WRONG_SIZE = auto()
    WRONG_TASK = auto()
    BREAKS_OFF = auto()
    """The daemon dies after two pieces: the stream ends like a lost connection."""
    ENDS_EARLY = auto()
    """The stream ends in good order after two pieces."""
    OTHER_FILE_SYSTEM = auto()
    OTHER_NAMESPACE = auto()
    """The daemon claims the link, but made it in another mount namespace."""
    COPIES = auto()
    """The daemon copies, as without the client's order to link."""
    HANGS = auto()
    """The daemon never answers."""
    STALLS = auto()
    """The daemon falls silent after the second piece."""
    ODD_PIECE = auto()
    """One piece lies beyond the object."""
    NO_DIGEST = auto()


@dataclass
class StoredTask:
    """One object in the store."""

    path: Path
    size_bytes: int
    pieces: dict[int, str] = field(default_factory=dict)
    """Digests of the pieces that have landed, by number."""
    traffic: int = 0
    """The traffic type of the pieces that are still missing."""
    lock: threading.Lock = field(default_factory=threading.Lock)


class FakeDfdaemonSocket:
    """The fake daemon, with its store and socket below `directory`.

    The store is on one file system with the cache into which it links.
    """

    def __init__(self, directory: Path, *, piece_bytes: int = 4 << 20) -> None:
        self.store = directory / "store"
        self.path = directory / "d.sock"
        self.tasks: dict[str, StoredTask] = {}
        self.orders: list[common_pb2.Download] = []
        self.fault: Fault | None = None
        self.traffic = 0
        """The traffic type of pieces of new tasks: 0 is the origin, 1 a peer. The bytes come from
        the origin in both cases.
        """
        self.gate: threading.Event | None = None
        """No piece comes while this event exists and is not set."""
        self._piece_bytes = piece_bytes
        self._closing = threading.Event()
        self._making = threading.Lock()
        self._server: grpc.Server

    @property
    def url(self) -> str:
        return f"unix://{self.path}"

    def __enter__(self) -> Self:
        self.store.mkdir(parents=True, exist_ok=True)
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Listen; works again after `stop`."""
        self._closing.clear()
        self._server = grpc.server(futures.ThreadPoolExecutor(32))
        handler = grpc.unary_stream_rpc_method_handler(
            self._download_task,
            request_deserializer=dfdaemon_pb2.DownloadTaskRequest.FromString,
            response_serializer=dfdaemon_pb2.DownloadTaskResponse.SerializeToString,
        )
        generic = grpc.method_handlers_generic_handler(_METHOD_SERVICE, {"DownloadTask": handler})
        self._server.add_generic_rpc_handlers((generic,))
        self._server.add_insecure_port(self.url)
        self._server.start()

    def stop(self) -> None:
        """Stop like a killed daemon; the store stays."""
        self._closing.set()
        self._server.stop(0).wait()
        self.path.unlink(missing_ok=True)

    def wipe(self) -> None:
        """Empty the store, as a daemon that starts without `keep` does."""
        self.tasks.clear()
        shutil.rmtree(self.store)
        self.store.mkdir()

    @contextmanager
    def failing(self, fault: Fault) -> Iterator[None]:
        """Play `fault` while the context lasts."""
        self.fault = fault
        try:
            yield
        finally:
            self.fault = None

    # --- one call ---

    def _download_task(
        self, request: dfdaemon_pb2.DownloadTaskRequest, context: grpc.ServicerContext
    ) -> Iterator[dfdaemon_pb2.DownloadTaskResponse]:
        download, fault = request.download, self.fault
        self.orders.append(download)
        over = threading.Event()
        context.add_callback(over.set)
        if fault is Fault.HANGS:
            self._hang(over)
            return
        task_id = identify(download)
        with self._making:
            task = self.tasks.get(task_id) or self._new_task(task_id, download, context)
        self._link(task, Path(download.output_path), fault, context)
        size_bytes = task.size_bytes + (fault is Fault.WRONG_SIZE)
        said_id = "0" * 64 if fault is Fault.WRONG_TASK else task_id
        yield dfdaemon_pb2.DownloadTaskResponse(
            task_id=said_id,
            download_task_started_response=dfdaemon_pb2.DownloadTaskStartedResponse(content_length=size_bytes),
        )
        for count, (number, traffic) in enumerate(self._pieces(task, download, over, context)):
            if fault in (Fault.BREAKS_OFF, Fault.ENDS_EARLY, Fault.STALLS) and count == 2:
                if fault is Fault.BREAKS_OFF:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
                if fault is Fault.STALLS:
                    self._hang(over)
                return
            start = number * self._piece_bytes
            length = min(self._piece_bytes, task.size_bytes - start)
            if fault is Fault.WRONG_BYTES and number == 2:
                with task.path.open("r+b") as file:
                    file.seek(start + length // 2)
                    file.write(b"damaged!")
            if fault is Fault.ODD_PIECE and count == 1:
                start += task.size_bytes
            piece = common_pb2.Piece(
                number=number,
                offset=start,
                length=length,
                digest="" if fault is Fault.NO_DIGEST else task.pieces[number],
                traffic_type=common_pb2.TrafficType.Name(traffic),
            )
            yield dfdaemon_pb2.DownloadTaskResponse(
                task_id=task_id,
                download_piece_finished_response=dfdaemon_pb2.DownloadPieceFinishedResponse(piece=piece),
            )

    def _hang(self, over: threading.Event) -> None:
        while not over.wait(0.01) and not self._closing.is_set():
            pass

    def _new_task(self, task_id: str, download: common_pb2.Download, context: grpc.ServicerContext) -> StoredTask:
        status, headers, _ = _get(download, "bytes=0-0")
        if status not in (200, 206):
            _abort_by_backend(context, status)
        total = headers.get("Content-Range", "").rpartition("/")[2] or headers["Content-Length"]
        task = StoredTask(self.store / task_id, int(total), traffic=self.traffic)
        with task.path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, task.size_bytes)
        self.tasks[task_id] = task
        return task

    def _link(self, task: StoredTask, to: Path, fault: Fault | None, context: grpc.ServicerContext) -> None:
        if fault is Fault.OTHER_NAMESPACE:
            return
        if fault is Fault.COPIES:
            shutil.copyfile(task.path, to)
            return
        try:
            if fault is Fault.OTHER_FILE_SYSTEM:
                raise OSError(errno.EXDEV, "Invalid cross-device link")
            to.hardlink_to(task.path)
        except OSError as error:
            # The format is that of Display for Rust's std::io::Error.
            context.abort(grpc.StatusCode.INTERNAL, f"{error.strerror} (os error {error.errno})")

    def _pieces(
        self, task: StoredTask, download: common_pb2.Download, over: threading.Event, context: grpc.ServicerContext
    ) -> Iterator[tuple[int, int]]:
        """Numbers and traffic types of all pieces: local ones first, then the rest in batches of
        eight, each in reverse order.
        """
        count = -(-task.size_bytes // self._piece_bytes)
        local = [number for number in range(count) if number in task.pieces]
        for number in local:
            yield number, 2
        rest = [number for number in range(count) if number not in local]
        for first in range(0, len(rest), _AT_ONCE):
            for number in reversed(rest[first : first + _AT_ONCE]):
                while self.gate is not None and not self.gate.wait(0.01):
                    if over.is_set() or self._closing.is_set():
                        return
                with task.lock:
                    known = number in task.pieces
                    if not known:
                        self._fetch(task, number, download, context)
                yield number, 2 if known else task.traffic

    def _fetch(
        self, task: StoredTask, number: int, download: common_pb2.Download, context: grpc.ServicerContext
    ) -> None:
        start = number * self._piece_bytes
        stop = min(start + self._piece_bytes, task.size_bytes)
        status, _, body = _get(download, f"bytes={start}-{stop - 1}")
        if status != 206:
            _abort_by_backend(context, status)
        with task.path.open("r+b") as file:
            file.seek(start)
            file.write(body)
        task.pieces[number] = f"crc32:{zlib.crc32(body)}"


def identify(download: common_pb2.Download) -> str:
    """The task id that dfdaemon computes."""
    if download.HasField("content_for_calculating_task_id"):
        return hashlib.sha256(download.content_for_calculating_task_id.encode()).hexdigest()
    parts = urlsplit(download.url)
    kept = [
        pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in download.filtered_query_params
    ]
    url = urlunsplit(parts._replace(query=urlencode(sorted(kept, key=lambda pair: pair[0]))))
    length = str(download.piece_length) if download.HasField("piece_length") else ""
    return hashlib.sha256(f"{url}{download.tag}{download.application}{length}STANDARD".encode()).hexdigest()


def _get(download: common_pb2.Download, byte_range: str) -> tuple[int, Any, bytes]:
    parts = urlsplit(download.url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=30)
    try:
        path = urlunsplit(("", "", parts.path, parts.query, ""))
        connection.request("GET", path, headers={**download.request_header, "Range": byte_range})
        reply = connection.getresponse()
        return reply.status, reply.headers, reply.read()
    finally:
        connection.close()


def details_of(status: int) -> bytes:
    """`errordetails.v2.Backend` in JSON."""
    return json.dumps({"message": "request failed", "header": {}, "status_code": status}).encode()


def _abort_by_backend(context: grpc.ServicerContext, status: int) -> None:
    """Abort as dfdaemon does: `errordetails.v2.Backend` as JSON in the place of a
    google.rpc.Status.
    """
    context.set_trailing_metadata((("grpc-status-details-bin", details_of(status)),))
    context.abort(grpc.StatusCode.INTERNAL, f"backend error: status code {status}")
