"""Entries without a node id, with the installed pyfuse3. `mount/test_scale.py` shows their use."""

from __future__ import annotations

from pyfuse3 import EntryAttributes
from pyfuse3._pyfuse3 import InodeT

from d7yfs.fuse import nameonly_entries


def test_this_pyfuse3_lets_it_be_done() -> None:
    assert nameonly_entries.SUPPORTED


def test_nothing_else_changes() -> None:
    value = EntryAttributes()
    value.st_ino, value.st_size, value.generation = InodeT(7), 123, 5
    value.entry_timeout = 1.5
    before = dict(value.__getstate__())
    nameonly_entries.clear_node_id(value)
    assert value.__getstate__() == {**before, "st_ino": 0}
    value.st_ino = InodeT(7)
    assert value.__getstate__() == before
