"""An automount point of a test's own, in the place of systemd (Documentation/filesystems/autofs.rst)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from d7yfs.host import mount_table

_libc = ctypes.CDLL(None, use_errno=True)
_PACKET_BYTES = 304
"""struct autofs_v5_packet; its third field is the token of who waits."""
_KEEPER = """
import fcntl, os, sys
READY, CATATONIC = 0x9360, 0x9362  # AUTOFS_IOC_…
fd = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY)
print(flush=True)
for token in sys.stdin:
    fcntl.ioctl(fd, READY, int(token))
fcntl.ioctl(fd, CATATONIC)
"""


class Automount:
    """An automount at `point` that lets a process group of this session pass: whoever else looks waits."""

    def __init__(self, point: Path, group: int) -> None:
        self._words, write_fd = os.pipe()
        options = f"fd={write_fd},pgrp={group},minproto=5,maxproto=5,direct".encode()
        try:
            if _libc.mount(b"automount", os.fsencode(point), b"autofs", 0, options):
                if ctypes.get_errno() == errno.ENODEV:
                    pytest.skip("this kernel has no autofs")
                raise OSError(ctypes.get_errno(), "mount")
        finally:
            os.close(write_fd)
        self._keeper = subprocess.Popen(
            [sys.executable, "-c", _KEEPER, str(point)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=group,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline()

    def await_reader(self) -> int:
        """The token of somebody who waits."""
        return int(struct.unpack_from("=iiI", os.read(self._words, _PACKET_BYTES))[2])

    def let_pass(self, token: int) -> None:
        """Tell the kernel that the mount is there."""
        assert self._keeper.stdin is not None
        self._keeper.stdin.write(f"{token}\n")
        self._keeper.stdin.flush()

    def close(self) -> None:
        """Let everybody pass from now on."""
        self._keeper.communicate(timeout=20)
        os.close(self._words)


@contextlib.contextmanager
def automounting(point: Path, group: int) -> Iterator[Automount]:
    """An automount, taken away at the end with all that is mounted on it."""
    made = Automount(point, group)
    try:
        yield made
    finally:
        made.close()
        while mount_table.mounted_at(point) is not None:
            subprocess.run(["umount", "--lazy", point], check=False, timeout=20)
