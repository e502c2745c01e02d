"""The options `cache_size` and `cache_min_free`: sizes that may be parts of a file system. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SizeBound:
    """A size, a percentage of a file system, or both: then the smaller one counts."""

    size_bytes: int | None = None
    percent: float | None = None

    def of(self, total_bytes: int) -> int:
        """The bytes that it means on a file system of that size."""
        part_bytes = None if self.percent is None else int(total_bytes * self.percent / 100)
        return min(each for each in (self.size_bytes, part_bytes) if each is not None)
