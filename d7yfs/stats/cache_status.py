"""The account of the cache directory, in types: a part of its mount's account (`status`). Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStatus:
    """The cache directory and its reads."""

    directory: str
    used_bytes: int
    """Bytes that the directory takes on disk."""
    limit_bytes: int
    memory_bytes: int
    """Data that found no room on disk and is in memory."""
    memory_limit_bytes: int
    open_versions: int
    """Object versions in use."""
    hits: int
    """Reads that found all their bytes in the cache."""
    misses: int
    """Reads that waited for bytes."""
    disk_bytes_written: int
    taken_over_blocks: int
    """Blocks that other daemons on the directory brought."""
    evicted_files: int
    """Files that were deleted to make room."""
    corrupt_blocks: int
    """Blocks that did not match their checksum and were fetched again."""
    checksum_mismatches: int
    """Whole files that did not match the store's checksum and were fetched again."""
    uncached_opens: int
    """Files that could not be kept on disk when they were opened."""
    disk_stalled_s: float = 0.0
    """For how long the disk has not answered; 0 while it does."""
    disk_error: str = ""
    """The error of the disk's last write; empty if it succeeded."""
    free_bytes: int = 0
    """Bytes that are free on the disk, as measured last."""
    min_free_bytes: int = 0
    """Bytes that the cache leaves free there."""
    keepable_bytes: int | None = None
    """Bytes that it can keep at once, if all that it has were replaced; null until its files are counted."""
    full_s: float = 0.0
    """For how long nothing has found room; 0 while something does."""
