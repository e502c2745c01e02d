"""Entries of a READDIRPLUS reply with an inode number to show and none to remember.

The kernel makes an inode of each entry with a node id, which we must then know until it forgets it.
It takes an entry with node id 0 for a name alone ("the userspace filesystem did not want to return
attributes", fuse_direntplus_link in fs/fuse/readdir.c). But the number in the directory entry must
not be 0: the C library would take it for deleted. libfuse has two fields for that (`ino` and
`attr.st_ino` of fuse_entry_param, fuse_lowlevel.h); pyfuse3 sets both at once. So this module
writes the first one in memory, at the offset where it found it.

Called by the adapter, for directories that are too large to be known.
"""

from __future__ import annotations

import ctypes
import sys

from pyfuse3 import EntryAttributes
from pyfuse3._pyfuse3 import InodeT

_MARK = 0x5A17_C0DE_0DD5_EED5


def _find() -> int | None:
    """The offset of the node id in an `EntryAttributes`; None if the layout is another one."""
    value = EntryAttributes()
    value.st_ino = InodeT(_MARK)
    memory = ctypes.string_at(id(value), EntryAttributes.__basicsize__)
    mark = _MARK.to_bytes(8, sys.byteorder)
    if memory.count(mark) != 2:
        return None
    offset = memory.find(mark)
    ctypes.c_uint64.from_address(id(value) + offset).value = 0
    return offset if value.st_ino == 0 else None


_OFFSET = _find()
SUPPORTED = _OFFSET is not None
"""True if this pyfuse3 has the expected layout."""


def clear_node_id(value: EntryAttributes) -> None:
    """Make `value` show only its inode number, until `st_ino` is set. Only where `SUPPORTED`."""
    assert _OFFSET is not None
    ctypes.c_uint64.from_address(id(value) + _OFFSET).value = 0
