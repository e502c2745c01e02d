"""Google's credentials: loaded, renewed ahead of time, and kept in use when that fails."""

from __future__ import annotations

import gzip
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from d7yfs.config.schema import CredentialsFile, ProviderChain
from d7yfs.errors import AccessDenied, OriginUnavailable
from d7yfs.origins.gs.credentials import GoogleCredentials, GoogleLogin
from d7yfs.origins.sign_in_session import ANSWER_BYTES
from tests.servers.gcs import GcsServer
from tests.servers.google_tokens import METADATA_EMAIL, Reply, Request


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def server() -> Iterator[GcsServer]:
    with GcsServer() as server:
        yield server


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(autouse=True)
def _no_credentials_of_this_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS", raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path / "gcloud"))
    monkeypatch.setattr("google.auth.compute_engine._metadata._NO_GCE_CHECK", True)


@pytest.fixture
def metadata_server(server: GcsServer, monkeypatch: pytest.MonkeyPatch) -> GcsServer:
    monkeypatch.setattr("google.auth.compute_engine._metadata._NO_GCE_CHECK", False)
    monkeypatch.setattr("google.auth.compute_engine._metadata._GCE_METADATA_HOST", server.address)
    monkeypatch.setenv("GCE_METADATA_IP", server.address)
    return server


@asynccontextmanager
async def opened(
    source: CredentialsFile | ProviderChain, clock: Callable[[], float]
) -> AsyncIterator[GoogleCredentials]:
    credentials = GoogleCredentials(source, subject="gs://models", verify=True, control_proxy="", clock=clock)
    yield credentials
    await credentials.aclose()


def written(path: Path, content: object) -> CredentialsFile:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))
    return CredentialsFile(path)


async def renewed(credentials: GoogleCredentials, old: GoogleLogin) -> GoogleLogin:
    """The login that replaces `old`; readers get a valid one all the time."""
    with trio.fail_after(10):
        while (held := await credentials.get()) is old:
            await trio.lowlevel.checkpoint()
    return held


def refusing(path: str) -> Callable[[Request], Reply | None]:
    body = json.dumps({"error": "invalid_grant", "error_description": "gone"}).encode()
    return lambda request: Reply(400, {"Content-Type": "application/json"}, body) if request.path == path else None


# Kinds


async def test_service_account(server: GcsServer, tmp_path: Path, clock: Clock) -> None:
    source = written(tmp_path / "key.json", server.account())
    async with opened(source, clock) as credentials:
        assert credentials.principal == ""
        held = await credentials.get()
        assert credentials.principal == "account reader@project.iam.gserviceaccount.com"
    assert server.tokens[held.token].scopes == {"https://www.googleapis.com/auth/devstorage.read_only"}
    assert (held.email, held.project, held.asking) == ("reader@project.iam.gserviceaccount.com", "project", None)
    assert held.sign
    assert str(tmp_path / "key.json") in credentials.source
    assert held.expires_at == pytest.approx(time.time() + 3600, abs=60)


async def test_user(server: GcsServer, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("google.oauth2.credentials._GOOGLE_OAUTH2_TOKEN_ENDPOINT", f"{server.url}/token")
    server.refresh_tokens.add("1//refresh")
    fields = {"client_id": "c", "client_secret": "s", "refresh_token": "1//refresh"}
    source = written(tmp_path / "user.json", {"type": "authorized_user", "quota_project_id": "payer", **fields})
    async with opened(source, clock) as credentials:
        held = await credentials.get()
        assert held.token in server.tokens
        assert (held.email, held.project) == ("", "payer")
        assert credentials.principal == ""


async def test_workload_identity_federation_rereads_its_token(server: GcsServer, tmp_path: Path, clock: Clock) -> None:
    subject = tmp_path / "subject-token"
    source = written(
        tmp_path / "federated.json",
        {
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/k",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{server.url}/sts",
            "credential_source": {"file": str(subject)},
        },
    )
    async with opened(source, clock) as credentials:
        server.subject_tokens.add("first")
        subject.write_text("first")
        held = await credentials.get()
        server.subject_tokens = {"second"}
        subject.write_text("second")
        clock.now = held.expires_at - 100
        assert (await renewed(credentials, held)).token in server.tokens


async def test_default_credentials_in_their_order(
    metadata_server: GcsServer, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = metadata_server
    async with opened(ProviderChain(), clock) as credentials:
        held = await credentials.get()
        assert (held.email, held.project, credentials.source) == (METADATA_EMAIL, "project", "the metadata server")
        assert held.token in server.tokens
    gcloud = tmp_path / "gcloud" / "application_default_credentials.json"
    written(gcloud, server.account("gcloud@project.iam.gserviceaccount.com"))
    async with opened(ProviderChain(), clock) as credentials:
        assert (await credentials.get()).email.startswith("gcloud@")
    written(tmp_path / "named.json", server.account("named@project.iam.gserviceaccount.com"))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "named.json"))
    async with opened(ProviderChain(), clock) as credentials:
        assert (await credentials.get()).email.startswith("named@")


# Nothing to be had


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        ("{", "not JSON"),
        ('{"type": "private_matter"}', "no type that is known"),
        ("{}", "no type that is known"),
        ('["secret"]', "no type that is known"),
        ('{"type": "service_account", "private_key": "secret"}', "malformed"),
        ('{"type": "authorized_user", "refresh_token": "secret"}', "malformed"),
        ('{"type": "external_account", "audience": "secret"}', "malformed"),
    ],
)
async def test_file_that_is_no_good(
    tmp_path: Path, clock: Clock, content: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.json"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
    for source in (CredentialsFile(path), ProviderChain(else_anonymous=True)):
        async with opened(source, clock) as credentials:
            with pytest.raises(AccessDenied, match=words) as caught:
                await credentials.get()
            assert "secret" not in str(caught.value)
            assert caught.value.hint


async def test_nothing_found(clock: Clock) -> None:
    async with opened(ProviderChain(), clock) as credentials:
        with pytest.raises(AccessDenied, match="no credentials were found") as caught:
            await credentials.get()
        assert "  GOOGLE_APPLICATION_CREDENTIALS is not set" in caught.value.hint.splitlines()
        assert "metadata server" in caught.value.hint
    async with opened(ProviderChain(else_anonymous=True), clock) as credentials:
        held = await credentials.get()
        assert (held.credentials, held.token, credentials.source) == (None, "", "none (anonymous)")


# Renewal


async def test_token_is_renewed_ahead_of_its_end(metadata_server: GcsServer, clock: Clock) -> None:
    async with opened(ProviderChain(), clock) as credentials:
        first = await credentials.get()
        clock.now = first.expires_at - 301
        assert await credentials.get() is first
        clock.now = first.expires_at - 299
        assert await credentials.get() is first, "nobody waits for the new one"
        second = await renewed(credentials, first)
        assert second.token != first.token
        assert second.email == METADATA_EMAIL


async def test_refresh_that_fails_leaves_the_token_in_use_until_its_end(
    metadata_server: GcsServer, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    path = "/computeMetadata/v1/instance/service-accounts/default/token"
    async with opened(ProviderChain(), clock) as credentials:
        first = await credentials.get()
        metadata_server.intercept = lambda request: Reply(404) if request.path == path else None
        clock.now = first.expires_at - 100
        with trio.fail_after(10):
            while "cannot be renewed yet" not in caplog.text:
                assert await credentials.get() is first
                await trio.lowlevel.checkpoint()
        asked = len(metadata_server.asked(path))
        clock.now += 9
        assert await credentials.get() is first
        assert await credentials.get(fresh=True) is first
        clock.now = first.expires_at
        with pytest.raises(OriginUnavailable, match="metadata server"):
            await credentials.get()
        assert len(metadata_server.asked(path)) == asked + 2
        metadata_server.intercept = lambda _: None
        assert (await credentials.get()).token in metadata_server.tokens
    assert first.token not in caplog.text


async def test_herd_asks_once(server: GcsServer, tmp_path: Path, clock: Clock) -> None:
    source = written(tmp_path / "key.json", server.account())
    async with opened(source, clock) as credentials:
        for refused in (True, False):
            server.intercept = refusing("/token") if refused else lambda _: None
            server.requests.clear()
            outcomes: list[object] = []

            async def ask(outcomes: list[object]) -> None:
                try:
                    outcomes.append(await credentials.get())
                except AccessDenied as error:
                    outcomes.append(str(error))

            async with trio.open_nursery() as nursery:
                for _ in range(20):
                    nursery.start_soon(ask, outcomes)
            assert len(outcomes) == 20
            assert len(set(outcomes)) == 1
            assert len(server.asked("/token")) == 1


async def test_file_that_changed_is_read_again(server: GcsServer, tmp_path: Path, clock: Clock) -> None:
    source = written(tmp_path / "key.json", server.account())
    async with opened(source, clock) as credentials:
        first = await credentials.get()
        written(tmp_path / "key.json", server.account("other@project.iam.gserviceaccount.com"))
        clock.now += 2
        assert await credentials.get() is first
        second = await renewed(credentials, first)
        assert second.email == "other@project.iam.gserviceaccount.com"
        (tmp_path / "key.json").write_text("{")
        clock.now += 12
        for _ in range(50):
            assert await credentials.get() is second, "half a file is no reason to stop"
            await trio.lowlevel.checkpoint()


async def test_fresh_reloads_at_most_every_few_seconds(server: GcsServer, tmp_path: Path, clock: Clock) -> None:
    source = written(tmp_path / "key.json", server.account())
    async with opened(source, clock) as credentials:
        first = await credentials.get()
        assert await credentials.get(fresh=True) is first
        clock.now += 6
        assert await credentials.get(fresh=True) is not first


# Refusals


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        (
            Reply(400, {}, b'{"error": "invalid_grant", "error_description": "Invalid JWT Signature."}'),
            AccessDenied,
            "deleted",
        ),
        (Reply(401, {}, b'{"error": "invalid_client"}'), AccessDenied, "invalid_client"),
        (Reply(400, {}, b'{"access_token_of": "ya29.secret"}'), AccessDenied, "refused"),
        (Reply(307, {"Location": "http://localhost:1/"}), AccessDenied, "refused"),
    ],
)
async def test_refusals(
    server: GcsServer, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, reply: Reply,
    error: type[Exception], words: str,
) -> None:  # fmt: skip
    caplog.set_level(logging.DEBUG)
    source = written(tmp_path / "key.json", server.account())
    server.intercept = lambda request: reply if request.path == "/token" else None
    async with opened(source, clock) as credentials:
        with pytest.raises(error, match=words) as caught:
            await credentials.get()
    assert caught.value.__context__ is None
    assert "secret" not in f"{caught.value}{caplog.text}"


async def test_token_service_that_cannot_be_reached(server: GcsServer, tmp_path: Path, clock: Clock) -> None:
    source = written(tmp_path / "key.json", server.account() | {"token_uri": "http://127.0.0.1:1/token"})
    async with opened(source, clock) as credentials:
        with pytest.raises(OriginUnavailable, match="cannot be reached"):
            await credentials.get()


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        pytest.param(Reply(200, {}, bytes(ANSWER_BYTES + 1)), "more than 1 MiB", id="large"),
        pytest.param(
            Reply(200, {"Content-Encoding": "gzip"}, gzip.compress(bytes(64 << 20))), "more than 1 MiB", id="bomb"
        ),
        pytest.param(Reply(200, {}, b"[" * 100_000), "nested too deep", id="deep"),
    ],
)
async def test_an_answer_that_no_token_service_gives(
    server: GcsServer, tmp_path: Path, clock: Clock, caplog: pytest.LogCaptureFixture, reply: Reply, reason: str
) -> None:
    source = written(tmp_path / "key.json", server.account())
    server.intercept = lambda request: reply if request.path == "/token" else None
    async with opened(source, clock) as credentials:
        with pytest.raises(OriginUnavailable):
            await credentials.get()
    assert f"the answer of 127.0.0.1 is no token's: {reason}" in caplog.text
