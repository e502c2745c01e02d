"""The body of a reply → its transfer's sink: received here, or by a mover.

The first bytes of a body for which a reader waits are received here, as a process more would only
delay them. So are bodies that come in a coding, or by TLS that ends here, small ones, and those whose
sink is no file. A mover gets the rest: it writes straight into the cache's file, and this process only
hears how far it is.

Owns the buffers. Called by `Fetcher`, which has accepted the head. Trio thread only.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from d7yfs.errors import BadReply, OriginUnavailable
from d7yfs.fetch.transfer import SEAM_BYTES, FileSink, Reserved, Transfer
from d7yfs.fetch.transport import Response
from d7yfs.movers.pool import LEAST_BYTES, MoverPool
from d7yfs.movers.protocol import MAX_JOB_BYTES, Ending, Word
from d7yfs.movers.tunnel_end import TunnelEnd
from d7yfs.objects import ByteRange

BUFFER_BYTES = 1 << 20


class Receiver:
    """Receives bodies, with the help of `movers` if there are some."""

    def __init__(self, movers: MoverPool | None = None) -> None:
        self._movers = movers
        self._buffers: list[bytearray] = []

    def prepare(self) -> None:
        """Have a buffer ready."""
        self._buffers.append(bytearray(BUFFER_BYTES))

    async def receive(self, response: Response, transfer: Transfer, name: str, on_bytes: Callable[[], None]) -> None:
        """Bring the rest of `transfer` from `response`; `on_bytes` is called as bytes come.

        It may end early if a mover is lost or the disk refuses: then the rest needs another reply.
        Raises OriginUnavailable and BadReply with `name`.
        """
        while transfer.position < transfer.wanted.stop:
            ending = await self._move(response, transfer, on_bytes)
            if ending is Ending.NONE:
                # A buffer is not held while a mover is at work.
                buffer = self._buffers.pop() if self._buffers else bytearray(BUFFER_BYTES)
                try:
                    await self._receive(response, transfer, name, on_bytes, memoryview(buffer))
                finally:
                    self._buffers.append(buffer)
            elif ending is not Ending.DONE:
                return

    async def _receive(
        self, response: Response, transfer: Transfer, name: str, on_bytes: Callable[[], None], buffer: memoryview
    ) -> None:
        """Bring the next bytes by way of `buffer`."""
        missing_bytes = transfer.wanted.stop - transfer.position
        received = await response.receive(buffer[:missing_bytes])
        count = len(received)
        if not count:
            raise OriginUnavailable(f"{name}: cut off {missing_bytes} bytes before the end")
        on_bytes()
        if self._movers is not None and transfer.wanted.size >= LEAST_BYTES and response.content_length is not None:
            self._movers.count(count)  # of what a mover could have brought
        if count == missing_bytes and await response.receive(memoryview(bytearray(1))):
            raise BadReply(f"{name}: more bytes than were asked for")
        await transfer.take(received)

    def is_for_mover(self, transfer: Transfer, tunnel: TunnelEnd | None = None) -> bool:
        """True if a mover would take what is left of `transfer`, from a connection that allows it; the
        one of `tunnel` if there is one."""
        return (
            self._movers is not None
            and not transfer.is_for_engine
            and self._movers.takes(transfer.wanted.stop - transfer.position, tunnel)
            and isinstance(transfer.sink, FileSink)
        )

    def _reserve(self, response: Response, transfer: Transfer) -> Reserved | None:
        """The range that a mover is to bring now; None if the next bytes are to be received here."""
        if (
            not self.is_for_mover(transfer, response.tunnel)
            or response.rest_fd is None
            or response.content_length != response.received_bytes + transfer.wanted.stop - transfer.position
        ):
            return None
        assert self._movers is not None
        assert isinstance(transfer.sink, FileSink)
        rest = ByteRange(transfer.position, min(transfer.wanted.stop, transfer.position + MAX_JOB_BYTES))
        reserved = transfer.sink.reserve(rest)
        return reserved if reserved is not None and self._movers.takes(reserved.wanted.size, response.tunnel) else None

    async def _move(self, response: Response, transfer: Transfer, on_bytes: Callable[[], None]) -> Ending:
        """Have a mover bring what it can now. Returns NONE if there is nothing for a mover, DONE if
        this reply goes on, and the reason if it is of no more use.

        Raises what the connection's failure means.
        """
        reserved = self._reserve(response, transfer)
        if reserved is None or self._movers is None or response.rest_fd is None:
            return Ending.NONE
        last = Word(0, reserved.wanted.start)

        def hear(word: Word) -> None:
            nonlocal last
            last = word
            if word.position > transfer.position:
                on_bytes()
                response.moved(word.position - transfer.position)
                transfer.moved(word.position)
                reserved.land(word.position, word.crcs)

        moving = self._movers.hand_over(
            reserved.wanted,
            response.rest_fd,
            reserved.fd,
            crc=reserved.crc,
            idle_timeout_s=response.idle_timeout_s,
            on_word=hear,
            tunnel=response.tunnel,
        )
        if moving is None:
            return Ending.NONE
        transfer.is_held_up = lambda: moving.is_behind
        try:
            await moving.wait()
        finally:
            transfer.is_held_up = lambda: False
            if last.ending is not Ending.DONE:
                response.abandon()
            self._end(transfer, reserved, last)
        if last.ending in (Ending.CLOSED, Ending.BROKEN, Ending.SILENT):
            raise response.failure(last.ending, last.error)
        if transfer.position < last.position:  # given back, as it could not be read again
            response.abandon()
            return Ending.LOST
        return last.ending

    @staticmethod
    def _end(transfer: Transfer, reserved: Reserved, last: Word) -> None:
        """Leave a range that a mover has left with the word `last`."""
        if last.tail is not None:
            transfer.end_move(last.tail)
        else:  # the mover could not tell
            transfer.end_move(reserved.last_landed(min(SEAM_BYTES, transfer.position - reserved.wanted.start)))
        transfer.is_for_engine |= last.ending is Ending.LOST or transfer.position < last.position
        if last.ending is Ending.DISK:
            reserved.refuse(OSError(last.error, os.strerror(last.error)))
        elif last.ending is Ending.STUCK:
            # It may write what it has, late: these blocks are brought into memory.
            reserved.refuse(OSError(errno.ETIMEDOUT, "the cache's disk does not answer"))
