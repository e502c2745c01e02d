"""The origin of the reference model: a scripted store that remembers every version it had, when, and what it did to its replies."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass

import trio

from d7yfs.errors import AccessDenied, BadReply, D7yfsError, OriginUnavailable, ReadTimeout, VersionGone
from d7yfs.objects import ListingPage, ObjectVersion
from tests.reference.faults import FAULTS, MAX_PAUSE_S, SILENCE_S, Harm, Named
from tests.reference.program import SIZES_BYTES, body_of
from tests.servers.http11 import Answer, Exchange, Fault
from tests.servers.scripted import ScriptedServer

IDENTITY = "s3 reference models"
"""Without the server's port, so that the cache's files are named alike in every run."""

READ_TIMEOUT_S = 30.0
_LISTING_S = 0.02


@dataclass(frozen=True)
class _Served:
    at: float
    key: str
    fault: Named


class Store(ScriptedServer):
    """Holds the files of a program, at first all in their first body."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: dict[tuple[str, str], bytes] = {}
        """Every version there ever was, by file and ETag."""
        self.failing_listings = 0
        self.listings_failed = 0
        self._served: list[_Served] = []
        self._etags: dict[str, str] = {}
        self._history: dict[str, list[tuple[float, str | None]]] = {}
        for file in SIZES_BYTES:
            self.make(file, 0)

    def make(self, file: str, body: int) -> None:
        self._etags[file] = f'"{file} {body}"'
        self.bodies[file, self._etags[file]] = body_of(file, body)
        self.put(file, body_of(file, body))
        self._note(file, self._etags[file])

    def delete(self, file: str) -> None:
        if self.objects.pop(file, None) is not None:
            self._note(file, None)

    def _note(self, file: str, etag: str | None) -> None:
        self._history.setdefault(file, []).append((trio.current_time(), etag))

    def etag(self, key: str) -> str:
        return self._etags[key]

    def versions_since(self, file: str, since: float) -> set[str | None]:
        """The ETags that `file` has had from `since` until now; None is its absence."""
        history = self._history[file]
        return {
            etag
            for (_, etag), (until, _) in zip(history, [*history[1:], (float("inf"), None)], strict=True)
            if until >= since
        }

    async def pages(self, prefix: str, *, delimiter: str = "/") -> AsyncGenerator[ListingPage, None]:
        await trio.sleep(_LISTING_S)
        if self.failing_listings:
            self.failing_listings -= 1
            self.listings_failed += 1
            raise OriginUnavailable("listing: 503")
        objects = tuple(ObjectVersion(key, len(body), self.etag(key), 1) for key, body in sorted(self.objects.items()))
        await trio.sleep(_LISTING_S)
        yield ListingPage(objects, (), "", 1_700_000_000_000_000_000)

    async def page(self, prefix: str, token: str) -> ListingPage:
        raise NotImplementedError("no directory is that large")

    async def stat(self, key: str) -> ObjectVersion:
        raise NotImplementedError("one page leaves nothing to ask for")

    async def holds(self, prefix: str) -> bool:
        raise NotImplementedError("one page leaves nothing to ask for")

    def spoil(self, file: str, names: tuple[str, ...], *, forever: bool) -> None:
        self.script(*(self._recorded(file, FAULTS[name]) for name in names), key=file, forever=forever)

    def heal(self) -> None:
        self.failing_listings = 0
        for file in SIZES_BYTES:
            self.script(key=file)

    def _recorded(self, file: str, named: Named) -> Fault:
        async def fault(exchange: Exchange, answer: Answer) -> None:
            self._served.append(_Served(trio.current_time(), file, named))
            if answer.status == 206:
                await named.make(self)(exchange, answer)
            else:
                await exchange.deliver(answer)

        return fault

    def excuses(self, error: D7yfsError, file: str, etag: str) -> bool:
        """Whether a reader of that version may get this error now. Nothing works longer upon an error than patience lasts."""
        since = trio.current_time() - READ_TIMEOUT_S - SILENCE_S - MAX_PAUSE_S
        served = [each for each in self._served if each.at >= since]
        harms = [each.fault.harm for each in served if each.key == file]
        if isinstance(error, VersionGone):
            return Harm.GONE in harms or self.versions_since(file, since) != {etag}
        if isinstance(error, AccessDenied):
            return harms.count(Harm.DENIED) >= 2
        if isinstance(error, BadReply):
            return harms.count(Harm.NONSENSE) >= 3
        if isinstance(error, OriginUnavailable | ReadTimeout):
            # Also other files' faults: what stands still holds connections.
            return sum(each.fault.delay_s for each in served) >= READ_TIMEOUT_S - 1.0
        return False
