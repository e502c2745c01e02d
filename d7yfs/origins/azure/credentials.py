"""What entitles requests to a container: nothing, an account key, a shared access signature, or an identity of Entra's.

Owns the secrets and their renewal. One `Access` per origin, made by `access_for`; `azure`, its only caller, puts each `Grant` into
a request.

Signatures for data are for one blob and for reading alone: through Dragonfly a URL reaches the scheduler and other hosts. An identity
signs with a user delegation key, which the service makes for it; where its role does not allow that, its bearer token goes along
in a header.

azure-identity blocks, so it runs in a worker thread. A sign-in goes through the control proxy, the metadata services of virtual machines
and clusters (plain http) never do; the environment's proxies are not heeded.
"""

from __future__ import annotations

import base64
import binascii
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar
from urllib.parse import parse_qs

import trio
from azure.core.credentials import TokenCredential
from azure.core.exceptions import AzureError, ClientAuthenticationError, ServiceRequestError, ServiceResponseError
from azure.identity import CredentialUnavailableError, DefaultAzureCredential

from d7yfs.config.schema import Anonymous, Credentials, ProviderChain, SasToken, StaticKeys
from d7yfs.errors import AccessDenied, BadReply, ConfigError, OriginUnavailable
from d7yfs.origins.azure.sas import VERSION, DelegationKey, Signer, expiry_of, iso, timestamp
from d7yfs.origins.renewal import Renewal

SIGNATURE_LIFE_S = 900
"""How long a signature of ours is valid, as on the other clouds: so far may this host's clock be behind."""
SCOPE = "https://storage.azure.com/.default"
"""The same in every cloud: the authority (AZURE_AUTHORITY_HOST) makes the difference."""

_KEY_LIFE_S = 6 * 3600
"""Of a user delegation key; the service allows seven days."""
_KEY_START_S = 900
"""So far back a delegation key begins, for a clock that is ahead."""
_NO_KEY_PAUSE_S = 600.0
"""So long bearer tokens do, after the service has refused a delegation key: a new role takes minutes to arrive."""
_SIGN_IN_TIMEOUT_S = 30.0
_FIELD = re.compile(rb"<(\w+)>([^<]*)</\1>")
_ENTRA_CODE = re.compile(r"AADSTS\d+")

# At DEBUG and INFO these write headers and tokens, at DEBUG urllib3 URLs.
for _name in ("azure", "msal", "urllib3"):
    logging.getLogger(_name).setLevel(logging.WARNING)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, repr=False)
class Grant:
    """What a request must carry. Holds secrets: no repr."""

    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    expires_at: float = float("inf")
    """In time.time()."""


V = TypeVar("V")


@dataclass(frozen=True, slots=True, repr=False)
class _Lent(Generic[V]):
    """A secret and its end in time.time(). No repr."""

    value: V
    expires_at: float
    check_again_s: float = float("inf")


class Access(Protocol):
    """Grants for one container. Its methods raise AccessDenied, OriginUnavailable and BadReply, and only an identity's wait."""

    signs: bool
    """Whether the control plane's signatures are made here, by this host's clock."""

    @property
    def expires_at(self) -> float:
        """When what is in use ends (time.time()); infinity for what lasts and while there is none."""

    async def control(self) -> Grant:
        """For listing and for reading properties."""

    async def data(self, key: str, version_id: str, *, presigned: bool) -> Grant:
        """For one blob's bytes, in the URL alone when `presigned`, where that can be."""

    async def reload(self) -> bool:
        """Get credentials anew; whether there can be others now."""

    def describe(self) -> str:
        """In words without secrets."""

    async def aclose(self) -> None:
        """Stop what runs in the background."""


class _Lasting:
    """What credentials that never change have in common."""

    signs = False
    _expires_at = float("inf")

    @property
    def expires_at(self) -> float:
        return self._expires_at

    async def reload(self) -> bool:
        return False

    async def aclose(self) -> None:
        return None


class _Public(_Lasting):
    """For containers that anybody may read."""

    async def control(self) -> Grant:
        return Grant()

    async def data(self, key: str, version_id: str, *, presigned: bool) -> Grant:  # noqa: ARG002 - the same for all
        return Grant()

    def describe(self) -> str:
        return "none (anonymous)"


class _SharedAccess(_Lasting):
    """A signature that somebody else made."""

    def __init__(self, source: SasToken) -> None:
        token = source.token.get_secret_value().strip().lstrip("?")
        if "sig" not in parse_qs(token):
            raise ConfigError(
                "the shared access signature is none: it has no sig=…", hint="it begins with sv=… or ?sv=…"
            )
        try:
            self._grant = Grant(token, expires_at=expiry_of(token))
        except ValueError:
            raise ConfigError("the shared access signature has no valid time of expiry (se)") from None
        self._expires_at = self._grant.expires_at

    async def control(self) -> Grant:
        return self._grant

    async def data(self, key: str, version_id: str, *, presigned: bool) -> Grant:  # noqa: ARG002 - the same for all
        return self._grant

    def describe(self) -> str:
        expires_at = self._grant.expires_at
        return "shared access signature" + (f" until {iso(expires_at)}" if expires_at < float("inf") else "")


class _AccountKey(_Lasting):
    """Signs everything with the account's key."""

    signs = True

    def __init__(self, keys: StaticKeys, account: str, container: str, clock: Callable[[], float]) -> None:
        try:
            secret = base64.b64decode(keys.secret_key.get_secret_value(), validate=True)
        except binascii.Error:
            raise ConfigError(f"the key of storage account {account} is not one: it is not in base64") from None
        self._signer = Signer(account, container, secret)
        self._clock = clock

    async def control(self) -> Grant:
        expires_at = self._clock() + SIGNATURE_LIFE_S
        return Grant(self._signer.container(expires_at), expires_at=expires_at)

    async def data(self, key: str, version_id: str, *, presigned: bool) -> Grant:  # noqa: ARG002 - always in the URL
        expires_at = self._clock() + SIGNATURE_LIFE_S
        return Grant(self._signer.blob(key, version_id, expires_at), expires_at=expires_at)

    def describe(self) -> str:
        return "account key"


AskKey = Callable[[Grant, bytes], Awaitable[bytes]]
"""Sends Get User Delegation Key with this grant and body; the reply's body."""


class _DelegationDenied(AccessDenied):
    """The identity is known, and may not ask for a user delegation key."""


class _Identity:
    """Whoever azure-identity signs in as."""

    signs = False

    def __init__(
        self,
        credential: Callable[[], TokenCredential],
        account: str,
        container: str,
        ask_key: AskKey,
        clock: Callable[[], float],
    ) -> None:
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

    async def control(self) -> Grant:
        token = await self._token.current()
        assert token is not None
        return Grant("", {"Authorization": f"Bearer {token.value}", "x-ms-version": VERSION}, token.expires_at)

    async def data(self, key: str, version_id: str, *, presigned: bool) -> Grant:
        if presigned and self._clock() >= self._no_key_until:
            try:
                signer = await self._signer.current()
                assert signer is not None
            except _DelegationDenied as denied:
                self._no_key_until = self._clock() + _NO_KEY_PAUSE_S
                log.warning("%s; reads go on with a bearer token, which reaches dfdaemon and its peers", denied)
            else:
                expires_at = min(self._clock() + SIGNATURE_LIFE_S, signer.expires_at)
                return Grant(signer.value.blob(key, version_id, expires_at), expires_at=expires_at)
        return await self.control()

    async def reload(self) -> bool:
        """Sign in anew, past what the SDK remembers."""
        await self._close_credential()
        await self._token.reload()
        self._signer.forget()
        self._no_key_until = 0.0
        return True

    def describe(self) -> str:
        return "identity (azure-identity's default chain)"

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
        """Blocks. What azure-identity raises may quote the replies it got: only Entra's code is passed on."""
        subject = f"as://{self._account}"
        try:
            # Held on to here: meanwhile the trio thread may want another one.
            credential = self._credential = self._credential or self._new_credential()
            token = credential.get_token(SCOPE)
            return _Lent(token.token, float(token.expires_on))
        except CredentialUnavailableError:
            failure: AccessDenied | OriginUnavailable = AccessDenied(
                f"{subject}: no credentials: azure-identity found no identity to sign in as",
                hint="set AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, give this host a managed or workload identity, or sign "
                "in with `az login`; --anonymous is for public containers",
            )
        except ClientAuthenticationError as error:
            code = _ENTRA_CODE.search(str(error))
            failure = AccessDenied(
                f"{subject}: the sign-in was refused{f' ({code[0]})' if code else ''}",
                hint="check AZURE_TENANT_ID, AZURE_CLIENT_ID and the secret, certificate or federated token that goes with them",
            )
        except (ServiceRequestError, ServiceResponseError):
            failure = OriginUnavailable(
                f"{subject}: the sign-in service cannot be reached",
                hint="is the network open, and AZURE_AUTHORITY_HOST right?",
            )
        except (AzureError, ValueError, OSError) as error:  # a setting of its own that is wrong, a file that is missing
            failure = AccessDenied(
                f"{subject}: azure-identity cannot sign in ({type(error).__name__})",
                hint="check the AZURE_* variables and the files that they name",
            )
        raise failure

    async def _fetch_signer(self, _held: _Lent[Signer] | None) -> _Lent[Signer]:
        now = self._clock()
        body = (
            '<?xml version="1.0" encoding="utf-8"?><KeyInfo>'
            f"<Start>{iso(now - _KEY_START_S)}</Start><Expiry>{iso(now + _KEY_LIFE_S)}</Expiry></KeyInfo>"
        )
        grant = await self.control()
        try:
            reply = await self._ask_key(grant, body.encode())
        except AccessDenied as denied:
            raise _DelegationDenied(denied.message, hint=denied.hint) from None
        found = {name.decode(): value.decode() for name, value in _FIELD.findall(reply)}
        try:
            key = DelegationKey(
                object_id=found["SignedOid"],
                tenant_id=found["SignedTid"],
                start=found["SignedStart"],
                expiry=found["SignedExpiry"],
                service=found["SignedService"],
                version=found["SignedVersion"],
                secret=base64.b64decode(found["Value"], validate=True),
            )
            expires_at = timestamp(key.expiry)
        except (KeyError, ValueError):
            raise BadReply(f"as://{self._account}: the user delegation key that came is none") from None
        return _Lent(Signer(self._account, self._container, key), expires_at)

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
    identity: Callable[[], TokenCredential] | None = None,
) -> Access:
    """The access that `source` gives; makes no request. `identity` stands in for azure-identity's chain. Raises ConfigError."""
    match source:
        case Anonymous():
            return _Public()
        case SasToken():
            return _SharedAccess(source)
        case StaticKeys(session_token=None):
            return _AccountKey(source, account, container, clock)
        case ProviderChain(else_anonymous=False):
            return _Identity(identity or (lambda: _default_chain(proxy)), account, container, ask_key, clock)
    raise ConfigError(
        f"as://{account}/{container}: {source.describe()} cannot be used here",
        hint="an account key, a shared access signature, an identity or anonymous access can",
    )


def _default_chain(proxy: str) -> TokenCredential:
    """azure-identity's own order: environment, workload identity, managed identity, command line tools."""
    return DefaultAzureCredential(
        use_env_settings=False,
        proxies={"https": proxy} if proxy else {},
        connection_timeout=5,
        read_timeout=15,
        retry_total=2,
    )
