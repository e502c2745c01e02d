"""Google's credentials for one repository: tokens that are renewed ahead of time, and a signer.

They come from a file or from the default credentials. google-auth knows the kinds of credentials;
this module owns when it is asked. It blocks, so it runs in worker threads, one at a time. Readers
use a valid token while another is fetched, and for as long as none can be had. A file that changed
is read again. Requests of google-auth go through the control proxy, except to the metadata server,
which is on the host's own link and knows no TLS.

The order of the default credentials:
https://cloud.google.com/docs/authentication/application-default-credentials.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import Any

import google.auth
import trio
from google.auth import aws, environment_vars, identity_pool, impersonated_credentials, pluggable
from google.auth import external_account_authorized_user as federated_user
from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
from google.auth.transport.requests import Request
from google.oauth2 import credentials as user
from google.oauth2 import service_account

from d7yfs.bounds.values import read_json
from d7yfs.config.schema import CredentialsFile, ProviderChain
from d7yfs.config.settings_file import read_file, trusts_home
from d7yfs.errors import AccessDenied
from d7yfs.origins import renewal
from d7yfs.origins.gs.errors import token_refused
from d7yfs.origins.origin import ANONYMOUS
from d7yfs.origins.places import describe_file, describe_variable, none_found
from d7yfs.origins.renewal import Renewal
from d7yfs.origins.sign_in_session import bounded_session

READ_SCOPE = "https://www.googleapis.com/auth/devstorage.read_only"
_SIGNING_SCOPES = ("https://www.googleapis.com/auth/iam",)
"""The scope for signBlob only; this token goes nowhere else."""

_TIMEOUT_S = 15.0
_AHEAD_S = 300.0
"""How long before it expires a token is replaced; the metadata server has a new one by then."""
_GIVE_CREDENTIALS = "set --credentials-file or GOOGLE_APPLICATION_CREDENTIALS, or read a public bucket with --anonymous"
_LOOK_INTERVAL_S = 1.0
"""How often the file is checked for changes."""
_AWS_TOKEN = "urn:ietf:params:aws:token-type:aws4_request"  # noqa: S105 - the name of a type

# These write tokens at DEBUG, and a warning for each attempt to find a metadata server.
for _name, _level in (("google.auth", logging.ERROR), ("google.oauth2", logging.ERROR), ("urllib3", logging.WARNING)):
    logging.getLogger(_name).setLevel(_level)

log = logging.getLogger(__name__)


@dataclass(slots=True, repr=False, eq=False)
class GoogleLogin:
    """The credentials in use and their token. Times are time.time(). Holds secrets: no repr."""

    credentials: Any
    """google-auth's object; None when anonymous."""
    source: str
    """The source of the credentials, fit for a message."""
    project: str = ""
    """The credentials' own project, where it is known."""
    stamp: Hashable = None
    """The file that they were read from, with its stamp."""
    email: str = ""
    """The account that URLs can be signed for; empty where they cannot."""
    sign: Callable[[bytes], bytes] | None = None
    """RSASSA-PKCS1-v1_5 with SHA-256, where the private key is here."""
    asking: Any = None
    """The same credentials with signBlob's scope, where the private key is not here."""
    token: str = ""
    expires_at: float = math.inf
    check_again_s: float = math.inf


class GoogleCredentials:
    """Hands out a valid login and renews it in the background."""

    def __init__(
        self,
        source: CredentialsFile | ProviderChain,
        *,
        subject: str,
        verify: str | bool,
        control_proxy: str,
        scope: str = READ_SCOPE,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`verify` is a file of authorities, or False to check no certificates.

        `subject` names the repository in messages. `scope` is what tokens are asked for.
        """
        self._source = source
        self._scopes = (scope,)
        self._subject = subject
        self._clock = clock
        self._session = bounded_session()
        self._session.verify = verify
        if control_proxy:
            self._session.proxies = {"https": control_proxy}
        self._request = _Request(self._session)
        self._limiter = trio.CapacityLimiter(1)
        self._renewal = Renewal(
            self._renew,
            name=f"{subject}: the token",
            clock=clock,
            ahead_s=_AHEAD_S,
            has_changed=self._is_changed,
        )
        self._looked_at = -math.inf

    @property
    def source(self) -> str:
        """The source of the credentials, as far as that is known."""
        return held.source if (held := self._renewal.held) else str(self._source)

    @property
    def expires_at(self) -> float:
        """The end of the token in use (time.time()); infinity while there is none."""
        return held.expires_at if (held := self._renewal.held) else math.inf

    @property
    def principal(self) -> str:
        """See `Origin.principal`."""
        held = self._renewal.held
        if held is None:
            return ""
        return ANONYMOUS if held.credentials is None else held.email and f"account {held.email}"

    async def get(self, *, fresh: bool = False) -> GoogleLogin:
        """The login in use; waits only for a valid one. Raises AccessDenied and OriginUnavailable.

        `fresh` reads everything again, at most every few seconds.
        """
        held = await (self._renewal.reload() if fresh else self._renewal.get())
        assert held is not None
        return held

    async def get_signing_token(self, held: GoogleLogin) -> str:
        """A token for signBlob. May wait for it. Raises AccessDenied and OriginUnavailable."""

        def renewed() -> str:
            try:
                if not held.asking.valid:
                    held.asking.refresh(self._request)
                return str(held.asking.token)
            except GoogleAuthError as error:
                failure = token_refused(error, self._subject, held.source)
            raise failure

        if held.asking.valid:
            return str(held.asking.token)
        return await trio.to_thread.run_sync(renewed, abandon_on_cancel=True, limiter=self._limiter)

    async def aclose(self) -> None:
        """End a renewal that is under way, and close the connections."""
        await self._renewal.aclose()
        self._session.close()

    async def _renew(self, held: GoogleLogin | None) -> GoogleLogin:
        return await trio.to_thread.run_sync(self._fetch, held, abandon_on_cancel=True, limiter=self._limiter)

    def _fetch(self, old: GoogleLogin | None) -> GoogleLogin:
        """A new token, of new credentials without `old` or when their file changed. Blocks."""
        stamp = self._stamp()
        same = old if old is not None and stamp == old.stamp else self._load(stamp)
        held = replace(same)
        if held.credentials is None:
            return held
        try:
            held.credentials.refresh(self._request)
        except GoogleAuthError as error:
            failure = token_refused(error, self._subject, held.source)
        else:
            held.token = str(held.credentials.token)
            expiry = held.credentials.expiry
            held.expires_at = expiry.replace(tzinfo=UTC).timestamp() if expiry else float("inf")
            _find_signer(held)
            return held
        raise failure

    def _load(self, stamp: Hashable) -> GoogleLogin:
        path = self._file()
        try:
            if path is not None:
                credentials, project = _from_file(path, self._scopes)
                words = f"file {path}"
            else:
                # Without a file this is the only source left of the default credentials.
                credentials, project = google.auth.default(scopes=self._scopes, request=self._request)
                words = "the metadata server"
        except (OSError, ValueError, KeyError, TypeError, GoogleAuthError) as error:
            reason = _reason(error, path)
            if path is None and isinstance(self._source, ProviderChain) and self._source.else_anonymous:
                log.warning("%s: going on without credentials: %s", self._subject, reason)
                return GoogleLogin(None, "none (anonymous)", stamp=stamp)
            failure = (
                none_found(self._subject, _GIVE_CREDENTIALS, _places())
                if path is None
                else AccessDenied(f"{self._subject}: {reason}", hint=_GIVE_CREDENTIALS)
            )
        else:
            return GoogleLogin(credentials, words, project or os.environ.get(environment_vars.PROJECT, ""), stamp)
        raise failure

    def _file(self) -> Path | None:
        """The file of the credentials; None for the metadata server."""
        if isinstance(self._source, CredentialsFile):
            return self._source.path
        if named := os.environ.get(environment_vars.CREDENTIALS):
            return Path(named)
        if not os.environ.get(environment_vars.CLOUD_SDK_CONFIG_DIR) and not trusts_home():
            return None
        path = _gcloud_file()
        return path if path.is_file() else None

    def _stamp(self) -> Hashable:
        path = self._file()
        return (path, renewal.stamp(path)) if path else None

    def _is_changed(self, held: GoogleLogin) -> bool:
        now = self._clock()
        if 0 <= now - self._looked_at < _LOOK_INTERVAL_S:
            return False
        self._looked_at = now
        return self._stamp() != held.stamp


def _gcloud_file() -> Path:
    """The file that `gcloud auth application-default login` writes."""
    root = os.environ.get(environment_vars.CLOUD_SDK_CONFIG_DIR) or Path("~/.config/gcloud").expanduser()
    return Path(root) / "application_default_credentials.json"


def _places() -> list[str]:
    """The places of the default credentials, each with what it lacks."""
    is_trusted = bool(os.environ.get(environment_vars.CLOUD_SDK_CONFIG_DIR)) or trusts_home()
    is_off = os.environ.get(environment_vars.NO_GCE_CHECK, "").lower() == "true"
    return [
        describe_variable(environment_vars.CREDENTIALS, os.environ),
        describe_file(_gcloud_file(), lacks="login", is_trusted=is_trusted),
        f"metadata server: {'NO_GCE_CHECK is set' if is_off else 'no answer'}",
    ]


class _Request(Request):
    """google-auth's transport with our timeout, following no redirects."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        # A redirect could carry an assertion to another host.
        options = {"timeout": _TIMEOUT_S} | options | {"allow_redirects": False}
        send: Callable[..., Any] = super().__call__
        return send(*args, **options)


def _find_signer(held: GoogleLogin) -> None:
    """Note how URLs can be signed. After the first token: only then the account's name is known."""
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
"""The kinds whose scopes were granted at login."""


def _from_file(path: Path, scopes: tuple[str, ...]) -> tuple[Any, str | None]:
    """Credentials and project, by the type that the file names and no other."""
    info = read_json(read_file(path))
    kind: Any = info.get("type") if isinstance(info, dict) else None
    if kind == "external_account" and info.get("subject_token_type") == _AWS_TOKEN:
        kind = "external_account aws"
    elif kind == "external_account" and "executable" in info.get("credential_source", ()):
        kind = "external_account executable"
    if kind in _SCOPED:
        credentials = _SCOPED[kind](info, scopes=scopes)
    elif kind in _GRANTED:
        credentials = _GRANTED[kind](info)
    else:
        raise ValueError("it is of no type that is known")
    return credentials, info.get("project_id") or info.get("quota_project_id")


def _reason(error: Exception, path: Path | None) -> str:
    """Why the credentials cannot be loaded, in our own words: google-auth's may quote the file."""
    if path is None:
        return "no credentials were found: no file is named, gcloud has none, and there is no metadata server"
    if isinstance(error, OSError):
        return f"the credentials file {path} cannot be read: {error.strerror}"
    if isinstance(error, json.JSONDecodeError):
        return f"the credentials file {path} is not JSON"
    if isinstance(error, DefaultCredentialsError | GoogleAuthError):
        return f"the credentials file {path} is malformed"
    return f"the credentials file {path} is malformed: {error if str(error).startswith('it is of') else 'a field is wrong'}"
