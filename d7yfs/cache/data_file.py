"""The descriptor of a version's data file, which may be closed while no one uses it.

An open version holds one descriptor, that of its map: the lock on it keeps the pair from being
deleted. So the data file can be closed and opened again by its path.

Base of `VersionFiles`. `Cache` has idle ones closed when descriptors run short.
"""

from __future__ import annotations

import errno
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path

_reopening = threading.Lock()


@dataclass(slots=True)
class DataFile:
    """The data file of one open version: `data_fd`, opened again when it is asked for."""

    _data_fd: int
    """-1 while it is closed."""
    map_path: Path
    """The path of the map; the data lies next to it."""
    _data_inode: tuple[int, int] = field(default=(0, 0), init=False)
    """st_dev and st_ino of the data, from when it was closed."""

    @property
    def data_fd(self) -> int:
        """The descriptor. For any thread. Raises OSError when it was closed and cannot be had."""
        return self._data_fd if self._data_fd >= 0 else self.open_data()

    @data_fd.setter
    def data_fd(self, fd: int) -> None:
        self._data_fd = fd

    @property
    def is_asleep(self) -> bool:
        """True if the next use of `data_fd` opens the file."""
        return self._data_fd < 0

    def detach_data(self) -> int:
        """Give up the descriptor, for the caller to close; -1 when there is none.

        No thread may use it, and none may begin to until this returns.
        """
        fd, self._data_fd = self._data_fd, -1
        if fd >= 0:
            status = os.fstat(fd)
            self._data_inode = status.st_dev, status.st_ino
        return fd

    def open_data(self) -> int:
        """Open the data file if it is closed. For any thread. Raises OSError."""
        with _reopening:
            if self._data_fd < 0:
                fd = os.open(self.map_path.with_suffix(".data"), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                status = os.fstat(fd)
                if (status.st_dev, status.st_ino) != self._data_inode:
                    os.close(fd)
                    raise OSError(errno.ESTALE, "its data in the cache was replaced while it was open")
                self._data_fd = fd
            return self._data_fd
