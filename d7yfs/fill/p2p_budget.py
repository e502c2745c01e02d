"""One repository's policy for Dragonfly: which files go through it, and what may still come past it. No I/O, no clock.

Invariant: while the proxy works, what comes straight from the origin of one version over 4 MiB stays at or below `budget_bytes`, plus less
than one block, for as long as this process remembers the version; so N hosts together take about one of each object from the origin, and
N times its budget. Versions of up to 4 MiB are not counted: in `auto` they come from the origin, whatever happens. What comes from there
because the proxy failed is not counted either; the fetcher's counters show it.

One `Policy` per repository, built by `repository`; asked by `daemon` (which filler) and by `StreamFiller` (how much is left).
"""

from __future__ import annotations

from collections import OrderedDict

from d7yfs.config.p2p import Mode, P2p
from d7yfs.fetch.dragonfly_task import MAX_DIRECT_BYTES
from d7yfs.objects import ObjectVersion

LEAST_BUDGET_BYTES = 4 << 20
"""What any version may have: a header, the directory at the end of an archive, and what is read before a stream's first byte."""

_REMEMBERED = 16384
"""Versions whose count is kept, the latest ones: 4 MiB of memory. One that was forgotten begins anew."""


class Policy:
    """`prefix` is that of the repository's URL, which paths in the mount lack; `direct_percent` of a version may come past dfdaemon.

    Without arguments it is the default: `auto` for all.
    """

    def __init__(self, p2p: P2p | None = None, *, prefix: str = "", direct_percent: float = 0.4) -> None:
        self._p2p = p2p or P2p()
        self._prefix = prefix
        self._direct_percent = direct_percent
        self._spent: OrderedDict[tuple[str, str, int], int] = OrderedDict()

    def mode_of(self, key: str) -> Mode:
        """The mode of an object, by its path in the repository's directory."""
        if key == self._prefix:
            return self._p2p.mode_of(key.rpartition("/")[2])
        return self._p2p.mode_of(key.removeprefix(f"{self._prefix}/") if self._prefix else key)

    def budget_bytes(self, size_bytes: int) -> int:
        """What may come straight from the origin of a version over 4 MiB, in `auto`."""
        return max(LEAST_BUDGET_BYTES, int(size_bytes * self._direct_percent / 100))

    def direct_left_bytes(self, version: ObjectVersion, *, required: bool) -> int:
        """How much of `version` may come straight from the origin now; 0 or less: nothing.

        `required`: nothing but small files may at all, for the proxy is not to be replaced (`--no-fallback`).
        """
        if self.mode_of(version.key) is Mode.ALWAYS:
            return 0
        if version.size_bytes <= MAX_DIRECT_BYTES:
            return version.size_bytes
        if required:
            return 0
        return self.budget_bytes(version.size_bytes) - self._spent.get(version.identity, 0)

    def spend(self, version: ObjectVersion, size_bytes: int) -> None:
        """`size_bytes` of `version` come straight from the origin."""
        if version.size_bytes <= MAX_DIRECT_BYTES or not size_bytes:
            return
        self._spent[version.identity] = self._spent.pop(version.identity, 0) + size_bytes
        if len(self._spent) > _REMEMBERED:
            self._spent.popitem(last=False)
