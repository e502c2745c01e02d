"""An S3 origin's credentials, renewed ahead of time by a small STS, IMDS and ECS server.

Which credentials the SDK finds, and how it gets them, is the SDK's to test.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import botocore.credentials
import pytest
import trio
from trio.testing import assert_no_checkpoints

from d7yfs.config.schema import Credentials, Profile, ProviderChain, StaticKeys
from d7yfs.errors import AccessDenied, D7yfsError, OriginUnavailable
from d7yfs.objects import ObjectVersion, SecretStr
from d7yfs.origins.s3.origin import S3Origin
from tests.origins.opening import opened_at
from tests.servers.sts import CredentialServer, TemporaryKeys

Setenv = Callable[[dict[str, str]], None]


@pytest.fixture
def server() -> Iterator[CredentialServer]:
    with CredentialServer().running() as running:
        yield running


@pytest.fixture
def setenv(monkeypatch: pytest.MonkeyPatch) -> Setenv:
    def set_all(variables: dict[str, str]) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_all


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("first-token")
    return path


class Clock:
    """The origin's clock; the SDK has the real one."""

    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def opened(credentials: Credentials | None = None, *, clock: Callable[[], float] = time.time) -> S3Origin:
    return opened_at(
        S3Origin, "s3://models", credentials or ProviderChain(), endpoint_url="http://127.0.0.1:1", clock=clock
    )


def version(number: int) -> ObjectVersion:
    """A version for each number, so that no signature is reused."""
    return ObjectVersion(f"k{number}", 3, '"abc"', 0)


def key_id(url: str) -> str:
    return parse_qs(urlsplit(url).query)["X-Amz-Credential"][0].split("/")[0]


async def signs_with(origin: S3Origin, number: int = 0, *, fresh: bool = False) -> str:
    return key_id((await origin.read_request(version(number), presigned=True, fresh=fresh)).url)


async def until_it_signs_with(origin: S3Origin, expected: str) -> None:
    """Read on while other keys are fetched in the background; each read must succeed."""
    with trio.fail_after(20):
        number = 1000
        while await signs_with(origin, number) != expected:
            number += 1
            await trio.lowlevel.checkpoint()


@pytest.fixture(params=["web identity", "container", "instance"])
def anywhere(request: pytest.FixtureRequest, server: CredentialServer, setenv: Setenv, token_file: Path) -> str:
    """Each source of temporary credentials that the server plays."""
    name: str = request.param
    setenv(
        {
            "web identity": server.sts(str(token_file)),
            "container": server.container(),
            "instance": server.instance(),
        }[name]
    )
    return name


@pytest.fixture(params=["web identity", "container"])
def source(
    request: pytest.FixtureRequest,
    server: CredentialServer,
    setenv: Setenv,
    token_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """The sources whose expiry the SDK believes; it extends an instance's by 15 minutes."""
    monkeypatch.setattr("botocore.utils.ContainerMetadataFetcher.SLEEP_TIME", 0)
    name: str = request.param
    setenv({"web identity": server.sts(str(token_file)), "container": server.container()}[name])
    return name


async def test_renewed_ahead_of_their_end_beside_the_reads(server: CredentialServer, source: str) -> None:
    server.keys = TemporaryKeys("ASIAFIRST", life_s=800)  # less than the quarter of an hour at which the SDK renews
    clock = Clock()
    async with aclosing(opened(clock=clock)) as origin:
        assert await signs_with(origin) == "ASIAFIRST"
        assert source in origin.describe()["credentials"]
        asked = server.asked
        server.keys = TemporaryKeys("ASIASECOND")
        server.hold.clear()
        clock.now += 61
        with assert_no_checkpoints():
            request = await origin.read_request(version(1), presigned=True)
        assert key_id(request.url) == "ASIAFIRST"
        assert clock.now < request.expires_at < clock.now + 800
        await trio.to_thread.run_sync(server.waiting.wait)
        with assert_no_checkpoints():
            assert await signs_with(origin, 2) == "ASIAFIRST"
        server.hold.set()
        await until_it_signs_with(origin, "ASIASECOND")
        assert server.asked == asked + 1


@pytest.mark.usefixtures("source")
async def test_a_renewal_that_fails_disturbs_nobody_before_the_end(
    server: CredentialServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.keys = TemporaryKeys("ASIAFIRST", life_s=500)  # less than the ten minutes at which the SDK insists
    clock = Clock()
    start = clock.now
    async with aclosing(opened(clock=clock)) as origin:
        assert await signs_with(origin) == "ASIAFIRST"
        server.status = 403
        asked, looks = server.asked, 0
        while clock.now < start + 420:
            clock.now += 61
            looks += 1
            with assert_no_checkpoints():
                assert await signs_with(origin, looks) == "ASIAFIRST"
            with trio.fail_after(20):
                while caplog.text.count("cannot be renewed yet") < looks:
                    await trio.lowlevel.checkpoint()
        assert server.asked > asked
        clock.now = start + 501
        with pytest.raises((AccessDenied, OriginUnavailable), match="credentials"):
            await signs_with(origin, 9998)
        server.status = 200
        server.keys = TemporaryKeys("ASIASECOND")
        assert await signs_with(origin, 9999) == "ASIASECOND"
    assert "temporary-" not in caplog.text


async def test_a_service_that_is_down_at_the_end_may_come_back(
    server: CredentialServer, setenv: Setenv, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("botocore.retries.standard.time.sleep", lambda _: None)
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)
    setenv(server.sts(str(token_file)))
    server.status = 503
    async with aclosing(opened()) as origin:
        with pytest.raises(OriginUnavailable, match="could not be fetched: ServiceUnavailable"):
            await signs_with(origin)
        server.status = 200
        assert await signs_with(origin) == "ASIAFIRST"


async def test_a_web_identity_token_is_read_anew_after_a_refusal(
    server: CredentialServer, setenv: Setenv, token_file: Path
) -> None:
    setenv(server.sts(str(token_file)))
    clock = Clock()
    async with aclosing(opened(clock=clock)) as origin:
        await signs_with(origin)
        token_file.write_text("second-token")
        server.keys = TemporaryKeys("ASIASECOND")
        clock.now += 10
        assert await signs_with(origin, fresh=True) == "ASIASECOND"
    assert server.web_identity_tokens == ["first-token", "second-token"]


async def test_a_reload_that_fails_after_a_refusal_leaves_what_is_at_hand(
    server: CredentialServer, setenv: Setenv, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    setenv(server.sts(str(token_file)))
    clock = Clock()
    async with aclosing(opened(clock=clock)) as origin:
        first = await origin.read_request(version(0), presigned=True)
        server.status = 403
        clock.now += 10
        again = await origin.read_request(version(0), presigned=True, fresh=True)
        assert again is not first
        assert key_id(again.url) == "ASIAFIRST"
        assert "the one in use stays" in caplog.text
        clock.now += 3600
        with pytest.raises(AccessDenied, match="were refused while they were fetched"):
            await origin.read_request(version(0), presigned=True, fresh=True)


def shared_file(path: Path, key: str) -> None:
    """Replace the file as a whole, as Kubernetes and careful programs do."""
    beside = path.with_suffix(".new")
    beside.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = s3cr3t\n")
    beside.replace(path)


async def test_a_shared_file_that_changed_is_read_again(tmp_path: Path, setenv: Setenv) -> None:
    path = tmp_path / "credentials"
    shared_file(path, "AKIAFIRST")
    setenv({"AWS_SHARED_CREDENTIALS_FILE": str(path)})
    clock = Clock()
    async with aclosing(opened(Profile("default"), clock=clock)) as origin:
        assert await signs_with(origin) == "AKIAFIRST"
        shared_file(path, "AKIASECOND")
        clock.now += 30
        assert await signs_with(origin, 1) == "AKIAFIRST"
        clock.now += 31
        await until_it_signs_with(origin, "AKIASECOND")
        shared_file(path, "AKIATHIRD")
        clock.now += 6
        assert await signs_with(origin, fresh=True) == "AKIATHIRD"


async def test_a_shared_file_that_is_broken_for_a_while(
    tmp_path: Path, setenv: Setenv, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "credentials"
    shared_file(path, "AKIAFIRST")
    setenv({"AWS_SHARED_CREDENTIALS_FILE": str(path)})
    clock = Clock()
    async with aclosing(opened(Profile("default"), clock=clock)) as origin:
        await signs_with(origin)
        path.write_text("[default]\naws_access_key_id = AKIA")
        clock.now += 61
        assert await signs_with(origin, 1) == "AKIAFIRST"
        with trio.fail_after(20):
            while "cannot be renewed yet" not in caplog.text:
                await trio.lowlevel.checkpoint()
        for number in range(2, 1000):
            assert await signs_with(origin, number) == "AKIAFIRST"
            await trio.lowlevel.checkpoint()
        shared_file(path, "AKIASECOND")
        clock.now += 61
        await until_it_signs_with(origin, "AKIASECOND")
    assert caplog.text.count("cannot be renewed yet") == 1


async def test_keys_of_ours_are_never_looked_at_again(server: CredentialServer, setenv: Setenv) -> None:
    setenv(server.instance())
    clock = Clock()
    async with aclosing(opened(StaticKeys("AKIAOURS", SecretStr("s3cr3t")), clock=clock)) as origin:
        await signs_with(origin)
        for number in range(1, 4):
            clock.now += 100_000
            with assert_no_checkpoints():
                assert await signs_with(origin, number) == "AKIAOURS"
    assert server.asked == 0


async def test_an_origin_that_was_closed_is_left_alone(
    server: CredentialServer, setenv: Setenv, token_file: Path
) -> None:
    setenv(server.sts(str(token_file)))
    server.keys = TemporaryKeys("ASIAFIRST", life_s=800)
    clock = Clock()
    async with aclosing(opened(clock=clock)) as origin:
        await signs_with(origin)
        server.hold.clear()
        clock.now += 61
        await signs_with(origin, 1)
        await trio.to_thread.run_sync(server.waiting.wait)
    server.hold.set()
    assert origin.describe()["credentials"] == str(ProviderChain())


@pytest.mark.usefixtures("anywhere")
async def test_the_environments_proxies_see_no_call_for_credentials(server: CredentialServer, setenv: Setenv) -> None:
    nobody = "http://127.0.0.1:1"
    setenv(dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY"), nobody))
    async with aclosing(opened()) as origin:
        assert await signs_with(origin) == "ASIAFIRST"
    assert server.asked == 1


async def test_sts_is_asked_through_the_control_proxy(
    server: CredentialServer, setenv: Setenv, token_file: Path
) -> None:
    """The server takes absolute requests too, so it plays the proxy for an unreachable STS."""
    setenv(server.sts(str(token_file)) | {"AWS_ENDPOINT_URL_STS": "http://sts.invalid"})
    async with aclosing(
        opened_at(S3Origin, "s3://models", ProviderChain(), endpoint_url="http://127.0.0.1:1", control_proxy=server.url)
    ) as origin:
        assert await signs_with(origin) == "ASIAFIRST"
    assert server.web_identity_tokens == ["first-token"]


@pytest.mark.usefixtures("source")
async def test_secrets_stay_out_of_logs_and_errors(server: CredentialServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    written = []
    clock = Clock()
    server.keys = TemporaryKeys("ASIAFIRST", life_s=100)
    async with aclosing(opened(clock=clock)) as origin:
        request = await origin.read_request(version(0), presigned=True)
        written += [repr(origin), repr(request), str(origin.describe())]
        server.status = 403
        clock.now += 101
        try:
            await origin.read_request(version(1), presigned=True)
        except D7yfsError as error:
            written += [str(error), repr(error)]
        else:
            pytest.fail("credentials that have ended do not sign")
    text = caplog.text + "".join(written)
    assert not re.search("temporary-|first-token|ASIAFIRST", text)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a directory to another user")
@pytest.mark.parametrize("is_his", [True, False])
async def test_no_program_of_another_users_home_is_run(
    tmp_path: Path, setenv: Setenv, monkeypatch: pytest.MonkeyPatch, is_his: bool
) -> None:
    """`sudo` may keep HOME, and a `credential_process` in that user's ~/.aws/config runs as root."""
    ran, keys = tmp_path / "ran", '{"Version": 1, "AccessKeyId": "HIS", "SecretAccessKey": "s"}'
    (tmp_path / ".aws").mkdir()
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ntouch {ran}\necho '{keys}'\n")
    program.chmod(0o755)
    (tmp_path / ".aws" / "config").write_text(f"[default]\ncredential_process = {program}\n")
    for variable in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(variable, raising=False)
    setenv({"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true"})
    if is_his:
        os.chown(tmp_path, 54321, -1)
    async with aclosing(opened()) as origin:
        if is_his:
            with pytest.raises(AccessDenied, match="no credentials"):
                await signs_with(origin)
        else:
            assert await signs_with(origin) == "HIS"
    assert ran.exists() is not is_his


async def test_a_role_is_the_same_principal_after_its_keys_have_rotated(
    server: CredentialServer, anywhere: str
) -> None:
    principals = set()
    for key in ("ASIAFIRST", "ASIASECOND"):
        server.keys = TemporaryKeys(key)
        async with aclosing(opened()) as origin:
            assert await signs_with(origin) == key
            principals.add(origin.principal)
    if anywhere == "web identity":
        assert principals == {f"role {os.environ['AWS_ROLE_ARN']}"}
    else:
        assert principals == {"session ASIAFIRST", "session ASIASECOND"}, "its role is not known"


async def test_a_login_session_has_the_library_that_it_needs(
    setenv: Setenv, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(botocore.credentials, "EC", None)
    (tmp_path / "config").write_text("[profile console]\nlogin_session = arn:aws:iam::1:user/u\nregion = eu-west-3\n")
    setenv({"AWS_CONFIG_FILE": str(tmp_path / "config"), "HOME": str(tmp_path)})
    async with aclosing(opened(Profile("console"))) as origin:
        with pytest.raises(AccessDenied, match="login session token"):
            await signs_with(origin)
