"""Real mounts for tests: `d7yfs mount` as users run it, always unmounted at the end.

The daemon never runs in the test's process. A test touches a mount only through `within`, so that
none can hang forever.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from d7yfs.control import control_socket
from d7yfs.host import mount_table
from d7yfs.host.fuse_device import MountFlags
from d7yfs.supervisor.plan import Plan, supervisor_command

T = TypeVar("T")

D7YFS = (sys.executable, "-m", "d7yfs")
COMMAND_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 30.0
_POLL_S = 0.02


def within(timeout_s: float, function: Callable[[], T]) -> T:
    """Call `function` in a thread, with its result or exception. Raises TimeoutError when time is
    over, and leaves the thread behind.
    """
    return in_background(function).result(timeout_s)


def in_background(function: Callable[[], T]) -> Future[T]:
    """Start `function` in a thread that ends with this process at the latest."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def until(happened: Callable[[], bool], what: str, *, timeout_s: float = 20.0) -> None:
    """Poll until `happened` is true, for a state of another process that sends no event."""
    deadline = time.monotonic() + timeout_s
    while not happened():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(_POLL_S)


def run(
    *arguments: str | Path,
    env: Mapping[str, str] | None = None,
    timeout_s: float = COMMAND_TIMEOUT_S,
    under: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run `d7yfs` with these arguments; the caller judges exit status and output. `under` is a
    command that runs it.
    """
    command = [*under, *D7YFS, *map(str, arguments)]
    return subprocess.run(
        command,
        env=os.environ | (env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


def ended(pid: int) -> bool:
    """True if the process is gone, or a zombie that no parent reaps."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def movers_of(pid: int) -> list[int]:
    """The movers that are children of a process."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == pid and b"d7yfs.movers.mover" in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue  # it has ended
    return found


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def is_mounted(point: Path) -> bool:
    return mount_table.mounted_at(point) is not None


@dataclass
class Mounted:
    """A mount and its daemon; `process` only if the daemon runs in the foreground."""

    point: Path
    cache_dir: Path
    log_file: Path
    pid: int
    process: subprocess.Popen[str] | None = None
    said: str = ""
    """The output of `d7yfs mount`."""

    def status(self) -> dict[str, Any]:
        return control_socket.ask(control_socket.socket_path(self.point), "status")

    def fetched(self, name: str = "") -> dict[str, Any]:
        """The traffic counters of one repository."""
        (found,) = (each["fetched"] for each in self.status()["repositories"] if each["name"] == name)
        assert isinstance(found, dict)
        return found

    def data_requests(self, name: str = "") -> int:
        fetched = self.fetched(name)
        return int(fetched["direct_requests"] + fetched["proxy_requests"])

    def stat(self, path: str) -> dict[str, Any]:
        """The answer of `d7yfs stat`."""
        return control_socket.ask(control_socket.socket_path(self.point), "stat", path=path)

    def log(self) -> str:
        return self.log_file.read_text()

    def names(self, path: str = ".", *, timeout_s: float = READ_TIMEOUT_S) -> list[str]:
        """The sorted names in a directory."""
        return within(timeout_s, lambda: sorted(entry.name for entry in (self.point / path).iterdir()))

    def read(self, path: str, *, timeout_s: float = READ_TIMEOUT_S) -> bytes:
        """The bytes of a whole file."""
        return within(timeout_s, (self.point / path).read_bytes)

    def read_anew(self, path: str, *, timeout_s: float = READ_TIMEOUT_S) -> bytes:
        """The bytes of a whole file from the daemon: the kernel's page cache is dropped first."""

        def reading() -> bytes:
            with (self.point / path).open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                return file.read()

        return within(timeout_s, reading)

    def pread(self, path: str, offset: int, size_bytes: int, *, timeout_s: float = READ_TIMEOUT_S) -> bytes:
        def reading() -> bytes:
            with (self.point / path).open("rb", buffering=0) as file:
                return os.pread(file.fileno(), size_bytes, offset)

        return within(timeout_s, reading)

    @property
    def worker_pid(self) -> int:
        """The process that serves the mount; `pid` may be its supervisor's."""
        return int(self.status()["takeover"]["worker_pid"]) or self.pid

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.pid, number)

    def wait_ended(self, *, timeout_s: float = 20.0) -> None:
        if self.process is not None:
            self.process.wait(timeout_s)
        until(lambda: ended(self.pid), f"the end of daemon {self.pid}", timeout_s=timeout_s)


class Mounter:
    """A maker of mounts below `directory`; at the end it unmounts all that are left."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.made: list[Mounted] = []
        self._points: list[Path] = []
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Unmount first: a reader that still blocks there gets its error when the daemon ends.
        for point in reversed(self._points):
            while mount_table.mounted_at(point) is not None:
                subprocess.run(["umount", "--lazy", "--", str(point)], check=True, timeout=20)
        for mounted in self.made:
            if not ended(mounted.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(mounted.pid, signal.SIGKILL)
            if mounted.process is not None:
                mounted.process.communicate(timeout=20)
            mounted.wait_ended()  # its cache goes next
        for point in self._points:
            for left in control_socket.runtime_directory().glob(f"{control_socket.socket_path(point).stem}.*"):
                left.unlink(missing_ok=True)

    def point(self) -> Path:
        """A new, empty directory to mount on."""
        self._count += 1
        point = self.directory / f"mnt{self._count}"
        point.mkdir()
        self._points.append(point)
        return point

    def mount(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        point: Path | None = None,
        cache_dir: Path | None = None,
        log_level: str = "debug",
        under: Sequence[str] = (),
    ) -> Mounted:
        """Run `d7yfs mount ARGUMENTS POINT`, which must succeed."""
        point = point or self.point()
        cache_dir = cache_dir or self.directory / f"cache-{point.name}"
        log_file = self.directory / f"{point.name}.log"
        options = ("--cache-dir", str(cache_dir), "--log-file", str(log_file), "--log-level", log_level)
        done = run("mount", *arguments, *options, point, env=env, under=under)
        assert done.returncode == 0, done.stderr + (log_file.read_text() if log_file.exists() else "")
        pid = int(control_socket.ask(control_socket.socket_path(point), "status")["pid"])
        mounted = Mounted(point, cache_dir, log_file, pid, said=done.stdout + done.stderr)
        self.made.append(mounted)
        return mounted

    def _mounts(self) -> list[mount_table.Mount]:
        """The d7yfs mounts of this test; the machine may have others."""
        return [each for each in mount_table.mount_table() if each.point.is_relative_to(self.directory)]

    def refused(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        point: Path | None = None,
        cache_dir: Path | None = None,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> subprocess.CompletedProcess[str]:
        """Run `d7yfs mount ARGUMENTS POINT`, which must fail with a clear error and mount nothing."""
        point = point or self.point()
        cache_dir = cache_dir or self.directory / f"cache-{point.name}"
        before = self._mounts()
        done = run("mount", *arguments, "--cache-dir", cache_dir, point, env=env, timeout_s=timeout_s)
        assert done.returncode in (1, 2), done
        assert "d7yfs: error: " in done.stderr, done
        assert "Traceback" not in done.stderr, done
        assert before == self._mounts()
        return done

    def foreground(
        self,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        on_start: Callable[[Notified], None] | None = None,
        program: Sequence[str] = D7YFS,
    ) -> Mounted:
        """Run `d7yfs mount --foreground` and return when it has told systemd that it is ready.
        `on_start` runs during its start; `program` replaces d7yfs.
        """
        point = self.point()
        cache_dir, log_file = self.directory / f"cache-{point.name}", self.directory / f"{point.name}.log"
        with Notified(self.directory / f"{point.name}.notify") as notified:
            process = subprocess.Popen(
                [
                    *(*program, "mount", "--foreground", *arguments, "--cache-dir", str(cache_dir)),
                    *("--log-file", str(log_file), "--log-level", "debug", str(point)),
                ],
                env=os.environ | (env or {}) | {"NOTIFY_SOCKET": str(notified.path)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            mounted = Mounted(point, cache_dir, log_file, process.pid, process)
            self.made.append(mounted)
            if on_start is not None:
                on_start(notified)
            mounted.said = notified.receive()
        return mounted

    def impatient(
        self,
        source: str,
        *arguments: str,
        silence_s: float,
        env: Mapping[str, str] | None = None,
        cache_dir: Path | None = None,
        log_level: str = "debug",
    ) -> Mounted:
        """Mount with a supervisor that takes a worker for hung after `silence_s`."""
        point = self.point()
        cache_dir = cache_dir or self.directory / f"cache-{point.name}"
        log_file = self.directory / f"{point.name}.log"
        given = (
            *("mount", source, *arguments, "--cache-dir", str(cache_dir), "--log-file", str(log_file)),
            *("--log-level", log_level, "--metrics-listen", "none", str(point)),
        )
        shown = MountFlags(source, 0)
        plan_fd = Plan(point, shown, given, str(self.directory), standby=True, silence_s=silence_s).write()
        with Notified(self.directory / f"{point.name}.notify") as notified:
            process = subprocess.Popen(
                supervisor_command(plan_fd),
                pass_fds=[plan_fd],
                env=os.environ | (env or {}) | {"NOTIFY_SOCKET": str(notified.path)},
                stdin=subprocess.DEVNULL,
                text=True,
            )
            os.close(plan_fd)
            mounted = Mounted(point, cache_dir, log_file, process.pid, process)
            self.made.append(mounted)
            mounted.said = notified.receive()
        return mounted


class Notified:
    """The receiving end of sd_notify(3), at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)

    def __enter__(self) -> Self:
        self._socket.bind(str(self.path))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._socket.close()

    def receive(self, timeout_s: float = 30.0) -> str:
        """The next message, but those to the store of descriptors. Raises TimeoutError."""
        self._socket.settimeout(timeout_s)
        while (message := self._socket.recv(4096).decode()).startswith("FDSTORE"):
            pass
        return message

    def is_silent(self) -> bool:
        self._socket.setblocking(False)
        try:
            self._socket.recv(4096, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        return False
