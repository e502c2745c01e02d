"""The language of the reference model: programs are plain values, so that one that fails prints itself and shrinks."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, TypeAlias

from hypothesis import strategies as st

from tests.reference.faults import FAULTS

MIB = 1 << 20
SLOTS = 4
"""Handles that a program may have open. A read on an empty slot opens one first."""

SIZES_BYTES = {
    "notes.txt": (300_000, 300_000, 0, 1, 300_000),
    "part.bin": (3 * MIB + 17, 3 * MIB + 17, 2 * MIB, 3 * MIB + 17, 3 * MIB + 17),
    "model.safetensors": (6 * MIB + 1, 6 * MIB + 1, 5 * MIB - 1, 6 * MIB + 1, 7 * MIB, 6 * MIB + 1),
    "large.dat": (11 * MIB, 11 * MIB, 13 * MIB + 4095, 11 * MIB, 9 * MIB, 11 * MIB),
}
"""By file: the bodies that it may have, as a size each."""


@cache
def body_of(file: str, body: int) -> bytes:
    return random.Random(f"{file} {body}").randbytes(SIZES_BYTES[file][body])


@dataclass(frozen=True)
class Setup:
    """What does not change while a program runs. The daemons share one cache directory."""

    daemons: int = 1
    cache_bytes: int = 1 << 30
    memory_bytes: int = 16 * MIB
    max_connections: int = 16


@dataclass(frozen=True)
class Open:
    """Close what `slot` has open, whoever is reading it, and open what `file` is now."""

    slot: int
    daemon: int
    file: str


@dataclass(frozen=True)
class Read:
    """`count` reads one after the other, each `stride` bytes after the one before; with `wait` the program waits for them."""

    slot: int
    offset: int
    size: int
    count: int = 1
    stride: int = 0
    wait: bool = True


@dataclass(frozen=True)
class Cancel:
    """Somebody who is reading gives up."""

    reader: int


@dataclass(frozen=True)
class Release:
    slot: int


@dataclass(frozen=True)
class Pass:
    """Time; and without any, one round of the scheduler."""

    seconds: float


@dataclass(frozen=True)
class Settle:
    """Wait until nobody reads."""


@dataclass(frozen=True)
class Put:
    """The file is replaced at the origin, or made."""

    file: str
    body: int


@dataclass(frozen=True)
class Delete:
    file: str


@dataclass(frozen=True)
class FailListings:
    """The next so many."""

    count: int


@dataclass(frozen=True)
class Spoil:
    """The next replies to GETs of `file`, by name of the fault; `forever`: the last one until `Heal`."""

    file: str
    faults: tuple[str, ...]
    forever: bool = False


@dataclass(frozen=True)
class Heal:
    """The origin is well again."""


@dataclass(frozen=True)
class FillDisk:
    """The disk has no room, or some again."""

    full: bool


@dataclass(frozen=True)
class BreakDisk:
    """The disk refuses what `daemon` does with the files that it has open."""

    daemon: int
    refuses: Literal["reads", "writes"]


@dataclass(frozen=True)
class Kill:
    """SIGKILL, and another daemon on the same directory."""

    daemon: int


@dataclass(frozen=True)
class Reboot:
    """Power is lost: all daemons die, the next boot's tag is another, and so many blocks of each file are lost though the map is not."""

    lost_blocks: int
    torn_map: bool = False


Step: TypeAlias = (
    Open
    | Read
    | Cancel
    | Release
    | Pass
    | Settle
    | Put
    | Delete
    | FailListings
    | Spoil
    | Heal
    | FillDisk
    | BreakDisk
    | Kill
    | Reboot
)


@dataclass(frozen=True)
class Program:
    setup: Setup
    steps: tuple[Step, ...]


_slots = st.integers(0, SLOTS - 1)
_daemons = st.integers(0, 1)
_files = st.sampled_from(list(SIZES_BYTES))
_edges = st.sampled_from([0, -1, 1, 17, -4096, 4096, 131_072, 524_287])
_offsets = st.builds(lambda block, edge: max(0, block * MIB + edge), st.integers(0, 5) | st.integers(0, 14), _edges)
_sizes = st.sampled_from([0, 1, 4096, 131_072, MIB, MIB + 1, 3 * MIB, 64 * MIB])
_strides = st.sampled_from([131_072, MIB, -131_072, -MIB, 2 * MIB + 1, -3 * MIB])
_few_bytes = st.sampled_from([4096, 131_072, MIB])
_pauses = st.sampled_from([0.0, 0.0, 0.06, 0.15, 0.3, 2.0, 8.0, 61.0])
_faults = st.lists(st.sampled_from(list(FAULTS)), min_size=1, max_size=4).map(tuple)


def _bodies(file: str) -> st.SearchStrategy[int]:
    return st.integers(0, len(SIZES_BYTES[file]) - 1)


def _reads(slot: int) -> st.SearchStrategy[Read]:
    once = st.builds(Read, st.just(slot), _offsets, _sizes, wait=st.booleans())
    scan = st.builds(
        Read, st.just(slot), _offsets, _few_bytes, count=st.integers(2, 12), stride=_strides, wait=st.booleans()
    )
    return once | scan


_spoils = st.builds(Spoil, _files, _faults, st.booleans())
_puts = _files.flatmap(lambda file: st.builds(Put, st.just(file), _bodies(file)))
_opens = st.builds(Open, _slots, _daemons, _files)
_cancels = st.builds(Cancel, st.integers(0, 7))
_disks = st.builds(FillDisk, st.booleans()) | st.builds(BreakDisk, _daemons, st.sampled_from(["reads", "writes"]))
_deaths = st.builds(Kill, _daemons) | st.builds(Reboot, st.integers(0, 3), st.booleans())
_events: st.SearchStrategy[Step] = st.one_of(
    _spoils,
    _spoils,
    _puts,
    _opens,
    _cancels,
    _disks,
    _deaths,
    st.builds(Release, _slots),
    st.builds(Pass, _pauses),
    st.builds(Settle),
    st.builds(Heal),
    st.builds(Delete, _files),
    st.builds(FailListings, st.integers(1, 3)),
)


@st.composite
def _anything(draw: st.DrawFn) -> list[Step]:
    """What happens, and who reads."""
    return [
        *draw(st.lists(_events, max_size=3)),
        *draw(st.lists(_slots.flatmap(_reads), min_size=1, max_size=3)),
    ]


@st.composite
def _new_version(draw: st.DrawFn) -> list[Step]:
    """A version that nobody has yet, and an origin that has its moods; who has the old one open goes on with it."""
    file, daemon = draw(_files), draw(_daemons)
    old, new = draw(_slots), draw(_slots)
    return [
        Open(old, daemon, file),
        *draw(st.lists(_reads(old), max_size=1)),
        Put(file, draw(_bodies(file))),
        Spoil(file, draw(_faults)),
        Pass(2.0),
        Open(new, daemon, file),
        *draw(st.lists(_reads(new) | _reads(old) | _slots.flatmap(_reads), min_size=1, max_size=4)),
    ]


@st.composite
def _surprise(draw: st.DrawFn) -> list[Step]:
    """Something happens in the middle of a transfer."""
    file, slot = draw(_files), draw(_slots)
    return [
        Spoil(file, ("slow",), forever=True),
        Open(slot, draw(_daemons), file),
        *draw(st.lists(_reads(slot).map(lambda read: replace(read, wait=False)), min_size=1, max_size=4)),
        Pass(draw(st.sampled_from([0.0, 0.06, 0.11, 0.3]))),
        *draw(st.lists(_events, min_size=1, max_size=2)),
        *draw(st.lists(_reads(slot), min_size=1, max_size=2)),
    ]


_stories = _anything() | _new_version() | _surprise()
_setups = st.builds(
    Setup,
    daemons=st.integers(1, 2),
    cache_bytes=st.sampled_from([1 << 30, 5 * MIB, 12 * MIB]),
    memory_bytes=st.sampled_from([16 * MIB, 2 * MIB, 1]),
    max_connections=st.sampled_from([16, 2]),
)


@st.composite
def programs(draw: st.DrawFn, max_stories: int) -> Program:
    """At least as many stories as drawn first, because lists alone are mostly short; shrinking leaves out single steps of them."""
    at_least = draw(st.integers(0, max_stories))
    stories = draw(st.lists(_stories, min_size=at_least, max_size=max_stories))
    kept = [step for story in stories for step in story if draw(_is_kept)]
    return Program(draw(_setups), (*draw(st.lists(_spoils, max_size=3)), *kept))


_is_kept = st.integers(0, 15).map(bool)
