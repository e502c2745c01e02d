"""Profiles the processor time of a cold read: `python -m scripts.profile [--top N]`.

It prints two profiles, each sorted by a function's own time. One is a sequential read of one object
of 256 MiB, the other reads 1,000 small files. The store of the benchmarks serves them from another
process. The file system, the cache and the fetcher run here without a mount, with an empty cache.

cProfile sees only the event loop's thread: work in worker threads shows as time in their waits. It
slows every call down. Compare shares with it, and rates with `make bench`.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from bench import store
from bench.catalog import BUCKET
from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory
from d7yfs.config.sources import Settings, load_settings
from d7yfs.fill.direct import DirectFiller
from d7yfs.fs.backend import RepositoryBackend
from d7yfs.fs.filesystem import Filesystem
from d7yfs.repository.repository import open_repositories
from d7yfs.tree.nodes import Found
from d7yfs.tree.tree import ROOT_INODE, Tree, TreeRoot

LARGE = "large.bin"
READ_BYTES = 1 << 20
"""Bytes that the kernel asks for at once when a program reads in order."""


def make(buckets: Path, large_mib: int, small_files: int, small_kib: int) -> None:
    """Write the objects: one large, and a directory of small ones."""
    directory = buckets / BUCKET
    (directory / "small").mkdir(parents=True)
    piece = os.urandom(1 << 20)
    with (directory / LARGE).open("wb") as file:
        for _ in range(large_mib):
            file.write(piece)
    for number in range(small_files):
        (directory / "small" / f"{number:05}.bin").write_bytes(piece[: small_kib << 10])


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[Filesystem]:
    """The file system of one repository, as a mount has it."""
    config = settings.config
    (repository,) = open_repositories(settings)
    directory = CacheDirectory.bounded(config.cache_dir, config.cache_size, config.cache_min_free)
    directory.prepare()
    cache = Cache(directory, memory_buffer_bytes=config.memory_buffer_bytes, read_timeout_s=config.read_timeout_s)
    tree = Tree(
        [TreeRoot("", await repository.locate(allow_empty=False))],
        metadata_ttl_s=config.metadata_ttl_s,
        negative_ttl_s=config.negative_ttl_s,
        created_ns=time.time_ns(),
        max_entries=config.max_inodes,
    )
    async with trio.open_nursery() as nursery:
        backend = RepositoryBackend(
            repository.origin.url,
            repository.origin.identity,
            repository.shown,
            lambda target: DirectFiller(target, repository.fetcher, nursery),
        )
        filesystem = Filesystem(tree, {"": backend}, cache, nursery)
        nursery.start_soon(cache.room.run)
        await repository.fetcher.prepare()
        yield filesystem
        nursery.cancel_scope.cancel()
    await cache.settle()
    await repository.aclose()


async def read_whole(filesystem: Filesystem, parent: int, name: str) -> int:
    """Look up, open, read in order to the end, and close. Returns the number of bytes."""
    found = await filesystem.lookup(parent, name)
    assert isinstance(found, Found), name
    handle = await filesystem.open(found.node.inode)
    size_bytes = found.node.size_bytes
    for offset in range(0, size_bytes, READ_BYTES):
        await filesystem.read(handle, offset, READ_BYTES)
    filesystem.release(handle)
    return size_bytes


async def read_small(filesystem: Filesystem, count: int) -> int:
    """Read the directory of small files in order. Returns the number of bytes."""
    found = await filesystem.lookup(ROOT_INODE, "small")
    assert isinstance(found, Found)
    inode = found.node.inode
    return sum([await read_whole(filesystem, inode, f"{number:05}.bin") for number in range(count)])


async def profiled(settings: Settings, small_files: int, top: int) -> None:
    """Read once with an empty cache and print the profile. Without `small_files` it reads the large
    object.
    """
    async with opened(settings) as filesystem:
        profile = cProfile.Profile()
        began_at, began_cpu = time.perf_counter(), time.process_time()
        profile.enable()
        if small_files:
            size_bytes = await read_small(filesystem, small_files)
        else:
            size_bytes = await read_whole(filesystem, ROOT_INODE, LARGE)
        profile.disable()
        took_s, cpu_s = time.perf_counter() - began_at, time.process_time() - began_cpu
    what = f"{small_files} small files" if small_files else LARGE
    mib = size_bytes / (1 << 20)
    print(f"== {what}: {mib:.0f} MiB in {took_s:.2f} s, {cpu_s:.2f} s of processor time (with the profiler's own)\n")
    pstats.Stats(profile, stream=sys.stdout).strip_dirs().sort_stats("tottime").print_stats(top)


def main() -> int:
    """Make the objects, serve them, and profile both reads."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--top", type=int, default=30, help="how many functions to show (default: %(default)s)")
    parser.add_argument("--large-mib", type=int, default=256, help="size of the large object (default: %(default)s)")
    parser.add_argument("--small-files", type=int, default=1000, help="how many small files (default: %(default)s)")
    parser.add_argument("--small-kib", type=int, default=128, help="size of each (default: %(default)s)")
    given = parser.parse_args()
    total_bytes = (given.large_mib << 20) + given.small_files * (given.small_kib << 10)
    with tempfile.TemporaryDirectory(prefix="d7yfs-profile-", dir="/var/tmp") as scratch:
        served = store.running(
            lambda buckets: make(buckets, given.large_mib, given.small_files, given.small_kib),
            total_bytes,
            Path(scratch),
        )
        with served as running:
            for small_files in (0, given.small_files):
                cache = Path(scratch) / f"cache-{small_files}"
                flags: dict[str, object] = {
                    "endpoint_url": running.endpoint_url(store.LOOPBACK),
                    "cache_dir": str(cache),
                }
                flags |= {"anonymous": True, "region": store.REGION, "cache_min_free": "0"}
                settings = load_settings(flags, [f"s3://{BUCKET}"], None, {}, None)
                trio.run(profiled, settings, small_files, given.top)
    return 0


if __name__ == "__main__":
    sys.exit(main())
