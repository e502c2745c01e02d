"""dfdaemon's gRPC service on its unix socket: asks for downloads, and tells of their pieces as they
land.

`DfdaemonDownload.DownloadTask` (messages: PyPI `dragonfly-api`, package dfdaemon.v2) answers with
one "started" message, by when the requested link stands. Then comes one message for each piece
whose bytes are in dfdaemon's file, in the order in which they came. docs/dragonfly-facts.md has more.

grpc.aio knows asyncio only, so each download has a worker thread that reads its messages and checks
its pieces. The trio thread is woken once for all that have come. dfdaemon's error texts are never
repeated in ours: they may hold the signed URL.

The only module that imports grpc; imported only when a socket is configured. Used by `Handover`.
"""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
import trio
from dragonfly_api import common_pb2, dfdaemon_pb2

from d7yfs.bounds.values import read_integer, read_json
from d7yfs.errors import BadReply, D7yfsError, HandoverUnavailable
from d7yfs.fetch.dragonfly_task import Task
from d7yfs.fetch.reply import error_of
from d7yfs.objects import BLOCK_BYTES, ByteRange

if TYPE_CHECKING:
    from d7yfs.fill.handover import Checked, Receiver

ANSWER_TIMEOUT_S = 10.0
"""Seconds. dfdaemon says "started" when it has asked the origin for the object's size, before it
asks a scheduler."""

SILENCE_TIMEOUT_S = 30.0
"""Seconds between two pieces. A hung scheduler alone means 10 s; readers wait for none of it."""

MAX_DOWNLOADS = 32
"""Downloads at once over one socket; each takes a thread."""

_REST_S = 0.05
"""Seconds for which messages are left to come together, after one that had to be waited for. A
wake-up is most of a message's cost (0.3 ms of processor time; 0.05 when it is there already).
Several pieces are on their way at a time, and a reader of one waits at most this much longer."""
_WAITED_S = 0.001

_METHOD = "/dfdaemon.v2.DfdaemonDownload/DownloadTask"
_DEFAULT_PRIORITY = 6
"""dfdaemon's own default at its proxy; in a message, an empty field means 0."""
_SMALLEST_PIECE_BYTES = 4 << 20
_MAX_MESSAGE_BYTES = 64 << 20
"""The "started" message names each piece: a hundred bytes for each of at most some ten thousand."""
_STATUS_DETAILS = "grpc-status-details-bin"
_OS_ERROR = re.compile(r"\(os error (\d{1,4})\)")
_CRC32 = re.compile(r"crc32:(\d{1,10})")
_OPTIONS = (
    # dfdaemon's server resets streams whose authority is the escaped path of the socket.
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    # The thread that reads a call's messages does grpc's work too, so no second one must be woken:
    # a third less time for each.
    ("SingleThreadedUnaryStream", 1),
)
_TRAFFIC = ("source", "remote_peer", "local_peer")
"""Indexed by `common.v2.TrafficType`."""


@dataclass(frozen=True, slots=True)
class Started:
    """The first message of a download: the link stands, and holds only announced bytes."""

    task_id: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece whose bytes are in dfdaemon's file now."""

    range: ByteRange
    """Whole blocks of the cache; the last one cut at the object's end."""
    crc32: int | None
    """IEEE, as dfdaemon recorded it; None when it is in no form that we know."""
    traffic: str
    """The piece's source: source, remote_peer, local_peer, or empty."""


@dataclass(frozen=True, slots=True, repr=False)
class Order:
    """The order for one download: an object version as a `Task`, linked to `link_path`. `task`
    holds secrets.
    """

    task: Task
    name: str
    """The object's URL, as people know it."""
    size_bytes: int
    link_path: Path
    """An absolute path that does not exist yet."""
    small_too: bool = False
    """Ask scheduler and peers for an object of up to 4 MiB as well (dfdaemon 1.5 and later)."""
    certificates: tuple[bytes, ...] = ()
    """Authorities, in DER, that alone may sign the origin's certificate. No proof that it was
    verified: dfdaemon 1.5.10 does not."""


class DfdaemonSocket:
    """The socket of a dfdaemon, `unix:///path`. Connects at need, and again after a loss."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._channel: grpc.Channel | None = None
        self._downloads = trio.CapacityLimiter(MAX_DOWNLOADS)

    async def download(self, order: Order, receiver: Receiver) -> None:
        """Have dfdaemon bring an object; returns when it says that all has come, which `receiver`
        compares. An error that it raises ends the download.

        Raises errors of `receiver`; HandoverUnavailable when dfdaemon does not answer, breaks off,
        or cannot link; BadReply when its messages make no sense; and the origin's answer to it
        (AccessDenied, VersionGone, OriginUnavailable, …).
        """
        async with self._downloads:
            reading = _Reading(self._call(order), order, receiver, trio.lowlevel.current_trio_token())
            failure: Exception | None = None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(reading.in_thread)
                try:
                    await reading.deliver(self.url)
                except Exception as error:
                    failure = error
                finally:
                    reading.end()
            if failure is not None:
                raise failure

    def _call(self, order: Order) -> grpc.CallIterator[dfdaemon_pb2.DownloadTaskResponse]:
        if self._channel is None:
            self._channel = grpc.insecure_channel(self.url, options=_OPTIONS)
        method = self._channel.unary_stream(
            _METHOD,
            request_serializer=dfdaemon_pb2.DownloadTaskRequest.SerializeToString,
            response_deserializer=dfdaemon_pb2.DownloadTaskResponse.FromString,
        )
        return method(dfdaemon_pb2.DownloadTaskRequest(download=_download(order)))

    def close(self) -> None:
        """Close the connection; downloads must have ended."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None


class _Reading:
    """One download under way, between its thread and the trio thread."""

    def __init__(
        self,
        call: grpc.CallIterator[dfdaemon_pb2.DownloadTaskResponse],
        order: Order,
        receiver: Receiver,
        token: trio.lowlevel.TrioToken,
    ) -> None:
        self._call = call
        self._order = order
        self._receiver: Receiver = receiver
        self._token = token
        self._landed: deque[tuple[Piece, Checked]] = deque()
        self._news = trio.Event()
        self._has_started = False
        self._given_up = threading.Event()
        self._ended: Exception | bool = False
        """True, or the error, once the thread has ended."""

    async def in_thread(self) -> None:
        """Run the thread until the call ends; `end` makes it."""
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._read, limiter=trio.CapacityLimiter(1))
        self._wake()

    def _wake(self) -> None:
        self._news.set()

    def end(self) -> None:
        """End the call: no more messages are wanted."""
        self._given_up.set()
        self._call.cancel()  # type: ignore[no-untyped-call]

    async def deliver(self, url: str) -> None:
        """Hand on the messages that the thread has read, until it has ended."""
        while True:
            with trio.move_on_after(SILENCE_TIMEOUT_S if self._has_started else ANSWER_TIMEOUT_S) as patience:
                await self._news.wait()
            if patience.cancelled_caught:
                raise HandoverUnavailable(f"{self._order.name}: dfdaemon at {url} says nothing")
            self._news = trio.Event()
            ended = self._ended
            while self._landed:
                self._receiver.land(*self._landed.popleft())
            if isinstance(ended, Exception):
                raise ended
            if ended:
                return

    # --- in the thread ---

    def _read(self) -> None:
        try:
            self._read_all()
            self._ended = True
        except grpc.RpcError as error:
            self._ended = _trouble(error, self._order.name)
        except Exception as error:
            self._ended = error

    def _read_all(self) -> None:
        most = 2 * math.ceil(self._order.size_bytes / _SMALLEST_PIECE_BYTES) + 16
        asked_at = time.monotonic()
        for count, reply in enumerate(self._call):
            if self._given_up.is_set():
                return
            waited_s = time.monotonic() - asked_at
            if count > most:
                raise BadReply(f"{self._order.name}: dfdaemon tells of more pieces than the object has")
            if reply.HasField("download_task_started_response"):
                size_bytes = reply.download_task_started_response.content_length
                trio.from_thread.run(self._begin, Started(reply.task_id, size_bytes))
            elif reply.HasField("download_piece_finished_response"):
                if not self._has_started:
                    raise BadReply(f"{self._order.name}: dfdaemon tells of a piece before it says what it brings")
                piece = _piece(reply.download_piece_finished_response.piece, self._order)
                self._landed.append((piece, self._receiver.check(piece)))
                self._token.run_sync_soon(self._wake, idempotent=True)
                if waited_s > _WAITED_S:
                    self._given_up.wait(_REST_S)
            asked_at = time.monotonic()

    async def _begin(self, started: Started) -> None:
        if not self._given_up.is_set():
            await self._receiver.start(started)
            self._has_started = True
            self._wake()


def _download(order: Order) -> common_pb2.Download:
    """Make the message. Fields without a value are left out: an empty one has a meaning."""
    task = order.task
    download = common_pb2.Download(
        url=task.url,
        priority=common_pb2.Priority.Name(_DEFAULT_PRIORITY if task.priority is None else task.priority),
        filtered_query_params=task.filtered_params,
        request_header=_origin_headers(task.headers),
        output_path=str(order.link_path),
        force_hard_link=True,
        need_piece_content=False,
        certificate_chain=order.certificates,
    )
    if task.tag:
        download.tag = task.tag
    if task.application:
        download.application = task.application
    if task.piece_length_bytes:
        download.piece_length = task.piece_length_bytes
    if task.content_id:
        download.content_for_calculating_task_id = task.content_id
    if order.small_too:
        download.scheduling_policy = common_pb2.ALWAYS
    return download


def _origin_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers for the origin: dfdaemon's own are fields of the message."""
    return {name: value for name, value in headers.items() if not name.lower().startswith("x-dragonfly-")}


def _piece(message: common_pb2.Piece, order: Order) -> Piece:
    start, stop = message.offset, message.offset + message.length
    if start % BLOCK_BYTES or not start < stop <= order.size_bytes or (stop % BLOCK_BYTES and stop != order.size_bytes):
        raise BadReply(f"{order.name}: dfdaemon tells of a piece that the object does not have: [{start}, {stop})")
    digest = _CRC32.fullmatch(message.digest)
    kind = int(message.traffic_type)
    return Piece(
        ByteRange(start, stop), int(digest[1]) if digest else None, _TRAFFIC[kind] if kind < len(_TRAFFIC) else ""
    )


def _trouble(error: grpc.RpcError, name: str) -> D7yfsError:
    """Make the error for the end of a call; dfdaemon's own words are only searched."""
    code = error.code() if isinstance(error, grpc.Call) else grpc.StatusCode.UNKNOWN
    details = (error.details() if isinstance(error, grpc.Call) else "") or ""
    if code is grpc.StatusCode.UNAVAILABLE:
        return HandoverUnavailable(f"{name}: dfdaemon's socket does not answer, or broke off")
    status = _backend_status(error)
    if status:
        return error_of(status, {}, name=f"{name} (through dfdaemon's socket)", body=b"")
    matched = _OS_ERROR.search(details)
    if matched:
        return HandoverUnavailable(f"{name}: dfdaemon could not link its file: {os.strerror(int(matched[1]))}")
    if "no space left" in details:
        return HandoverUnavailable(f"{name}: dfdaemon has no space left for it")
    return HandoverUnavailable(f"{name}: dfdaemon answered {code.name} at its socket")


def _backend_status(error: grpc.RpcError) -> int:
    """The origin's HTTP status, from the JSON in the status' details (dfdaemon 1.0 and later); 0
    for dfdaemon's own trouble.

    `dragonfly-client/src/grpc/dfdaemon_download.rs` and message `errordetails.v2.Backend`. An
    origin that was not reached has no status either, which means 503 here.
    """
    metadata: dict[str, bytes] = dict((isinstance(error, grpc.Call) and error.trailing_metadata()) or ())
    try:
        return read_integer(read_json(metadata[_STATUS_DETAILS])["status_code"] or 503, most=999)
    except (KeyError, ValueError, TypeError):
        return 0
