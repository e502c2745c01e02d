"""The right of one repository's credentials to read what is cached.

Bytes in the cache may have been brought with another mount's credentials. So a version is served
only once the store has granted it to the credentials of this repository:

- A GET of the version that the store answers is a grant, and so is a HEAD (the *proof*). A cold
  read needs no other request.
- A grant counts for this run. It ends when the credentials are replaced, or when the store refuses
  them this version.
- A grant is recorded beside the cached version, under the identity behind the credentials. For
  `BELIEVED_S` it replaces the proof in later runs. An older record replaces it only while the store
  cannot be asked.

A record counts only for credentials that the store has accepted in this run, as a key's id is no
secret. At first that goes without saying: no name is known that they did not list. Credentials that
come later need one grant by the store itself.

Called by `Filesystem` for each handle, and told of grants by the fetcher. Trio thread only.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from weakref import WeakValueDictionary

import trio
from cachetools import LRUCache, TTLCache

from d7yfs.cache.version import CachedVersion
from d7yfs.errors import AccessDenied, D7yfsError, NotFound, OriginUnavailable, VersionGone
from d7yfs.objects import ObjectVersion

BELIEVED_S = 86400.0
"""How long a recorded grant replaces a proof."""
PATIENCE_S = 2.0
"""How long a reader with an older record waits for its proof."""
_REFUSED_S = 5.0
"""A refusal answers all that ask within so many seconds."""
_AWAY_S = 30.0
"""A store that could not be asked is not asked again so soon about older records."""
_GRANTED_MAX = 65536
_REFUSED_MAX = 1024

_Identity = tuple[str, str, int]


class Rights:
    """The grants of one repository's credentials.

    `prove` asks the store for one version with them, and raises what it answers. `principal` is the
    identity behind them, stable across rotation; empty while it is not known. `digest` makes the
    name of a record of it, and `is_session` is True if it is that of keys which the next ones
    replace. `clock` is time.time().
    """

    def __init__(
        self,
        prove: Callable[[ObjectVersion], Awaitable[object]],
        principal: Callable[[], str],
        digest: Callable[[str], str],
        *,
        is_session: Callable[[str], bool] = lambda _: False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.epoch = object()
        """Another object whenever an earlier grant may no longer count."""
        self._prove = prove
        self._principal = principal
        self._digest = digest
        self._is_session = is_session
        self._clock = clock
        self._digests: LRUCache[str, str] = LRUCache(4)
        self._granted: LRUCache[_Identity, bool] = LRUCache(_GRANTED_MAX)
        self._refused: TTLCache[_Identity, D7yfsError] = TTLCache(_REFUSED_MAX, _REFUSED_S, timer=trio.current_time)
        self._proving: WeakValueDictionary[_Identity, trio.Lock] = WeakValueDictionary()
        self._accepted = True
        """True if the store has accepted these credentials in this run."""
        self._away_until = 0.0
        self._seen = ""

    def grant(self, version: ObjectVersion) -> None:
        """Note that the store has answered a request for `version` with these credentials."""
        self._granted[version.identity] = self._accepted = True
        self._refused.pop(version.identity, None)

    def deny(self, cached: CachedVersion) -> None:
        """Note that the store has refused a version: no handle reads it before another proof."""
        self._granted.pop(cached.version.identity, None)
        if grantee := self._grantee():
            cached.grants.strike(grantee)
        self.epoch = object()

    def begin_anew(self) -> None:
        """Forget the grants: other credentials have taken the place of those that had them."""
        self._granted.clear()
        self._refused.clear()
        self._accepted = False
        self._away_until = 0.0
        self.epoch = object()

    async def claim(self, cached: CachedVersion) -> object:
        """Return the epoch once these credentials may read the version, with one proof if need be.

        Raises AccessDenied and VersionGone by the store's word, and OriginUnavailable or BadReply
        when it cannot be asked and has not granted the version before.
        """
        if (granted := self.claim_at_once(cached)) is not None:
            return granted
        epoch, identity = self.epoch, cached.version.identity
        # Single flight. A reader that gives up takes nothing from the next.
        async with self._proving.setdefault(identity, trio.Lock()):
            if identity not in self._granted:
                await self._ask(cached)
        if identity in self._granted:
            self._record(cached)
        return epoch

    def claim_at_once(self, cached: CachedVersion) -> object | None:
        """The epoch, if these credentials are known to have been granted the version."""
        self._notice_principal()
        if cached.version.identity in self._granted:
            self._record(cached)
        elif not self._is_believed(cached):
            return None
        return self.epoch

    async def _ask(self, cached: CachedVersion) -> None:
        """One proof. Returns without one where an older record stands in."""
        version, stands_in = cached.version, self._accepted and self._recorded_at(cached) is not None
        if (refused := self._refused.get(version.identity)) is not None:
            raise type(refused)(refused.message, hint=refused.hint)
        if stands_in and trio.current_time() < self._away_until:
            return
        epoch = self.epoch
        try:
            with trio.move_on_after(PATIENCE_S if stands_in else float("inf")) as scope:
                await self._prove(version)
        except NotFound as error:
            raise VersionGone(f"{error.message}; it was gone before these credentials had read it") from error
        except AccessDenied as error:
            self._refused[version.identity] = error
            self.deny(cached)
            raise
        except OriginUnavailable:
            if not stands_in:
                raise
            self._away_until = trio.current_time() + _AWAY_S
            return
        if scope.cancelled_caught:
            self._away_until = trio.current_time() + _AWAY_S
        elif epoch is self.epoch:
            self.grant(version)
        else:
            await self._ask(cached)  # other credentials have come meanwhile

    def _notice_principal(self) -> None:
        """Begin anew where a file of keys, say, has others now. New keys of a session do not count
        as others: the SDK has renewed them.
        """
        seen, self._seen = self._seen, self._principal() or self._seen
        if seen and seen != self._seen and not (self._is_session(seen) and self._is_session(self._seen)):
            self.begin_anew()

    def _grantee(self) -> str:
        """The name of these credentials' records; empty where nothing is recorded."""
        principal = self._principal()
        if principal and principal not in self._digests:
            self._digests[principal] = self._digest(principal)
        return self._digests[principal] if principal else ""

    def _recorded_at(self, cached: CachedVersion) -> float | None:
        return cached.grants.recorded_at(grantee) if (grantee := self._grantee()) else None

    def _is_believed(self, cached: CachedVersion) -> bool:
        recorded_at = self._recorded_at(cached) if self._accepted else None
        return recorded_at is not None and 0 <= self._clock() - recorded_at < BELIEVED_S

    def _record(self, cached: CachedVersion) -> None:
        now, recorded_at = self._clock(), self._recorded_at(cached)
        fresh = recorded_at is not None and 0 <= now - recorded_at < BELIEVED_S / 2
        if not fresh and (grantee := self._grantee()):
            cached.grants.record(grantee, now)
