"""Threads that do random operations on the mounts, as programs would; the oracle judges each
answer.
"""

from __future__ import annotations

import errno
import faulthandler
import json
import mmap
import os
import random
import stat
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.fuzz.churn import KEPT
from tests.fuzz.history import ABSENT
from tests.fuzz.oracle import SLOW_S, Handle, Oracle, Rules, Tally

_MOST_HANDLES = 16
_MIB = 1 << 20
_WARM_S = 0.01
_SMALL_READS = 12


class Client:
    """The operations of one thread."""

    def __init__(self, oracle: Oracle, number: int) -> None:
        self.oracle = oracle
        self.rules = oracle.rules
        self.tally = Tally()
        self.handles: list[Handle] = []
        self.began: float | None = None
        self.doing = ""
        self._more = 0
        """The operations that the current one counts for, beyond one."""
        self._rng = random.Random(self.rules.seed << 16 ^ oracle.client << 8 ^ number)
        self._directories = sorted({key.rpartition("/")[0] for key in self.rules.keys})
        self._in_directory = {
            directory: [i for i, key in enumerate(self.rules.keys) if key.rpartition("/")[0] == directory]
            for directory in self._directories
        }
        self._pipe = os.pipe()
        self._sink = os.memfd_create("sink")
        self._aligned = mmap.mmap(-1, 1 << 24)
        weighted: list[tuple[Callable[[], None], int]] = [
            (self.small_reads, 90),
            (self.pread, 160),
            (self.open, 40),
            (self.close, 34),
            (self.sequential, 4),
            (self.preadv, 25),
            (self.splice, 12),
            (self.sendfile, 12),
            (self.direct, 8),
            (self.duplicate, 6),
            (self.reopen, 6),
            (self.forget, 12),
            (self.fstat, 60),
            (self.stat, 50),
            (self.missing, 25),
            (self.list, 6),
            (self.seek, 15),
            (self.readlink, 5),
        ]
        self._operations = [operation for operation, _ in weighted]
        total = 0
        self._weights = [total := total + weight for _, weight in weighted]

    def run(self, operations: int, deadline: float) -> None:
        """Do this many operations, or stop when the time or the campaign is over."""
        choices = self._rng.choices
        done = 0
        shared = self.oracle.shared
        while done < operations and not shared.is_over and time.monotonic() < deadline:
            for operation in choices(self._operations, cum_weights=self._weights, k=50):
                if self._all_down() and self._rng.random() < 0.95:
                    time.sleep(0.02)  # With all daemons down, open files are read rarely.
                    continue
                self.doing = operation.__name__
                began = self.began = time.monotonic()
                operation()
                took = time.monotonic() - began
                self.began = None
                if took > _WARM_S:
                    self.tally.took(self.doing, took)
                    if took > SLOW_S:
                        self.oracle.deviation(self.tally, f"{self.doing}: took {took:.0f} s", None)
                done += 1 + self._more
                self._more = 0
                if shared.is_over:
                    break
            self.tally.counts["operations"] = done
        for handle in self.handles:
            os.close(handle.fd)
        self.handles.clear()

    def _all_down(self) -> bool:
        return all(self.oracle.shared.generation(mount) % 2 for mount in range(len(self.rules.points)))

    # --- choices ---

    def _key(self) -> int:
        """Any key; the first keys of each directory are more likely."""
        inside = self._in_directory[self._rng.choice(self._directories)]
        return inside[int(len(inside) * self._rng.random() ** 2)]

    def _handle(self) -> Handle | None:
        if not self.handles:
            self.open()
        if not self.handles:
            return None
        handle = self._rng.choice(self.handles)
        if handle.generation != self.oracle.shared.generation(handle.mount) and self._rng.random() < 0.2:
            self._drop(handle)
        return handle if handle in self.handles else None

    def _drop(self, handle: Handle) -> None:
        self.handles.remove(handle)
        os.close(handle.fd)

    def _range(self, handle: Handle) -> tuple[int, int]:
        """Offset and size of a read: small or large, aligned or not, sometimes across the end."""
        rng = self._rng
        dice = rng.random()
        size = int(
            2 ** (rng.random() * 12 if dice < 0.86 else rng.random() * 17 if dice < 0.985 else 12 + rng.random() * 11)
        )
        place = rng.random()
        if place < 0.1:
            offset = max(handle.size - rng.randint(0, size + 1), 0)
        elif place < 0.2:
            offset = rng.randint(0, handle.size // 4096 + 1) * 4096
        elif place < 0.3:
            offset = max(rng.randint(0, handle.size // _MIB + 1) * _MIB - rng.randint(0, size), 0)
        elif place < 0.35:
            offset = 0
        else:
            offset = rng.randint(0, handle.size)
        return offset, size

    # --- operations ---

    def _judged(self, what: str, handle: Handle, offset: int, asked: int, read: Callable[[], bytes]) -> bool:
        try:
            data = read()
        except OSError as error:
            self.oracle.failed(self.tally, what, handle, error)
            if handle in self.handles and self._rng.random() < 0.5:
                self._drop(handle)
            return False
        if not self.oracle.read(self.tally, what, handle, offset, asked, data):
            if handle in self.handles:
                self._drop(handle)
            return False
        return True

    def pread(self) -> None:
        if (handle := self._handle()) is None:
            return
        offset, size = self._range(handle)
        self._judged("pread", handle, offset, size, lambda: os.pread(handle.fd, size, offset))

    def small_reads(self) -> None:
        """Do small reads at random offsets of one file; each counts as an operation."""
        if (handle := self._handle()) is None:
            return
        for _ in range(_SMALL_READS):
            offset = self._rng.randint(0, handle.size)
            size = self._rng.randint(1, 600)
            if not self._judged("pread", handle, offset, size, lambda: os.pread(handle.fd, size, offset)):  # noqa: B023
                return
            self._more += 1
        self._more -= 1

    def preadv(self) -> None:
        if (handle := self._handle()) is None:
            return
        offset, size = self._range(handle)
        first = self._rng.randint(0, size)
        buffers = [bytearray(first), bytearray(size - first)]

        def read() -> bytes:
            count = os.preadv(handle.fd, buffers, offset)
            return b"".join(buffers)[:count]

        self._judged("preadv", handle, offset, size, read)

    def open(self) -> None:
        if len(self.handles) >= _MOST_HANDLES:
            self._drop(self._rng.choice(self.handles))
        key = self._key()
        mount = self._rng.randrange(len(self.rules.points))
        generation = self.oracle.shared.generation(mount)
        if generation % 2:
            time.sleep(0.01)
        before = time.monotonic()
        self.tally.counts["opens"] += 1
        try:
            fd = os.open(self.rules.points[mount] / self.rules.keys[key], os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.oracle.refused(self.tally, key, mount, generation, before, error)
            return
        try:
            self.handles.append(self.oracle.opened(self.tally, fd, mount, generation, key, before))
        except OSError as error:
            os.close(fd)
            self.oracle.refused(self.tally, key, mount, generation, before, error)

    def close(self) -> None:
        """Close one of the handles; the others stay open across replacements."""
        if self.handles:
            self._drop(self._rng.choice(self.handles))

    def sequential(self) -> None:
        """Read a file from its beginning to its end or to a random offset."""
        if (handle := self._handle()) is None:
            return
        size = self._rng.choice([1000, 4096, 65536, 131072, _MIB])
        stop = self._rng.choice([handle.size, self._rng.randint(0, handle.size), size * 3])
        stop = min(stop, handle.size, size * 600)
        os.lseek(handle.fd, 0, os.SEEK_SET)
        offset = 0
        while offset <= stop:
            if not self._judged("read", handle, offset, size, lambda: os.read(handle.fd, size)):
                return
            offset += size
            if offset < handle.size:
                os.lseek(handle.fd, offset, os.SEEK_SET)

    def splice(self) -> None:
        if (handle := self._handle()) is None:
            return
        offset, size = self._range(handle)
        size = min(size, 49152)
        reader, writer = self._pipe

        def read() -> bytes:
            data = b""
            try:
                while len(data) < size:
                    count = os.splice(handle.fd, writer, size - len(data), offset_src=offset + len(data))
                    if not count:
                        break
                    data += os.read(reader, count)
            except OSError:
                if not data:
                    raise
            return data

        self._judged("splice", handle, offset, size, read)

    def sendfile(self) -> None:
        if (handle := self._handle()) is None:
            return
        offset, size = self._range(handle)

        def read() -> bytes:
            os.lseek(self._sink, 0, os.SEEK_SET)
            sent = 0
            try:
                while sent < size:
                    count = os.sendfile(self._sink, handle.fd, offset + sent, size - sent)
                    if not count:
                        break
                    sent += count
            except OSError:
                if not sent:
                    raise
            return os.pread(self._sink, sent, 0)

        self._judged("sendfile", handle, offset, size, read)

    def direct(self) -> None:
        """Read with O_DIRECT through a handle of its own: no read comes from the page cache of the
        mount. Place, size and memory are aligned, as local file systems demand it.
        """
        if (handle := self._handle()) is None:
            return
        before = time.monotonic()
        generation = self.oracle.shared.generation(handle.mount)
        path = self.rules.points[handle.mount] / self.rules.keys[handle.key]
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
        except OSError as error:
            self.oracle.refused(self.tally, handle.key, handle.mount, generation, before, error)
            return
        try:
            try:
                own = self.oracle.opened(self.tally, fd, handle.mount, generation, handle.key, before)
            except OSError as error:
                self.oracle.refused(self.tally, handle.key, handle.mount, generation, before, error)
                return
            own.is_direct = True
            for _ in range(self._rng.randint(1, 4)):
                offset, size = (-(-each // 4096) * 4096 for each in self._range(own))
                into = memoryview(self._aligned)[:size]
                read = partial(_pread_into, fd, into, offset)
                if not self._judged("direct", own, offset, len(into), read):
                    return
        finally:
            os.close(fd)

    def duplicate(self) -> None:
        if (handle := self._handle()) is None:
            return
        offset, size = self._range(handle)
        fd = os.dup(handle.fd)
        try:
            self._judged("dup", handle, offset, size, lambda: os.pread(fd, size, offset))
        finally:
            os.close(fd)

    def reopen(self) -> None:
        """Open the same inode through /proc/self/fd: the same version, even if its name now means
        another.
        """
        if (handle := self._handle()) is None:
            return
        try:
            fd = os.open(f"/proc/self/fd/{handle.fd}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.oracle.failed(self.tally, "reopen", handle, error)
            return
        try:
            offset, size = self._range(handle)
            self._judged("reopened", handle, offset, size, lambda: os.pread(fd, size, offset))
        finally:
            os.close(fd)

    def forget(self) -> None:
        """Make the kernel drop cached pages of a file or read ahead."""
        if (handle := self._handle()) is None:
            return
        advice = self._rng.choice(
            [os.POSIX_FADV_DONTNEED] * 6 + [os.POSIX_FADV_WILLNEED, os.POSIX_FADV_RANDOM, os.POSIX_FADV_SEQUENTIAL]
        )
        offset, size = (0, 0) if self._rng.random() < 0.5 else self._range(handle)
        os.posix_fadvise(handle.fd, offset, size, advice)

    def fstat(self) -> None:
        if (handle := self._handle()) is None:
            return
        try:
            found = os.fstat(handle.fd)
        except OSError as error:
            self.oracle.failed(self.tally, "fstat", handle, error)
            return
        now = (found.st_size, found.st_ino, found.st_mtime_ns)
        if now != (handle.size, handle.ino, handle.mtime_ns):
            self.oracle.deviation(self.tally, "fstat: changed", handle, now=now, before=handle.mtime_ns)

    def stat(self) -> None:
        key = self._key()
        mount = self._rng.randrange(len(self.rules.points))
        generation = self.oracle.shared.generation(mount)
        before = time.monotonic()
        try:
            found = (self.rules.points[mount] / self.rules.keys[key]).stat()
        except OSError as error:
            self.oracle.refused(self.tally, key, mount, generation, before, error)
            return
        self.oracle.history.update()
        allowed = self.oracle.history.current(key, self.oracle.since(before), time.monotonic())
        if found.st_size not in [size for serial, size in allowed if serial] or not stat.S_ISREG(found.st_mode):
            self.oracle.deviation(
                self.tally,
                "stat: size of no version then",
                None,
                key=self.rules.keys[key],
                size=found.st_size,
                allowed=allowed,
            )

    def missing(self) -> None:
        """Look up a name that never existed."""
        mount = self._rng.randrange(len(self.rules.points))
        generation = self.oracle.shared.generation(mount)
        name = self._rng.choice(["none", "nöne", "x" * 200, ".hidden", "none.bin"]) + str(self._rng.randint(0, 30))
        path = self.rules.points[mount] / self._rng.choice(self._directories) / name
        try:
            path.lstat()
        except FileNotFoundError:
            return
        except OSError as error:
            if not self.oracle.is_excused(mount, generation, error):
                self.oracle.deviation(self.tally, f"missing: {error.strerror}", None, path=str(path))
            return
        self.oracle.deviation(self.tally, "missing: is there", None, path=str(path))

    def list(self) -> None:
        directory = self._rng.choice(self._directories)
        mount = self._rng.randrange(len(self.rules.points))
        generation = self.oracle.shared.generation(mount)
        before = time.monotonic()
        path = self.rules.points[mount] / directory
        try:
            if self._rng.random() < 0.5:
                names = {entry.name for entry in path.iterdir()}
            else:
                with os.scandir(path) as entries:
                    names = {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
        except OSError as error:
            if not self.oracle.is_excused(mount, generation, error):
                self.oracle.deviation(self.tally, f"list: {error.strerror}", None, path=str(path))
            return
        after = time.monotonic()
        if self.oracle.is_excused(mount, generation):
            return
        self.oracle.history.update()
        since = self.oracle.since(before)
        self.tally.counts["listed names"] += len(names)
        lost, found = [], []
        for key in self._in_directory[directory]:
            name = self.rules.keys[key].rpartition("/")[2]
            there = [serial != ABSENT for serial, _ in self.oracle.history.current(key, since, after)]
            if name not in names and all(there):
                lost.append(name)
            if name in names and not any(there):
                found.append(name)
            names.discard(name)
        if lost or found or names:
            self.oracle.deviation(
                self.tally, "list: wrong names", None, path=str(path), lost=lost, gone=found, unknown=list(names)
            )

    def seek(self) -> None:
        if (handle := self._handle()) is None:
            return
        try:
            end = os.lseek(handle.fd, 0, os.SEEK_END)
        except OSError as error:
            self.oracle.failed(self.tally, "lseek", handle, error)
            return
        if end != handle.size:
            self.oracle.deviation(self.tally, "lseek: another end", handle, end=end)

    def readlink(self) -> None:
        mount = self._rng.randrange(len(self.rules.points))
        generation = self.oracle.shared.generation(mount)
        directory = self._rng.choice(self._directories)
        try:
            (self.rules.points[mount] / directory / KEPT.removeprefix("/")).readlink()
        except OSError as error:
            if error.errno != errno.EINVAL and not self.oracle.is_excused(mount, generation, error):
                self.oracle.deviation(self.tally, f"readlink: {error.strerror}", None, path=directory)


def run(rules: Rules, number: int, threads: int, operations: int, deadline: float) -> None:
    """A client's process, for multiprocessing: `operations` operations by `threads` threads."""
    sys.setswitchinterval(0.002)
    faulthandler.enable((rules.directory / f"fault-{number}").open("w"))
    oracle = Oracle(rules, number)
    clients = [Client(oracle, thread) for thread in range(threads)]
    failed: list[str] = []

    def work(client: Client) -> None:
        try:
            client.run(operations // threads, deadline)
        except BaseException as error:
            import traceback

            failed.append("".join(traceback.format_exception(error)))

    running = [threading.Thread(target=work, args=(client,), daemon=True) for client in clients]
    for thread in running:
        thread.start()
    while any(thread.is_alive() for thread in running):
        running[0].join(0.5)
        time.sleep(0.2)
        _report(rules.directory / f"report-{number}", oracle, clients, failed)
    _report(rules.directory / f"report-{number}", oracle, clients, failed)


def _report(path: Path, oracle: Oracle, clients: list[Client], failed: list[str]) -> None:
    counts: Counter[str] = Counter()
    slowest: dict[str, float] = {}
    for client in clients:
        counts.update(dict(client.tally.counts))
        for name, seconds in dict(client.tally.slowest).items():
            slowest[name] = max(slowest.get(name, 0.0), seconds)
    now = time.monotonic()
    waiting = [(client.doing, now - client.began) for client in clients if client.began and now - client.began > SLOW_S]
    oracle.shared.set_done(oracle.client, counts["operations"])
    new = path.with_suffix(".new")
    new.write_text(json.dumps({"counts": counts, "slowest": slowest, "failed": failed, "waiting": waiting}))
    new.rename(path)


def _pread_into(fd: int, into: memoryview, offset: int) -> bytes:
    return bytes(into[: os.preadv(fd, [into], offset)])
