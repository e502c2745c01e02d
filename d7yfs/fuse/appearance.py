"""The attributes that all files, or all directories, of a mount have in common, and the names of the
files that may be executed.

Used by both engines.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import dataclass

from d7yfs.tree.huge_directory import Unseen
from d7yfs.tree.nodes import File, Node

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
    is_executable: Callable[[str], bool]
    """True for the key of a file that everybody who may read it may execute, too."""

    def mode(self, node: Node | Unseen) -> int:
        """The st_mode of a file or a directory."""
        if node.is_directory:
            return stat.S_IFDIR | self.dir_mode
        if isinstance(node, File) and self.is_executable(node.version.key):
            return stat.S_IFREG | self.file_mode | (self.file_mode & 0o444) >> 2
        return stat.S_IFREG | self.file_mode
