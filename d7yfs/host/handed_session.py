"""The contract between a supervisor and its workers: a connection to the kernel that outlives the
process which serves it.

The *supervisor* mounts (`fuse_device.connect`) and holds, for the whole life of the mount, the
descriptor of /dev/fuse and a memfd, the journal, which is empty at first. A *worker* is
`d7yfs mount … --foreground` with both inherited, and named in its environment (`HandedSession`).
Only one worker reads the connection at a time.

- The generation is 1 for the first worker, and higher for each one that follows. No two workers of
  a mount have the same: numbers that a worker gives out begin with it.
- A worker with a link to its supervisor (`supervisor.link`) may be started ahead, and wait for its
  turn. Until then it touches neither connection nor journal. It has read its settings before, so a
  change of them needs another one.
- A worker neither mounts nor unmounts. At SIGTERM it ends at once, with status 0, and without a
  word to the readers: the requests in its hands are the next one's. When the mount is gone it ends
  with status 0, too.
- A worker that cannot take over says why, and ends with status 1. That stays so for this mount:
  the supervisor takes it away, and ends with status 1.
- The next worker may start while a killed one still hangs in the kernel.
- The supervisor never touches the mount: no path below it, no descriptor, no working directory.
  Without a worker it unmounts lazily (MNT_DETACH), as anything else waits for an answer.
- A worker with NOTIFY_SOCKET says READY=1 there once it serves, with its own pid as MAINPID. So that
  is a socket of the supervisor's, not systemd's.

Used by the command line of the worker, and by supervisors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping
from typing import NamedTuple

from d7yfs.errors import MountError

_SESSION_FD = "D7YFS_SESSION_FD"
_JOURNAL_FD = "D7YFS_JOURNAL_FD"
_GENERATION = "D7YFS_GENERATION"
_MOST_GENERATIONS = 1 << 20
"""With 2^40 numbers for each, they stay below those of entries without an inode."""

JOURNAL_NAME = "d7yfs-journal"
"""The name of the memfd, for memfd_create(2)."""


def make_session_files() -> tuple[int, int]:
    """The descriptors for a connection that is yet to be made, and for its journal."""
    return os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC), os.memfd_create(JOURNAL_NAME)


class HandedSession(NamedTuple):
    """A connection to the kernel that a supervisor handed to this process."""

    session_fd: int
    journal_fd: int
    generation: int

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables that hand it to a worker, which inherits the descriptors."""
        numbers = {_SESSION_FD: self.session_fd, _JOURNAL_FD: self.journal_fd, _GENERATION: self.generation}
        return {name: str(number) for name, number in numbers.items()}

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> HandedSession | None:
        """The session that `environ` names, if any, out of reach of this process's children. Raises
        MountError."""
        given = {name: environ.pop(name, "") for name in (_SESSION_FD, _JOURNAL_FD, _GENERATION)}
        if not any(given.values()):
            return None
        try:
            session_fd, journal_fd, generation = map(int, given.values())
            for fd in (session_fd, journal_fd):
                os.set_inheritable(fd, False)
        except (ValueError, OSError) as error:
            said = ", ".join(f"{name}={value}" for name, value in given.items())
            raise MountError(
                f"no session is handed over by {said}: {error}",
                hint="a supervisor sets them all, and leaves the descriptors open",
            ) from None
        if not 0 < generation < _MOST_GENERATIONS:
            raise MountError(f"{_GENERATION}={generation} is out of range", hint="mount anew")
        return cls(session_fd, journal_fd, generation)
