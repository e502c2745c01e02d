"""The objects that the cases read: made once per run, in memory if there is room.

The store serves these directories as buckets, the peer `local` reads a copy on disk, and every byte
is compared with them. Cases about names have their own buckets, so that a peer that lists a repository
whole pays only for its case.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy

from bench.catalog import BUCKET

LARGE = "large.bin"
MEDIUM = "medium.bin"
WEIGHTS = "model.safetensors"
FOUR = tuple(f"four/{number}.bin" for number in range(4))
SMALL = "small"
TREE = "bench-tree"
"""A bucket of directories of files, for `find` and `rates`."""
FLAT = "bench-flat"
"""A bucket with one directory, `flat`."""
MANY = "bench-many"
"""A bucket of which a case lists only one directory."""
TENSORS = 64

_CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes and numbers of objects; small for `--quick`."""

    large_bytes: int
    medium_bytes: int
    four_bytes: int
    """Bytes of each of the four files."""
    small_files: int
    small_bytes: int
    tree_directories: int
    tree_files: int
    """Files in each of the directories."""
    flat_files: int
    many_directories: int
    """The directories, each with as many files as the tree's."""
    random_reads: int
    kills: int
    upgrades: int

    @property
    def total_bytes(self) -> int:
        files = (self.tree_directories + self.many_directories) * self.tree_files + self.flat_files
        return (
            2 * self.large_bytes
            + self.medium_bytes
            + 4 * self.four_bytes
            + self.small_files * self.small_bytes
            + files * 4096
        )


FULL = Sizes(1 << 30, 512 << 20, 256 << 20, 1000, 128 << 10, 10, 1000, 5000, 16, 8192, 20, 5)
QUICK = Sizes(256 << 20, 128 << 20, 64 << 20, 400, 128 << 10, 10, 1000, 5000, 16, 2048, 5, 1)


def make(buckets: Path, sizes: Sizes) -> None:
    """Write all objects: random bytes, the same in every run."""
    directory = buckets / BUCKET
    source = numpy.random.default_rng(7)
    for name, size_bytes in (
        (LARGE, sizes.large_bytes),
        (MEDIUM, sizes.medium_bytes),
        *((name, sizes.four_bytes) for name in FOUR),
        *((f"{SMALL}/{number:05}.bin", sizes.small_bytes) for number in range(sizes.small_files)),
    ):
        _write(directory / name, size_bytes, source)
    write_weights(directory / WEIGHTS, sizes.large_bytes, source)
    for number in range(sizes.tree_directories):
        _touch(buckets / TREE / f"{number:03}", sizes.tree_files)
    for number in range(sizes.many_directories):
        _touch(buckets / MANY / f"{number:03}", sizes.tree_files)
    _touch(buckets / FLAT / "flat", sizes.flat_files)


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


def _touch(directory: Path, count: int) -> None:
    directory.mkdir(parents=True)
    for number in range(count):
        (directory / f"{number:05}.bin").write_bytes(b"%016d" % number)
