"""Jobs for movers, and their words back: data, and its coding as packets. Pure.

A *job* is the rest of a reply's body whose head the engine has accepted: the mover receives it from
the connection and writes it into a file. The descriptors of both go with the packet (SCM_RIGHTS:
unix(7)). A *word* says how far a job has come, with the CRC32C of each block that it has touched.

A *tunnel* is a TLS connection that a mover ends: the engine has connected, and hands over that socket
with one end of a pair. The mover shakes hands, says how that went, and carries bytes both ways. A job
may name a tunnel; its other bytes go by the pair.

A job has no header, no URL and no name: what a mover holds of a request is its connection.

Native byte order, one message a packet. A mover that starts after its package was replaced is of
another release than its engine, so its first word has the version of this coding.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from enum import IntEnum

from d7yfs.objects import BLOCK_BYTES

PACKET_BYTES = 16 << 10
"""Larger than any packet: a word names at most the blocks of one job."""
MAX_JOB_BYTES = 32 * BLOCK_BYTES
"""The longest job. Its blocks take their room in the cache at once, and its CRCs fit into one packet."""
ALIVE_S = 0.5
"""A mover that has nothing else to say tells that it lives, as often as this."""

TAIL_BYTES = 4096
"""The last bytes of a job that its last word has, to be compared with what comes next."""

_JOB = struct.Struct("=cQQQIdQ")
_WORD = struct.Struct("=QQBiH")
_TUNNEL = struct.Struct("=cQ?H")
_IS_JOB, _IS_TUNNEL = b"J", b"T"
_STATE_AT = 16
"""The place of an ending, or of a tunnel's state, in a word."""
_REASON_BYTES = 1000


class Ending(IntEnum):
    """The state of a job in a word."""

    NONE = 0
    """It goes on."""
    DONE = 1
    """All bytes are written."""
    CLOSED = 2
    """The peer closed the connection before the end."""
    BROKEN = 3
    """The connection failed; the word has the error's number."""
    SILENT = 4
    """Nothing came for the idle timeout."""
    DISK = 5
    """The file did not take the bytes; the word has the error's number."""
    CANCELLED = 6
    """The engine wanted no more of it."""
    LOST = 7
    """The mover is dead, and writes no more. Said by the pool, as STUCK is."""
    STUCK = 8
    """The mover does not answer, and may still write what it has received."""


@dataclass(frozen=True, slots=True)
class Job:
    """Receive the bytes of `[start, stop)` and write each at its offset.

    `start` equal to `stop` is the wish to end the job of that number.
    """

    number: int
    start: int
    stop: int
    crc: int = 0
    """CRC32C of the bytes of the first block that lie before `start`."""
    idle_timeout_s: float = 0.0
    tunnel: int = 0
    """The tunnel whose bytes these are, behind those in the pair; 0 for a connection's own."""

    @property
    def cancels(self) -> bool:
        return self.start == self.stop

    def encode(self) -> bytes:
        return _JOB.pack(_IS_JOB, self.number, self.start, self.stop, self.crc, self.idle_timeout_s, self.tunnel)

    @classmethod
    def decode(cls, packet: bytes) -> Job:
        """Raises ValueError for what is no job."""
        try:
            kind, *parts = _JOB.unpack(packet)
        except struct.error as error:
            raise ValueError("a packet of this length is no job") from error
        if kind != _IS_JOB:
            raise ValueError("a packet of this kind is no job")
        return cls(*parts)

    def may_hear(self, word: Word, position: int) -> bool:
        """True if `word` may follow one that told `position`: the engine enters its CRCs into the
        map of the cache."""
        if not position <= word.position <= self.stop or (word.ending is Ending.DONE) > (word.position == self.stop):
            return False
        touched = -(-word.position // BLOCK_BYTES) - position // BLOCK_BYTES if word.position > position else 0
        return len(word.crcs) == touched


@dataclass(frozen=True, slots=True)
class TunnelOrder:
    """Shake hands with the server of that name, and carry bytes between it and the engine."""

    number: int
    server_name: str
    ca_file: str
    verify: bool

    def encode(self) -> bytes:
        name = self.server_name.encode()
        return _TUNNEL.pack(_IS_TUNNEL, self.number, self.verify, len(name)) + name + os.fsencode(self.ca_file)

    @classmethod
    def decode(cls, packet: bytes) -> TunnelOrder:
        """Raises ValueError for what is no such order."""
        try:
            kind, number, verify, size = _TUNNEL.unpack_from(packet)
        except struct.error as error:
            raise ValueError("a packet of this length is no order for a tunnel") from error
        if kind != _IS_TUNNEL:
            raise ValueError("a packet of this kind is no order for a tunnel")
        name, ca_file = packet[_TUNNEL.size : _TUNNEL.size + size], packet[_TUNNEL.size + size :]
        return cls(number, name.decode(), os.fsdecode(ca_file), verify)


def decode_order(packet: bytes) -> Job | TunnelOrder:
    """A packet of the engine. Raises ValueError."""
    return TunnelOrder.decode(packet) if packet[:1] == _IS_TUNNEL else Job.decode(packet)


class TunnelState(IntEnum):
    """The state of a tunnel in a word. Its numbers are none of `Ending`'s, which tells the words apart."""

    OPEN = 64
    """Hands are shaken."""
    UNTRUSTED = 65
    """The server's certificate does not verify; the word has OpenSSL's reason."""
    REFUSED = 66
    """There is no TLS with it; the word has OpenSSL's reason."""
    UNABLE = 67
    """The mover cannot do it: it has no authorities to verify with."""
    CLOSED = 68
    """The peer has closed it in good order."""
    BROKEN = 69
    """The connection failed, or ended without TLS's word for it; the word has the error's number."""
    LOST = 70
    """The mover is gone. Said by the pool."""


@dataclass(frozen=True, slots=True)
class TunnelWord:
    """The state of tunnel `number`."""

    number: int
    state: TunnelState
    error: int = 0
    reason: str = ""

    def encode(self) -> bytes:
        reason = self.reason.encode()[:_REASON_BYTES]
        return _WORD.pack(self.number, 0, self.state, self.error, len(reason)) + reason

    @classmethod
    def decode(cls, packet: bytes) -> TunnelWord:
        """Raises ValueError for what is no such word."""
        try:
            number, _, state, error, size = _WORD.unpack_from(packet)
        except struct.error as broken:
            raise ValueError("a packet of this length is no word") from broken
        reason = packet[_WORD.size :]
        if len(reason) != size:
            raise ValueError("a packet of this length is no word")
        return cls(number, TunnelState(state), error, reason.decode(errors="replace"))


def decode_word(packet: bytes) -> Word | TunnelWord:
    """A packet of a mover. Raises ValueError."""
    is_of_tunnel = packet[_STATE_AT : _STATE_AT + 1] >= bytes([TunnelState.OPEN])
    return TunnelWord.decode(packet) if is_of_tunnel else Word.decode(packet)


@dataclass(frozen=True, slots=True)
class Word:
    """The bytes of job `number` up to `position` are written."""

    number: int
    position: int
    crcs: tuple[int, ...] = ()
    """Of the blocks since the last word, in order; the last one may not be whole yet."""
    ending: Ending = Ending.NONE
    error: int = 0
    tail: bytes | None = None
    """The last bytes, up to TAIL_BYTES, with an ending; None if nobody knows them."""

    def encode(self) -> bytes:
        head = _WORD.pack(self.number, self.position, self.ending, self.error, len(self.crcs))
        return head + struct.pack(f"={len(self.crcs)}I", *self.crcs) + (self.tail or b"")

    @classmethod
    def decode(cls, packet: bytes) -> Word:
        """Raises ValueError for what is no word."""
        try:
            number, position, ending, error, count = _WORD.unpack_from(packet)
            crcs = struct.unpack_from(f"={count}I", packet, _WORD.size)
        except struct.error as broken:
            raise ValueError("a packet of this length is no word") from broken
        tail = packet[_WORD.size + 4 * count :] if ending else None
        return cls(number, position, crcs, Ending(ending), error, tail)


VERSION = 2
"""Counts the changes of what is said here. The layout of ALIVE stays."""
ALIVE = Word(0, VERSION)
"""Said by a mover first, and when it has nothing else to say. No job has the number 0."""
