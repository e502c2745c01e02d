"""One daemon as the tests of verification need it: a real cache, real transfers, a scripted store."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import trio

from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.filler import Filler, NewFiller
from d7yfs.cache.proof import Proof
from d7yfs.cache.version import CachedVersion
from d7yfs.checksum import crc32c, crc64nvme
from d7yfs.fetch.dragonfly_proxy import Proxies, Proxy
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.transport import Transport
from d7yfs.fill.direct import SMALL_BYTES, DirectFiller
from d7yfs.fill.edited import EditedFiller
from d7yfs.fill.p2p_budget import Policy
from d7yfs.fill.stream import StreamFiller
from d7yfs.fill.verification import Verifier
from d7yfs.objects import BLOCK_BYTES, ByteRange, ObjectVersion
from d7yfs.origins.origin import Checksums
from tests.cache.doubles import PromptDisk
from tests.fetch.doubles import FakeOrigin
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.http11 import Answer, Exchange
from tests.servers.scripted import ScriptedServer

MB = BLOCK_BYTES
KEY = "models/m/weights.bin"
SMALL_KEY = "models/m/config.json"
BODY = os.urandom(6 * MB + 17)
SIZE = len(BODY)


class SpendingPolicy(Policy):
    """A policy that lets 4 MiB of any file come past dfdaemon: the tests' files are too small for a
    budget of their own.
    """

    def budget_bytes(self, size_bytes: int) -> int:
        return 4 * MB


SMALL_BODY = BODY[:SMALL_BYTES]
RIGHT = Checksums(crc32c=crc32c(BODY))
WRONG = Checksums(crc32c=crc32c(BODY) ^ 1)
SUMS = {"crc64nvme": Checksums(crc64nvme=crc64nvme(BODY)), "md5": Checksums(md5=hashlib.md5(BODY).hexdigest())}
"""The right checksums for which the file is read back."""


class Scene:
    """One daemon's cache and way to the store."""

    def __init__(self, path: Path, server: ScriptedServer, transport: Transport, proxy: Proxies | None = None) -> None:
        directory = CacheDirectory(path, size_limit_bytes=1 << 30, min_free_bytes=0)
        directory.prepare()
        self.cache = Cache(directory, memory_buffer_bytes=16 * MB, read_timeout_s=20, disk=PromptDisk())
        self.server = server
        self.origin = FakeOrigin(server)
        self.fetcher = Fetcher(self.origin, transport, proxy=proxy, read_timeout_s=20, max_connections=6)
        self.policy: Policy = SpendingPolicy()
        self.full = self.required = False
        self.edit = ""
        """The edit with which its versions are served."""
        self.forgotten: list[ObjectVersion] = []
        self.struck_out = trio.Event()
        self.version = self.origin.version(KEY)
        self._nursery: trio.Nursery | None = None
        self._verifier: Verifier
        self._new_filler: NewFiller

    async def open(self, nursery: trio.Nursery, key: str = KEY) -> CachedVersion:
        if nursery is not self._nursery:
            self._nursery = nursery
            self._verifier = verifier = Verifier(
                self.fetcher, nursery, full=self.full, required=self.required, forget_pages=self._forget_pages
            )

            def new_filler(target: CachedVersion) -> Filler:
                if self.edit:
                    return EditedFiller(target, self.fetcher, nursery, self.policy, verifier)
                if self.fetcher.proxy is None:
                    return DirectFiller(target, self.fetcher, nursery, compare=verifier.compare)
                return StreamFiller(target, self.fetcher, nursery, self.policy, compare=verifier.compare)

            self._new_filler = new_filler
        version = replace(self.origin.version(key), edit=self.edit)
        cached = await self.cache.open(self.origin.identity, version, self._new_filler)
        try:
            await self._verifier.admit(cached)
        except BaseException:
            cached.drop()
            raise
        return cached

    async def _forget_pages(self, version: ObjectVersion) -> None:
        self.forgotten.append(version)
        self.struck_out.set()

    async def read(self, key: str = KEY, stop: int = SIZE) -> bytes:
        """The object up to `stop`, once all that this has set off is over."""
        async with trio.open_nursery() as nursery:
            cached = await self.open(nursery, key)
            data = bytes(await cached.read(ByteRange(0, stop).clip(cached.version.size_bytes), None))
            cached.drop()
        assert self.cache.statistics().open_versions == 0
        return data

    @property
    def mismatches(self) -> int:
        return self.cache.statistics().checksum_mismatches

    async def cached_bytes(self) -> int:
        """As another daemon finds it on the disk, for nobody here has it open."""
        (found,) = await self.cache.cached_bytes(self.origin.identity, [self.version])
        return found

    async def proof(self, key: str = KEY) -> Proof | None:
        """How far the version is proved, as its record on the disk says."""
        return await self.cache.proof(self.origin.identity, replace(self.origin.version(key), edit=self.edit))


async def forged(exchange: Exchange, answer: Answer) -> None:
    """The right answer in its first MiB alone, so that every choice of samples meets a wrong one."""
    body = await answer.whole()
    await exchange.deliver(replace(answer, body=body[:MB] + bytes(len(body) - MB)))


def through(dfdaemon: FakeDfdaemon, tmp_path: Path, server: ScriptedServer, transport: Transport) -> Scene:
    return Scene(tmp_path, server, transport, Proxies([Proxy(dfdaemon.url, transport)], required=False))
