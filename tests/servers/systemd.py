"""A real systemd, for `make integration-systemd`: the manager of a PID namespace, with units of its own.

It has namespaces of its own for processes, mounts and control groups. It sees the machine's files
through layers in memory where it or a test writes (/etc, /run, /usr/local/bin, /usr/sbin), and the
machine's units not at all. It needs root, systemd 244 or newer, and a cgroup2 hierarchy. It does not import pytest.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

PROGRAM = Path("/lib/systemd/systemd")
_START_S = 60.0
_COMMAND_S = 120.0
_FSTAB_GENERATOR = Path("/usr/lib/systemd/system-generators/systemd-fstab-generator")
_TARGETS = (
    *("sysinit", "basic", "shutdown", "umount", "network-online", "final", "exit"),
    *("remote-fs", "remote-fs-pre"),
)
"""The targets that units of services and of mounts refer to."""

_INNER = """
set -e
mount --make-rprivate /
umount --lazy --all --types fuse.d7yfs || true  # the mounts of others must not live on here
mount -t tmpfs tmpfs /run
for layer in /etc /usr/local/bin /usr/sbin; do
    mkdir -p /run/layers$layer/upper /run/layers$layer/work
    mount -t overlay overlay -o lowerdir=$layer,upperdir=/run/layers$layer/upper,workdir=/run/layers$layer/work $layer
done
umount --lazy --recursive /sys/fs/cgroup
mount -t cgroup2 cgroup2 /sys/fs/cgroup
for program in /usr/local/bin/d7yfs /usr/sbin/mount.d7yfs; do
    printf '#!/bin/sh\\nexec {programs}/%s "$@"\\n' "$(basename "$program")" >"$program"
    chmod 755 "$program"
done
mkdir -p /etc/d7yfs
export container=other SYSTEMD_UNIT_PATH={units}
exec {systemd} --system --unit=empty.target --log-target=console --show-status=no
"""


class Systemd:
    """A running manager, whose units are the files in `directory`/units."""

    def __init__(self, directory: Path, programs: Path) -> None:
        self._units = directory / "units"
        self._units.mkdir()
        for name in (*_TARGETS, "empty"):
            (self._units / f"{name}.target").write_text("[Unit]\nDefaultDependencies=no\n")
        self._log, self._output = directory / "systemd.log", directory / "services.log"
        self._output.touch()
        every = self._units / "service.d"  # there is no journal
        every.mkdir()
        (every / "output.conf").write_text(f"[Service]\nStandardOutput=append:{self._output}\n")
        self._group = _cgroup2() / f"d7yfs-test-{os.getpid()}"
        self._group.mkdir()
        inner = _INNER.format(programs=shlex.quote(str(programs)), units=self._units, systemd=PROGRAM)
        unshare = "exec unshare --pid --fork --kill-child --mount --mount-proc --cgroup sh -c"
        command = f"echo $$ >{self._group}/cgroup.procs && {unshare} {shlex.quote(inner)}"
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                ["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )

    def wait(self) -> None:
        """Wait until the manager takes commands."""
        deadline = time.monotonic() + _START_S
        while self._process.poll() is None and time.monotonic() < deadline:
            with contextlib.suppress(IndexError):
                if self.run("systemctl", "is-active", "empty.target").stdout.strip() == "active":
                    return
            time.sleep(0.1)
        raise RuntimeError(f"systemd did not start:\n{self._log.read_text()[-4000:]}")

    @property
    def _pid(self) -> int:
        """The manager's process, as the machine sees it. Raises IndexError if there is none yet."""
        pid = self._process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def install(self, unit: Path) -> None:
        """Add a unit as it is."""
        (self._units / unit.name).write_bytes(unit.read_bytes())
        self.run("systemctl", "daemon-reload")

    def add(self, unit: str, lines: str, *, wanted_by: str = "") -> None:
        """Add a unit, enabled as `WantedBy=` says (systemctl enable)."""
        (self._units / unit).write_text(lines)
        if wanted_by:
            wants = self._units / f"{wanted_by}.wants"
            wants.mkdir(exist_ok=True)
            (wants / unit).symlink_to(self._units / unit)
        self.run("systemctl", "daemon-reload")

    def change(self, unit: str, lines: str) -> None:
        """Add lines to a unit (systemctl edit)."""
        directory = self._units / f"{unit}.d"
        directory.mkdir()
        (directory / "test.conf").write_text(lines)
        self.run("systemctl", "daemon-reload")

    def add_to_fstab(self, line: str) -> list[str]:
        """Add the units that systemd makes of a line of fstab; their names."""
        fstab, made = self._units.parent / "fstab", self._units.parent / "generated"
        fstab.write_text(f"{line}\n")
        for each in (made, made / "early", made / "late"):
            each.mkdir(exist_ok=True)
        subprocess.run(
            [_FSTAB_GENERATOR, made, made / "early", made / "late"],
            env={"SYSTEMD_FSTAB": str(fstab)},
            check=True,
            timeout=_COMMAND_S,
        )
        units = [*made.glob("*.mount"), *made.glob("*.automount")]
        for unit in units:
            shutil.move(unit, self._units / unit.name)
        shutil.rmtree(made)
        self.run("systemctl", "daemon-reload")
        return [unit.name for unit in units]

    def inside(self, path: Path) -> Path:
        """The path by which this process reaches what the manager's processes call `path`."""
        return Path(f"/proc/{self._pid}/root") / path.relative_to("/")

    def start(self, *command: str, directory: Path) -> subprocess.Popen[bytes]:
        """Start a command among the manager's processes, in a directory; the caller ends it."""
        enter = [*self._enter(), "sh", "-c", 'cd "$0" && echo there && exec "$@"', str(directory), *command]
        process = subprocess.Popen(enter, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        return process

    def _enter(self) -> list[str]:
        return ["nsenter", "--target", str(self._pid), "--mount", "--pid", "--cgroup"]

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a command among the manager's processes; the caller judges the result."""
        return subprocess.run(
            [*self._enter(), *map(str, command)],
            env={"PATH": os.environ["PATH"]},  # as a user's, without the settings of a test session
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
        )

    def show(self, unit: str, name: str) -> str:
        """A property of a unit (systemctl show)."""
        return self.run("systemctl", "show", "--value", "--property", name, unit).stdout.strip()

    def log(self) -> str:
        """The output of the manager and of its services."""
        return self._log.read_text(errors="replace") + self._output.read_text(errors="replace")

    def stop(self) -> None:
        """End the manager, and all processes that it started."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + 20
        while self._group.exists() and time.monotonic() < deadline:
            for each in (*sorted(self._group.glob("**/"), reverse=True), self._group):
                with contextlib.suppress(OSError):
                    each.rmdir()
            time.sleep(0.05)


@contextlib.contextmanager
def running(directory: Path, programs: Path) -> Iterator[Systemd]:
    """A manager that takes commands, ended at the end. `programs`: the directory of d7yfs and its helper of
    mount(8)."""
    manager = Systemd(directory, programs)
    try:
        manager.wait()
        yield manager
    finally:
        manager.stop()


def _cgroup2() -> Path:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        head, _, tail = line.partition(" - ")
        if tail.split()[0] == "cgroup2":
            return Path(head.split()[4])
    raise RuntimeError("no cgroup2 hierarchy is mounted")
