"""Access keys that end, and the ring that has valid ones at hand: renewed ahead of their end, beside the reads.

Owns when keys are loaded; how is the `load` of `oss_credentials` and `obs_credentials`. Called by `bucket_rest`. Nobody waits for a renewal
while the keys held are valid: it runs in a task of its own, and one that fails is logged and tried again. Only where no valid keys are held
does a caller wait, and see the failure.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import trio

from d7yfs.config.schema import StaticKeys
from d7yfs.errors import D7yfsError

_AHEAD_S = 900.0
"""Keys are renewed so long before their end, that of short-lived ones after half their life. A signature made till then is whole."""
_RETRY_S = 30.0
_RELOAD_INTERVAL_S = 5.0
"""A herd of 403s loads keys once, not once each."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class AccessKeys:
    """A key pair, with a token when it is temporary. Holds secrets: no repr."""

    key_id: str
    secret: str
    token: str = ""
    expires_at: float = math.inf
    """time.time() of their end."""
    check_again_s: float = math.inf
    """How soon to look again where they came from: a file may have changed."""
    source: str = ""
    """Where they came from, in words."""


def given(keys: StaticKeys) -> AccessKeys:
    """Keys that the configuration holds."""
    token = keys.session_token.get_secret_value() if keys.session_token else ""
    return AccessKeys(keys.key_id, keys.secret_key.get_secret_value(), token, source=keys.describe())


def from_environment(environ: Mapping[str, str], names: Iterable[tuple[str, str, str]]) -> AccessKeys | None:
    """Those of the first triple of variables (key id, secret, token) whose first two are set."""
    for key_id, secret, token in names:
        if environ.get(key_id) and environ.get(secret):
            source = f"environment variables ({key_id}, …)"
            return AccessKeys(environ[key_id], environ[secret], environ.get(token, ""), source=source)
    return None


class KeyRing:
    """The keys in use; None for anonymous. `subject` is what messages name; `clock` is time.time()."""

    def __init__(
        self, load: Callable[[], Awaitable[AccessKeys | None]], *, subject: str, clock: Callable[[], float]
    ) -> None:
        self._load = load
        self._subject = subject
        self._clock = clock
        self._held: AccessKeys | None = None
        self._loaded_at = -math.inf
        self._renew_at = -math.inf
        self._loading = trio.Lock()
        self._renewal: trio.CancelScope | None = None

    @property
    def held(self) -> AccessKeys | None:
        """As last loaded, valid or not; None before that and for anonymous."""
        return self._held

    async def current(self) -> AccessKeys | None:
        """Valid keys. Waits only when there are none; then raises what `load` raises."""
        now = self._clock()
        if self._loaded_at == -math.inf or (self._held is not None and now >= self._held.expires_at):
            return await self._loaded_after(self._loaded_at)
        if now >= self._renew_at and self._renewal is None:
            self._renewal = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._renew, self._renewal)
        return self._held

    async def reload(self) -> AccessKeys | None:
        """What the source holds now, for keys that were refused; looks at most every _RELOAD_INTERVAL_S.

        When that fails, what is held goes on while it is valid; else raises what `load` raises.
        """
        now = self._clock()
        if 0 <= now - self._loaded_at < _RELOAD_INTERVAL_S:
            return self._held
        try:
            return await self._loaded_after(self._loaded_at)
        except D7yfsError as error:
            if self._held is None or now >= self._held.expires_at:
                raise
            log.warning(
                "%s: the credentials could not be renewed, going on with those at hand: %s", self._subject, error
            )
            return self._held

    def close(self) -> None:
        """End a renewal that is under way."""
        if self._renewal is not None:
            self._renewal.cancel()

    async def _renew(self, scope: trio.CancelScope) -> None:
        try:
            with scope:
                await self._loaded_after(self._loaded_at)
        except D7yfsError as error:
            self._renew_at = self._clock() + _RETRY_S
            log.warning("%s: the credentials could not be renewed yet: %s", self._subject, error)
        except Exception:  # a system task's failure would end the program
            self._renew_at = self._clock() + _RETRY_S
            log.exception("%s: the credentials could not be renewed yet", self._subject)
        finally:
            self._renewal = None

    async def _loaded_after(self, loaded_at: float) -> AccessKeys | None:
        """Keys of a later loading than that of `loaded_at`, perhaps another task's."""
        async with self._loading:
            if self._loaded_at == loaded_at:
                keys = await self._load()
                if keys is None and self._held is not None and self._clock() < self._held.expires_at:
                    keys = self._held  # a chain that may find nothing did so: what is valid stays
                self._held, self._loaded_at = keys, self._clock()
                self._renew_at = math.inf if keys is None else _renew_at(keys, self._loaded_at)
            return self._held


def _renew_at(keys: AccessKeys, now: float) -> float:
    ahead_s = min(_AHEAD_S, (keys.expires_at - now) / 2)
    return min(now + keys.check_again_s, keys.expires_at - ahead_s)
