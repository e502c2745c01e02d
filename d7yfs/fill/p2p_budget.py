"""One repository's policy for Dragonfly: which files go through it, and how much may still come
past it. No I/O, no clock; the one thing that is drawn by lot is an argument.

Invariant: while the proxy works, the bytes of one version over 4 MiB that come straight from the
origin stay at or below `budget_bytes`, plus less than one block, for as long as this process
remembers the version. Of the cluster's hosts (`hosts`) about `DIRECT_HOSTS` have that budget, drawn
by each host for each version. So all hosts together take about one of each object from the origin,
and `DIRECT_HOSTS` times its budget. Where the cluster's size is not known, each host has it.

Versions of up to 4 MiB are not counted: in `auto` they always come from the origin. Bytes that come
from there because the proxy failed are not counted either; the fetcher's counters show them.

One `Policy` per repository, built by `repository`; asked by `StreamFiller`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from cachetools import LRUCache

from d7yfs.config.p2p import Mode, P2p
from d7yfs.fetch.dragonfly_task import MAX_DIRECT_BYTES
from d7yfs.objects import BLOCK_BYTES, ObjectVersion

LEAST_BUDGET_BYTES = BLOCK_BYTES
"""The least that is worth a request: a header, or the directory at the end of an archive. A budget
of less is none."""

HEADER_FROM_BYTES = 64 << 20
"""From this size on the header of a version may come straight from the origin. A smaller model is
there so soon that ranges beside its stream cost the origin more than readers gain."""

DIRECT_HOSTS = 3
"""Hosts of a cluster that may read beside a stream. More than one, because a host that is drawn may
not read the object at all."""

_PATIENCE_PER_HOST_S = 0.03
"""A scheduler that takes some 30 registrations a second is a slow one, and not one that hangs."""

_ALWAYS_PATIENCE_S = 3.0
"""As long as readers wait where nothing is known of what is usual (`silence.HEDGE_AFTER_S`)."""

_MOST_PATIENCE_S = 15.0
"""Until then a way that hangs has failed (`dragonfly_proxy.FIRST_BYTE_TIMEOUT_S`)."""

_REMEMBERED = 16384
"""Versions whose rest is kept, the latest ones: 4 MiB of memory. A forgotten one begins anew."""


class Policy:
    """The policy of one repository; without arguments the default, `auto` for all.

    `prefix` is that of the repository's URL, which paths in the mount lack; `direct_percent` of a
    version may come past dfdaemon. `hosts` share the repository (0: it is not known how many);
    `chance` gives a number from 0 to 1, another one each time.
    """

    def __init__(
        self,
        p2p: P2p | None = None,
        *,
        prefix: str = "",
        direct_percent: float = 0.4,
        hosts: int = 0,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._p2p = p2p or P2p()
        self._prefix = prefix
        self._direct_percent = direct_percent
        self._hosts = hosts
        self._chance = chance
        self._left: LRUCache[tuple[str, str, int], int] = LRUCache(_REMEMBERED)

    def mode_of(self, key: str) -> Mode:
        """The mode of an object, by its path in the repository's directory."""
        if key == self._prefix:
            return self._p2p.mode_of(key.rpartition("/")[2])
        return self._p2p.mode_of(key.removeprefix(f"{self._prefix}/") if self._prefix else key)

    def budget_bytes(self, size_bytes: int) -> int:
        """Bytes of a version over 4 MiB that may come straight from the origin, in `auto`, on a
        host that is drawn."""
        budget_bytes = int(size_bytes * self._direct_percent / 100)
        if budget_bytes < LEAST_BUDGET_BYTES:
            budget_bytes = LEAST_BUDGET_BYTES if self._direct_percent and size_bytes >= HEADER_FROM_BYTES else 0
        return budget_bytes

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
        return self._left_of(version)

    def patience_s(self, key: str) -> float:
        """The least silence after which a reader of an object leaves its stream. Many hosts that
        begin at once wait for each other, and if all of them left at the same moment, each would
        cost the origin its own copy. In `always` a pause is no reason to leave."""
        always_s = _ALWAYS_PATIENCE_S if self.mode_of(key) is Mode.ALWAYS else 0.0
        return max(min(self._hosts * _PATIENCE_PER_HOST_S, _MOST_PATIENCE_S), always_s)

    def spend(self, version: ObjectVersion, size_bytes: int) -> None:
        """Count bytes of `version` that come straight from the origin."""
        if version.size_bytes > MAX_DIRECT_BYTES and size_bytes:
            self._left[version.identity] = self._left_of(version) - size_bytes

    def _left_of(self, version: ObjectVersion) -> int:
        left_bytes = self._left.get(version.identity)
        if left_bytes is None:
            is_drawn = self._hosts <= DIRECT_HOSTS or self._chance() * self._hosts < DIRECT_HOSTS
            left_bytes = self.budget_bytes(version.size_bytes) if is_drawn else 0
            self._left[version.identity] = left_bytes
        return left_bytes
