"""Values by kind and number, in a log that a killed process leaves readable at every moment.

The log lies in a file that outlives the process, such as a memfd that another one holds. The file
begins with the offset of the first record, and records follow each other to its end. A record is
its length, a CRC32, a kind, a number and content; it replaces an earlier one of its kind and number,
or strikes it out. A torn record ends the log: it was the last one.

The log is kept short by moving its beginning. Records there that still count are written again at
the end, then the beginning is set behind them, and their place is given back. Each step leaves a
log that says the same. So the file holds little more than twice the records that count.

Used by `journal`. A write to a memfd is a copy of memory, and does not wait.
"""

from __future__ import annotations

import logging
import os
import struct
import zlib
from collections import defaultdict
from collections.abc import Container, Iterator
from contextlib import suppress

from d7yfs.host.libc import punch_hole

log = logging.getLogger(__name__)

_MAGIC = b"d7yfslg2"
_HEADER = struct.Struct("=8sQ")
"""The format's name, and the offset of the first record."""
_HEAD = struct.Struct("=IIBQ")
"""Bytes of content, CRC32 of what follows, kind, number."""
_SIZE_AND_CRC = struct.Struct("=II")
_KEY = struct.Struct("=BQ")
"""The two parts of that; the CRC is of the second one and the content."""
_STRUCK = 0x80
"""The bit in the kind of a record that strikes out."""

_SLACK = 1024
"""The records that do not count, beyond as many as do, that are left alone."""
_CHUNK_BYTES = 32 << 10
"""The bytes at the beginning that are looked through at a time: a fraction of a millisecond."""
_PAGE_BYTES = 4096

_Record = tuple[int, int, int, memoryview]
"""Offset, kind, number and content."""


class KeyedLog:
    """The log in the file `fd`. Call `load` first, also of an empty file."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._live: defaultdict[int, dict[int, int]] = defaultdict(dict)
        """The offset of the record that counts, by kind and number."""
        self._pending = bytearray()
        self._records = self._counting = 0
        """All records between beginning and end, and those of them that count."""
        self._start = self._end = _HEADER.size
        self._given_back = 0
        self._failed = False

    def load(self) -> dict[int, dict[int, bytes]]:
        """The content that counts, by kind and number. Drops a torn end."""
        header = os.pread(self._fd, _HEADER.size, 0)
        if len(header) < _HEADER.size or header[: len(_MAGIC)] != _MAGIC:
            os.ftruncate(self._fd, 0)
            self._write(_HEADER.pack(_MAGIC, self._start), 0)
            return {}
        self._start = self._end = _HEADER.unpack(header)[1]
        self._given_back = self._start // _PAGE_BYTES * _PAGE_BYTES
        data = self._read(self._start, max(os.fstat(self._fd).st_size - self._start, 0))
        found: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
        for offset, kind, number, content in _records(data):
            self._records += 1
            self._end = self._start + offset + _HEAD.size + len(content)
            if kind & _STRUCK:
                found[kind & ~_STRUCK].pop(number, None)
                self._live[kind & ~_STRUCK].pop(number, None)
            else:
                found[kind][number] = bytes(content)
                self._live[kind][number] = self._start + offset
        os.ftruncate(self._fd, self._end)
        self._counting = sum(map(len, found.values()))
        return dict(found)

    def numbers(self, kind: int) -> Container[int]:
        """The numbers of a kind that have a value."""
        return self._live[kind]

    def put(self, kind: int, number: int, content: bytes) -> None:
        """Make `content` the value of a number, from the next `flush` on."""
        live = self._live[kind]
        self._counting += number not in live
        live[number] = self._end + len(self._pending)
        self._append(kind, number, content)

    def strike(self, kind: int, number: int) -> None:
        """Take away the value of a number, if it has one, from the next `flush` on."""
        if self._live[kind].pop(number, None) is not None:
            self._counting -= 1
            self._append(kind | _STRUCK, number, b"")

    def _append(self, kind: int, number: int, content: bytes) -> None:
        checked = _KEY.pack(kind, number) + content
        self._pending += _SIZE_AND_CRC.pack(len(content), zlib.crc32(checked)) + checked
        self._records += 1

    def flush(self) -> None:
        """Write what is pending. After that a successor knows it, whatever happens to this
        process."""
        if not self._pending:
            return
        pending, self._pending = self._pending, bytearray()
        if self._write(pending, self._end):
            self._end += len(pending)
            if self._records > 2 * self._counting + _SLACK:
                self._shorten()

    def _shorten(self) -> None:
        """Move the beginning of the log past one chunk."""
        chunk = self._read(self._start, min(_CHUNK_BYTES, self._end - self._start))
        size_bytes = _HEAD.size + _HEAD.unpack_from(chunk)[0]
        if size_bytes > len(chunk):
            chunk = self._read(self._start, size_bytes)
        kept, passed = bytearray(), 0
        for offset, kind, number, content in _records(chunk):
            passed = offset + _HEAD.size + len(content)
            live = self._live[kind & ~_STRUCK]
            if not kind & _STRUCK and live.get(number) == self._start + offset:
                live[number] = self._end + len(kept)
                kept += chunk[offset:passed]
            else:
                self._records -= 1
        if not self._write(kept, self._end):
            return
        self._end += len(kept)
        self._start += passed
        if self._write(_HEADER.pack(_MAGIC, self._start), 0):
            self._give_back()

    def _give_back(self) -> None:
        """Free the pages before the beginning, but the first one."""
        first, stop = max(self._given_back, _PAGE_BYTES), self._start // _PAGE_BYTES * _PAGE_BYTES
        if stop > first:
            with suppress(OSError):  # then it stays as large
                punch_hole(self._fd, first, stop - first)
            self._given_back = stop

    def _read(self, offset: int, size_bytes: int) -> memoryview:
        data = bytearray(size_bytes)
        view = memoryview(data)
        while view and (count := os.preadv(self._fd, [view], offset)):
            view, offset = view[count:], offset + count
        return memoryview(data)

    def _write(self, data: bytes | bytearray, offset: int) -> bool:
        """Write all of it; False if this or an earlier write failed: there is no log any more."""
        try:
            while data and not self._failed:
                count = os.pwrite(self._fd, data, offset)
                data, offset = data[count:], offset + count
        except OSError as error:
            self._failed = True
            log.error("the journal cannot be written (%s): after a kill, readers get errors", error.strerror)
            os.ftruncate(self._fd, 0)  # better none than one that lacks records
        return not self._failed


def _records(data: memoryview) -> Iterator[_Record]:
    """The whole records in `data`, up to the first that is torn."""
    offset = 0
    while offset + _HEAD.size <= len(data):
        size_bytes, crc, kind, number = _HEAD.unpack_from(data, offset)
        stop = offset + _HEAD.size + size_bytes
        if stop > len(data) or zlib.crc32(data[offset + _SIZE_AND_CRC.size : stop]) != crc:
            return
        yield offset, kind, number, data[offset + _HEAD.size : stop]
        offset = stop
