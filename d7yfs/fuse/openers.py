"""The users who have files open, and how many each may have.

A user may have as many files open as are still left for all. So one user can take half, the next a
quarter, and there is always one more for whoever has none. Pure.

Used by the adapter.
"""

from __future__ import annotations

from collections import Counter

from d7yfs.errors import TooManyOpenFiles

MAX_OPEN_FILES = 1 << 16
"""Open files of one mount, however many descriptors there are: each takes some KiB of memory."""


class Openers:
    """The open files of one mount by user, at most `limit` in all."""

    def __init__(self, limit: int = MAX_OPEN_FILES) -> None:
        self.limit = limit
        self._by_handle: dict[int, int] = {}
        self._counts = Counter[int]()
        self._total = 0

    def admit(self, uid: int) -> None:
        """Count an open that begins; followed by `opened` or `leave`. Raises TooManyOpenFiles."""
        if self._counts[uid] >= self.limit - self._total:
            raise TooManyOpenFiles(
                f"uid {uid} has {self._counts[uid]} files open, and all users together {self._total}",
                hint="close files, or raise the limit on open files of the daemon (LimitNOFILE of systemd, ulimit -Hn)",
            )
        self._counts[uid] += 1
        self._total += 1

    def opened(self, handle: int, uid: int) -> None:
        """Note the handle of an open that was admitted."""
        self._by_handle[handle] = uid

    def user_of(self, handle: int) -> int:
        """The user who opened a file; root if it is not known."""
        return self._by_handle.get(handle, 0)

    def leave(self, uid: int) -> None:
        """End an open that was admitted and failed."""
        self._total -= 1
        self._counts[uid] -= 1
        if not self._counts[uid]:
            del self._counts[uid]

    def release(self, handle: int) -> None:
        """Note that a file was closed."""
        if (uid := self._by_handle.pop(handle, None)) is not None:
            self.leave(uid)
