"""The order of sources, files and renewal; the services are left to Alibaba's SDK."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from d7yfs.config.schema import Anonymous, Credentials, Profile, ProviderChain, StaticKeys
from d7yfs.errors import AccessDenied, ConfigError
from d7yfs.objects import SecretStr
from d7yfs.origins.access_keys import AccessKeys
from d7yfs.origins.rest_stores import oss_credentials
from d7yfs.origins.rest_stores.oss import OssOrigin
from tests.origins.opening import opened_at
from tests.servers.bucket_server import Identity
from tests.servers.http11 import Answer, HttpServer, Request
from tests.servers.oss import OssServer

NO_ECS = {"ALIBABA_CLOUD_ECS_METADATA_DISABLED": "true"}
OSS_ENV = {"OSS_ACCESS_KEY_ID": "env", "OSS_ACCESS_KEY_SECRET": "s", "OSS_SESSION_TOKEN": "t"}
ALIBABA_ENV = {"ALIBABA_CLOUD_ACCESS_KEY_ID": "sdk-env", "ALIBABA_CLOUD_ACCESS_KEY_SECRET": "s"}


async def load(source: Credentials, home: Path, environ: Mapping[str, str] | None = None) -> AccessKeys | None:
    variables = {**NO_ECS, "HOME": str(home), **(environ or {})}
    async with aclosing(opened_at(OssOrigin, "oss://b", source, region="cn-hangzhou", environ=variables)) as origin:
        return await origin._load(None)


def write(home: Path, name: str, text: str) -> None:
    (home / name).parent.mkdir(parents=True, exist_ok=True)
    (home / name).write_text(text)


INI = (
    "[default]\ntype = access_key  # comment\naccess_key_id = ini\naccess_key_secret = se%cret\n\n"
    "[ci]\ntype = sts\naccess_key_id = ci\naccess_key_secret = s\nsecurity_token = t\n"
)
CLI = json.dumps(
    {
        "current": "work",
        "profiles": [
            {"name": "work", "mode": "AK", "access_key_id": "cli", "access_key_secret": "s"},
            {"name": "temp", "mode": "StsToken", "access_key_id": "temp", "access_key_secret": "s", "sts_token": "t"},
            {"name": "rsa", "mode": "RsaKeyPair"},
            {"name": "broken", "mode": "AK"},
        ],
    }
)
OSSUTIL_1 = "[Credentials]\nlanguage=EN\naccessKeyID=util\naccessKeySecret=s\nstsToken=t\nendpoint=x\n"
OSSUTIL_2 = "[default]\naccessKeyID=util2\naccessKeySecret=s\n\n[profile dev]\naccess-key-id=dev\naccess-key-secret=s\n"


async def test_order_of_the_chain(tmp_path: Path) -> None:
    chain = ProviderChain()
    with pytest.raises(AccessDenied, match="no credentials") as caught:
        await load(chain, tmp_path)
    assert "OSS_ACCESS_KEY_ID" in caught.value.hint
    write(tmp_path, ".aliyun/config.json", CLI)
    assert (await load(chain, tmp_path)).key_id == "cli"  # type: ignore[union-attr]
    write(tmp_path, ".alibabacloud/credentials", INI.replace("= ini", "= ini-old"))
    assert (await load(chain, tmp_path)).key_id == "ini-old"  # type: ignore[union-attr]
    write(tmp_path, ".alibabacloud/credentials.ini", INI)
    found = await load(chain, tmp_path)
    assert found is not None
    assert (found.key_id, found.secret, found.check_again_s) == ("ini", "se%cret", 60)
    assert found.source == f"file {tmp_path}/.alibabacloud/credentials.ini"
    write(tmp_path, ".oss", OSSUTIL_1)
    assert (await load(chain, tmp_path)).token == "t"  # type: ignore[union-attr]
    write(tmp_path, ".ossutilconfig", OSSUTIL_2)
    assert (await load(chain, tmp_path)).key_id == "util2"  # type: ignore[union-attr]
    assert (await load(chain, tmp_path, ALIBABA_ENV)).key_id == "sdk-env"  # type: ignore[union-attr]
    found = await load(chain, tmp_path, {**ALIBABA_ENV, **OSS_ENV})
    assert found is not None
    assert (found.key_id, found.token) == ("env", "t")


@pytest.mark.parametrize(("name", "key_id"), [("ci", "ci"), ("work", "cli"), ("temp", "temp"), ("dev", "dev")])
async def test_profile(tmp_path: Path, name: str, key_id: str) -> None:
    write(tmp_path, ".alibabacloud/credentials.ini", INI)
    write(tmp_path, ".aliyun/config.json", CLI)
    write(tmp_path, ".ossutilconfig", OSSUTIL_2)
    found = await load(Profile(name), tmp_path, OSS_ENV)
    assert found is not None
    assert found.key_id == key_id


async def test_profile_that_cannot_be_used(tmp_path: Path) -> None:
    write(tmp_path, ".aliyun/config.json", CLI)
    with pytest.raises(ConfigError, match="no profile 'absent'"):
        await load(Profile("absent"), tmp_path)
    with pytest.raises(ConfigError, match="'RsaKeyPair'"):
        await load(Profile("rsa"), tmp_path)
    with pytest.raises(AccessDenied, match="KeyError"):
        await load(Profile("broken"), tmp_path)


@pytest.mark.parametrize("name", [".aliyun/config.json", ".alibabacloud/credentials.ini", ".ossutilconfig"])
async def test_file_that_is_none(tmp_path: Path, name: str) -> None:
    write(tmp_path, name, "secret {")
    with pytest.raises(ConfigError, match=r"is not an? (INI|JSON) file") as caught:
        await load(ProviderChain(), tmp_path)
    assert "secret" not in str(caught.value)


async def test_given_and_none(tmp_path: Path) -> None:
    assert await load(Anonymous(), tmp_path, OSS_ENV) is None
    assert await load(ProviderChain(else_anonymous=True), tmp_path) is None
    given = await load(StaticKeys("k", SecretStr("s"), SecretStr("t")), tmp_path, OSS_ENV)
    assert given is not None
    assert (given.key_id, given.secret, given.token) == ("k", "s", "t")


class Instance(HttpServer):
    """The credentials URI of an instance on PAI, which numbers its keys."""

    def __init__(self) -> None:
        super().__init__()
        self.expires_at = 0.0
        self.status = 200

    async def answer(self, request: Request) -> Answer:
        reply = {
            "Code": "Success",
            "AccessKeyId": f"STS.{len(self.requests)}",
            "AccessKeySecret": "role-secret",
            "SecurityToken": "role-token",
            "Expiration": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.expires_at)),
        }
        return Answer(self.status, {"Content-Type": "application/json"}, json.dumps(reply).encode())


async def test_role_is_renewed_ahead_and_outlives_a_failing_service(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    names = ("STS.1", "STS.2", "STS.3")
    async with OssServer(*(Identity(name, "role-secret", "role-token") for name in names)).running() as server:
        server.put("a", b"1")
        start = int(server.clock())
        now = [float(start)]
        server.clock = lambda: now[0]
        async with Instance().running() as instance:
            instance.expires_at = start + 7200
            environ = {
                **NO_ECS,
                "HOME": str(tmp_path),
                "ALIBABA_CLOUD_CREDENTIALS_URI": f"{instance.url}/api/v1/credentials/0",
            }
            options: dict[str, Any] = {"endpoint_url": server.url, "region": server.region, "environ": environ}
            async with aclosing(
                opened_at(OssOrigin, "oss://bucket", ProviderChain(), clock=lambda: now[0], **options)
            ) as origin:
                version = await origin.stat("a")
                assert origin.describe()["credentials"] == "the credentials URI"

                instance.status = 500
                now[0] = start + 7200 - 600
                request = await origin.read_request(version, presigned=True)
                assert "STS.1" in request.url, "still valid: nobody waits"
                assert request.expires_at == start + 7200
                with trio.fail_after(10):
                    while "cannot be renewed yet" not in caplog.text:
                        await trio.testing.wait_all_tasks_blocked(0.01)

                instance.status, instance.expires_at = 200, start + 20000
                now[0] += 31
                await origin.list("")
                with trio.fail_after(10):
                    while "STS.1" in (await origin.read_request(version, presigned=True, fresh=True)).url:
                        await trio.testing.wait_all_tasks_blocked(0.01)
    written = caplog.text + "".join(capfd.readouterr())
    assert "role-" not in written


async def test_roles_are_asked_for_with_what_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = []

    class Provider:
        def __init__(self, **options: Any) -> None:
            asked.append(options)

        def get_credentials(self) -> Any:
            class Found:
                get_access_key_id = staticmethod(lambda: "STS.x")
                get_access_key_secret = staticmethod(lambda: "s")
                get_security_token = staticmethod(lambda: "t")
                get_expiration = staticmethod(lambda: 4_000_000_000)

            return Found()

    for name in ("OIDCRoleArn", "RamRoleArn", "EcsRamRole"):
        monkeypatch.setattr(oss_credentials, f"{name}CredentialsProvider", Provider)
    names = ("ROLE_ARN", "OIDC_PROVIDER_ARN", "OIDC_TOKEN_FILE")
    found = await load(ProviderChain(), tmp_path, {f"ALIBABA_CLOUD_{name}": name.lower() for name in names})
    assert found is not None
    assert (found.key_id, found.expires_at, found.source) == ("STS.x", 4e9, "a role for the service account (OIDC)")
    assert asked[-1]["oidc_token_file_path"] == "oidc_token_file"
    found = await load(
        ProviderChain(), tmp_path, {"ALIBABA_CLOUD_ECS_METADATA_DISABLED": "", "ALIBABA_CLOUD_ECS_METADATA": "r"}
    )
    assert found is not None
    assert (found.source, asked[-1]) == ("instance metadata", {"role_name": "r", "async_update_enabled": False})
    role = "[r]\ntype=ram_role_arn\naccess_key_id=a\naccess_key_secret=s\nrole_arn=acs:ram::1:role/x\n"
    write(tmp_path, ".alibabacloud/credentials.ini", role)
    assert await load(Profile("r"), tmp_path)
    assert asked[-1]["role_arn"] == "acs:ram::1:role/x"
