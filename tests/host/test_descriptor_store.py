"""The descriptors that a supervisor takes from systemd's store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from d7yfs.host.descriptor_store import removing, storing

POINT, OTHER = Path("/mnt/a"), Path("/mnt/b")

_TAKE = """
import os, sys
from pathlib import Path
from d7yfs.host.descriptor_store import VARIABLES, StoredSession
if os.environ.get("LISTEN_PID") == "own":
    os.environ["LISTEN_PID"] = str(os.getpid())
taken = StoredSession.take(os.environ, Path(sys.argv[1]))
is_open = [os.path.exists(f"/proc/self/fd/{fd}") for fd in (3, 4)]
print(tuple(taken) if taken else None, is_open, any(os.get_inheritable(fd) for fd in taken or ()))
assert not os.environ.keys() & set(VARIABLES)
"""


def names(point: Path) -> list[str]:
    return [message.rpartition("FDNAME=")[2] for message in storing(point)]


@pytest.mark.parametrize(
    ("pid", "passed", "point", "said"),
    [
        ("own", names(POINT), POINT, "(3, 4) [True, True] False"),
        ("own", names(POINT)[::-1], POINT, "(4, 3) [True, True] False"),
        ("own", names(POINT), OTHER, "None [False, False] False"),
        ("own", names(POINT)[:1], POINT, "None [False, True] False"),
        ("own", ["stored", names(POINT)[0]], POINT, "None [False, False] False"),
        ("1", names(POINT), POINT, "None [True, True] False"),
    ],
)
def test_only_both_descriptors_of_this_mount_are_taken(pid: str, passed: list[str], point: Path, said: str) -> None:
    listening = {"LISTEN_PID": pid, "LISTEN_FDS": str(len(passed)), "LISTEN_FDNAMES": ":".join(passed)}
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 3<>/dev/null 4<>/dev/null', "sh", sys.executable, "-c", _TAKE, str(point)],
        env=os.environ | listening,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout.strip(), done.stderr) == (said, "")


def test_what_is_stored_is_removed_by_the_same_name_and_not_watched() -> None:
    assert names(POINT) == [message.rpartition("FDNAME=")[2] for message in removing(POINT)]
    assert len({*names(POINT), *names(OTHER)}) == 4
    assert all("FDPOLL=0" in message.splitlines() for message in storing(POINT))
