"""Readers that go on while a mount's workers are killed."""

from __future__ import annotations

import hashlib
import mmap
import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from tests.mount.mounted import READ_TIMEOUT_S, in_background, until


class Readers:
    """Threads that do one thing over and over, each with one right result."""

    def __init__(self) -> None:
        self.rounds: list[int] = []
        """How often each one was done."""
        self.longest_s = 0.0
        """The longest single round."""
        self._threads: list[Future[None]] = []
        self._stopped = False

    def start(self, once: Callable[[], object], expected: object) -> None:
        number = len(self.rounds)
        self.rounds.append(0)

        def loop() -> None:
            while not self._stopped:
                began_at = time.monotonic()
                found = once()
                assert found == expected, f"reader {number}: {found!r}, not {expected!r}"
                self.longest_s = max(self.longest_s, time.monotonic() - began_at)
                self.rounds[number] += 1

        self._threads.append(in_background(loop))

    def go_on(self) -> None:
        """Wait until each has done its thing once more, from beginning to end."""
        before = [*self.rounds]

        def gone_on() -> bool:
            for thread in self._threads:
                assert not thread.done(), thread.result()
            return all(now > then + 1 for now, then in zip(self.rounds, before, strict=True))

        until(gone_on, "another round of all readers", timeout_s=60)

    def stop(self) -> None:
        self._stopped = True
        for thread in self._threads:
            thread.result(READ_TIMEOUT_S)


def run_program(*command: str) -> tuple[int, bytes, bytes]:
    """Exit status, output (of much output its SHA-256), and errors."""
    done = subprocess.run(command, cwd="/", capture_output=True, timeout=120, check=False)
    output = done.stdout if len(done.stdout) < 20_000 else hashlib.sha256(done.stdout).digest()
    return done.returncode, output, done.stderr


def mapped(path: Path) -> bytes:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        view.madvise(mmap.MADV_RANDOM)
        return hashlib.sha256(view).digest()


def from_the_worker(path: Path) -> bytes:
    """The digest of a file that the kernel has no pages of."""
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return hashlib.sha256(file.read()).digest()
