"""The users who have files or directories open, and how many each may have.

A user may have as many open as are still left for all. So one user can take half, the next a
quarter, and there is always one more for whoever has none. What takes more than others counts as
several. Pure.

Used by the adapter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

from d7yfs.cache.descriptors import SMALL_BYTES
from d7yfs.errors import TooManyOpenFiles

MAX_OPEN_FILES = 1 << 16
"""Open files of one mount: each takes some KiB of memory."""
MAX_OPEN_DIRECTORIES = 1 << 14
"""Open directories of one mount."""
_NAMES = 1000
"""An open directory remembers its names: it counts once more for so many, …"""
_HEAVIEST = MAX_OPEN_DIRECTORIES // 64
"""… but so often at most, as any directory can be opened."""


class Openers:
    """The open files, or directories, of one mount by user, at most `limit` in all.

    `weigh` tells as how many one of a size counts. `kind` and `hint` are for errors.
    """

    def __init__(
        self, limit: int, *, weigh: Callable[[int], int] = lambda _: 1, kind: str = "files", hint: str = ""
    ) -> None:
        self.limit = limit
        self._weigh = weigh
        self._kind = kind
        self._hint = hint
        self._by_handle: dict[int, tuple[int, int]] = {}
        self._counts = Counter[int]()
        self._total = 0

    def admit(self, uid: int, size: int = 0) -> int:
        """Count an open that begins, and return its weight; followed by `opened` or `leave`.

        Raises TooManyOpenFiles.
        """
        weight = self._weigh(size)
        if self._counts[uid] + weight > self.limit - self._total:
            raise TooManyOpenFiles(
                f"uid {uid} has {self._counts[uid]} of {self.limit} shares of the open {self._kind}, and all users "
                f"together have {self._total}; this one takes {weight}",
                hint=self._hint,
            )
        self._counts[uid] += weight
        self._total += weight
        return weight

    def opened(self, handle: int, uid: int, weight: int = 1) -> None:
        """Note the handle of an open that was admitted."""
        self._by_handle[handle] = uid, weight

    def adopt(self, handle: int, uid: int, size: int) -> None:
        """Count, once, a handle that an earlier process has admitted, as one of its reader's."""
        if handle not in self._by_handle:
            weight = self._weigh(size)
            self._by_handle[handle] = uid, weight
            self._counts[uid] += weight
            self._total += weight

    def user_of(self, handle: int) -> int:
        """The user who opened a handle; root if it is not known."""
        return self._by_handle.get(handle, (0, 0))[0]

    def leave(self, uid: int, weight: int = 1) -> None:
        """End an open that was admitted and failed."""
        self._total -= weight
        self._counts[uid] -= weight
        if not self._counts[uid]:
            del self._counts[uid]

    def release(self, handle: int) -> None:
        """Note that a handle was closed."""
        if (opened := self._by_handle.pop(handle, None)) is not None:
            self.leave(*opened)


def openers_of_files(descriptors: int) -> Openers:
    """The openers of files in a process with so many descriptors, half of which are for large
    files: each of those keeps one.
    """
    return Openers(
        MAX_OPEN_FILES,
        weigh=partial(_weigh_file, -(-2 * MAX_OPEN_FILES // descriptors)),
        hint="close some; more large files may be open with a higher limit on open files of the daemon "
        "(LimitNOFILE of systemd, ulimit -Hn)",
    )


def openers_of_directories() -> Openers:
    """The openers of directories, whose size is their number of names."""
    return Openers(MAX_OPEN_DIRECTORIES, weigh=_weigh_directory, kind="directories", hint="close some")


def _weigh_file(large_weight: int, size_bytes: int) -> int:
    return large_weight if size_bytes > SMALL_BYTES else 1


def _weigh_directory(names: int) -> int:
    return min(1 + names // _NAMES, _HEAVIEST)
