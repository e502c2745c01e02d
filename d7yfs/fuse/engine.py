"""The two engines that speak with the kernel, as the rest of the daemon knows them.

- *kernel*: `session`, our own. It needs Linux 5.4 and nothing else.
- *pyfuse3*: `adapter`, by libfuse. For other kernels, and where the first one does less.

`daemon` chooses one by `--fuse-engine`; nothing but its start knows which one runs.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from d7yfs.config.schema import Config
from d7yfs.fs.filesystem import Filesystem
from d7yfs.fuse.appearance import Appearance
from d7yfs.fuse.notices import Invalidator
from d7yfs.fuse.request_guard import RequestGuard
from d7yfs.fuse.session import Session
from d7yfs.fuse.succession import Succession
from d7yfs.host import kernel
from d7yfs.host.fuse_device import MountFlags

log = logging.getLogger(__name__)


class Engine(Protocol):
    """A connection to the kernel, and the requests on it."""

    guard: RequestGuard

    def __init__(
        self,
        filesystem: Filesystem,
        invalidator: Invalidator,
        appearance: Appearance,
        *,
        deadline_s: float,
        passthrough: bool = True,
    ) -> None: ...

    def mount(self, mountpoint: Path, flags: MountFlags, handed_fd: int | None) -> None:
        """Mount, or take over the descriptor of a mount that is not served yet. Raises
        MountError.
        """

    def follow(self, succession: Succession) -> None:
        """Serve, instead of a mount of one's own, a connection that a supervisor holds. Raises
        MountError.
        """

    async def serve(self) -> None:
        """Answer requests until the file system is unmounted or the caller cancels."""

    def close(self) -> None:
        """Close the connection; readers with open files get ENOTCONN. Does not unmount."""

    def forget_pages(self, inode: int) -> None:
        """Have the kernel drop its pages of a file. For a worker thread: it waits for reads that
        only we can answer.
        """

    def forget_entries(self, directory: int, names: Sequence[bytes]) -> int:
        """Have the kernel forget these entries of a directory, and its attributes; returns how many
        it knew.

        For a worker thread: it waits until every lookup and readdir of that directory has its
        answer. Open files stay open, and cached pages stay cached.
        """


def make_engine(config: Config, filesystem: Filesystem, invalidator: Invalidator) -> Engine:
    """The engine that the settings ask for. Raises MountError if it is not installed."""
    name, reason = kernel.choose_engine(config.fuse_engine)
    kernel.require_engine(name)
    log.info("FUSE engine: %s (%s)", name, reason)
    make: type[Engine] = Session
    if name == "pyfuse3":
        from d7yfs.fuse.adapter import Adapter  # it needs an extra, and libfuse

        make = Adapter
    return make(
        filesystem,
        invalidator,
        Appearance(
            config.uid,
            config.gid,
            config.file_mode,
            config.dir_mode,
            config.xattr,
            config.executable.of_names(),
        ),
        deadline_s=config.read_timeout_s,
        passthrough=config.passthrough,
    )
