"""The right to read cached bytes: proofs, records, and what ends them. The clock is trio's."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.version import CachedVersion
from d7yfs.errors import AccessDenied, NotFound, OriginUnavailable, VersionGone
from d7yfs.fs.rights import BELIEVED_S, PATIENCE_S, Rights
from d7yfs.objects import ObjectVersion
from tests.cache.doubles import PromptDisk
from tests.fs.test_filesystem import Store

VERSION = ObjectVersion("model", 10, '"e"', 1)


class Mount:
    """A mount's credentials, and a store that answers for them."""

    def __init__(self, cache: Cache, principal: str = "key A") -> None:
        self.principal = principal
        self.answer: Exception | None = None
        self.delay_s = 0.0
        self.proofs = 0
        self.rights = Rights(
            self._prove,
            lambda: self.principal,
            cache.digest,
            is_session=lambda each: each.startswith("session"),
            clock=trio.current_time,
        )

    async def _prove(self, _: ObjectVersion) -> None:
        self.proofs += 1
        await trio.sleep(self.delay_s)
        if self.answer is not None:
            raise self.answer


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[tuple[Cache, CachedVersion]]:
    directory = CacheDirectory(path / "cache", size_limit_bytes=1 << 30, min_free_bytes=0)
    directory.prepare()
    directory.take_grant_key()
    cache = Cache(directory, memory_buffer_bytes=1 << 20, read_timeout_s=30, disk=PromptDisk())
    backend = Store().source
    cached = await cache.open(backend.identity, VERSION, backend.new_filler)
    yield cache, cached
    cached.drop()
    await cache.settle()


async def test_readers_at_once_cost_one_proof_and_later_ones_none(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with opened(tmp_path) as (cache, cached):
        mount = Mount(cache)
        mount.delay_s = 1.0
        async with trio.open_nursery() as nursery:
            for _ in range(8):
                nursery.start_soon(mount.rights.claim, cached)
        assert await mount.rights.claim(cached) is mount.rights.epoch
        assert mount.proofs == 1


async def test_a_record_replaces_the_proof_for_its_own_principal_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as (cache, cached):
        await Mount(cache).rights.claim(cached)
    async with opened(tmp_path) as (cache, cached):
        same, other, unknown = Mount(cache), Mount(cache, "key B"), Mount(cache, "")
        for each in (same, other, unknown, unknown):
            await each.rights.claim(cached)
        assert [each.proofs for each in (same, other, unknown)] == [0, 1, 1]


async def test_an_older_record_counts_only_while_the_store_cannot_be_asked(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with opened(tmp_path) as (cache, cached):
        await Mount(cache).rights.claim(cached)
        await trio.sleep(BELIEVED_S)
        away, hung, refused = Mount(cache), Mount(cache), Mount(cache)
        away.answer, hung.delay_s, refused.answer = OriginUnavailable("away"), math.inf, AccessDenied("no")
        await away.rights.claim(cached)
        await away.rights.claim(cached)
        assert away.proofs == 1, "a store that is away is not asked for each file"
        asked_at = trio.current_time()
        await hung.rights.claim(cached)
        assert trio.current_time() - asked_at == PATIENCE_S
        with pytest.raises(AccessDenied):
            await refused.rights.claim(cached)
        with pytest.raises(OriginUnavailable):
            await away.rights.claim(cached)  # the refusal has struck the record out


async def test_without_a_record_a_store_that_is_away_grants_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as (cache, cached):
        mount = Mount(cache)
        for answer, expected in ((OriginUnavailable("away"), OriginUnavailable), (NotFound("gone"), VersionGone)):
            mount.answer = answer
            with pytest.raises(expected):
                await mount.rights.claim(cached)


async def test_a_refusal_ends_a_grant_and_its_record(tmp_path: Path) -> None:
    async with opened(tmp_path) as (cache, cached):
        mount = Mount(cache)
        epoch = await mount.rights.claim(cached)
        mount.rights.deny(cached)
        assert mount.rights.epoch is not epoch
        mount.answer = AccessDenied("no")
        with pytest.raises(AccessDenied):
            await mount.rights.claim(cached)
        assert mount.proofs == 2
    async with opened(tmp_path) as (cache, cached):
        mount = Mount(cache)
        await mount.rights.claim(cached)
        assert mount.proofs == 1


async def test_later_credentials_need_one_grant_before_their_records_count(tmp_path: Path) -> None:
    async with opened(tmp_path) as (cache, cached):
        await Mount(cache, "key B").rights.claim(cached)
        mount = Mount(cache)
        await mount.rights.claim(cached)
        mount.principal, mount.answer = "key B", AccessDenied("another secret")
        with pytest.raises(AccessDenied):
            await mount.rights.claim(cached)
        assert mount.proofs == 2


async def test_keys_that_the_sdk_renews_end_no_grant(tmp_path: Path) -> None:
    async with opened(tmp_path) as (cache, cached):
        mount = Mount(cache, "session 1")
        await mount.rights.claim(cached)
        mount.principal = "session 2"
        await mount.rights.claim(cached)
        assert mount.proofs == 1
        mount.rights.begin_anew()
        await mount.rights.claim(cached)
        assert mount.proofs == 2


async def test_a_proof_of_former_credentials_grants_nothing_to_later_ones(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with opened(tmp_path) as (cache, cached):
        mount = Mount(cache)
        mount.delay_s = 1.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(mount.rights.claim, cached)
            await wait_all_tasks_blocked()
            mount.rights.begin_anew()
        assert mount.proofs == 2


async def test_where_nothing_can_be_recorded_grants_last_for_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    for name in ("setxattr", "listxattr"):
        monkeypatch.setattr(f"d7yfs.cache.grants.os.{name}", refuse)
    async with opened(tmp_path) as (cache, cached):
        mount = Mount(cache)
        await mount.rights.claim(cached)
    async with opened(tmp_path) as (_, cached):
        await mount.rights.claim(cached)
        assert mount.proofs == 1
