"""The identity behind an origin's credentials, under which grants are recorded."""

from __future__ import annotations

from base64 import b64encode
from contextlib import aclosing

import pytest

from d7yfs.config.schema import Anonymous, Credentials, RepositoryConfig, SasToken, StaticKeys
from d7yfs.config.url import RepositoryUrl
from d7yfs.objects import ObjectVersion, SecretStr
from d7yfs.origins import open_origin
from d7yfs.origins.origin import ANONYMOUS, SESSION

SECRET = b64encode(b"s3cr3t").decode()
URLS = {
    "s3": "s3://models",
    "gs": "gs://models",
    "as": "as://account/models",
    "oss": "oss://models",
    "obs": "obs://models",
}
KEYS = StaticKeys("KEYID", SecretStr(SECRET))
SAS = SasToken(SecretStr("sv=2022-11-02&sp=r&sig=5ecre7"))


async def principal_of(scheme: str, credentials: Credentials) -> str:
    region = "eu-west-3" if scheme in ("s3", "oss", "obs") else ""
    settings = RepositoryConfig(url=RepositoryUrl.parse(URLS[scheme]), region=region)
    async with aclosing(open_origin(settings, credentials)) as origin:
        await origin.read_request(ObjectVersion("k", 1, "1" if scheme == "gs" else '"e"', 0), presigned=False)
        return origin.principal


@pytest.mark.parametrize("scheme", URLS)
async def test_unsigned_requests_are_one_principal(scheme: str) -> None:
    assert await principal_of(scheme, Anonymous()) == ANONYMOUS


@pytest.mark.parametrize("scheme", URLS)
async def test_a_key_is_known_by_its_id_and_never_by_its_secret(scheme: str) -> None:
    expected = "account account" if scheme == "as" else "key KEYID"
    assert await principal_of(scheme, KEYS) == expected


async def test_temporary_keys_without_a_role_are_a_session() -> None:
    keys = StaticKeys("ASIAKEY", SecretStr(SECRET), SecretStr("token"))
    assert await principal_of("s3", keys) == f"{SESSION}ASIAKEY"


async def test_a_signature_that_was_made_elsewhere_has_no_principal() -> None:
    assert await principal_of("as", SAS) == ""


async def secret_of(scheme: str, credentials: Credentials) -> str:
    region = "eu-west-3" if scheme in ("s3", "oss", "obs") else ""
    settings = RepositoryConfig(url=RepositoryUrl.parse(URLS[scheme]), region=region)
    async with aclosing(open_origin(settings, credentials)) as origin:
        await origin.read_request(ObjectVersion("k", 1, "1" if scheme == "gs" else '"e"', 0), presigned=False)
        return origin.lasting_secret.get_secret_value()


@pytest.mark.parametrize("scheme", URLS)
async def test_only_keys_that_last_have_a_lasting_secret(scheme: str) -> None:
    assert await secret_of(scheme, KEYS) == SECRET
    assert await secret_of(scheme, Anonymous()) == ""


async def test_what_is_temporary_or_was_made_elsewhere_has_no_lasting_secret() -> None:
    assert await secret_of("s3", StaticKeys("ASIAKEY", SecretStr(SECRET), SecretStr("token"))) == ""
    assert await secret_of("as", SAS) == ""
