"""The store of the simulation: every version that each key ever had, and when; and the origin that
signs for it.

The store never lies: a reply is made of one version at one moment. The network alone spoils
replies.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import trio

from d7yfs.checksum import crc32c
from d7yfs.errors import D7yfsError, NotFound, OriginUnavailable
from d7yfs.objects import ListingPage, ObjectVersion, SecretStr, StoreIdentity
from d7yfs.origins.origin import Checksums, ReadRequest

HOST = "http://store.invalid:80"
IDENTITY = StoreIdentity("s3", "http://store.invalid", "models")


@dataclass(frozen=True, slots=True)
class Upload:
    """One version of one key, from the moment `at` until the next upload of that key."""

    at: float
    version: ObjectVersion | None
    """The uploaded version; None if the key was deleted."""


class Store:
    """A store of keys and their uploads; `put` and `delete` happen now."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.uploads: dict[str, list[Upload]] = {}
        self.bodies: dict[tuple[str, str], bytes] = {}
        """Every body that ever existed, by key and ETag."""

    def put(self, key: str, size_bytes: int) -> ObjectVersion:
        """Replace `key`, mostly with a new body."""
        number = self._chance.randrange(8)
        etag = f'"{number}-{size_bytes}"'
        if (key, etag) not in self.bodies:
            self.bodies[key, etag] = random.Random(f"{key} {etag}").randbytes(size_bytes)
        version = ObjectVersion(key, size_bytes, etag, 1)
        self.uploads.setdefault(key, []).append(Upload(trio.current_time(), version))
        return version

    def delete(self, key: str) -> None:
        """Delete `key`."""
        self.uploads[key].append(Upload(trio.current_time(), None))

    def current(self, key: str) -> ObjectVersion | None:
        """The version of `key` now."""
        history = self.uploads.get(key)
        return history[-1].version if history else None

    def body(self, version: ObjectVersion) -> bytes:
        return self.bodies[version.key, version.validator]

    def was_replaced(self, version: ObjectVersion, since: float) -> bool:
        """True if the key was not this version at some moment since then."""
        history = self.uploads[version.key]
        return any(
            each.version != version
            for index, each in enumerate(history)
            if index == len(history) - 1 or history[index + 1].at >= since
        )


class SimulatedOrigin:
    """The origin of a `Store`; its questions take time, and fail while `trouble` is true."""

    def __init__(self, store: Store, chance: random.Random, trouble: Callable[[], bool]) -> None:
        self._store = store
        self._chance = chance
        self._trouble = trouble
        self.records_checksums = True

    @property
    def url(self) -> str:
        return "s3://models"

    @property
    def identity(self) -> StoreIdentity:
        return IDENTITY

    async def list(self, prefix: str, *, delimiter: str = "/", token: str = "", page_size: int = 1000) -> ListingPage:
        raise NotImplementedError

    async def _asked(self) -> None:
        await trio.sleep(self._chance.choice((0.0, 0.01, 0.05)))
        if self._trouble() and self._chance.random() < 0.5:
            raise OriginUnavailable("the simulated store does not answer")

    async def stat(self, key: str) -> ObjectVersion:
        await self._asked()
        version = self._store.current(key)
        if version is None:
            raise NotFound(f"{key}: no such object")
        return version

    async def read_request(self, version: ObjectVersion, *, presigned: bool, fresh: bool = False) -> ReadRequest:
        await trio.lowlevel.checkpoint()
        return ReadRequest(f"{HOST}/models/{version.key}", {"If-Match": version.validator}, math.inf)

    async def checksums(self, version: ObjectVersion) -> Checksums:
        await self._asked()
        if self._store.current(version.key) != version or not self.records_checksums:
            return Checksums()
        return Checksums(crc32c=int(crc32c(self._store.body(version))))

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

    async def aclose(self) -> None:
        pass


def is_passing(error: D7yfsError) -> bool:
    """True if the error means that bytes did not come in time, and not that they are gone."""
    return error.errno == 5
