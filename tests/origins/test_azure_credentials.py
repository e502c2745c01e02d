"""Each kind of credentials in a request, and an identity's sign-in and delegation key."""

from __future__ import annotations

import json
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from urllib.parse import parse_qs, urlsplit

import pytest
import trio
from azure.core.credentials import AccessToken, TokenCredential
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.identity import CredentialUnavailableError
from trio.testing import assert_no_checkpoints, wait_all_tasks_blocked

from d7yfs.config.schema import Anonymous, Credentials, CredentialsFile, Profile, ProviderChain, SasToken, StaticKeys
from d7yfs.errors import AccessDenied, BadReply, ConfigError, OriginUnavailable
from d7yfs.objects import SecretStr
from d7yfs.origins.azure.credentials import SIGNATURE_LIFE_S, Access, AskKey, Grant, access_for
from d7yfs.origins.azure.sas import VERSION, iso
from d7yfs.origins.sign_in_session import ANSWER_BYTES
from tests.servers.http11 import Answer, HttpServer, Request

KEY = "MDEyMzQ1Njc4OWFiY2RlZg=="
SAS = "sv=2021-02-12&sr=c&sp=rl&se=2027-01-15T08%3A00%3A00Z&sig=abc%2Bdef%3D"
SAS_END = 1_800_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_799_990_000.0

    def __call__(self) -> float:
        return self.now


class Identity:
    """A stand-in for azure-identity: token "t1", "t2", … for an hour each."""

    def __init__(self, clock: Clock) -> None:
        self.made = 0
        self.asked = 0
        self.failure: Exception | None = None
        self._clock = clock

    def __call__(self) -> TokenCredential:
        self.made += 1
        return self

    def get_token(self, *scopes: str, **_: object) -> AccessToken:
        self.asked += 1
        if self.failure:
            raise self.failure
        return AccessToken(f"t{self.asked}", int(self._clock()) + 3600)


class KeyService:
    """A service that answers Get User Delegation Key."""

    def __init__(self, clock: Clock) -> None:
        self.grants: list[Grant] = []
        self.failure: Exception | None = None
        self.reply = b""
        self.life_s = 6 * 3600.0
        self.asked_again = trio.Event()
        self._clock = clock

    async def __call__(self, grant: Grant, body: bytes) -> bytes:
        await trio.lowlevel.checkpoint()
        self.grants.append(grant)
        if len(self.grants) == 2:
            self.asked_again.set()
        assert b"<KeyInfo><Start>" in body
        if self.failure:
            raise self.failure
        expiry = iso(self._clock() + self.life_s)
        fields = {
            "Oid": f"oid{len(self.grants)}",
            "Tid": "tid",
            "Start": "s",
            "Expiry": expiry,
            "Service": "b",
            "Version": "v",
        }
        signed = "".join(f"<Signed{name}>{value}</Signed{name}>" for name, value in fields.items())
        return self.reply or f"<UserDelegationKey>{signed}<Value>{KEY}</Value></UserDelegationKey>".encode()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def identity(clock: Clock) -> Identity:
    return Identity(clock)


@pytest.fixture
def keys(clock: Clock) -> KeyService:
    return KeyService(clock)


@pytest.fixture
async def chain(clock: Clock, identity: Identity, keys: KeyService) -> AsyncIterator[Access]:
    async with aclosing(access(ProviderChain(), clock, ask_key=keys, identity=identity)) as opened:
        yield opened


async def no_key(_: Grant, __: bytes) -> bytes:
    raise AssertionError("nobody asks for a delegation key")


def access(
    source: Credentials,
    clock: Callable[[], float] = time.time,
    *,
    ask_key: AskKey = no_key,
    identity: Callable[[], TokenCredential] | None = None,
) -> Access:
    return access_for(source, "account", "models", ask_key=ask_key, proxy="", clock=clock, identity=identity)


def owner(grant: Grant) -> str:
    """The delegation key that a signature is made with; empty for none."""
    return parse_qs(grant.query).get("skoid", [""])[0]


# What does not change


async def test_anonymous() -> None:
    public = access(Anonymous())
    for grant in (await public.authorize_control(), await public.authorize_read("a", "", presigned=True)):
        assert (grant.query, dict(grant.headers), grant.expires_at) == ("", {}, float("inf"))


@pytest.mark.parametrize("text", [SAS, f"?{SAS}", f" {SAS}\n"])
async def test_signature_of_somebody_else(text: str) -> None:
    shared = access(SasToken(SecretStr(text)))
    assert "until 2027-01-15T08:00:00Z" in shared.source
    assert not re.search("abc(%2B|[+])", shared.source + repr(shared))
    for grant in (await shared.authorize_control(), await shared.authorize_read("a", "", presigned=False)):
        assert (grant.query, dict(grant.headers), grant.expires_at) == (SAS, {}, SAS_END)
    assert not await shared.reload()


@pytest.mark.parametrize("text", ["", "no signature", "sv=2021-02-12&se=2027-01-15", "se=tomorrow&sig=abc"])
def test_what_is_no_signature(text: str) -> None:
    with pytest.raises(ConfigError, match="shared access signature") as caught:
        access(SasToken(SecretStr(text)))
    assert "tomorrow" not in str(caught.value)


async def test_account_key_signs_anew_each_time(clock: Clock) -> None:
    signing = access(StaticKeys("account", SecretStr(KEY)), clock)
    with assert_no_checkpoints():
        control = await signing.authorize_control()
        data = await signing.authorize_read("a/b", "", presigned=False)
    assert parse_qs(control.query)["sp"] == ["rl"]
    assert (parse_qs(data.query)["sr"], parse_qs(data.query)["sp"]) == (["b"], ["r"])
    assert control.expires_at == data.expires_at == clock.now + SIGNATURE_LIFE_S
    clock.now += 1
    assert (await signing.authorize_control()).query != control.query
    assert "MDEy" not in repr(signing) + repr(control)


def test_what_is_no_account_key() -> None:
    with pytest.raises(ConfigError, match="base64") as caught:
        access(StaticKeys("account", SecretStr("not-the-secret")))
    assert "not-the-secret" not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    [
        Profile("x"),
        CredentialsFile(path=__file__),  # type: ignore[arg-type]
        StaticKeys("account", SecretStr(KEY), SecretStr("session")),
        ProviderChain(else_anonymous=True),
    ],
)
def test_credentials_of_other_clouds(source: Credentials) -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        access(source)


# An identity


async def test_token_is_kept(chain: Access, identity: Identity) -> None:
    first = await chain.authorize_control()
    assert first.headers == {"Authorization": "Bearer t1", "x-ms-version": VERSION}
    assert (await chain.authorize_read("a", "", presigned=False)).headers == first.headers
    assert (identity.made, identity.asked) == (1, 1)


async def test_delegation_key_is_kept_and_renewed_behind_the_readers(
    chain: Access, keys: KeyService, clock: Clock
) -> None:
    for key in ("a", "b"):
        grant = await chain.authorize_read(key, "", presigned=True)
        assert not grant.headers
        assert owner(grant) == "oid1"
        assert grant.expires_at == clock.now + SIGNATURE_LIFE_S
    assert keys.grants[0].headers["Authorization"] == "Bearer t1"
    clock.now += 6 * 3600 - 600
    assert owner(await chain.authorize_read("c", "", presigned=True)) == "oid1"
    with trio.fail_after(10):
        await keys.asked_again.wait()  # a thread gets another token meanwhile
    await wait_all_tasks_blocked()
    assert owner(await chain.authorize_read("d", "", presigned=True)) == "oid2"


async def test_signature_ends_with_its_key(chain: Access, keys: KeyService, clock: Clock) -> None:
    keys.life_s = 300
    assert (await chain.authorize_read("a", "", presigned=True)).expires_at == clock.now + 300


async def test_without_the_right_to_delegate_the_token_does(
    chain: Access, keys: KeyService, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    keys.failure = AccessDenied("as://account/models: no", hint="role Storage Blob Delegator")
    for _ in range(3):
        assert (await chain.authorize_read("a", "", presigned=True)).headers["Authorization"] == "Bearer t1"
    assert len(keys.grants) == 1, "asked once in a while"
    assert "Storage Blob Delegator" in caplog.text
    keys.failure = None
    clock.now += 601
    assert owner(await chain.authorize_read("a", "", presigned=True)) == "oid2"


async def test_no_identity_is_not_taken_for_a_missing_right(
    chain: Access, identity: Identity, caplog: pytest.LogCaptureFixture
) -> None:
    identity.failure = CredentialUnavailableError()
    with pytest.raises(AccessDenied, match="no credentials"):
        await chain.authorize_read("a", "", presigned=True)
    assert not caplog.records
    identity.failure = None
    assert owner(await chain.authorize_read("a", "", presigned=True)) == "oid1"


async def test_signature_outlives_the_token(chain: Access, identity: Identity, clock: Clock) -> None:
    await chain.authorize_read("a", "", presigned=True)
    identity.failure = ServiceRequestError("no network")
    clock.now += 5 * 3600
    assert owner(await chain.authorize_read("a", "", presigned=True)) == "oid1"


async def test_unreachable_key_service_is_no_refusal(chain: Access, keys: KeyService) -> None:
    keys.failure = OriginUnavailable("no network")
    with pytest.raises(OriginUnavailable):
        await chain.authorize_read("a", "", presigned=True)


@pytest.mark.parametrize("reply", [b"<html>", b"<UserDelegationKey><SignedOid>x</SignedOid></UserDelegationKey>"])
async def test_what_is_no_delegation_key(chain: Access, keys: KeyService, reply: bytes) -> None:
    keys.reply = reply
    with pytest.raises(BadReply, match="delegation key"):
        await chain.authorize_read("a", "", presigned=True)


async def test_reload_signs_in_anew(chain: Access, identity: Identity, clock: Clock) -> None:
    await chain.authorize_read("a", "", presigned=True)
    clock.now += 6
    assert await chain.reload()
    assert identity.made == 2, "the SDK remembers tokens"
    assert (await chain.authorize_control()).headers["Authorization"] == "Bearer t2"
    assert owner(await chain.authorize_read("a", "", presigned=True)) == "oid2"


async def test_failing_sign_in_goes_on_with_what_is_valid(chain: Access, identity: Identity, clock: Clock) -> None:
    await chain.authorize_control()
    identity.failure = ServiceRequestError("no network")
    assert await chain.reload()
    clock.now += 3000
    assert (await chain.authorize_control()).headers["Authorization"] == "Bearer t1"
    await wait_all_tasks_blocked()
    clock.now += 600
    with pytest.raises(OriginUnavailable):
        await chain.authorize_control()


@pytest.mark.parametrize(
    ("failure", "expected", "words"),
    [
        (CredentialUnavailableError("secret words"), AccessDenied, "no credentials"),
        (ClientAuthenticationError("AADSTS7000215: secret words"), AccessDenied, r"AADSTS7000215"),
        (ClientAuthenticationError("secret words"), AccessDenied, "no credentials were found"),
        (ServiceRequestError("secret words"), OriginUnavailable, "cannot be reached"),
        (FileNotFoundError("secret words"), AccessDenied, "FileNotFoundError"),
        (ValueError("secret words"), AccessDenied, "AZURE_"),
    ],
)
async def test_failed_sign_in(
    chain: Access, identity: Identity, failure: Exception, expected: type[Exception], words: str
) -> None:
    identity.failure = failure
    with pytest.raises(expected, match=words) as caught:
        await chain.authorize_control()
    assert "secret words" not in str(caught.value)
    assert caught.value.__cause__ is None


async def test_a_sign_in_that_is_configured_is_refused(
    chain: Access, identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_CLIENT_ID", "somebody")
    identity.failure = ClientAuthenticationError("secret words")
    with pytest.raises(AccessDenied, match="sign-in was refused"):
        await chain.authorize_control()


async def test_the_places_without_an_identity_are_named_and_the_sdk_is_silent(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With azure-identity's own chain, which finds none."""
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "EnvironmentCredential")
    access = access_for(ProviderChain(), "account", "models", ask_key=_no_key, proxy="", clock=clock)
    with pytest.raises(AccessDenied, match="no credentials were found") as caught:
        await access.authorize_control()
    await access.aclose()
    lines = caught.value.hint.splitlines()
    assert "  AZURE_STORAGE_KEY is not set" in lines
    assert "  AZURE_CLIENT_ID is not set" in lines
    assert not caplog.text


async def _no_key(_grant: Grant, _body: bytes) -> bytes:
    return b""


class MetadataService(HttpServer):
    """The managed identity of an App Service
    (https://learn.microsoft.com/azure/app-service/overview-managed-identity)."""

    body = b""
    """Answered in place of a token, if any."""

    async def answer(self, request: Request) -> Answer:
        number = len(self.requests)
        token = {
            "access_token": f"managed-token-{number}",
            "expires_on": str(int(time.time()) + 3600),
            "token_type": "Bearer",
        }
        return Answer(200, {"Content-Type": "application/json"}, self.body or json.dumps(token).encode())


@pytest.fixture
async def metadata(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[MetadataService]:
    for name in os.environ:
        if name.upper().startswith(("AZURE_", "IDENTITY_", "MSI_", "IMDS_")):
            monkeypatch.delenv(name)
    async with MetadataService().running() as server:
        monkeypatch.setenv("IDENTITY_ENDPOINT", f"{server.url}/msi/token")
        monkeypatch.setenv("IDENTITY_HEADER", "hush")
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:1")
        yield server


async def test_managed_identity_of_the_host(metadata: MetadataService, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    now = [time.time()]
    opened = access_for(
        ProviderChain(), "account", "models", ask_key=no_key, proxy="http://127.0.0.1:1", clock=lambda: now[0]
    )
    async with aclosing(opened):
        grant = await opened.authorize_control()
        assert grant.headers["Authorization"] == "Bearer managed-token-1"
        assert time.time() + 3000 < grant.expires_at < time.time() + 3700
        now[0] += 6
        assert await opened.reload()
        assert (await opened.authorize_control()).headers["Authorization"] == "Bearer managed-token-2"
    (request, _) = metadata.requests
    assert parse_qs(urlsplit(request.target).query)["resource"] == ["https://storage.azure.com"]
    assert request.headers["x-identity-header"] == "hush"
    assert not request.absolute, "no proxy is between a host and its metadata"
    assert "hush" not in caplog.text
    assert "managed-token" not in caplog.text


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        pytest.param(bytes(ANSWER_BYTES + 1), "more than 1 MiB", id="large"),
        pytest.param(b"[" * 100_000, "nested too deep", id="deep"),
    ],
)
async def test_an_answer_that_no_token_service_gives(
    metadata: MetadataService, caplog: pytest.LogCaptureFixture, body: bytes, reason: str
) -> None:
    metadata.body = body
    opened = access_for(ProviderChain(), "account", "models", ask_key=no_key, proxy="", clock=time.time)
    async with aclosing(opened):
        with pytest.raises((AccessDenied, OriginUnavailable)):
            await opened.authorize_control()
    assert f"the answer of 127.0.0.1 is no token's: {reason}" in caplog.text
