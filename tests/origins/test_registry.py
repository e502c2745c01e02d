"""The origin of each scheme, and the error for a missing SDK."""

from __future__ import annotations

import sys

import pytest

from d7yfs.config.schema import Anonymous, RepositoryConfig
from d7yfs.config.url import SCHEMES, RepositoryUrl
from d7yfs.errors import ConfigError
from d7yfs.origins import open_origin


def config(text: str) -> RepositoryConfig:
    return RepositoryConfig(url=RepositoryUrl.parse(text), region="eu-1", anonymous=True)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_every_scheme_has_its_origin(scheme: str) -> None:
    origin = open_origin(config(f"{scheme}://account/bucket"), Anonymous())
    assert origin.url.startswith(f"{scheme}://")
    assert origin.identity
    await origin.aclose()


@pytest.mark.parametrize(
    ("scheme", "package", "extra"),
    [("gs", "google.auth", "gs"), ("as", "azure.identity", "azure"), ("oss", "alibabacloud_credentials.http", "oss")],
)
def test_a_missing_sdk_is_named(scheme: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(sys.modules):
        if name.startswith((f"d7yfs.origins.{extra}.", f"d7yfs.origins.rest_stores.{extra}")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError) as caught:
        open_origin(config(f"{scheme}://account/bucket"), Anonymous())
    assert package in caught.value.message
    assert f"extra [{extra}]" in caught.value.hint
