"""Directories and repositories with more entries than the daemon keeps, from a store of any size.
`tests/scale` tests larger ones.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path

import pytest

from tests.mount.huge_directory import Running, huge_store, mount, name_of
from tests.mount.libc_directory import LibcDirectory
from tests.mount.mounted import Mounted, Mounter, in_background, until, within
from tests.servers.faults import Hang, status
from tests.servers.in_thread import InThread
from tests.servers.vast import BUCKET, Keys, VastStore

COUNT = 100_000
LIMIT = 5_000
MIB = 1 << 20
PAGE = 1000
TIMEOUT_S = 60.0


@pytest.fixture
def store() -> Iterator[Running]:
    with huge_store(COUNT) as running:
        yield running


@pytest.fixture
def huge(mounter: Mounter, store: Running) -> Mounted:
    return mount(mounter, store, f"--listing-limit={LIMIT}")


def read_some(mounted: Mounted, count: int) -> list[str]:
    """The first names of the huge directory; by then the daemon knows that it is huge."""

    def reading() -> list[str]:
        with LibcDirectory(mounted.point / "huge") as directory:
            return directory.read(count)

    return within(TIMEOUT_S, reading)


def scan(path: Path, stop: int = COUNT + 1) -> tuple[int, int]:
    """The number of entries and of distinct names in a directory, up to `stop` entries."""
    names = set()
    entries = 0
    with os.scandir(path) as each:
        for entry in islice(each, stop):
            assert entry.is_file(follow_symlinks=False)  # By its type alone, without a request for its attributes.
            names.add(entry.name)
            entries += 1
    return entries, len(names)


def test_a_huge_directory_shows_every_name_once_in_bounded_memory(huge: Mounted, store: Running) -> None:
    read_some(huge, 3 * PAGE)
    before, asked = huge.status(), len(store.server.listings())
    assert within(TIMEOUT_S, lambda: scan(huge.point / "huge")) == (COUNT, COUNT)
    after = huge.status()
    assert len(store.server.listings()) - asked <= COUNT / PAGE
    # The daemon keeps a few pages of half a megabyte and a token per page, and no inode of the
    # names it has shown. The whole listing would take 60 MiB.
    assert after["rss_bytes"] - before["rss_bytes"] < 16 * MIB
    assert after["tree"]["inodes"] - before["tree"]["inodes"] < 10


def test_a_reader_of_a_huge_directory_blocks_no_other_reader(huge: Mounted, store: Running) -> None:
    assert huge.read("small.txt") == b"small.txt"
    read_some(huge, 1)
    hang = Hang()
    store.do(lambda: store.server.script(hang, key=BUCKET, forever=True))
    reading = in_background(lambda: scan(huge.point / "huge", 6 * PAGE))
    store.wait(hang.reached)
    assert huge.read_anew("small.txt") == b"small.txt"
    assert not reading.done()
    store.do(hang.resume.set)
    assert reading.result(TIMEOUT_S) == (6 * PAGE, 6 * PAGE)


def test_readers_of_the_same_huge_directory_do_not_block_each_other(huge: Mounted, store: Running) -> None:
    """Without parallel directory operations the kernel would make them wait."""
    read_some(huge, 1)
    hang = Hang()
    store.do(lambda: store.server.script(hang, key=BUCKET, forever=True))
    reading = in_background(lambda: scan(huge.point / "huge", 6 * PAGE))
    store.wait(hang.reached)
    assert read_some(huge, PAGE) == [name_of(number) for number in range(PAGE)]
    assert within(TIMEOUT_S, (huge.point / "huge" / name_of(7)).stat).st_size > 0
    assert not reading.done()
    store.do(hang.resume.set)
    assert reading.result(TIMEOUT_S) == (6 * PAGE, 6 * PAGE)


def test_a_lookup_that_hangs_holds_up_no_other_in_its_directory(huge: Mounted, store: Running) -> None:
    read_some(huge, 1)
    slow, quick = (f"huge/{name_of(number)}" for number in (55_555, 77_777))
    hang = Hang()
    store.do(lambda: store.server.script(hang, key=f"{BUCKET}/{slow}"))
    waiting = in_background((huge.point / slow).read_bytes)
    store.wait(hang.reached)
    assert huge.read(quick) == quick.encode()
    assert not waiting.done()
    store.do(hang.resume.set)
    assert waiting.result(TIMEOUT_S) == slow.encode()


def test_places_in_a_huge_directory_are_steady(huge: Mounted) -> None:
    with LibcDirectory(huge.point / "huge") as directory:
        places: list[tuple[int, list[str]]] = []
        for step in (1, 10, 500, 5 * PAGE, 3, 20 * PAGE, 7):
            place = directory.tell()
            places.append((place, within(TIMEOUT_S, partial(directory.read, step))[:5]))
        for place, names in (*reversed(places), places[3], places[1]):
            directory.seek(place)
            assert within(TIMEOUT_S, partial(directory.read, len(names))) == names
        directory.rewind()
        assert within(TIMEOUT_S, lambda: directory.read(2)) == [name_of(0), name_of(1)]


def test_a_name_in_a_huge_directory_is_asked_for_alone(huge: Mounted, store: Running) -> None:
    read_some(huge, 1)
    key = f"huge/{name_of(77_777)}"
    for _ in range(2):
        assert huge.read(key) == key.encode()
        with pytest.raises(FileNotFoundError):
            within(TIMEOUT_S, (huge.point / "huge/nothing").stat)
    assert sorted(store.server.looked_up()) == ["huge/nothing", key]
    assert [query["prefix"] for query in store.server.listings() if query["max-keys"] == "1"] == [
        f"{key}/",
        "huge/nothing/",
    ]


def test_what_readdir_has_just_shown_is_looked_up_without_a_request(huge: Mounted, store: Running) -> None:
    """Some entries, then their attributes, and so on, as `ls -l` does."""

    def list_long() -> int:
        with os.scandir(huge.point / "huge") as entries:
            return sum(entry.stat().st_size for entry in islice(entries, 4 * PAGE))

    read_some(huge, 1)
    assert within(TIMEOUT_S, list_long) == 4 * PAGE * len(f"huge/{name_of(0)}")
    # A page does not tell whether its last name is also a directory's.
    assert len(store.server.looked_up()) <= 5


def test_a_page_that_cannot_be_had_is_an_error_there_and_then(huge: Mounted, store: Running) -> None:
    with LibcDirectory(huge.point / "huge") as directory:
        assert len(within(TIMEOUT_S, lambda: directory.read(PAGE))) == PAGE
        denied = status(403, body=b"<Error><Code>AccessDenied</Code></Error>")
        store.do(lambda: store.server.script(denied, key=BUCKET, forever=True))
        with pytest.raises(PermissionError):
            within(TIMEOUT_S, lambda: directory.read(5 * PAGE))
        store.do(lambda: store.server.script(key=BUCKET))
        left = within(TIMEOUT_S, partial(directory.read, 10 * PAGE))
    first = int(left[0][6:13])
    assert PAGE <= first < 6 * PAGE
    assert left == [name_of(number) for number in range(first, first + 10 * PAGE)]


def test_the_kernel_is_made_to_forget_what_is_too_much(mounter: Mounter, store: Running) -> None:
    bound = 2000
    mounted = mount(mounter, store, f"--listing-limit={LIMIT}", f"--max-inodes={bound}")

    def open_one_and_look_at_many() -> bytes:
        with (mounted.point / "huge" / name_of(1)).open("rb") as file, os.scandir(mounted.point / "huge") as entries:
            for entry in islice(entries, 3 * PAGE):
                entry.stat()
            assert Path(f"/proc/self/fd/{file.fileno()}").readlink().name == name_of(1)
            return file.read()

    assert within(TIMEOUT_S, open_one_and_look_at_many) == f"huge/{name_of(1)}".encode()
    until(lambda: mounted.status()["tree"]["remembered"] <= bound, "the kernel to forget inodes")
    within(TIMEOUT_S, (mounted.point / "huge" / name_of(5)).stat)
    assert mounted.status()["tree"]["inodes"] <= bound + PAGE


def test_200_000_objects_in_2_000_directories_are_walked_within_a_kibibyte_each(mounter: Mounter) -> None:
    directories, files = 2000, 100
    keys = Keys(
        (directories * files, lambda number: f"repository/{number // files:05}/part-{number % files:05}.parquet")
    )
    with InThread(VastStore(keys)) as running:
        mounted = mount(mounter, running, "--listing-limit=200000", "--max-inodes=1000000")
        before = mounted.status()["rss_bytes"]
        walked = within(TIMEOUT_S, lambda: sum(len(names) for _, _, names in os.walk(mounted.point)))
        assert walked == directories * files
        after = mounted.status()
        assert after["tree"]["files"] == directories * files
        assert after["rss_bytes"] - before < 1024 * directories * files
        assert len(running.server.listings()) < 1.2 * directories * files / PAGE
