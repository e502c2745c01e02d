"""One repository's policy for Dragonfly: which files go through it, and how much may still come
past it. No I/O, no clock.

Invariant: while the proxy works, the bytes of one version over 4 MiB that come straight from the
origin stay at or below `budget_bytes`, plus less than one block, for as long as this process
remembers the version. So N hosts together take about one of each object from the origin, and N
times its budget.

Versions of up to 4 MiB are not counted: in `auto` they always come from the origin. Bytes that come
from there because the proxy failed are not counted either; the fetcher's counters show them.

One `Policy` per repository, built by `repository`; asked by `StreamFiller`.
"""

from __future__ import annotations

from cachetools import LRUCache

from d7yfs.config.p2p import Mode, P2p
from d7yfs.fetch.dragonfly_task import MAX_DIRECT_BYTES
from d7yfs.objects import ObjectVersion

LEAST_BUDGET_BYTES = 4 << 20
"""Bytes that any version may have: a header, the directory at the end of an archive, and the reads
before a stream's first byte."""

_REMEMBERED = 16384
"""Versions whose count is kept, the latest ones: 4 MiB of memory. A forgotten one begins anew."""


class Policy:
    """The policy of one repository; without arguments the default, `auto` for all.

    `prefix` is that of the repository's URL, which paths in the mount lack; `direct_percent` of a
    version may come past dfdaemon.
    """

    def __init__(self, p2p: P2p | None = None, *, prefix: str = "", direct_percent: float = 0.4) -> None:
        self._p2p = p2p or P2p()
        self._prefix = prefix
        self._direct_percent = direct_percent
        self._spent: LRUCache[tuple[str, str, int], int] = LRUCache(_REMEMBERED)

    def mode_of(self, key: str) -> Mode:
        """The mode of an object, by its path in the repository's directory."""
        if key == self._prefix:
            return self._p2p.mode_of(key.rpartition("/")[2])
        return self._p2p.mode_of(key.removeprefix(f"{self._prefix}/") if self._prefix else key)

    def budget_bytes(self, size_bytes: int) -> int:
        """Bytes of a version over 4 MiB that may come straight from the origin, in `auto`."""
        return max(LEAST_BUDGET_BYTES, int(size_bytes * self._direct_percent / 100))

    def direct_left_bytes(self, version: ObjectVersion, *, required: bool) -> int:
        """Bytes of `version` that may come straight from the origin now; 0 or less: none.

        With `required` only small files may, as the proxy is not to be replaced (`--no-fallback`).
        """
        if self.mode_of(version.key) is Mode.ALWAYS:
            return 0
        if version.size_bytes <= MAX_DIRECT_BYTES:
            return version.size_bytes
        if required:
            return 0
        return self.budget_bytes(version.size_bytes) - self._spent.get(version.identity, 0)

    def spend(self, version: ObjectVersion, size_bytes: int) -> None:
        """Count bytes of `version` that come straight from the origin."""
        if version.size_bytes > MAX_DIRECT_BYTES and size_bytes:
            self._spent[version.identity] = self._spent.get(version.identity, 0) + size_bytes
