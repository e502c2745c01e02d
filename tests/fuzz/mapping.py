"""Readers by mmap: child processes that die of SIGBUS where a read would fail, and a parent that
judges each death.

Before each access the child writes its target into shared memory. The parent reads that after the
child's death.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import random
import signal
import struct
import time
from collections import Counter
from dataclasses import dataclass

from tests.fuzz.oracle import Handle, Oracle, Rules, Tally

_TOUCHED = struct.Struct("<QQQdQQQ16Q")
_MOST_MAPPINGS = 12
_OPERATIONS_PER_CHILD = 4000


@dataclass
class Mapping:
    handle: Handle
    memory: mmap.mmap


class Mapper:
    """The mappings and reads of one child process."""

    def __init__(self, oracle: Oracle, seed: int, touched: mmap.mmap) -> None:
        self.oracle = oracle
        self.rules = oracle.rules
        self.tally = Tally()
        self._rng = random.Random(seed)
        self._touched = touched
        self._mappings: list[Mapping] = []

    def run(self, operations: int, deadline: float) -> int:
        done = 0
        while done < operations and time.monotonic() < deadline and not self.oracle.shared.is_over:
            dice = self._rng.random()
            if not self._mappings or dice < 0.06:
                self._map()
            elif dice < 0.1:
                self._mappings.pop(self._rng.randrange(len(self._mappings))).memory.close()
            else:
                self._look(self._rng.choice(self._mappings))
            done += 1
        return done

    def _map(self) -> None:
        if len(self._mappings) >= _MOST_MAPPINGS:
            self._mappings.pop(0).memory.close()
        key = int(len(self.rules.keys) * self._rng.random())
        mount = self._rng.randrange(len(self.rules.points))
        generation = self.oracle.shared.generation(mount)
        if generation % 2:
            time.sleep(0.01)
        before = time.monotonic()
        try:
            fd = os.open(self.rules.points[mount] / self.rules.keys[key], os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.oracle.refused(self.tally, key, mount, generation, before, error)
            return
        try:
            handle = self.oracle.opened(self.tally, fd, mount, generation, key, before)
            if handle.size:
                flags = mmap.MAP_SHARED if self._rng.random() < 0.5 else mmap.MAP_PRIVATE
                self._mappings.append(Mapping(handle, mmap.mmap(fd, handle.size, flags, mmap.PROT_READ)))
        except OSError as error:
            self.oracle.refused(self.tally, key, mount, generation, before, error)
        finally:
            os.close(fd)

    def _look(self, mapping: Mapping) -> None:
        handle = mapping.handle
        offset = self._rng.randrange(handle.size)
        size = min(int(2 ** (self._rng.random() * (10 if self._rng.random() < 0.9 else 18))), handle.size - offset)
        candidates = (handle.candidates + [0] * 16)[:16]
        _TOUCHED.pack_into(
            self._touched,
            0,
            handle.key,
            handle.mount,
            handle.generation,
            handle.since,
            handle.size,
            offset,
            size,
            *candidates,
        )
        data = mapping.memory[offset : offset + size]
        _TOUCHED.pack_into(self._touched, 0, 0, 0, 0, 0.0, 0, 0, 0, *[0] * 16)
        if not self.oracle.read(self.tally, "mmap", handle, offset, size, data):
            self._mappings.remove(mapping)
            mapping.memory.close()


def run(rules: Rules, number: int, threads: int, operations: int, deadline: float) -> None:
    """The parent's process, for multiprocessing: one child after the other until they have done
    `operations`.
    """
    oracle = Oracle(rules, number)
    touched = mmap.mmap(-1, 4096)
    result = mmap.mmap(-1, 1 << 20)
    counts: Counter[str] = Counter()
    slowest: dict[str, float] = {}
    seed = rules.seed << 20 ^ number << 12
    libc = ctypes.CDLL(None)
    while counts["operations"] < operations and time.monotonic() < deadline and not oracle.shared.is_over:
        seed += 1
        rest = min(operations - counts["operations"], _OPERATIONS_PER_CHILD)
        result[:8] = bytes(8)
        touched[: _TOUCHED.size] = bytes(_TOUCHED.size)
        began = time.monotonic()
        child = os.fork()
        if not child:
            libc.prctl(1, signal.SIGKILL)
            code = 1
            try:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                mapper = Mapper(oracle, seed, touched)
                done = 0
                while done < rest:
                    new = mapper.run(min(200, rest - done), deadline)
                    if not new:
                        break
                    done += new
                    mapper.tally.counts["operations"] = done
                    said = json.dumps([mapper.tally.counts, mapper.tally.slowest]).encode()
                    result[8 : 8 + len(said)] = said
                    result[:8] = struct.pack("<Q", len(said))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        length = struct.unpack("<Q", result[:8])[0]
        if length:
            did, took = json.loads(result[8 : 8 + length])
            counts.update(did)
            for name, seconds in took.items():
                slowest[name] = max(slowest.get(name, 0.0), seconds)
        tally = Tally(counts, slowest)
        tally.took("mapping child", time.monotonic() - began)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGBUS:
            _judge(oracle, tally, touched)
        elif status:
            counts[f"! mapping child ended with {status}"] += 1
            counts["deviations"] += 1
        oracle.shared.set_done(number, counts["operations"])
        report = {"counts": counts, "slowest": slowest, "failed": [], "waiting": []}
        (rules.directory / f"report-{number}").write_text(json.dumps(report))


def _judge(oracle: Oracle, tally: Tally, touched: mmap.mmap) -> None:
    """Judge a child's death by SIGBUS: allowed if its version or its daemon was gone."""
    key, mount, generation, since, size, offset, length, *candidates = _TOUCHED.unpack_from(touched, 0)
    handle = Handle(-1, mount, generation, key, since, since, size, 0, 0, [serial for serial in candidates if serial])
    if oracle.is_excused(mount, generation):
        tally.counts["excused SIGBUS"] += 1
    elif oracle.may_be_stale(handle):
        tally.counts["SIGBUS"] += 1
    else:
        tally.counts["wrong SIGBUS"] += 1
        oracle.deviation(tally, "mmap: SIGBUS", handle, offset=offset, length=length)
