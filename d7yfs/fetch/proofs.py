"""The proof of the bytes of versions that came through Dragonfly. Pure.

dfdaemon and its peers are trusted to bring bytes, not with which bytes these are. A version counts
as proved when all of it was compared with a checksum of the store's, or with the store's own bytes.

One `Proofs` per repository, in its fetcher, which records what dfdaemon was asked for. The verifier
settles it.
"""

from __future__ import annotations

from enum import StrEnum

from cachetools import LRUCache

from d7yfs.objects import ObjectVersion

_REMEMBERED = 10_000
"""Versions whose proof is known, the latest ones."""


class Proof(StrEnum):
    """How far the bytes of a version that came through Dragonfly are proved."""

    PENDING = "not compared yet"
    PROVED = "proved"
    SAMPLED = "sampled"
    """Blocks chosen at random are the store's; it has no checksum of the whole."""
    NOT_PROVABLE = "not provable"
    """Neither a checksum nor blocks could be had from the store."""
    WRONG = "wrong"


class Proofs:
    """The proofs of one repository's versions."""

    def __init__(self) -> None:
        self._of: LRUCache[tuple[str, str, int], Proof] = LRUCache(_REMEMBERED)

    def begin(self, version: ObjectVersion) -> None:
        """Record that bytes of `version` come through Dragonfly: nothing proves them yet."""
        self._of[version.identity] = Proof.PENDING

    def settle(self, version: ObjectVersion, proof: Proof) -> None:
        """Record the result of a comparison, if bytes of `version` came through Dragonfly."""
        if version.identity in self._of:
            self._of[version.identity] = proof

    def of(self, version: ObjectVersion) -> Proof | None:
        """The proof of `version`; None if no byte of it is known to have come through Dragonfly."""
        return self._of.get(version.identity)
