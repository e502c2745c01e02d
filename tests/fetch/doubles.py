"""Doubles around the part under test: an origin that signs for a scripted server, and a version
that is filled in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import trio

from d7yfs.cache.disk import Lane
from d7yfs.cache.leases import Leases
from d7yfs.cache.pair import Block, Presence
from d7yfs.cache.proof import RecordedProof
from d7yfs.cache.version import CachedVersion
from d7yfs.errors import D7yfsError, NotFound
from d7yfs.objects import BLOCK_BYTES, ByteRange, ListingPage, ObjectVersion, SecretStr, StoreIdentity
from d7yfs.origins.origin import Checksums, ReadRequest
from tests.cache.doubles import PromptDisk
from tests.servers.scripted import ScriptedServer

SECRET = "5ecre7"


class FakeOrigin:
    """Signs GETs of a `ScriptedServer`'s objects; every signature is another, holds SECRET and is
    recorded.
    """

    def __init__(self, server: ScriptedServer) -> None:
        self._server = server
        self.signed: list[tuple[bool, bool]] = []
        """(presigned, fresh) of each request."""
        self.refusals: list[D7yfsError] = []
        """Raised by the next `read_request`s, first one first."""
        self.recorded: Checksums | D7yfsError = Checksums()
        """The answer of `checksums`, for any version."""
        self.compared: list[ObjectVersion] = []
        """The keys whose `checksums` were asked for."""
        self.stats = 0
        self.signs = True
        """False if its credentials cannot sign URLs, and send a bearer token."""
        self.stat_failure: D7yfsError | None = None

    @property
    def url(self) -> str:
        return "s3://models"

    @property
    def identity(self) -> StoreIdentity:
        return StoreIdentity("s3", self._server.url, "models")

    async def list(self, prefix: str, *, delimiter: str = "/", token: str = "", page_size: int = 1000) -> ListingPage:
        raise NotImplementedError

    async def stat(self, key: str) -> ObjectVersion:
        self.stats += 1
        await trio.lowlevel.checkpoint()
        if isinstance(self.stat_failure, D7yfsError):
            raise self.stat_failure
        if key not in self._server.objects:
            raise NotFound(f"s3://models/{key}: no such object")
        return self.version(key)

    async def read_request(self, version: ObjectVersion, *, presigned: bool, fresh: bool = False) -> ReadRequest:
        if self.refusals:
            raise self.refusals.pop(0)
        self.signed.append((presigned, fresh))
        url = self._server.url_of(version.key)
        signature = f"{SECRET}{len(self.signed)}"
        pin = {"If-Match": version.validator}
        if not presigned or not self.signs:
            return ReadRequest(url, {"Authorization": signature, **pin}, float("inf"))
        names = frozenset({"X-Amz-Signature", "X-Amz-Date"})
        return ReadRequest(f"{url}?X-Amz-Signature={signature}&X-Amz-Date=1", pin, float("inf"), names)

    async def checksums(self, version: ObjectVersion) -> Checksums:
        self.compared.append(version)
        await trio.lowlevel.checkpoint()
        if isinstance(self.recorded, D7yfsError):
            raise self.recorded
        return self.recorded

    async def aclose(self) -> None:
        pass

    @property
    def credentials_expire_at(self) -> float:
        return math.inf

    @property
    def principal(self) -> str:
        return ""

    @property
    def lasting_secret(self) -> SecretStr:
        return SecretStr("")

    def describe(self) -> Mapping[str, str]:
        return {}

    def version(self, key: str) -> ObjectVersion:
        """The version that a listing would show for `key` now."""
        return ObjectVersion(key, len(self._server.objects[key]), self._server.etag(key), 1)


class MemoryTarget(CachedVersion):
    """A version without readers or a cache: bytes, presence and endings, for a test to look at."""

    keeps = True
    has_readers = False
    taken_over_blocks = 0

    def __init__(self, version: ObjectVersion, *, keeps: bool = True) -> None:
        self.version = version
        self.keeps = keeps
        self.data = bytearray(version.size_bytes)
        self.written = 0
        """Bytes brought, repeated ones too."""
        self.endings: list[tuple[ByteRange, Exception | None]] = []
        self.holds = 0
        self.leases = Leases(None, Lane(PromptDisk()), keeps=lambda: self.keeps, missing=self.missing)
        self.proof = RecordedProof(None, PromptDisk())
        self._presence = Presence(version.size_bytes)
        self._landed_bytes: dict[int, int] = {}

    @property
    def present(self) -> list[int]:
        return [index for index, state in enumerate(self._presence.blocks) if state != Block.ABSENT]

    def missing(self, wanted: ByteRange) -> list[ByteRange]:
        return self._presence.missing(wanted)

    def has_got(self, *indexes: int) -> None:
        """These blocks are there already."""
        for index in indexes:
            self._presence.set_present(index, Block.DISK)

    async def write(self, offset: int, data: memoryview) -> None:
        self.written += len(data)
        for piece in ByteRange(offset, offset + len(data)).split(BLOCK_BYTES):
            index, start = divmod(piece.start, BLOCK_BYTES)
            assert start in (0, self._landed_bytes.get(index)), f"a gap before {piece.start}"
            self._landed_bytes[index] = piece.stop - index * BLOCK_BYTES
            if piece.stop in (self.version.size_bytes, (index + 1) * BLOCK_BYTES):
                self._presence.set_present(index, Block.DISK)
        self.data[offset : offset + len(data)] = data

    def retract(self, wanted: ByteRange) -> int:
        first = wanted.start // BLOCK_BYTES
        for index in range(first, -(-wanted.stop // BLOCK_BYTES)):
            self._presence.set_absent(index)
            self._landed_bytes.pop(index, None)
        return first * BLOCK_BYTES

    def end_transfer(self, tried: ByteRange, error: Exception | None) -> None:
        self.endings.append((tried, error))

    def begin_work(self) -> None:
        self.holds += 1

    def end_work(self) -> None:
        self.holds -= 1
        assert self.holds >= 0
