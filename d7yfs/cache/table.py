"""Tables with a value for each block of a version: their memory, and their room on disk, follow what
was used.

A table of up to DENSE_BLOCKS blocks is plain. A larger one is anonymous memory, or a file with
holes, of which the kernel gives only those pages that were written. So the size that a store
claims for an object costs nothing.
"""

from __future__ import annotations

import mmap
import os
import re
from array import array
from collections.abc import Callable, Iterator
from typing import TypeAlias

DENSE_BLOCKS = 1 << 16
"""The blocks of an object of 64 GiB."""
ENTRY_BYTES = 8
_PIECE_ENTRIES = 8192
_MAP_NORESERVE = 0x4000
"""mmap(2); Python has the name since 3.13."""
_ZEROS = bytes(_PIECE_ENTRIES * ENTRY_BYTES)
_NONZERO = re.compile(rb"[^\0]")

States: TypeAlias = bytearray | mmap.mmap
"""A byte for each block."""
Entries: TypeAlias = "array[int] | memoryview[int]"
"""A map's entry for each block."""


def blank_states(count: int) -> States:
    """A zero for each of `count` blocks."""
    return bytearray(count) if count <= DENSE_BLOCKS else _anonymous(count)


def blank_entries(count: int) -> Entries:
    """A zero for each of `count` blocks."""
    if count <= DENSE_BLOCKS:
        return array("Q", bytes(count * ENTRY_BYTES))
    return memoryview(_anonymous(count * ENTRY_BYTES)).cast("Q")


def _anonymous(size_bytes: int) -> mmap.mmap:
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)


def nonzero(entries: Entries) -> Iterator[tuple[int, int]]:
    """Index and value of the entries that are not zero."""
    for first, piece in _used_pieces(entries):
        for index, entry in enumerate(piece, first):
            if entry:
                yield index, entry


def _used_pieces(entries: Entries) -> Iterator[tuple[int, Entries]]:
    for first in range(0, len(entries), _PIECE_ENTRIES):
        piece = entries[first : first + _PIECE_ENTRIES]
        if piece.tobytes() != _ZEROS[: len(piece) * ENTRY_BYTES]:
            yield first, piece


def states_of(entries: Entries, derive: Callable[[Entries], bytes]) -> States:
    """The states that `derive` gives for runs of entries; entries of zero have state zero."""
    states = blank_states(len(entries))
    for first, piece in _used_pieces(entries):
        states[first : first + len(piece)] = derive(piece)
    return states


def count_zeros(states: States) -> int:
    """The number of states that are zero."""
    pieces = range(0, len(states), len(_ZEROS))
    return sum(states[first : first + len(_ZEROS)].count(0) for first in pieces)


def zeros_until(states: States, first: int, stop: int) -> int:
    """The index of the first state in [first, stop) that is not zero; `stop` if all are."""
    while stop - first > len(_ZEROS) and states[first : first + len(_ZEROS)] == _ZEROS:
        first += len(_ZEROS)
    found = _NONZERO.search(states, first, stop)
    return found.start() if found else stop


def nonzero_states(states: States) -> Iterator[tuple[int, int]]:
    """Index and value of the states that are not zero; they may change meanwhile."""
    index, count = 0, len(states)
    while (index := zeros_until(states, index, count)) < count:
        yield index, states[index]
        index += 1


def read_entries_at(fd: int, offset: int, count: int) -> Entries:
    """The `count` entries that lie at `offset` in a file; those behind its end are zero. Raises
    OSError."""
    if count <= DENSE_BLOCKS:
        return array("Q", os.pread(fd, count * ENTRY_BYTES, offset).ljust(count * ENTRY_BYTES, b"\0"))
    entries = memoryview(blank_entries(count))
    for first, piece in stored_pieces(fd, offset, count):
        entries[first : first + len(piece)] = memoryview(piece)
    return entries


def stored_pieces(fd: int, offset: int, count: int) -> Iterator[tuple[int, array[int]]]:
    """The pieces of the table of `count` entries at `offset` in a file that are not all zero: index
    of the first entry, and entries. Holes are passed over. Raises OSError.

    The first index is a multiple of a piece's length, so pieces of several tables can be matched.
    """
    at, stop = _data_from(fd, offset), offset + count * ENTRY_BYTES
    while at < stop:
        at = offset + (at - offset) // len(_ZEROS) * len(_ZEROS)
        stored = os.pread(fd, min(len(_ZEROS), stop - at), at)
        piece = array("Q", stored[: len(stored) // ENTRY_BYTES * ENTRY_BYTES])
        if not piece:
            return
        if any(piece):
            yield (at - offset) // ENTRY_BYTES, piece
        at = _data_from(fd, at + len(_ZEROS))


def _data_from(fd: int, offset: int) -> int:
    """The first offset from `offset` on that is in no hole; the end of the file, or beyond, if
    there is none."""
    try:
        return max(offset, os.lseek(fd, offset, os.SEEK_DATA))
    except OSError:
        return max(offset, os.fstat(fd).st_size)  # ENXIO: nothing but a hole is left


def write_blank(fd: int, header: bytes, count: int) -> bool:
    """Write a map of `count` absent blocks into an empty file. False if there is no room. Raises
    OSError.

    Zeros rather than a hole: the disk is full now or never, and a reader of the entries finds them
    in memory. Only a map of many blocks has holes.
    """
    if count > DENSE_BLOCKS:
        os.ftruncate(fd, len(header) + count * ENTRY_BYTES)
        return os.pwrite(fd, header, 0) == len(header)
    whole = header + bytes(count * ENTRY_BYTES)
    return os.pwrite(fd, whole, 0) == len(whole)
