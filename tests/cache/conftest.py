"""File systems with limits, real ones: a small tmpfs per test, where we may mount."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

MountTmpfs = Callable[[int], Path]


@pytest.fixture
def mount_tmpfs(tmp_path: Path) -> Iterator[MountTmpfs]:
    """Mounts a tmpfs of so many bytes and returns its path; unmounted afterwards."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small tmpfs")
    mounted: list[Path] = []

    def mount(size_bytes: int) -> Path:
        point = tmp_path / f"tmpfs{len(mounted)}"
        point.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size_bytes},mode=700", "d7yfs-test", point], check=True)
        mounted.append(point)
        return point

    yield mount
    for point in reversed(mounted):
        subprocess.run(["umount", "--lazy", point], check=True)


@pytest.fixture(autouse=True)
def _no_descriptor_leaks() -> Iterator[None]:
    """Every test here gives back the cache's descriptors that it opened."""
    before = set(_cache_descriptors())
    yield
    # A cancelled cache abandons its evicting thread, which may be deleting a file on a disk that is
    # slow just now.
    deadline = time.monotonic() + 60
    while (left := set(_cache_descriptors()) - before) and time.monotonic() < deadline:
        time.sleep(0.01)
    # Another look may find the next file that the thread has in hand.
    assert not left


def _cache_descriptors() -> list[str]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.removesuffix(" (deleted)").endswith((".data", ".map")) or "d7yfs-uncached" in target:
            found.append(target)
    return sorted(found)
