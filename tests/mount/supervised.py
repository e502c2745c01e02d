"""A mount whose workers can be killed and replaced, for tests."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from d7yfs.host import mount_table
from tests.mount.mounted import D7YFS, Mounted, Notified, ended, until


class Supervised:
    """A mount below `directory` that shows what the arguments say, held by `keeper`."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = D7YFS,
    ) -> None:
        self.point = directory / "mnt"
        self.point.mkdir()
        self.cache_dir, self.log_file = directory / "cache", directory / "log"
        self.worker = 0
        """The pid of the present worker."""
        self._socket = directory / "notify"
        command = [
            *(*program, "mount", "--foreground", *arguments, "--cache-dir", str(self.cache_dir)),
            *("--log-file", str(self.log_file), "--log-level", "debug", "--metrics-listen", "none", str(self.point)),
        ]
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "tests.mount.keeper", str(self.point), *command],
            env=os.environ | (env or {}) | {"NOTIFY_SOCKET": str(self._socket)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._hear() == "mounted"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # Unmount first: a reader that still blocks there gets its error when the connection ends.
        while mount_table.mounted_at(self.point) is not None:
            subprocess.run(["umount", "--lazy", "--", str(self.point)], check=True, timeout=20)
        if self.worker and not ended(self.worker):
            os.kill(self.worker, signal.SIGKILL)
        self._keeper.kill()
        self._keeper.communicate(timeout=20)

    @property
    def mounted(self) -> Mounted:
        """The mount with its present worker."""
        return Mounted(self.point, self.cache_dir, self.log_file, self.worker)

    def start(self, *, ready: bool = True) -> None:
        """Start the next worker, and wait until it serves, if it is to be `ready`."""
        self._socket.unlink(missing_ok=True)
        with Notified(self._socket) as notified:
            self.worker = int(self._ask("start"))
            if ready:
                notified.receive()

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Kill the worker; readers wait from now on."""
        os.kill(self.worker, number)
        until(lambda: ended(self.worker), "the end of the worker")

    def replace(self) -> None:
        """Kill the worker, and start the next one."""
        self.kill()
        self.start()

    def lose_journal(self) -> None:
        self._ask("lose")

    def log(self) -> str:
        return self.log_file.read_text()

    def _ask(self, word: str) -> str:
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(f"{word}\n")
        self._keeper.stdin.flush()
        return self._hear()

    def _hear(self) -> str:
        assert self._keeper.stdout is not None
        return self._keeper.stdout.readline().strip()
