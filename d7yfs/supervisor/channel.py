"""Messages between a supervisor and a worker: JSON objects, one in each packet of a socket pair.

The worker says:

- `prepared`: true once it has read its settings; then it waits for `go`
- `mount`: true, for a connection to the kernel in place of its empty descriptor
- `unmount`: `plainly` or `lazily`
- `register`: true, with a descriptor of a file that the kernel is to read by itself
- `unregister`: the id of such a file
- `tune`: true, to raise the mount's limits
- `ask`: a question to the mount (`mount_table`), for a process that may read it
- `beat`: it lives; the value is the time in seconds that running reads have at a stop. `busy`: true
  if it has computed for a tenth of the time since the last one
- `ready` (a summary), with `warnings` and `stderr` (the path for the output of C libraries, or null)
- `waits`: what keeps it from being ready, in words
- `failed` (why it ends), with `hint`, `usage` and `cannot_follow`
- `notify`: a message for systemd (sd_notify(3))
- `left`: true, once it neither reads from the connection nor writes to it
- `upgrade`: true, when a client asks for one

The supervisor says:

- `go`: true
- `account`: its numbers for `status`, whenever they change
- `stop`: true, to unmount and end
- `mounted` and `unmounted`: the answer, `ok`, `busy`, or what went wrong
- `registered`: the id, or an error number below zero
- `tuned`: what could not be raised, in words
- `asked`: the question, with `number`: the error number; null if nobody could be sent
- `refused`: why there is no upgrade
"""

from __future__ import annotations

import json
import socket
from typing import Any

_PACKET_BYTES = 64 << 10

Message = dict[str, Any]


class Channel:
    """One end. It never waits: what the other end does not take is dropped."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        end.setblocking(False)

    @classmethod
    def make_pair(cls) -> tuple[Channel, socket.socket]:
        """Our end, and the one to hand over."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), theirs

    def send(self, **message: Any) -> None:
        try:
            self.socket.send(json.dumps(message).encode()[:_PACKET_BYTES])
        except OSError:
            return  # it has ended, or hangs

    def send_descriptor(self, fd: int, **message: Any) -> None:
        socket.send_fds(self.socket, [json.dumps(message).encode()], [fd])

    def receive(self) -> tuple[Message, list[int]] | None:
        """The next message, and descriptors with it; None if the other end is closed. Raises
        BlockingIOError if there is none now."""
        try:
            packet, fds, _, _ = socket.recv_fds(self.socket, _PACKET_BYTES, 1)
        except ConnectionResetError:
            return None
        return (json.loads(packet), fds) if packet else None
