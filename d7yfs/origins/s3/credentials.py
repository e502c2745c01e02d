"""The credentials of an S3 origin: what boto3's chain finds, looked at ahead of their end and never while somebody signs.

Owns how the chain is used. The SDK refreshes temporary credentials whenever somebody signs with them, in the caller's time, and from
ten minutes before their end it fails that caller when it cannot. `Keys` stand in between: clients and signers get what was found at the
last look, and only `Keys.renew`, which `s3.py` calls in a worker thread, asks the SDK. So a credential service that is slow or down
delays nobody while what it gave last is still valid.

Which sources there are and how they are asked is the SDK's: environment, assumed roles, web identity, SSO, shared files, programs,
containers, instance metadata. What it would do behind our back is switched off: STS and SSO go through the control proxy or through none
(`confine`), containers' and instances' metadata are asked directly, as they must be, whatever HTTP_PROXY says.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from botocore.config import Config
from botocore.credentials import Credentials, ReadOnlyCredentials, create_credential_resolver
from botocore.httpsession import URLLib3Session
from botocore.session import Session

CONNECT_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 15.0
_ATTEMPTS = 3
_LOOK_AGAIN_AFTER_S = 60.0
"""How long what was found counts as fresh; the SDK replaces temporary credentials a quarter of an hour before they end."""
_LEAST_PAUSE_S = 1.0

_FOUND_IN = {
    "explicit": "given to d7yfs",
    "env": "environment variables",
    "shared-credentials-file": "the shared credentials file",
    "config-file": "the shared configuration file",
    "custom-process": "a credential process",
    "assume-role": "an assumed role",
    "assume-role-with-web-identity": "a web identity token",
    "sso": "single sign-on",
    "iam-role": "instance metadata",
    "container-role": "the container's role",
}
"""botocore's names for where it found credentials (`method` in botocore/credentials.py), in words."""

# At DEBUG these write canonical requests, signatures and session tokens.
for _name in ("boto3", "botocore", "urllib3"):
    logging.getLogger(_name).setLevel(logging.WARNING)
# At WARNING this one writes the traceback of a refresh that failed, with what the credential service said.
logging.getLogger("botocore.credentials").setLevel(logging.ERROR)


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Held:
    """Credentials at one moment. Holds secrets: no repr."""

    frozen: ReadOnlyCredentials
    expires_at: float
    """time.time(); infinity for lasting ones."""


class Keys(Credentials):
    """What the SDK `found`, as it was at the last look; botocore's clients sign with it without asking anybody.

    `files` are those that the SDK read on the way, with their stamps. `clock` is time.time().
    """

    def __init__(
        self, found: Credentials, *, clock: Callable[[], float], files: dict[Path, object] | None = None
    ) -> None:
        """Looks for the first time: see `renew`."""
        self._found = found
        self._clock = clock
        self._files = files or {}
        self.renew()
        super().__init__(found.access_key, found.secret_key, found.token, found.method)

    def renew(self) -> None:
        """Look again; what was held stays when that fails. Blocks: the SDK may refresh them. Raises what it raises."""
        self._looked_at = self._clock()
        self._found.get_frozen_credentials()
        # In this order: where another thread refreshes them in between, they end later than we believe.
        expires_at = _expiry(self._found)
        self.held = Held(self._found.get_frozen_credentials(), expires_at)

    def get_frozen_credentials(self) -> ReadOnlyCredentials:
        """What botocore asks for when it signs."""
        return self.held.frozen

    def is_stale(self, now: float) -> bool:
        """Whether to look again: after a while, and before half of their rest is over."""
        rest_s = self.held.expires_at - self._looked_at
        if rest_s == float("inf") and not self._files:
            return False
        return not 0 <= now - self._looked_at < max(_LEAST_PAUSE_S, min(_LOOK_AGAIN_AFTER_S, rest_s / 2))

    def files_changed(self) -> bool:
        """Whether a file they may have come from is another one than then: only a new chain reads it. Counts as a look."""
        self._looked_at = self._clock()
        return stamps(self._files) != self._files

    def describe(self) -> str:
        """Where they were found, in words."""
        return _FOUND_IN.get(self.method or "", self.method or "unknown")


class Chain:
    """botocore's credential resolver, whose credentials are `Keys`; `region` is where STS is asked when the settings name none."""

    def __init__(self, session: Session, *, region: str, clock: Callable[[], float]) -> None:
        self._session = session
        self._region = region
        self._clock = clock

    def load_credentials(self) -> Keys | None:
        """The first that are found. Blocks. Raises what botocore raises."""
        named = (self._session.get_config_variable(name) for name in ("credentials_file", "config_file"))
        files = stamps(Path(os.path.expandvars(name)).expanduser() for name in named if name)
        resolver = create_credential_resolver(
            self._session, region_name=self._session.get_config_variable("region") or self._region
        )
        # The one client of the chain that takes the environment's proxies and can be told nothing else.
        fetcher: Any = getattr(resolver.get_provider("iam-role"), "_role_fetcher", None)
        if isinstance(getattr(fetcher, "_session", None), URLLib3Session):
            fetcher._session = URLLib3Session(timeout=fetcher._timeout)
        found = resolver.load_credentials()
        return Keys(found, clock=self._clock, files=files) if found is not None else None


def confine(session: Session, *, proxy: str, region: str, clock: Callable[[], float]) -> None:
    """Have all that `session` makes go through `proxy` (empty: none), with our timeouts, and find its credentials as `Keys`."""
    session.set_default_client_config(
        Config(
            proxies=proxies(proxy),
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        )
    )
    session.register_component("credential_provider", Chain(session, region=region, clock=clock))


def proxies(proxy: str) -> dict[str, str]:
    """botocore's way to say it; an empty one keeps it from asking the environment."""
    return {"http": proxy, "https": proxy} if proxy else {}


def stamps(paths: Iterable[Path]) -> dict[Path, object]:
    """What tells whether a file was changed or replaced, by path; None for one that is not there."""

    def stamp(path: Path) -> tuple[int, int, int] | None:
        try:
            status = path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_ino, status.st_size

    return {path: stamp(path) for path in paths}


def _expiry(credentials: Credentials) -> float:
    """When temporary credentials end; botocore keeps it to itself. Infinity for lasting ones."""
    moment = getattr(credentials, "_expiry_time", None)
    return moment.timestamp() if isinstance(moment, datetime) else float("inf")
