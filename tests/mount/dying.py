"""`d7yfs` that kills itself (SIGKILL) with a request in its hands, when a file says so.

The file named by DEATH_BY_REQUEST has one line: an opcode's name, and the moment: `read`, just after
the request was read; `answered`, just before its reply is sent; `sent`, just after that; `telling`,
while a thread waits in a notice about the pages that a READ is about. The worker removes the file
first. `test_takeover.py` runs it in a process of its own.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

from d7yfs.cli import main
from d7yfs.fuse import wire
from d7yfs.fuse.wire import Opcode

DEATH_VARIABLE = "DEATH_BY_REQUEST"


def main_until(death: Path) -> None:
    readv, writev = os.readv, os.writev
    opcodes: dict[int, int] = {}

    def die_if(opcode: int, moment: str) -> None:
        try:
            said = death.read_text().split()
        except FileNotFoundError:
            return
        if said == [Opcode(opcode).name if opcode in set(Opcode) else "", moment]:
            death.unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    def reading(fd: int, buffers: Sequence[bytearray]) -> int:
        count = readv(fd, buffers)
        if str(Path(f"/proc/self/fd/{fd}").readlink()) != "/dev/fuse":
            return count  # of a connection to the store
        _, opcode, unique, nodeid, *_ = wire.IN_HEADER.unpack_from(buffers[0])
        opcodes[unique] = opcode
        if opcode == Opcode.READ and death.exists() and death.read_text() == "READ telling":
            thread = threading.Thread(target=os.write, args=(fd, wire.inval_inode(nodeid)), daemon=True)
            thread.start()
            while Path(f"/proc/self/task/{thread.native_id}/stat").read_text().rpartition(")")[2].split()[0] != "D":
                os.sched_yield()
            die_if(opcode, "telling")
        die_if(opcode, "read")
        return count

    def writing(fd: int, parts: Sequence[bytes]) -> int:
        _, _, unique = wire.OUT_HEADER.unpack_from(parts[0])
        opcode = opcodes.pop(unique, 0)
        die_if(opcode, "answered")
        count = writev(fd, parts)
        die_if(opcode, "sent")
        return count

    os.readv, os.writev = reading, writing  # type: ignore[assignment]
    main()


if __name__ == "__main__":
    main_until(Path(os.environ[DEATH_VARIABLE]))
