"""The language of the reference model: programs are plain values, which print themselves and
shrink."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, TypeAlias

from hypothesis import strategies as st

from d7yfs.tree.source import LIMIT, ListingMode
from d7yfs.tree.tree import MAX_ENTRIES
from tests.reference.faults import FAULTS

MIB = 1 << 20
SLOTS = 4
"""Handles that a program may have open. A read on an empty slot opens one first."""

LARGE_BYTES = {
    "notes.txt": (300_000, 300_000, 0, 1, 300_000),
    "part.bin": (3 * MIB + 17, 3 * MIB + 17, 2 * MIB, 3 * MIB + 17, 3 * MIB + 17),
    "model.safetensors": (6 * MIB + 1, 6 * MIB + 1, 5 * MIB - 1, 6 * MIB + 1, 7 * MIB, 6 * MIB + 1),
    "large.dat": (11 * MIB, 11 * MIB, 13 * MIB + 4095, 11 * MIB, 9 * MIB, 11 * MIB),
}
SMALL_FILES = (
    *("a", "a.txt", "a/b", "a/b/c", "a/d"),
    *("m/1/x", "m/2", "m/2/x", "m/3/x", "m/4/x", "m/config", "z"),
)
"""Names of files and directories, with others before and behind them in the order of keys."""

SIZES_BYTES = LARGE_BYTES | dict.fromkeys(SMALL_FILES, (300, 300, 0, 301))
"""The possible bodies of each file, as a size each."""

AT_FIRST = (*LARGE_BYTES, "a/b", "a/d", "m/1/x", "m/2/x", "m/config")

PATHS = sorted({"", *SIZES_BYTES, *(file.rpartition("/")[0] for file in SMALL_FILES)})


@cache
def body_of(file: str, body: int) -> bytes:
    return random.Random(f"{file} {body}").randbytes(SIZES_BYTES[file][body])


@dataclass(frozen=True)
class Setup:
    """The settings of a program. The daemons share one cache directory."""

    daemons: int = 1
    cache_bytes: int = 1 << 30
    memory_bytes: int = 16 * MIB
    max_connections: int = 16
    listing: ListingMode = ListingMode.AUTO
    listing_limit: int = LIMIT
    page_size: int = 1000
    page_s: float = 0.02
    """Half of the time of a page."""
    max_inodes: int = MAX_ENTRIES
    refreshing: bool = False
    revalidates: bool = False

    @property
    def lists_flat(self) -> bool:
        """True if one flat listing may be all that is known."""
        return self.listing in (ListingMode.AUTO, ListingMode.WHOLE)


@dataclass(frozen=True)
class Open:
    """Close the file of `slot`, even under a reader, and open `file` anew."""

    slot: int
    daemon: int
    file: str


@dataclass(frozen=True)
class Read:
    """Read `count` times, each `stride` bytes after the last; with `wait` the program waits."""

    slot: int
    offset: int
    size: int
    count: int = 1
    stride: int = 0
    wait: bool = True


@dataclass(frozen=True)
class Cancel:
    """Cancel one of the readers."""

    reader: int


@dataclass(frozen=True)
class Release:
    slot: int


@dataclass(frozen=True)
class Pass:
    """Let time pass; without any, one round of the scheduler."""

    seconds: float


@dataclass(frozen=True)
class Settle:
    """Wait until there is no reader."""


@dataclass(frozen=True)
class Put:
    """Replace the file at the origin, or make it."""

    file: str
    body: int


@dataclass(frozen=True)
class Delete:
    file: str


@dataclass(frozen=True)
class Look:
    """Look a path up; with `wait` the program waits for the answer."""

    daemon: int
    path: str
    wait: bool = True


@dataclass(frozen=True)
class List:
    """Read a directory, a few names at a time, with a pause after each."""

    daemon: int
    path: str
    pause_s: float = 0.0
    wait: bool = True


@dataclass(frozen=True)
class Refresh:
    """Run `d7yfs refresh` for a path."""

    daemon: int
    path: str
    wait: bool = True


@dataclass(frozen=True)
class FailListings:
    """Fail `count` requests for names, `after` so many."""

    count: int
    after: int = 0


@dataclass(frozen=True)
class DenyListings:
    """Deny listings, so that only objects can be asked for, or allow them again."""

    denied: bool


@dataclass(frozen=True)
class Spoil:
    """Spoil the next replies to GETs of `file`, by name of the fault.

    `forever` repeats the last one until `Heal`.
    """

    file: str
    faults: tuple[str, ...]
    forever: bool = False


@dataclass(frozen=True)
class Heal:
    """Make the origin well again."""


@dataclass(frozen=True)
class FillDisk:
    """Fill the disk, or make room again."""

    full: bool


@dataclass(frozen=True)
class BreakDisk:
    """Break the disk for the files that `daemon` has open."""

    daemon: int
    refuses: Literal["reads", "writes"]


@dataclass(frozen=True)
class Kill:
    """Kill a daemon by SIGKILL, and start another on the same directory."""

    daemon: int


@dataclass(frozen=True)
class Reboot:
    """Lose power: all daemons die.

    The next boot's tag is another one. So many blocks of each file are lost, but not the map.
    """

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
    | Look
    | List
    | Refresh
    | FailListings
    | DenyListings
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
_files = st.sampled_from(list(LARGE_BYTES))
_edges = st.sampled_from([0, -1, 1, 17, -4096, 4096, 131_072, 524_287])
_offsets = st.builds(lambda block, edge: max(0, block * MIB + edge), st.integers(0, 5) | st.integers(0, 14), _edges)
_sizes = st.sampled_from([0, 1, 4096, 131_072, MIB, MIB + 1, 3 * MIB, 64 * MIB])
_strides = st.sampled_from([131_072, MIB, -131_072, -MIB, 2 * MIB + 1, -3 * MIB])
_few_bytes = st.sampled_from([4096, 131_072, MIB])
_pauses = st.sampled_from([0.0, 0.0, 0.06, 0.15, 0.3, 2.0, 8.0, 21.0, 61.0])
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
    """Any event, and reads."""
    return [
        *draw(st.lists(_events, max_size=3)),
        *draw(st.lists(_slots.flatmap(_reads), min_size=1, max_size=3)),
    ]


@st.composite
def _new_version(draw: st.DrawFn) -> list[Step]:
    """A new version, and an origin that has its moods; readers of the old version go on with it."""
    file, daemon = draw(_files), draw(_daemons)
    old, new = draw(_slots), draw(_slots)
    return [
        Open(old, daemon, file),
        *draw(st.lists(_reads(old), max_size=1)),
        Put(file, draw(_bodies(file))),
        Spoil(file, draw(_faults)),
        Pass(21.0),
        Open(new, daemon, file),
        *draw(st.lists(_reads(new) | _reads(old) | _slots.flatmap(_reads), min_size=1, max_size=4)),
    ]


@st.composite
def _surprise(draw: st.DrawFn) -> list[Step]:
    """An event in the middle of a transfer."""
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
    listing=st.sampled_from([ListingMode.AUTO, ListingMode.AUTO, ListingMode.DIRECTORY, ListingMode.EXACT]),
    refreshing=st.booleans(),
)


@st.composite
def programs(draw: st.DrawFn, max_stories: int) -> Program:
    """Programs about bytes. At least as many stories as drawn first: lists alone are mostly
    short."""
    stories = draw(_told(_stories, draw(st.integers(0, max_stories)), max_stories))
    return Program(draw(_setups), (*draw(st.lists(_spoils, max_size=3)), *stories))


@st.composite
def _told(draw: st.DrawFn, stories: st.SearchStrategy[list[Step]], at_least: int, max_stories: int) -> list[Step]:
    """Several stories; shrinking leaves out single steps of them."""
    drawn = draw(st.lists(stories, min_size=at_least, max_size=max_stories))
    return [step for story in drawn for step in story if draw(_is_kept)]


_is_kept = st.integers(0, 15).map(bool)


# --- names ---

_FAMILIES = [tuple(file for file in SMALL_FILES if file[0] == head) for head in "am"]
_moments = st.sampled_from([0.0, 0.01, 0.03, 0.05, 0.11, 0.3])
_whiles = st.sampled_from([1.1, 6.0, 17.0, 21.0, 21.0, 21.0, 61.0])
_troubles: st.SearchStrategy[Step] = st.one_of(
    st.builds(FailListings, st.integers(1, 9), st.integers(0, 3)),
    st.builds(DenyListings, st.booleans()),
    st.builds(Heal),
    st.builds(Cancel, st.integers(0, 7)),
    st.builds(Kill, _daemons),
)


def _questions(family: tuple[str, ...], wait: st.SearchStrategy[bool]) -> st.SearchStrategy[Step]:
    """Questions about names that have to do with each other."""
    files = st.sampled_from(family)
    directories = st.sampled_from(sorted({"", *(file.rpartition("/")[0] for file in family)}))
    return st.one_of(
        st.builds(Look, _daemons, files, wait),
        st.builds(List, _daemons, directories, st.sampled_from([0.0, 0.0, 0.03, 9.0, 30.0]), wait),
        st.builds(Refresh, _daemons, files | directories, wait),
    )


@st.composite
def _moves(draw: st.DrawFn, family: tuple[str, ...]) -> list[Step]:
    """A key is put, deleted, renamed, or becomes a directory or a file."""
    files = st.sampled_from(family)
    return [
        *draw(st.lists(st.builds(Delete, files), max_size=2)),
        *draw(st.lists(st.builds(Put, files, st.integers(0, 3)), max_size=2)),
    ]


def _all_of(family: tuple[str, ...], daemon: int) -> list[Step]:
    """Look at everything."""
    return [List(daemon, path) for path in sorted({"", *(file.rpartition("/")[0] for file in family)})]


def _opens_of(family: tuple[str, ...]) -> st.SearchStrategy[Step]:
    return st.builds(Open, _slots, _daemons, st.sampled_from(family))


def _one_of(*steps: list[Step]) -> st.SearchStrategy[list[Step]]:
    return st.sampled_from(steps)


@st.composite
def _busy(draw: st.DrawFn) -> list[Step]:
    """Names change in the middle of listings."""
    family, daemon = draw(st.sampled_from(_FAMILIES)), draw(_daemons)
    return [
        *draw(_one_of([], [Pass(21.0)], [Refresh(daemon, "", wait=False)])),
        *draw(st.lists(_questions(family, st.just(False)), min_size=1, max_size=3)),
        Pass(draw(_moments)),
        *draw(_moves(family)),
        *draw(st.lists(_moments.map(Pass) | _troubles | _opens_of(family), max_size=2)),
        *draw(_moves(family)),
        *draw(_one_of([], [Settle()], [Settle(), Pass(21.0)], [Settle(), Refresh(daemon, "")])),
        *_all_of(family, daemon),
    ]


@st.composite
def _later(draw: st.DrawFn) -> list[Step]:
    """Known names grow old, and a reader looks."""
    family, daemon = draw(st.sampled_from(_FAMILIES)), draw(_daemons)
    waits = st.booleans()
    return [
        *draw(_one_of([], _all_of(family, daemon))),
        *draw(st.lists(_questions(family, waits), max_size=2)),
        *draw(_moves(family)),
        Pass(draw(_whiles)),
        *draw(st.lists(_questions(family, waits) | _troubles, max_size=2)),
        *_all_of(family, daemon),
    ]


@st.composite
def _kept_open(draw: st.DrawFn) -> list[Step]:
    """A file is open while its name changes its meaning."""
    family = draw(st.sampled_from(_FAMILIES))
    file, slot, daemon = draw(st.sampled_from(family)), draw(_slots), draw(_daemons)
    some_read = st.builds(Read, st.just(slot), st.just(0), st.just(4096), wait=st.booleans())
    return [
        Open(slot, daemon, file),
        *draw(st.lists(some_read, max_size=1)),
        *draw(_moves(family)),
        draw(st.builds(Put, st.just(file), st.integers(0, 3)) | st.builds(Delete, st.just(file))),
        Pass(draw(_moments | _whiles)),
        *draw(st.lists(_questions(family, st.booleans()), min_size=1, max_size=1)),
        Read(slot, 0, 4096),
        Open(draw(_slots), daemon, file),
    ]


_name_setups = st.builds(
    Setup,
    daemons=st.sampled_from([1, 1, 1, 2]),
    listing=st.sampled_from(
        [ListingMode.AUTO, ListingMode.AUTO, ListingMode.WHOLE, ListingMode.DIRECTORY, ListingMode.EXACT]
    ),
    listing_limit=st.sampled_from([LIMIT, LIMIT, 8, 3]),
    page_size=st.sampled_from([1000, 4, 2, 1]),
    page_s=st.sampled_from([0.01, 0.01, 0.15]),
    max_inodes=st.sampled_from([MAX_ENTRIES, MAX_ENTRIES, 6]),
    refreshing=st.booleans(),
    revalidates=st.sampled_from([False, False, True]),
)


@st.composite
def name_programs(draw: st.DrawFn, max_stories: int) -> Program:
    """Programs about names. Never few: a daemon takes longer to start than to answer."""
    stories = _busy() | _later() | _kept_open() | _troubles.map(lambda step: [step])
    return Program(draw(_name_setups), tuple(draw(_told(stories, max_stories // 2, max_stories))))
