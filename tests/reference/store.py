"""The origin of the reference model: it remembers every version, its times, and the faults of
replies."""

from __future__ import annotations

from dataclasses import dataclass

import trio

from d7yfs.errors import AccessDenied, BadReply, D7yfsError, OriginUnavailable, ReadTimeout, VersionGone
from d7yfs.objects import ObjectVersion, StoreIdentity
from tests.reference.faults import FAULTS, MAX_PAUSE_S, SILENCE_S, Harm, Named
from tests.reference.listed import Listed
from tests.reference.program import AT_FIRST, SIZES_BYTES, Setup, body_of
from tests.servers.http11 import Answer, Exchange, Fault
from tests.servers.scripted import ScriptedServer

IDENTITY = StoreIdentity("s3", "reference", "models")
"""The host without the server's port: the cache's files have the same names in every run."""

READ_TIMEOUT_S = 30.0
_UPLOADED_NS = 1_600_000_000_000_000_000


@dataclass(frozen=True)
class _Served:
    at: float
    key: str
    fault: Named


class Store(ScriptedServer):
    """A store that holds the files of a program, some in their first body; `listed` has their
    names."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.bodies: dict[tuple[str, str], bytes] = {}
        """Every version so far, by file and ETag."""
        self.listed = Listed(setup)
        self._served: list[_Served] = []
        self._etags: dict[str, str] = {}
        for file in AT_FIRST:
            self.make(file, 0)

    def make(self, file: str, body: int) -> None:
        self._etags[file] = f'"{file} {body}"'
        self.bodies[file, self._etags[file]] = body_of(file, body)
        self.put(file, body_of(file, body))
        self.listed.note(file, ObjectVersion(file, len(self.objects[file]), self._etags[file], _UPLOADED_NS))

    def delete(self, file: str) -> None:
        if self.objects.pop(file, None) is not None:
            self.listed.note(file, None)

    def etag(self, key: str) -> str:
        return self._etags[key]

    def spoil(self, file: str, names: tuple[str, ...], *, forever: bool) -> None:
        self.script(*(self._recorded(file, FAULTS[name]) for name in names), key=file, forever=forever)

    def heal(self) -> None:
        self.listed.fail(0, 0)
        self.listed.deny(denied=False)
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
        """True if a reader of that version may get this error now. No error has effects beyond
        the patience."""
        since = trio.current_time() - READ_TIMEOUT_S - SILENCE_S - MAX_PAUSE_S
        served = [each for each in self._served if each.at >= since]
        harms = [each.fault.harm for each in served if each.key == file]
        if isinstance(error, VersionGone):
            return Harm.GONE in harms or self.listed.etags_since(file, since) != {etag}
        if isinstance(error, AccessDenied):
            return harms.count(Harm.DENIED) >= 2
        if isinstance(error, BadReply):
            return harms.count(Harm.NONSENSE) >= 3
        if isinstance(error, OriginUnavailable | ReadTimeout):
            # Also other files' faults: a stalled transfer holds connections.
            return sum(each.fault.delay_s for each in served) >= READ_TIMEOUT_S - 1.0
        return False
