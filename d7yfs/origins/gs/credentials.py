"""Google's credentials for one repository: a file's or the default ones, as tokens that are renewed ahead of their end, and as a signer.

google-auth does what the kinds of credentials differ in; this module owns when it is asked. It blocks, so it is asked in worker threads,
one at a time. Readers go on with a token that is still valid while another is fetched, and as long as none can be had; a file that changed
is read again. Requests of google-auth go through the control proxy, except to the metadata server, which is on the host's own link and
knows no TLS.

The order of the default credentials: https://cloud.google.com/docs/authentication/application-default-credentials. Used by `gs` alone.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import Any

import google.auth
import requests
import trio
from google.auth import aws, environment_vars, identity_pool, impersonated_credentials, pluggable
from google.auth import external_account_authorized_user as federated_user
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.auth.transport.requests import Request
from google.oauth2 import credentials as user
from google.oauth2 import service_account

from d7yfs.config.schema import CredentialsFile, ProviderChain
from d7yfs.errors import AccessDenied
from d7yfs.origins.gs.errors import token_refused
from d7yfs.origins.renewal import Renewal

SCOPES = ("https://www.googleapis.com/auth/devstorage.read_only",)
_SIGNING_SCOPES = ("https://www.googleapis.com/auth/iam",)
"""For signBlob only; this token goes nowhere else."""

_TIMEOUT_S = 15.0
_AHEAD_S = 300.0
"""How long before its end a token is replaced; the metadata server has a new one by then."""
_LOOK_INTERVAL_S = 1.0
"""How often the file is looked at."""
_AWS_TOKEN = "urn:ietf:params:aws:token-type:aws4_request"  # noqa: S105 - the name of a type

# They write tokens at DEBUG, and a warning per attempt to find a metadata server.
for _name, _level in (("google.auth", logging.ERROR), ("google.oauth2", logging.ERROR), ("urllib3", logging.WARNING)):
    logging.getLogger(_name).setLevel(_level)

log = logging.getLogger(__name__)

Stamp = tuple[str, int, int, int]
"""A file's path, inode, mtime and size."""


@dataclass(slots=True, repr=False, eq=False)
class Held:
    """Credentials in use. Times are time.time(). Holds secrets: no repr."""

    credentials: Any
    """google-auth's; None: anonymous."""
    words: str
    """Whence they came, fit for a message."""
    project: str = ""
    """Theirs, where it is known."""
    stamp: Stamp | None = None
    """Of the file that they were read from."""
    email: str = ""
    """In whose name URLs can be signed; empty where they cannot."""
    sign: Callable[[bytes], bytes] | None = None
    """RSASSA-PKCS1-v1_5 with SHA-256, where the private key is here."""
    asking: Any = None
    """The same credentials with the scope that signBlob wants, where it is not."""
    token: str = ""
    expires_at: float = math.inf
    check_again_s: float = math.inf


class GoogleCredentials:
    """Hands out what is valid now; see the module."""

    def __init__(
        self,
        source: CredentialsFile | ProviderChain,
        *,
        subject: str,
        verify: str | bool,
        control_proxy: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`verify` is a file of authorities, or whether to check certificates at all; `subject` names the repository in messages."""
        self._source = source
        self._subject = subject
        self._clock = clock
        self._session = requests.Session()
        self._session.trust_env = False
        self._session.verify = verify
        if control_proxy:
            self._session.proxies = {"https": control_proxy}
        self._request = _Request(self._session)
        self._limiter = trio.CapacityLimiter(1)
        self._renewal = Renewal(
            self._renewed_in_thread,
            name=f"{subject}: the token",
            clock=clock,
            ahead_s=_AHEAD_S,
            has_changed=self._is_changed,
        )
        self._looked_at = -math.inf

    @property
    def words(self) -> str:
        """Whence the credentials came, as far as that is known."""
        return held.words if (held := self._renewal.held) else self._source.describe()

    @property
    def expires_at(self) -> float:
        """When the token in use ends (time.time()); infinity while there is none."""
        return held.expires_at if (held := self._renewal.held) else math.inf

    async def current(self, *, fresh: bool = False) -> Held:
        """What is in use, without waiting while it is valid; `fresh` reads everything again, at most every few seconds.

        Raises AccessDenied and OriginUnavailable.
        """
        held = await (self._renewal.reload() if fresh else self._renewal.current())
        assert held is not None
        return held

    async def signing_token(self, held: Held) -> str:
        """A token that is good for signBlob. May wait for it. Raises AccessDenied and OriginUnavailable."""

        def renewed() -> str:
            try:
                if not held.asking.valid:
                    held.asking.refresh(self._request)
                return str(held.asking.token)
            except GoogleAuthError as error:
                failure = token_refused(error, self._subject, held.words)
            raise failure

        if held.asking.valid:
            return str(held.asking.token)
        return await trio.to_thread.run_sync(renewed, abandon_on_cancel=True, limiter=self._limiter)

    async def aclose(self) -> None:
        """End a renewal that is under way and close the connections."""
        await self._renewal.aclose()
        self._session.close()

    async def _renewed_in_thread(self, held: Held | None) -> Held:
        return await trio.to_thread.run_sync(self._renewed, held, abandon_on_cancel=True, limiter=self._limiter)

    def _renewed(self, old: Held | None) -> Held:
        """Blocks. A new token; of newly loaded credentials where there are none, or their file has changed."""
        stamp = _stamp(self._file())
        same = old if old is not None and stamp == old.stamp else self._load(stamp)
        held = replace(same)
        if held.credentials is None:
            return held
        try:
            held.credentials.refresh(self._request)
        except GoogleAuthError as error:
            failure = token_refused(error, self._subject, held.words)
        else:
            held.token = str(held.credentials.token)
            expiry = held.credentials.expiry
            held.expires_at = expiry.replace(tzinfo=UTC).timestamp() if expiry else float("inf")
            _find_signer(held)
            return held
        raise failure

    def _load(self, stamp: Stamp | None) -> Held:
        path = self._file()
        try:
            if path is not None:
                credentials, project = _from_file(path)
                words = f"file {path}"
            else:
                credentials, project = self._from_metadata_server()
                words = "the metadata server"
        except (OSError, ValueError, KeyError, TypeError, GoogleAuthError) as error:
            reason = _reason(error, path)
            if path is None and isinstance(self._source, ProviderChain) and self._source.else_anonymous:
                log.warning("%s: going on without credentials: %s", self._subject, reason)
                return Held(None, "none (anonymous)", stamp=stamp)
            failure = AccessDenied(
                f"{self._subject}: {reason}",
                hint="set credentials_file or GOOGLE_APPLICATION_CREDENTIALS, or anonymous = true for a public bucket",
            )
        else:
            return Held(credentials, words, project or os.environ.get(environment_vars.PROJECT, ""), stamp)
        raise failure

    def _from_metadata_server(self) -> tuple[Any, str]:
        # With no file to be found, this is all that is left of the default credentials.
        credentials, project = google.auth.default(scopes=SCOPES, request=self._request)
        return credentials, project or ""

    def _file(self) -> Path | None:
        """Where the credentials are read from; None for the metadata server."""
        if isinstance(self._source, CredentialsFile):
            return self._source.path
        if named := os.environ.get(environment_vars.CREDENTIALS):
            return Path(named)
        root = os.environ.get(environment_vars.CLOUD_SDK_CONFIG_DIR)
        path = Path(root or Path("~/.config/gcloud").expanduser()) / "application_default_credentials.json"
        return path if path.is_file() else None

    def _is_changed(self, held: Held) -> bool:
        now = self._clock()
        if 0 <= now - self._looked_at < _LOOK_INTERVAL_S:
            return False
        self._looked_at = now
        return _stamp(self._file()) != held.stamp


class _Request(Request):
    """google-auth's transport, with our patience."""

    def __call__(
        self,
        url: str,
        method: str = "GET",
        body: bytes | None = None,
        headers: Any = None,
        timeout: float = _TIMEOUT_S,
        **kwargs: Any,
    ) -> Any:
        send: Callable[..., Any] = super().__call__
        # A redirect could carry an assertion to another host.
        return send(url, method, body, headers, timeout, allow_redirects=False, **kwargs)


def _find_signer(held: Held) -> None:
    """After the first token: only then the metadata server has told the account's name."""
    credentials = held.credentials
    if isinstance(credentials, service_account.Credentials):
        held.email, held.sign = credentials.signer_email, credentials.sign_bytes
        return
    email = getattr(credentials, "service_account_email", None)
    if email and "@" in email:  # else a user, or a federated identity that is no service account
        held.email, held.asking = email, credentials.with_scopes(_SIGNING_SCOPES)


_SCOPED: Mapping[str, Callable[..., Any]] = {
    "service_account": service_account.Credentials.from_service_account_info,
    "external_account aws": aws.Credentials.from_info,
    "external_account executable": pluggable.Credentials.from_info,
    "external_account": identity_pool.Credentials.from_info,
    "impersonated_service_account": impersonated_credentials.Credentials.from_impersonated_service_account_info,
}
_GRANTED: Mapping[str, Callable[..., Any]] = {
    "authorized_user": user.Credentials.from_authorized_user_info,
    "external_account_authorized_user": federated_user.Credentials.from_info,
}
"""Their scopes were granted at login."""


def _from_file(path: Path) -> tuple[Any, str]:
    """Credentials and project. By type, so that a file is taken for nothing else than what it says."""
    info = json.loads(path.read_bytes())
    kind: Any = info.get("type") if isinstance(info, dict) else None
    if kind == "external_account" and info.get("subject_token_type") == _AWS_TOKEN:
        kind = "external_account aws"
    elif kind == "external_account" and "executable" in info.get("credential_source", ()):
        kind = "external_account executable"
    if kind in _SCOPED:
        credentials = _SCOPED[kind](info, scopes=SCOPES)
    elif kind in _GRANTED:
        credentials = _GRANTED[kind](info)
    else:
        raise ValueError("it is of no type that is known")
    return credentials, info.get("project_id") or info.get("quota_project_id") or ""


def _reason(error: Exception, path: Path | None) -> str:
    """In words of our own: google-auth's may quote the file."""
    if path is None:
        return "there are no credentials: no file is named, gcloud has none, and there is no metadata server"
    if isinstance(error, OSError):
        return f"the credentials file {path} cannot be read: {error.strerror}"
    if isinstance(error, json.JSONDecodeError):
        return f"the credentials file {path} is not JSON"
    if isinstance(error, DefaultCredentialsError | GoogleAuthError):
        return f"the credentials file {path} is malformed"
    return f"the credentials file {path} is malformed: {error if str(error).startswith('it is of') else 'a field is wrong'}"


def _stamp(path: Path | None) -> Stamp | None:
    try:
        found = path.stat() if path else None
    except OSError:
        found = None
    return (str(path), found.st_ino, found.st_mtime_ns, found.st_size) if found else None
