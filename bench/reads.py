"""The work of readers on a mount, with its time. Every function here runs in a child
(`bench.children`) and times itself.

A function with a limit stops there and returns its progress: a slow peer costs the run a bounded
time and still gets a rate.
"""

from __future__ import annotations

import ctypes
import mmap
import multiprocessing
import os
import random
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

BLOCK_BYTES = 1 << 20
PAGE_BYTES = 4096
_VERIFIED_CHUNK_BYTES = 4 << 20


class Done(NamedTuple):
    """An amount (bytes, reads, files) and the seconds it took."""

    amount: int
    elapsed_s: float

    @property
    def per_s(self) -> float:
        return self.amount / self.elapsed_s


def sequential(path: Path, limit_s: float) -> Done:
    """Read bytes in order, 1 MiB at a time. The time includes the open, and so the lookup."""
    buffer = bytearray(BLOCK_BYTES)
    total = 0
    start = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
            if time.perf_counter() - start > limit_s:
                return Done(total, time.perf_counter() - start)
    elapsed_s = time.perf_counter() - start
    _expect(total, path)
    return Done(total, elapsed_s)


def several(paths: Sequence[Path], limit_s: float) -> Done:
    """Read the bytes of all files, each in order by its own thread."""
    return _threads([lambda path=path: sequential(path, limit_s).amount for path in paths])  # type: ignore[misc]


def scattered_blocks(path: Path, threads: int, limit_s: float) -> Done:
    """Read every 1 MiB block of the file once, in random order, by threads that share one
    descriptor.
    """
    blocks = list(range(path.stat().st_size // BLOCK_BYTES))
    random.Random(1).shuffle(blocks)
    fd = os.open(path, os.O_RDONLY)
    deadline = time.perf_counter() + limit_s

    def read(mine: Sequence[int]) -> int:
        buffer = bytearray(BLOCK_BYTES)
        total = 0
        for block in mine:
            if time.perf_counter() > deadline:
                break
            count = os.preadv(fd, [buffer], block * BLOCK_BYTES)
            if count != BLOCK_BYTES:
                raise OSError(f"{path}: {count} bytes at block {block}")
            total += count
        return total

    return _threads([lambda number=number: read(blocks[number::threads]) for number in range(threads)])  # type: ignore[misc]


def mapped(path: Path, limit_s: float) -> Done:
    """Read one byte from every page of the mapped file, in order, which faults in all of it."""
    start = time.perf_counter()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        size_bytes = len(memory)
        for block in range(0, size_bytes, BLOCK_BYTES):
            memory[block : block + BLOCK_BYTES : PAGE_BYTES]
            if time.perf_counter() - start > limit_s:
                return Done(block, time.perf_counter() - start)
    return Done(size_bytes, time.perf_counter() - start)


def random_faults(path: Path, count: int, limit_s: float) -> Done:
    """Take page faults at random places of the mapped file, with the kernel advised of random
    access.
    """
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as memory:
        memory.madvise(mmap.MADV_RANDOM)
        offsets = _random_pages(len(memory), count)
        deadline = time.perf_counter() + limit_s
        start = time.perf_counter()
        done = 0
        for offset in offsets:
            memory[offset]
            done += 1
            if not done & 63 and time.perf_counter() > deadline:
                break
        return Done(done, time.perf_counter() - start)


def random_reads(path: Path, count: int, limit_s: float) -> Done:
    """Read 4 KiB at random places, one pread after the other."""
    fd = os.open(path, os.O_RDONLY)
    offsets = _random_pages(path.stat().st_size, count)
    buffers = [bytearray(PAGE_BYTES)]
    deadline = time.perf_counter() + limit_s
    start = time.perf_counter()
    done = 0
    for offset in offsets:
        os.preadv(fd, buffers, offset)
        done += 1
        if not done & 63 and time.perf_counter() > deadline:
            break
    return Done(done, time.perf_counter() - start)


def known(directory: Path) -> None:
    """List the directory, so that its names are known."""
    list(directory.iterdir())


def first_byte(path: Path) -> float:
    """Seconds until the first byte is there. The peer's further fetches are counted after a pause
    for them.
    """
    # The directory is known, as it is to a program that got the name from a listing.
    known(path.parent)
    start = time.perf_counter()
    fd = os.open(path, os.O_RDONLY)
    os.pread(fd, 1, 0)
    elapsed_s = time.perf_counter() - start
    time.sleep(0.5)
    return elapsed_s


def safetensors(path: Path) -> float:
    """Seconds until safetensors' own loader has returned every tensor as a numpy array."""
    from safetensors.numpy import load_file

    start = time.perf_counter()
    tensors = load_file(path)
    elapsed_s = time.perf_counter() - start
    _expect(sum(tensor.nbytes for tensor in tensors.values()) + _header_bytes(path), path)
    return elapsed_s


def small_files(directory: Path, count: int, threads: int, limit_s: float) -> Done:
    """Open, read whole and close files, by threads that take every n-th."""
    deadline = time.perf_counter() + limit_s

    def read(first: int) -> int:
        done = 0
        for number in range(first, count, threads):
            if time.perf_counter() > deadline:
                break
            path = directory / f"{number:05}.bin"
            _expect(len(path.read_bytes()), path)
            done += 1
        return done

    return _threads([lambda number=number: read(number) for number in range(threads)])  # type: ignore[misc]


def whole_files(directory: Path, names: Sequence[str], threads: int, limit_s: float) -> Done:
    """Read the bytes of files in order, by threads that take every n-th."""
    deadline = time.perf_counter() + limit_s

    def read(mine: Sequence[str]) -> int:
        paths = (directory / name for name in mine)
        return sum(sequential(path, limit_s).amount for path in paths if time.perf_counter() < deadline)

    return _threads([lambda number=number: read(names[number::threads]) for number in range(threads)])  # type: ignore[misc]


class Beside(NamedTuple):
    """A read in order while another process lists, and the end of that."""

    read: Done
    longest_s: float
    """Seconds of the slowest read of 1 MiB."""
    listing_s: float


def beside_listing(path: Path, lines: int, limit_s: float) -> Beside:
    """Read a file in order while `find` prints the names of its directory, which are as many as `lines`."""
    buffer = bytearray(BLOCK_BYTES)
    total, longest_s = 0, 0.0
    with ThreadPoolExecutor(1) as pool, path.open("rb", buffering=0) as file:
        listing = pool.submit(command, ["find"], path.parent, lines)
        start = before = time.perf_counter()
        while count := file.readinto(buffer):
            now = time.perf_counter()
            total, longest_s, before = total + count, max(longest_s, now - before), now
            if now - start > limit_s:
                break
        done = Done(total, time.perf_counter() - start)
        return Beside(done, longest_s, listing.result())


def herd(path: Path, processes: int) -> float:
    """Seconds until the last of several processes has read the whole file, all starting at once."""
    context = multiprocessing.get_context("fork")
    gate = context.Barrier(processes + 1)

    def read() -> None:
        gate.wait()
        try:
            sequential(path, 3600)
        except OSError as error:
            os._exit(error.errno or 1)

    children = [context.Process(target=read, daemon=True) for _ in range(processes)]
    for child in children:
        child.start()
    gate.wait()
    start = time.perf_counter()
    for child in children:
        child.join()
    elapsed_s = time.perf_counter() - start
    if failed := [child.exitcode for child in children if child.exitcode]:
        raise OSError(f"{len(failed)} of {processes} readers failed, the first with status {failed[0]}")
    return elapsed_s


def look_up(directory: Path, directories: int, files: int, limit_s: float) -> Done:
    """Ask for the attributes of each file of a tree (`dataset.TREE`), by its name."""
    start = time.perf_counter()
    done = 0
    for number in range(directories):
        parent = f"{directory}/{number:03}"
        for name in range(files):
            os.stat(f"{parent}/{name:05}.bin")  # noqa: PTH116  # a Path takes longer than the call
            done += 1
            if not done & 63 and time.perf_counter() - start > limit_s:
                return Done(done, time.perf_counter() - start)
    return Done(done, time.perf_counter() - start)


def list_names(directory: Path, directories: int, files: int, limit_s: float) -> Done:
    """List the names in each directory of a tree."""
    start = time.perf_counter()
    done = 0
    for number in range(directories):
        names = os.listdir(f"{directory}/{number:03}")  # noqa: PTH208  # likewise
        if len(names) != files:
            raise OSError(f"{directory}/{number:03}: {len(names)} names instead of {files}")
        done += files
        if time.perf_counter() - start > limit_s:
            break
    return Done(done, time.perf_counter() - start)


def longest_pause(path: Path, disturb: Callable[[], None]) -> float:
    """Seconds of the slowest of many opens and reads of a page, one after the other by a process of
    their own, while `disturb` runs.
    """
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    over = context.Event()

    def read() -> None:
        longest_s = 0.0
        try:
            while not over.is_set():
                start = time.perf_counter()
                with path.open("rb", buffering=0) as file:
                    file.read(PAGE_BYTES)
                longest_s = max(longest_s, time.perf_counter() - start)
                time.sleep(0.001)  # The processors are also for those who take over.
        except OSError as error:
            sending.send(str(error))
        else:
            sending.send(longest_s)

    child = context.Process(target=read, daemon=True)
    child.start()
    try:
        disturb()
    finally:
        over.set()
    found = receiving.recv()
    child.join()
    if isinstance(found, str):
        raise OSError(found)
    return float(found)


def command(arguments: Sequence[str], directory: Path, lines: int) -> float:
    """Seconds of a command, which must print `lines` lines."""
    start = time.perf_counter()
    done = subprocess.run([*arguments, directory], stdin=subprocess.DEVNULL, capture_output=True, check=True)
    elapsed_s = time.perf_counter() - start
    if (found := done.stdout.count(b"\n")) != lines:
        raise OSError(f"{arguments[0]} prints {found} lines instead of {lines}")
    return elapsed_s


def compare(pairs: Sequence[tuple[Path, Path]]) -> None:
    """Compare each file with its source. Raises OSError if one differs."""
    ours, theirs = bytearray(_VERIFIED_CHUNK_BYTES), bytearray(_VERIFIED_CHUNK_BYTES)
    for path, source in pairs:
        with path.open("rb", buffering=0) as one, source.open("rb", buffering=0) as other:
            offset = 0
            while True:
                count = _fill(one.readinto, ours)
                if count != _fill(other.readinto, theirs) or not _same(ours, theirs, count):
                    raise OSError(f"{path}: wrong bytes within {len(ours)} from {offset}")
                if not count:
                    break
                offset += count


def _fill(readinto: Callable[[memoryview], int | None], buffer: bytearray) -> int:
    filled = 0
    with memoryview(buffer) as view:
        while filled < len(buffer) and (count := readinto(view[filled:])):
            filled += count
    return filled


def _same(one: bytearray, other: bytearray, count: int) -> bool:
    array = ctypes.c_char * count
    return bool(ctypes.CDLL(None).memcmp(array.from_buffer(one), array.from_buffer(other), count) == 0)


def _threads(work: Sequence[Callable[[], int]]) -> Done:
    """Run all functions at once and sum their results. The first error is raised when all have
    ended.
    """
    counts: list[int] = []
    errors: list[Exception] = []

    def run(each: Callable[[], int]) -> None:
        try:
            counts.append(each())
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in work]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    elapsed_s = time.perf_counter() - start
    if errors:
        raise errors[0]
    return Done(sum(counts), elapsed_s)


def _random_pages(size_bytes: int, count: int) -> list[int]:
    source = random.Random(2)
    return [source.randrange(size_bytes // PAGE_BYTES) * PAGE_BYTES for _ in range(count)]


def _header_bytes(path: Path) -> int:
    with path.open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


def _expect(found_bytes: int, path: Path) -> None:
    if found_bytes != path.stat().st_size:
        raise OSError(f"{path}: read {found_bytes} bytes of {path.stat().st_size}")
