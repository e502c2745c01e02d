"""The bytes of a version: each eight of them encode the version and their offset, so that a wrong
byte tells its origin.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

LARGEST_BYTES = 20 << 20
_C1, _C2 = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_MASK = (1 << 64) - 1
_VERSION = 1 << 40
"""Added to a serial before the mixing, so that no serial equals a word's index."""


def _mixed(word: int) -> int:
    """Apply splitmix64's last step, a bijection of 64-bit words."""
    word = (word ^ word >> 30) * _C1 & _MASK
    word = (word ^ word >> 27) * _C2 & _MASK
    return word ^ word >> 31


def _indices() -> npt.NDArray[np.uint64]:
    words = np.arange(LARGEST_BYTES // 8 + 1, dtype=np.uint64)
    words = (words ^ words >> np.uint64(30)) * np.uint64(_C1)
    words = (words ^ words >> np.uint64(27)) * np.uint64(_C2)
    return words ^ words >> np.uint64(31)


_INDEX = _indices()


@functools.cache
def _of_version(serial: int) -> np.uint64:
    return np.uint64(_mixed(serial + _VERSION))


def piece(serial: int, offset: int, size_bytes: int) -> bytes:
    """`size_bytes` of version `serial` from `offset` on."""
    first = offset >> 3
    lead = offset - (first << 3)
    words = (_INDEX[first : (offset + size_bytes + 7) >> 3] ^ _of_version(serial)).tobytes()
    return words if not lead and len(words) == size_bytes else words[lead : lead + size_bytes]


def first_difference(got: bytes, expected: bytes) -> int:
    """The offset of the first difference; the shorter length if one is a prefix of the other."""
    length = min(len(got), len(expected))
    differing = np.flatnonzero(np.frombuffer(got, np.uint8, length) != np.frombuffer(expected, np.uint8, length))
    return int(differing[0]) if len(differing) else length


def provenance(data: bytes, offset: int, serials: Iterable[int]) -> str:
    """The origin of `data`, read at `offset`: runs of bytes, each with its version, as text."""
    lead = -offset % 8
    words = np.frombuffer(data[lead : lead + (len(data) - lead) // 8 * 8], "<u8")
    if not len(words):
        return f"too few bytes to tell: {data[:64]!r}"
    first = (offset + lead) >> 3
    known = {int(_of_version(serial)): serial for serial in serials}
    of_version = words ^ _INDEX[first : first + len(words)]
    runs: list[tuple[int, int, str]] = []
    at = 0
    while at < len(words) and len(runs) < 12:
        changes = np.flatnonzero(of_version[at:] != of_version[at])
        to = at + (int(changes[0]) if len(changes) else len(words) - at)
        version = known.get(int(of_version[at]))
        if version is not None:
            what = f"version {version}, at its place"
        else:
            zeros = np.flatnonzero(words[at:])
            nothing = int(zeros[0]) if len(zeros) else len(words) - at
            to = at + max(nothing, 1)
            what = "zeros" if nothing else elsewhere(data, lead + at * 8, known)
        here = (offset + lead + at * 8, offset + lead + to * 8)
        if runs and runs[-1][2] == what:
            runs[-1] = (runs[-1][0], here[1], what)
        else:
            runs.append((*here, what))
        at = to
    return "; ".join(f"[{start}, {stop}): {what}" for start, stop, what in runs)


@functools.cache
def _sorted_indices() -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.int64]]:
    order = np.argsort(_INDEX)
    return _INDEX[order], order


def elsewhere(data: bytes, at: int, known: dict[int, int]) -> str:
    """The version and offset at which these bytes occur, aligned or not, as text."""
    values, order = _sorted_indices()
    mixed = np.array(list(known), dtype=np.uint64)
    for shift in range(8):
        word = np.uint64(int.from_bytes(data[at + shift : at + shift + 8].ljust(8, b"\0"), "little"))
        places = np.minimum(np.searchsorted(values, mixed ^ word), len(values) - 1)
        found = np.flatnonzero(values[places] == mixed ^ word)
        if len(found):
            serial, index = known[int(mixed[found[0]])], int(order[places[found[0]]])
            return f"version {serial}, but its offset {index * 8 - shift}"
    return f"of no version: {data[at : at + 48]!r}"
