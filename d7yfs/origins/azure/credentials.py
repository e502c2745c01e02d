"""Access to a container: public, or by an account key, a shared access signature or an identity.

Owns the secrets and their renewal. Each origin has one `Access`, made by `access_for`, and puts
each `Grant` into a request.

A signature for data is for reading one blob: through Dragonfly a URL reaches the scheduler and
other hosts. An identity signs with a user delegation key, which the service makes for it. Where its
role does not allow that, its bearer token goes along in a header.

azure-identity blocks, so it runs in a worker thread. A sign-in goes through the control proxy; the
metadata services of virtual machines and clusters (plain http) are asked directly. The
environment's proxies are ignored.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from shutil import which
from typing import Generic, TypeVar
from urllib.parse import parse_qs

import trio
from azure.core.credentials import TokenCredential
from azure.core.exceptions import AzureError, ClientAuthenticationError, ServiceRequestError, ServiceResponseError
from azure.core.pipeline.transport import RequestsTransport
from azure.identity import CredentialUnavailableError, DefaultAzureCredential

from d7yfs.config.schema import Anonymous, Credentials, ProviderChain, SasToken, StaticKeys
from d7yfs.errors import AccessDenied, BadReply, ConfigError, OriginUnavailable
from d7yfs.origins.azure.sas import VERSION, SasSigner, expiry_of, iso, timestamp
from d7yfs.origins.places import describe_variable, none_found
from d7yfs.origins.renewal import Renewal
from d7yfs.origins.sign_in_session import bounded_session

READ_PERMISSIONS = "rl"
"""Read and list."""
SIGNATURE_LIFE_S = 900
"""How long our signatures are valid: this host's clock may be so far behind."""
SCOPE = "https://storage.azure.com/.default"
"""The scope of tokens in every cloud; the clouds differ in the authority (AZURE_AUTHORITY_HOST)."""

_GIVE_CREDENTIALS = (
    "set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, give this host a managed or workload identity, sign in with `az login`, or read a "
    "public container with --anonymous"
)
_IDENTITIES = ("AZURE_CLIENT_ID", "AZURE_FEDERATED_TOKEN_FILE")
"""Variables that name an identity to sign in as."""

_KEY_LIFE_S = 6 * 3600
"""The life of a user delegation key; the service allows seven days."""
_KEY_START_S = 900
"""How far back a delegation key begins, for a clock that is ahead."""
_NO_KEY_PAUSE_S = 600.0
"""How long bearer tokens replace a refused delegation key: a new role takes minutes to arrive."""
_SIGN_IN_TIMEOUT_S = 30.0
_DELEGATION = {
    "SignedOid": "skoid",
    "SignedTid": "sktid",
    "SignedStart": "skt",
    "SignedExpiry": "ske",
    "SignedService": "sks",
    "SignedVersion": "skv",
}
"""The parameters that send a delegation key's names back, by the names in the reply, in the order of the signature."""
_FIELD = re.compile(rb"<(\w+)>([^<]*)</\1>")
_ENTRA_CODE = re.compile(r"AADSTS\d+")

# At DEBUG and INFO these write headers and tokens, at DEBUG urllib3 URLs.
for _name in ("azure", "msal", "urllib3"):
    logging.getLogger(_name).setLevel(logging.WARNING)
# At WARNING this one writes a dozen lines for each sign-in that finds no identity.
logging.getLogger("azure.identity").setLevel(logging.ERROR)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class Grant:
    """The query and headers that a request must carry. Holds secrets: no repr."""

    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    expires_at: float = float("inf")
    """time.time() at which it must be replaced."""


V = TypeVar("V")


@dataclass(frozen=True, slots=True, repr=False)
class _Lent(Generic[V]):
    """A secret that expires at a time.time(). No repr."""

    value: V
    expires_at: float
    check_again_s: float = float("inf")


class Access:
    """The grants for one container: by this class one for everything, which never changes.

    Its methods raise AccessDenied, OriginUnavailable and BadReply. Only an identity's wait.
    """

    signs = False
    """True if the control plane's signatures are made here, by this host's clock."""

    def __init__(self, source: str, grant: Grant | None = None) -> None:
        """`source` is the kind of credentials, in words without secrets."""
        self.source = source
        self._grant = grant or Grant()

    @property
    def expires_at(self) -> float:
        """The end of the credentials in use (time.time()); infinity for lasting ones or none."""
        return self._grant.expires_at

    async def authorize_control(self) -> Grant:
        """The grant for listing and for reading properties."""
        return self._grant

    async def authorize_read(self, key: str, version_id: str, *, presigned: bool) -> Grant:  # noqa: ARG002 - the same for all
        """The grant for one blob's bytes; if `presigned`, in the URL alone where possible."""
        return self._grant

    async def reload(self) -> bool:
        """Load the credentials anew. True if they can be others now."""
        return False

    async def aclose(self) -> None:
        """Stop renewing in the background."""


def _shared_access(source: SasToken) -> Access:
    """Access by a signature that was made elsewhere. Raises ConfigError."""
    token = source.token.get_secret_value().strip().lstrip("?")
    if "sig" not in parse_qs(token):
        raise ConfigError(
            "the shared access signature has no sig=…", hint="it begins with sv=… or ?sv=…", settings=("credentials",)
        )
    try:
        expires_at = expiry_of(token)
    except ValueError:
        what = "the shared access signature has no valid time of expiry (se)"
        raise ConfigError(what, settings=("credentials",)) from None
    until = f" until {iso(expires_at)}" if expires_at < float("inf") else ""
    return Access(f"shared access signature{until}", Grant(token, expires_at=expires_at))


class _AccountKey(Access):
    """Access by the account's key, which signs everything."""

    signs = True

    def __init__(
        self, keys: StaticKeys, account: str, container: str, permissions: str, clock: Callable[[], float]
    ) -> None:
        super().__init__("account key")
        self._permissions = permissions
        try:
            secret = base64.b64decode(keys.secret_key.get_secret_value(), validate=True)
        except binascii.Error:
            what = f"the key of storage account {account} is not one: it is not in base64"
            raise ConfigError(what, settings=("credentials",)) from None
        self._signer = SasSigner(account, container, secret)
        self._clock = clock

    async def authorize_control(self) -> Grant:
        expires_at = self._clock() + SIGNATURE_LIFE_S
        return Grant(self._signer.sign_container(self._permissions, expires_at), expires_at=expires_at)

    async def authorize_read(self, key: str, version_id: str, *, presigned: bool) -> Grant:  # noqa: ARG002 - always in the URL
        expires_at = self._clock() + SIGNATURE_LIFE_S
        return Grant(self._signer.sign_blob(key, version_id, expires_at), expires_at=expires_at)


AskKey = Callable[[Grant, bytes], Awaitable[bytes]]
"""Sends Get User Delegation Key with a grant and a body; returns the reply's body."""


class _DelegationDenied(AccessDenied):
    """The refusal of a user delegation key to an identity that is known."""


def _places() -> list[str]:
    """The places where keys and identities are looked for, each with what it lacks."""
    names = ("AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", *_IDENTITIES)
    found = [describe_variable(each, os.environ) for each in names]
    return [*found, "managed identity: no answer, or none", f"az login: {'no login' if which('az') else 'no az here'}"]


class _Identity(Access):
    """Access by the identity that azure-identity signs in as."""

    def __init__(
        self,
        credential: Callable[[], TokenCredential],
        account: str,
        container: str,
        ask_key: AskKey,
        clock: Callable[[], float],
    ) -> None:
        super().__init__("identity (azure-identity's default chain)")
        self._new_credential = credential
        self._credential: TokenCredential | None = None
        self._account = account
        self._container = container
        self._ask_key = ask_key
        self._clock = clock
        self._limiter = trio.CapacityLimiter(1)
        self._token = Renewal(self._fetch_token, name=f"the token for storage account {account}", clock=clock)
        self._signer = Renewal(
            self._fetch_signer, name=f"the user delegation key of storage account {account}", clock=clock
        )
        self._no_key_until = 0.0

    @property
    def expires_at(self) -> float:
        return held.expires_at if (held := self._token.held) else float("inf")

    async def authorize_control(self) -> Grant:
        token = await self._token.get()
        assert token is not None
        return Grant("", {"Authorization": f"Bearer {token.value}", "x-ms-version": VERSION}, token.expires_at)

    async def authorize_read(self, key: str, version_id: str, *, presigned: bool) -> Grant:
        if presigned and self._clock() >= self._no_key_until:
            try:
                signer = await self._signer.get()
                assert signer is not None
            except _DelegationDenied as denied:
                self._no_key_until = self._clock() + _NO_KEY_PAUSE_S
                log.warning("%s; no URL can be signed for dfdaemon", denied)
            else:
                expires_at = min(self._clock() + SIGNATURE_LIFE_S, signer.expires_at)
                return Grant(signer.value.sign_blob(key, version_id, expires_at), expires_at=expires_at)
        return await self.authorize_control()

    async def reload(self) -> bool:
        """Sign in anew, without the SDK's own cache."""
        await self._close_credential()
        await self._token.reload()
        self._signer.invalidate()
        self._no_key_until = 0.0
        return True

    async def aclose(self) -> None:
        await self._signer.aclose()
        await self._token.aclose()
        await self._close_credential()

    async def _fetch_token(self, _held: _Lent[str] | None) -> _Lent[str]:
        with trio.move_on_after(_SIGN_IN_TIMEOUT_S):
            return await trio.to_thread.run_sync(self._sign_in, abandon_on_cancel=True, limiter=self._limiter)
        raise OriginUnavailable(
            f"as://{self._account}: no token within {_SIGN_IN_TIMEOUT_S:.0f} s",
            hint="is the way to the sign-in service open?",
        )

    def _sign_in(self) -> _Lent[str]:
        """A new token. Blocks. Errors pass on only Entra's code: others may quote replies."""
        subject = f"as://{self._account}"
        try:
            # A local name, because the trio thread may replace the attribute meanwhile.
            credential = self._credential = self._credential or self._new_credential()
            token = credential.get_token(SCOPE)
            return _Lent(token.token, float(token.expires_on))
        except CredentialUnavailableError:
            failure: AccessDenied | OriginUnavailable = none_found(subject, _GIVE_CREDENTIALS, _places())
        except ClientAuthenticationError as error:
            code = _ENTRA_CODE.search(str(error))
            # The chain says so, too, when none of its sources is there.
            is_absent = code is None and not any(os.environ.get(each) for each in _IDENTITIES)
            failure = (
                none_found(subject, _GIVE_CREDENTIALS, _places())
                if is_absent
                else AccessDenied(
                    f"{subject}: the sign-in was refused{f' ({code[0]})' if code else ''}",
                    hint="check AZURE_TENANT_ID, AZURE_CLIENT_ID and the secret, certificate or federated token that goes with them",
                )
            )
        except (ServiceRequestError, ServiceResponseError):
            failure = OriginUnavailable(
                f"{subject}: the sign-in service cannot be reached",
                hint="is the network open, and AZURE_AUTHORITY_HOST right?",
            )
        except (AzureError, ValueError, OSError) as error:  # a wrong setting of its own, a missing file
            failure = AccessDenied(
                f"{subject}: azure-identity cannot sign in ({type(error).__name__})",
                hint="check the AZURE_* variables and the files that they name",
            )
        raise failure

    async def _fetch_signer(self, _held: _Lent[SasSigner] | None) -> _Lent[SasSigner]:
        now = self._clock()
        body = (
            '<?xml version="1.0" encoding="utf-8"?><KeyInfo>'
            f"<Start>{iso(now - _KEY_START_S)}</Start><Expiry>{iso(now + _KEY_LIFE_S)}</Expiry></KeyInfo>"
        )
        grant = await self.authorize_control()
        try:
            reply = await self._ask_key(grant, body.encode())
        except AccessDenied as denied:
            raise _DelegationDenied(denied.message, hint=denied.hint) from None
        found = {name.decode(): value.decode() for name, value in _FIELD.findall(reply)}
        try:
            named = {parameter: found[name] for name, parameter in _DELEGATION.items()}
            secret = base64.b64decode(found["Value"], validate=True)
            expires_at = timestamp(named["ske"])
        except (KeyError, ValueError):
            raise BadReply(f"as://{self._account}: the reply holds no user delegation key") from None
        return _Lent(SasSigner(self._account, self._container, secret, named), expires_at)

    async def _close_credential(self) -> None:
        credential, self._credential = self._credential, None
        close = getattr(credential, "close", None)
        if close is not None:
            await trio.to_thread.run_sync(close, abandon_on_cancel=True, limiter=self._limiter)


def access_for(
    source: Credentials,
    account: str,
    container: str,
    *,
    ask_key: AskKey,
    proxy: str,
    clock: Callable[[], float],
    permissions: str = READ_PERMISSIONS,
    identity: Callable[[], TokenCredential] | None = None,
) -> Access:
    """The access that `source` gives. Makes no request. Raises ConfigError.

    An account's key signs for `permissions` in the control plane, and for reading alone elsewhere.
    `identity` stands in for azure-identity's chain.
    """
    match source:
        case Anonymous():
            return Access("none (anonymous)")
        case SasToken():
            return _shared_access(source)
        case StaticKeys(session_token=None):
            return _AccountKey(source, account, container, permissions, clock)
        case ProviderChain(else_anonymous=False):
            return _Identity(identity or (lambda: _default_chain(proxy)), account, container, ask_key, clock)
    raise ConfigError(
        f"as://{account}/{container}: {source} cannot be used here",
        hint="an account key, a shared access signature, an identity or anonymous access can",
        settings=("credentials",),
    )


def _default_chain(proxy: str) -> TokenCredential:
    """azure-identity's own order: environment, workload and managed identity, CLI tools."""
    return DefaultAzureCredential(
        transport=RequestsTransport(session=bounded_session(), use_env_settings=False),
        use_env_settings=False,
        proxies={"https": proxy} if proxy else {},
        connection_timeout=5,
        read_timeout=15,
        retry_total=2,
    )
