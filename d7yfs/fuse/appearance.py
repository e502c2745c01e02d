"""The attributes that all files, or all directories, of a mount have in common.

Used by both engines.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass

BLOCK_SIZE = 4096
UNSEEN_INODES = 1 << 62
"""The first of the numbers that readdir shows for entries without an inode."""


@dataclass(frozen=True, slots=True)
class Appearance:
    """Owner and permissions, and whether there are extended attributes."""

    uid: int
    gid: int
    file_mode: int
    dir_mode: int
    xattr: bool

    def mode(self, *, is_directory: bool) -> int:
        """The st_mode of a file or a directory."""
        return stat.S_IFDIR | self.dir_mode if is_directory else stat.S_IFREG | self.file_mode
