"""Mounts whose files the kernel reads by itself: fixtures, and the ways to tell that it does."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from d7yfs.host import kernel
from tests.mount.conftest import MIB, bytes_of, faulty_url
from tests.mount.mounted import READ_TIMEOUT_S, Mounted, Mounter, until, within
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

NOBODY = 65534
BODY = bytes_of(17, 3 * MIB + 17)
SMALL = bytes_of(18, 4097)


@pytest.fixture(scope="module", autouse=True)
def kernel_reads_by_itself(fuse_engine: str) -> None:
    obstacle = "that needs the engine kernel" if fuse_engine == "pyfuse3" else kernel.passthrough_obstacle()
    if obstacle:
        pytest.skip(f"the kernel reads no cached file by itself: {obstacle}")


@pytest.fixture
def store(faulty: InThread[S3Faults]) -> InThread[S3Faults]:
    for name, body in (("file", BODY), ("small", SMALL)):
        faulty.do(faulty.server.put, f"b/{name}", body)
    return faulty


@pytest.fixture
def mounted(mounter: Mounter, store: InThread[S3Faults]) -> Mounted:
    """A mount of which both files are whole in the cache, and closed."""
    made = mounter.mount(faulty_url(store), "--anonymous", "--allow-other")
    fill(made)
    return made


def fill(mounted: Mounted) -> None:
    for name, body in (("file", BODY), ("small", SMALL)):
        assert mounted.read(name) == body
    until(lambda: not mounted.status()["fuse"]["open_files"], "the end of the handles that the daemon serves")


def told(mounted: Mounted) -> tuple[int, int]:
    """The opens that the kernel serves by itself, and the reads that came to the daemon."""
    fuse = mounted.status()["fuse"]
    return fuse["passthrough_opens"], fuse["calls"].get("read", 0)


@contextlib.contextmanager
def opened(mounted: Mounted, name: str = "file", flags: int = 0) -> Iterator[int]:
    """An open file. The test fails if that hangs."""
    fd = within(READ_TIMEOUT_S, lambda: os.open(mounted.point / name, os.O_RDONLY | os.O_CLOEXEC | flags))
    try:
        yield fd
    finally:
        within(READ_TIMEOUT_S, lambda: os.close(fd))


def pread(fd: int, size_bytes: int = len(BODY), offset: int = 0) -> bytes:
    return within(READ_TIMEOUT_S, lambda: os.pread(fd, size_bytes, offset))


def data_files(mounted: Mounted) -> list[Path]:
    return [path for path in mounted.cache_dir.rglob("*.data") if path.stat().st_size == len(BODY)]
