"""The objects that the cases read: made once per run, in memory if there is room.

The store serves these directories as buckets, the peer `local` reads a copy on disk, and every byte
is compared with them. Cases about names have their own buckets, so that a peer that lists a repository
whole pays only for its case.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy

from bench.catalog import BUCKET

LARGE = "large.bin"
MEDIUM = "medium.bin"
WEIGHTS = "model.safetensors"
SMALL = "small"
SHARDS = "shards"
TREE = "bench-tree"
"""A bucket of directories of files, for `find` and `rates`."""
FLAT = "bench-flat"
"""A bucket with one directory, `flat`."""
MANY = "bench-many"
"""A bucket of which a case lists only one directory."""
BESIDE = "bench-beside"
"""A bucket of a file to read, and of many directories to list meanwhile."""
TENSORS = 64

_CHUNK_BYTES = 16 << 20
_INODE_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes and numbers of objects; small for `--quick`."""

    large_bytes: int
    medium_bytes: int
    streams: int
    """Files that are read at once."""
    stream_bytes: int
    """Bytes of each of them."""
    shards: int
    shard_bytes: int
    small_files: int
    small_bytes: int
    tree_directories: int
    tree_files: int
    """Files in each of the directories."""
    flat_files: int
    many_directories: int
    """The directories, each with as many files as the tree's."""
    beside_directories: int
    """The directories that are listed beside a reader, each with as many files."""
    random_reads: int
    kills: int
    upgrades: int

    @property
    def total_bytes(self) -> int:
        files = (self.tree_directories + self.many_directories) * self.tree_files + self.flat_files
        beside_bytes = self.medium_bytes + self.beside_directories * self.tree_files * _INODE_BYTES
        return (
            2 * self.large_bytes
            + self.medium_bytes
            + self.streams * self.stream_bytes
            + self.shards * self.shard_bytes
            + self.small_files * self.small_bytes
            + files * (4096 + _INODE_BYTES)
            + beside_bytes
        )

    @property
    def stream_names(self) -> list[str]:
        """The keys of the files that are read at once."""
        return [f"streams/{number}.bin" for number in range(self.streams)]

    @property
    def shard_names(self) -> list[str]:
        return [f"{SHARDS}/{number:05}.bin" for number in range(self.shards)]

    def scaled(self, cpus: int, memory_bytes: int) -> Sizes:
        """More bytes and streams for a machine with more processors, as far as a third of its memory goes."""
        factor = max(1, min(8, cpus // 2))
        while True:
            found = replace(
                self,
                large_bytes=self.large_bytes * factor,
                medium_bytes=self.medium_bytes * factor,
                streams=max(self.streams, cpus if factor > 1 else 0),
                shards=self.shards * factor,
                small_files=self.small_files * factor,
            )
            if factor == 1 or found.total_bytes <= memory_bytes // 3:
                return found
            factor -= 1


FULL = Sizes(
    large_bytes=1 << 30,
    medium_bytes=512 << 20,
    streams=4,
    stream_bytes=256 << 20,
    shards=32,
    shard_bytes=16 << 20,
    small_files=1000,
    small_bytes=128 << 10,
    tree_directories=10,
    tree_files=1000,
    flat_files=5000,
    many_directories=16,
    beside_directories=100,
    random_reads=8192,
    kills=20,
    upgrades=5,
)
QUICK = replace(
    FULL,
    large_bytes=256 << 20,
    medium_bytes=128 << 20,
    stream_bytes=64 << 20,
    shards=8,
    small_files=400,
    beside_directories=20,
    random_reads=2048,
    kills=5,
    upgrades=1,
)

TINY = Sizes(
    large_bytes=64 << 10,
    medium_bytes=1,
    streams=1,
    stream_bytes=1,
    shards=1,
    shard_bytes=1,
    small_files=1,
    small_bytes=1,
    tree_directories=1,
    tree_files=1,
    flat_files=1,
    many_directories=1,
    beside_directories=1,
    random_reads=0,
    kills=0,
    upgrades=0,
)
"""One object of each kind, for benches that read few of them."""


def make(buckets: Path, sizes: Sizes) -> None:
    """Write all objects: random bytes, the same in every run."""
    directory = buckets / BUCKET
    source = numpy.random.default_rng(7)
    for name, size_bytes in (
        (LARGE, sizes.large_bytes),
        (MEDIUM, sizes.medium_bytes),
        *((name, sizes.stream_bytes) for name in sizes.stream_names),
        *((name, sizes.shard_bytes) for name in sizes.shard_names),
        *((f"{SMALL}/{number:05}.bin", sizes.small_bytes) for number in range(sizes.small_files)),
    ):
        _write(directory / name, size_bytes, source)
    write_weights(directory / WEIGHTS, sizes.large_bytes, source)
    for number in range(sizes.tree_directories):
        _touch(buckets / TREE / f"{number:03}", sizes.tree_files)
    for number in range(sizes.many_directories):
        _touch(buckets / MANY / f"{number:03}", sizes.tree_files)
    _touch(buckets / FLAT / "flat", sizes.flat_files)
    for number in range(sizes.beside_directories):
        _touch(buckets / BESIDE / f"{number:03}", sizes.tree_files, empty=True)
    _write(buckets / BESIDE / MEDIUM, sizes.medium_bytes, source)


def _write(path: Path, size_bytes: int, source: numpy.random.Generator, header: bytes = b"") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        out.write(header)
        for start in range(0, size_bytes, _CHUNK_BYTES):
            out.write(source.bytes(min(_CHUNK_BYTES, size_bytes - start)))


def write_weights(path: Path, size_bytes: int, source: numpy.random.Generator) -> None:
    """Write a safetensors file: length of the header, the header in JSON, the tensors' bytes (the
    format's README).
    """
    each_bytes = size_bytes // TENSORS
    described = {
        f"layer.{number}.weight": {
            "dtype": "U8",
            "shape": [each_bytes],
            "data_offsets": [number * each_bytes, (number + 1) * each_bytes],
        }
        for number in range(TENSORS)
    }
    header = json.dumps(described).encode()
    header += b" " * (-len(header) % 8)
    _write(path, size_bytes, source, len(header).to_bytes(8, "little") + header)


def _touch(directory: Path, count: int, *, empty: bool = False) -> None:
    directory.mkdir(parents=True)
    for number in range(count):
        (directory / f"{number:05}.bin").write_bytes(b"" if empty else b"%016d" % number)
