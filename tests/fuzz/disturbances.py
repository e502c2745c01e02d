"""Disturbances of daemons and their caches while clients read: kills, full disks, files that
vanish.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from d7yfs.errors import MountError
from tests.fuzz import content
from tests.fuzz.history import ABSENT
from tests.fuzz.oracle import Oracle, Tally
from tests.fuzz.shared import Shared
from tests.mount.mounted import Mounted, ended, movers_of, run, until

SILENCE_S = 3.0
"""The time after which the supervisor of a campaign takes a worker for hung."""


class Killer:
    """Kills daemons, mostly with SIGKILL, and remounts on the same point with the same cache.

    It stops some daemons only for a while.
    """

    def __init__(
        self,
        mounts: list[Mounted],
        remount: Callable[[int], Mounted],
        shared: Shared,
        rng: random.Random,
        log: Callable[[str], None],
    ) -> None:
        self._mounts = mounts
        self._remount = remount
        self._shared = shared
        self._rng = rng
        self._log = log
        self.kills = 0
        self.terms = 0
        self.refused: list[str] = []
        """The messages of the remounts that failed."""

    def step(self) -> None:
        """Kill or stop one daemon."""
        which = self._rng.randrange(len(self._mounts))
        mounted = self._mounts[which]
        if self._rng.random() < 0.3:
            self._log(f"stop daemon {mounted.pid} of mount {which} for a while")
            mounted.kill(signal.SIGSTOP)
            time.sleep(self._rng.uniform(0.2, 6))
            mounted.kill(signal.SIGCONT)
            if self._rng.random() < 0.5:
                return
            time.sleep(self._rng.uniform(0, 0.3))
        outright = self._rng.random() < 0.8
        self._shared.turn(which)
        self._log(f"{'kill' if outright else 'terminate'} daemon {mounted.pid} of mount {which}")
        if outright:
            self.kills += 1
            mounted.kill()
        else:
            self.terms += 1
            mounted.kill(signal.SIGTERM)
        deadline = time.monotonic() + 15
        while not ended(mounted.pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        if not ended(mounted.pid):
            self._log(f"! daemon {mounted.pid} did not end within 15 s")
            mounted.kill()
        self._note_threads(mounted.pid)
        try:
            self._mounts[which] = self._remount(which)
        except AssertionError as error:
            self.refused.append(str(error)[:300])
            self._note_threads(mounted.pid)
            subprocess.run(["umount", "--force", "--lazy", str(mounted.point)], check=False)
            self._mounts[which] = self._remount(which)
        self._shared.turn(which)
        self._log(f"mounted again as {self._mounts[which].pid}")

    def _note_threads(self, pid: int) -> None:
        """Log the threads that a dead daemon still has, and where they wait. A correct daemon has
        none.
        """
        time.sleep(0.2)
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with suppress(OSError):
                state = (task / "stat").read_text().rpartition(")")[2].split()[0]
                if state != "Z":
                    self._log(f"! {task}: {state} {(task / 'wchan').read_text()} {(task / 'stack').read_text()!r}")


class Usurper:
    """Ends workers, one after the other, whose supervisor lives on: by SIGKILL, by a hang, by an
    upgrade. It stops some only for a while, or kills two in a row.
    """

    def __init__(self, mounts: list[Mounted], rng: random.Random, log: Callable[[str], None]) -> None:
        self._mounts = mounts
        self._rng = rng
        self._log = log

    def step(self) -> None:
        """End one worker, or stop it for a while."""
        mounted = self._rng.choice(self._mounts)
        what = self._rng.choice(["kill", "kill", "kill", "kill twice", "hang", "pause", "upgrade", "kill both"])
        self._log(f"{what} of {mounted.point.name}")
        self._await_worker(mounted, 0)
        before = mounted.status()["takeover"]
        generation, worker = before["generation"], before["worker_pid"]
        if what == "upgrade":
            done = run("upgrade", mounted.point)
            self._log(f"upgraded: {done.returncode} {done.stderr[-200:]!r}")
        elif what in ("hang", "pause"):
            os.kill(worker, signal.SIGSTOP)
            if what == "pause":
                time.sleep(self._rng.uniform(0.1, SILENCE_S / 2))
                os.kill(worker, signal.SIGCONT)
                return
        elif what == "kill both":
            for pid in _children(mounted.pid):
                os.kill(pid, signal.SIGKILL)
        else:
            os.kill(worker, signal.SIGKILL)
            if what == "kill twice":
                self._await_worker(mounted, generation + 1)
                generation = mounted.status()["takeover"]["generation"]
                os.kill(mounted.worker_pid, signal.SIGKILL)
        self._await_worker(mounted, generation + 1)

    def wait(self) -> None:
        """Wait until all mounts have a worker."""
        for mounted in self._mounts:
            self._await_worker(mounted, 0)

    def _await_worker(self, mounted: Mounted, generation: int) -> None:
        def serves() -> bool:
            with suppress(MountError, OSError):
                return int(mounted.status()["takeover"]["generation"]) >= generation
            return False

        until(serves, f"a worker of generation {generation}", timeout_s=60)


class Stopper:
    """Kills movers, and stops others, for good or for a while."""

    def __init__(self, mounts: list[Mounted], rng: random.Random, log: Callable[[str], None]) -> None:
        self._mounts = mounts
        self._rng = rng
        self._log = log

    def step(self) -> None:
        """End one mover, or stop it for a while."""
        mounted = self._rng.choice(self._mounts)
        movers = movers_of(mounted.worker_pid)
        if not movers:
            return
        mover = self._rng.choice(movers)
        what = self._rng.choice(["kill", "hang", "pause", "pause", "pause"])
        self._log(f"{what} of mover {mover}, of {len(movers)}; {mounted.status()['movers']}")
        with suppress(ProcessLookupError):  # it may end meanwhile
            os.kill(mover, signal.SIGKILL if what == "kill" else signal.SIGSTOP)
            if what == "pause":
                time.sleep(self._rng.uniform(0.01, SILENCE_S))
                os.kill(mover, signal.SIGCONT)


def _children(pid: int) -> list[int]:
    return list(map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()))


class Disk:
    """A small file system for the cache; it is full now and then, and its files vanish."""

    def __init__(self, directory: Path, rng: random.Random, log: Callable[[str], None], size_mib: int = 96) -> None:
        self.point = directory / "disk"
        self.cache = self.point / "cache"
        self._image = directory / "disk.img"
        self._rng = rng
        self._log = log
        self._size_mib = size_mib
        self._is_loop = shutil.which("mkfs.ext4") is not None and rng.random() < 0.5
        self.steps = 0

    def mount(self) -> None:
        self.point.mkdir()
        if self._is_loop:
            with self._image.open("wb") as image:
                image.truncate(self._size_mib << 20)
            subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(self._image)], check=True)
            done = subprocess.run(["mount", "-o", "loop", str(self._image), str(self.point)], check=False)
            self._is_loop = done.returncode == 0
        if not self._is_loop:
            subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={self._size_mib}m", "tmpfs", str(self.point)], check=True
            )
        self._log(f"cache on {'ext4 in a file' if self._is_loop else 'tmpfs'}, {self._size_mib} MiB")

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.point)], check=False)

    def step(self) -> None:
        """Fill the disk for a moment, or delete files."""
        self.steps += 1
        what = self._rng.choice(["fill", "fill", "unlink", "tree", "unlink maps"])
        self._log(what)
        files = [each for each in self.cache.rglob("*") if each.is_file()] if self.cache.exists() else []
        if what == "fill":
            filler = self.point / "filler"
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                left = self._rng.choice([0, 0, 4096, 300_000, 3 << 20])
                stat = os.statvfs(self.point)
                space = max(stat.f_bavail * stat.f_frsize - left, 0)
                while space > 0:
                    space -= file.write(bytes(min(1 << 20, space)))
            time.sleep(self._rng.uniform(0.1, 2))
            filler.unlink(missing_ok=True)
        elif what == "tree":
            shutil.rmtree(self.cache / "v1", ignore_errors=True)
        else:
            for each in files:
                if (what == "unlink" or each.suffix == ".map") and self._rng.random() < 0.5:
                    each.unlink(missing_ok=True)


class Spoiler:
    """An actor that truncates the cache's files while they are in use; no document promises that
    readers survive this.
    """

    def __init__(self, cache: Path, rng: random.Random, log: Callable[[str], None]) -> None:
        self._cache = cache
        self._rng = rng
        self._log = log
        self.steps = 0

    def step(self) -> None:
        """Truncate some data files."""
        self.steps += 1
        for each in self._cache.rglob("*.data"):
            if self._rng.random() < 0.3:
                with suppress(OSError):
                    os.truncate(each, self._rng.choice([0, each.stat().st_size // 2]))
        self._log("truncated data files")


class Operator:
    """An operator who calls d7yfs's own commands, which are safe while clients read."""

    def __init__(self, mounts: list[Mounted], oracle: Oracle, rng: random.Random, log: Callable[[str], None]) -> None:
        self._mounts = mounts
        self._directories = sorted({key.rpartition("/")[0] for key in oracle.rules.keys})
        self._oracle = oracle
        self._rng = rng
        self._log = log
        self.tally = Tally()

    def step(self) -> None:
        """Call one command."""
        mounted = self._rng.choice(self._mounts)
        directory = self._rng.choice([*self._directories, ""])
        path = str(mounted.point / directory)
        command = self._rng.choice(
            [
                ("refresh", path),
                ("refresh", path),
                ("warm", path),
                ("cache", "drop", path),
                ("cache", "drop", "--all", "--cache-dir", str(mounted.cache_dir)),
                ("cache", "verify", "--cache-dir", str(mounted.cache_dir)),
                ("reload", str(mounted.point)),
                ("status", "--json"),
                ("stat", path),
            ]
        )
        asked_at = time.monotonic()
        done = run(*command, timeout_s=120)
        self._log(f"{' '.join(command)}: {done.returncode} {done.stderr[-200:]!r}")
        if command[0] == "refresh" and done.returncode == 0:
            self._look(directory, asked_at)

    def _look(self, directory: str, asked_at: float) -> None:
        """Check that files opened after a refresh are at least as new as at the time of the
        request.
        """
        history, keys = self._oracle.history, self._oracle.rules.keys
        inside = [key for key in keys if not directory or key.startswith(f"{directory}/")]
        for name in self._rng.sample(inside, min(len(inside), 12)):
            key = history.index[name]
            self.tally.counts["opens after a refresh"] += 1
            try:
                with (self._mounts[0].point / name).open("rb", buffering=0) as file:
                    size, head = os.fstat(file.fileno()).st_size, file.read(64)
            except OSError as error:
                head, size = b"", error.errno or 0
                history.update()
                now = history.current(key, asked_at, time.monotonic())
                if all(serial != ABSENT for serial, _ in now) and error.errno != errno.ESTALE:
                    self._oracle.deviation(self.tally, "after a refresh: " + os.strerror(size), None, key=name, now=now)
                continue
            history.update()
            now = history.current(key, asked_at, time.monotonic())
            if not any(
                found == size and content.piece(serial, 0, len(head)) == head for serial, found in now if serial
            ):
                self._oracle.deviation(
                    self.tally, "after a refresh: an older version", None, key=name, size=size, now=now
                )
