"""A small supervisor, for tests: it mounts, holds the connection, and starts workers on demand.

    python -m tests.mount.keeper POINT PROGRAM ARGUMENT...

It reads one word per line, and answers each with one line: `start` (the pid of the next worker, which
serves from now on), `lose` (the journal is replaced by an empty one), `end`. It never touches the mount.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from d7yfs.host import fuse_device
from d7yfs.host.fuse_device import MountFlags
from d7yfs.host.handed_session import JOURNAL_NAME, HandedSession


def main(point: str, *command: str) -> None:
    session_fd = fuse_device.mount(Path(point), MountFlags("kept", 0, allow_other=True))
    journal_fd = os.memfd_create(JOURNAL_NAME)
    workers: list[subprocess.Popen[bytes]] = []

    print("mounted", flush=True)
    for line in sys.stdin:
        word = line.strip()
        if word == "start":
            handed, passed = HandedSession(session_fd, journal_fd, len(workers) + 1), [session_fd, journal_fd]
            environment = os.environ | handed.variables
            workers.append(
                subprocess.Popen(command, env=environment, pass_fds=passed, stdin=subprocess.DEVNULL, stdout=2)
            )
            print(workers[-1].pid, flush=True)
        elif word == "lose":
            os.close(journal_fd)
            journal_fd = os.memfd_create(JOURNAL_NAME)
            print("lost", flush=True)
        elif word == "end":
            break
        for worker in workers:
            worker.poll()  # a zombie would look like a thread that hangs


if __name__ == "__main__":
    main(*sys.argv[1:])
