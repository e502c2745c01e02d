"""The record of how far a version is proved, on a real disk: what is written, and what is believed."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from d7yfs.cache.cache import Cache
from d7yfs.cache.pair import PROOF_OFFSET
from d7yfs.cache.proof import Proof, RecordedProof
from d7yfs.cache.version import CachedVersion
from tests.cache.doubles import ORIGIN, ManualFiller, PromptDisk, directory, version

VERSION = version(3 << 20)


def cache(path: Path) -> Cache:
    return Cache(directory(path), memory_buffer_bytes=1 << 20, read_timeout_s=20, disk=PromptDisk())


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[CachedVersion]:
    """The version as a daemon of its own has it open."""
    cached = await cache(path).open(ORIGIN, VERSION, lambda target: ManualFiller(target))
    try:
        yield cached
    finally:
        cached.drop()


@pytest.mark.parametrize("proof", Proof)
async def test_it_outlives_its_daemon(tmp_path: Path, proof: Proof) -> None:
    async with opened(tmp_path) as cached:
        assert cached.proof.value is None
        cached.proof.record(Proof.PENDING)
        cached.proof.record(proof)
        assert cached.proof.value is proof
    async with opened(tmp_path) as cached:
        assert cached.proof.value is proof
    assert await cache(tmp_path).proof(ORIGIN, VERSION) is proof, "without opening it"
    assert await cache(tmp_path).proof(ORIGIN, version(VERSION.size_bytes, "another")) is None


async def test_another_daemon_that_has_it_open_sees_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as one, opened(tmp_path) as other:
        one.proof.record(Proof.PENDING)
        assert other.proof.value is Proof.PENDING


async def test_a_byte_of_which_nothing_is_known_is_no_proof(tmp_path: Path) -> None:
    async with opened(tmp_path) as cached:
        cached.proof.record(Proof.PROVED)
    (map_path,) = tmp_path.glob("v2/?/*.map")
    with map_path.open("r+b") as file:
        os.pwrite(file.fileno(), b"\xff", PROOF_OFFSET)
    async with opened(tmp_path) as cached:
        assert cached.proof.value is Proof.PENDING


def test_without_a_disk_it_lasts_as_long_as_the_version_is_open() -> None:
    proof = RecordedProof(None, PromptDisk())
    assert proof.value is None
    proof.record(Proof.PENDING)
    assert proof.value is Proof.PENDING
