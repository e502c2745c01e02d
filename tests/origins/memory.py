"""An origin in memory: a set of keys, and the calls that were made."""

from __future__ import annotations

import math

import trio

from d7yfs.errors import D7yfsError, NotFound, NotPermitted
from d7yfs.objects import ListingPage, ObjectVersion, SecretStr, StoreIdentity
from d7yfs.origins.origin import Checksums, Origin, ReadRequest


class MemoryOrigin:
    """An `Origin` over a set of keys; it denies listings outside the prefix `allowed`."""

    url = "mem://bucket"
    identity = StoreIdentity("mem", "", "bucket")

    def __init__(self, *keys: str, allowed: str = "") -> None:
        self.keys = sorted(keys, key=str.encode)
        self.allowed = allowed
        self.calls = 0
        self.stats: list[str] = []
        self.stat_gate: trio.Event | None = None
        """A stat waits for this event."""
        self.stat_errors: dict[str, D7yfsError] = {}
        self.troubles: list[D7yfsError] = []
        """Errors that the next questions raise, in this order."""
        self.stats_under_way = self.most_stats_under_way = 0

    async def list(self, prefix: str, *, delimiter: str = "/", token: str = "", page_size: int = 1000) -> ListingPage:
        self.calls += 1
        if self.troubles:
            raise self.troubles.pop(0)
        if not prefix.startswith(self.allowed):
            raise NotPermitted(prefix)
        entries: dict[str, bool] = {}
        for key in self.keys:
            if key.startswith(prefix):
                head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                entries[prefix + head + found if found else key] = bool(found)
        rest = [name for name in entries if name.encode() > token.encode()]
        shown = rest[:page_size]
        return ListingPage(
            objects=tuple(ObjectVersion(name, 1, '"e"', 0) for name in shown if not entries[name]),
            prefixes=tuple(name for name in shown if entries[name]),
            next_token=shown[-1] if len(rest) > page_size else "",
            date_ns=0,
        )

    async def stat(self, key: str) -> ObjectVersion:
        self.calls += 1
        if self.troubles:
            raise self.troubles.pop(0)
        self.stats.append(key)
        self.stats_under_way += 1
        self.most_stats_under_way = max(self.most_stats_under_way, self.stats_under_way)
        try:
            if self.stat_gate is not None:
                await self.stat_gate.wait()
        finally:
            self.stats_under_way -= 1
        if key in self.stat_errors:
            raise self.stat_errors[key]
        if key not in self.keys:
            raise NotFound(key)
        return ObjectVersion(key, 1, '"e"', 0)

    async def read_request(self, version: ObjectVersion, *, presigned: bool, fresh: bool = False) -> ReadRequest:
        raise NotImplementedError

    async def checksums(self, version: ObjectVersion) -> Checksums:
        raise NotImplementedError

    @property
    def credentials_expire_at(self) -> float:
        return math.inf

    @property
    def principal(self) -> str:
        return ""

    @property
    def lasting_secret(self) -> SecretStr:
        return SecretStr("")

    def describe(self) -> dict[str, str]:
        return {"endpoint": "memory"}

    async def aclose(self) -> None: ...


_: type[Origin] = MemoryOrigin
