"""The product's units, made small: a block is a page, so that the runs spend their time on
interleavings, not on copies.
"""

from __future__ import annotations

import sys

import pytest

from d7yfs.fs.readahead import Scale

KIB = 1 << 10
FACTOR = 256
BLOCK = (1 << 20) // FACTOR

_UNITS = {
    "BLOCK_BYTES": 1 << 20,
    "PART_BYTES": 8 << 20,
    "SMALL_BYTES": 4 << 20,
    "FIRST_BYTES": 2 << 20,
    "BUFFER_BYTES": 1 << 20,
    "MAX_DIRECT_BYTES": 4 << 20,
    "LEAST_BUDGET_BYTES": 1 << 20,
    "HEADER_FROM_BYTES": 64 << 20,
    "PASSED_BYTES": 64 << 20,
    "LEAST_WINDOW_BYTES": 32 << 20,
    "MOST_WINDOW_BYTES": 256 << 20,
    "PEEK_BYTES": 1 << 20,
    "RUN_BYTES": 4 << 20,
    "BEGINNING_BYTES": 512 << 20,
    "_WATCHED_BYTES": 64 << 20,
    "_WINDOW_BYTES": 64 << 20,
    "_STREAMING_BYTES": 256 << 10,
    "_DRAIN_LIMIT_BYTES": 64 << 10,
    "_PARSED_RECEIVE_BYTES": 256 << 10,
    "_MAX_HEADROOM_BYTES": 1 << 30,
}


def scaled(patch: pytest.MonkeyPatch) -> None:
    """Divide each unit by FACTOR in every module of d7yfs, until `patch` is undone."""
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("d7yfs."):
            for name, value in _UNITS.items():
                if getattr(module, name, None) == value:
                    patch.setattr(module, name, value // FACTOR)
    readahead = sys.modules["d7yfs.fs.readahead"]
    small = Scale(proof=2 * BLOCK, slack=2 * BLOCK, part=8 * BLOCK)
    patch.setattr(readahead.Window.__init__, "__defaults__", (small,))
