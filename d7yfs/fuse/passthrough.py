"""Which files the kernel reads by itself from the cache (FUSE passthrough, since Linux 6.9).

A file that is whole in the cache is opened with a *backing id*: the kernel then reads the cache's
data file, and no read or page fault comes to the daemon. The rules are the kernel's (`fs/fuse/iomode.c`,
`fs/fuse/backing.c`):

- All open handles of a node are in one mode, and with one backing id. So the mode is decided by a
  node's first open handle, and holds until the last one is closed.
- A node is what the kernel was told at a lookup, and two nodes may show the same inode number. So a
  file that becomes whole while the daemon serves it has a second node (`SECOND_NODE`), for those who
  open it from then on. The handles and maps of the first one stay as they are.
- Registering a descriptor needs CAP_SYS_ADMIN in the init user namespace. A worker without it has its
  supervisor register (`Backings`). Where the kernel refuses every file, the first refusal turns
  passthrough off for this mount. Any other failure is about one file, which the daemon then serves.
- The kernel keeps the file of a backing id open: its descriptor may be closed, and its name
  unlinked. It must not be cut off: readers would get less than the object has.

Which handles are open is noted in the journal before the kernel learns of it. So the next worker
goes on in the same mode, and with the same id: the ids belong to the connection.

Used by the session. Trio thread only; no call waits.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from d7yfs.fuse.journal import SessionJournal
from d7yfs.stats.kernel import OperationCounters

log = logging.getLogger(__name__)

SECOND_NODE = 1 << 62
"""The bit that the second node id of a file has more than the first one, which is its inode."""

_OF_THE_MOUNT = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOTTY})
"""The refusals that every further file would get, too."""


class Backings(Protocol):
    """The way to register files with the kernel."""

    def register(self, data_fd: int) -> int:
        """The kernel's id for this file, which may be closed then. Raises OSError."""

    def unregister(self, backing_id: int) -> None:
        """Let go of a file; handles that are open go on. Raises OSError."""


def inode_of(nodeid: int) -> int:
    """The inode that a node id stands for."""
    return nodeid & ~SECOND_NODE


@dataclass(slots=True)
class _OpenNode:
    """A node with open handles; `backing_id` is 0 if the daemon serves its reads."""

    backing_id: int
    handles: set[int]


class Passthrough:
    """The backing ids of one connection, if `counters.passthrough` is set. That is what was agreed in
    INIT, until the kernel refuses."""

    def __init__(self, backings: Backings, counters: OperationCounters, journal: SessionJournal | None = None) -> None:
        self._backings = backings
        self._journal = journal
        self._counters = counters
        self._nodes: dict[int, _OpenNode] = {}

    def needs_file(self, nodeid: int) -> bool:
        """True if the next handle of this node may be in passthrough mode, given a whole file."""
        return self._counters.passthrough and nodeid not in self._nodes

    def restore(self, open_files: Mapping[int, tuple[int, int]]) -> None:
        """Know the open files of the worker before: node id and backing id, by handle."""
        for handle, (nodeid, backing_id) in open_files.items():
            self._nodes.setdefault(nodeid, _OpenNode(backing_id, set())).handles.add(handle)

    def has(self, nodeid: int) -> bool:
        """True if the kernel reads this node by itself: so it will with each further handle."""
        node = self._nodes.get(nodeid)
        return node is not None and node.backing_id != 0

    def open(self, nodeid: int, handle: int, data_fd: int | None) -> int:
        """Note a new handle of a node; returns its backing id, or 0 if the daemon serves its reads.

        `data_fd` is a file with all of the node's bytes and no others, if there is one.
        """
        node = self._nodes.get(nodeid)
        if node is None:
            backing_id = self._register(data_fd) if self._counters.passthrough and data_fd is not None else 0
            node = self._nodes[nodeid] = _OpenNode(backing_id, set())
        node.handles.add(handle)
        if self._journal is not None:
            self._journal.opened(handle, nodeid, node.backing_id)
        self._counters.passthrough_opens += node.backing_id != 0
        return node.backing_id

    def release(self, nodeid: int, handle: int) -> bool:
        """Note that a handle was closed; with the last one the backing id goes.

        True if it was the last one, the daemon served it, and the next one may be in passthrough
        mode: the pages that the kernel has of the node are of no use then.
        """
        node = self._nodes.get(nodeid)
        if node is None or handle not in node.handles:
            return False
        node.handles.remove(handle)
        if self._journal is not None:
            self._journal.released(handle)
        if node.handles:
            return False
        self._close(nodeid)
        return self._counters.passthrough and not node.backing_id

    def node_id(self, inode: int, is_whole: Callable[[int], bool]) -> int:
        """The node id by which the kernel is to open a file from now on: one that it can read by
        itself if the file is whole, and else the one that is open.

        `is_whole` tells whether the kernel could read the file of an open handle by itself.
        """
        for nodeid in (inode, inode | SECOND_NODE):
            if self.has(nodeid):
                return nodeid
        if (served := self.served(inode)) is None:
            return inode
        nodeid, handle = served
        return nodeid ^ SECOND_NODE if self._counters.passthrough and is_whole(handle) else nodeid

    def served(self, inode: int) -> tuple[int, int] | None:
        """Node id and a handle of a file of which one node alone is open, if the daemon serves it."""
        nodes = [(nodeid, node) for nodeid in (inode, inode | SECOND_NODE) if (node := self._nodes.get(nodeid))]
        if len(nodes) != 1 or nodes[0][1].backing_id:
            return None
        ((nodeid, node),) = nodes
        return nodeid, next(iter(node.handles))

    def handles(self, nodeid: int) -> tuple[int, ...]:
        """The handles of a node that are open, as far as is known."""
        node = self._nodes.get(nodeid)
        return tuple(node.handles) if node is not None else ()

    def _close(self, nodeid: int) -> None:
        backing_id = self._nodes.pop(nodeid).backing_id
        if backing_id:
            if self._journal is not None:
                self._journal.flush()  # a worker that used a closed id would give its reader EIO
            try:
                self._backings.unregister(backing_id)
            except OSError as error:
                log.warning("passthrough: backing id %d stays: %s", backing_id, error.strerror)

    def _register(self, data_fd: int) -> int:
        """The kernel's id for this file; 0 if it takes none."""
        try:
            return self._backings.register(data_fd)
        except OSError as error:
            if error.errno in _OF_THE_MOUNT:
                self._counters.passthrough = False
                reason = "it needs CAP_SYS_ADMIN" if error.errno == errno.EPERM else error.strerror
                log.info("passthrough is off for this mount: %s", reason)
            else:
                log.info("passthrough: the kernel does not read a cached file by itself: %s", error.strerror)
            return 0
