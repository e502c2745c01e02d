"""Azure's own variables: whose account they speak of, and what a connection string says."""

from __future__ import annotations

import pytest

from d7yfs.config.azure import from_environ
from d7yfs.config.layers import Found, Value
from d7yfs.config.schema import SasToken, StaticKeys
from d7yfs.errors import ConfigError
from d7yfs.objects import SecretStr

KEY = "c2VjcmV0LWtleQ=="
SAS = "sv=2024-01-01&sig=hunter2"
SECRET = SecretStr(KEY)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, None),
        ({"AZURE_STORAGE_KEY": ""}, None),
        (
            {"AZURE_STORAGE_ACCOUNT": "Mine", "AZURE_STORAGE_KEY": KEY},
            (Value(StaticKeys("mine", SECRET), "AZURE_STORAGE_KEY"), {}),
        ),
        ({"AZURE_STORAGE_KEY": KEY}, (Value(StaticKeys("mine", SECRET), "AZURE_STORAGE_KEY"), {})),
        ({"AZURE_STORAGE_ACCOUNT": "other", "AZURE_STORAGE_KEY": KEY}, None),
        (
            {"AZURE_STORAGE_SAS_TOKEN": f"?{SAS}"},
            (Value(SasToken(SecretStr(SAS)), "AZURE_STORAGE_SAS_TOKEN"), {}),
        ),
        (
            {"AZURE_STORAGE_SAS_TOKEN": SAS, "AZURE_STORAGE_KEY": KEY},
            (Value(StaticKeys("mine", SECRET), "AZURE_STORAGE_KEY"), {}),
        ),
    ],
)
def test_variables(environ: dict[str, str], expected: Found | None) -> None:
    assert from_environ(environ, "mine") == expected


@pytest.mark.parametrize(
    ("text", "endpoint_url", "suffix"),
    [
        (f"AccountName=mine;AccountKey={KEY}", "", ""),
        (
            f"DefaultEndpointsProtocol=https;AccountName=mine;AccountKey={KEY};EndpointSuffix=core.chinacloudapi.cn;",
            "",
            "core.chinacloudapi.cn",
        ),
        (f"DefaultEndpointsProtocol=http;AccountName=mine;AccountKey={KEY}", "http://mine.blob.core.windows.net", ""),
        (
            f"AccountName=mine;AccountKey={KEY};BlobEndpoint=http://127.0.0.1:10000/mine;",
            "http://127.0.0.1:10000",
            "",
        ),
    ],
)
def test_a_connection_string_with_a_key(text: str, endpoint_url: str, suffix: str) -> None:
    found = from_environ({"AZURE_STORAGE_CONNECTION_STRING": text}, "mine")
    where = "AZURE_STORAGE_CONNECTION_STRING"
    places = {"endpoint_url": endpoint_url, "endpoint_suffix": suffix}
    expected = {name: Value(place, where) for name, place in places.items() if place}
    assert found == (Value(StaticKeys("mine", SECRET), where), expected)


def test_a_connection_string_with_a_signature() -> None:
    text = f"BlobEndpoint=https://mine.blob.core.windows.net;SharedAccessSignature={SAS}"
    found = from_environ({"AZURE_STORAGE_CONNECTION_STRING": text}, "mine")
    assert found is not None
    credentials, places = found
    assert credentials.value == SasToken(SecretStr(SAS))
    assert places["endpoint_url"].value == "https://mine.blob.core.windows.net"


def test_a_connection_string_of_another_account_says_nothing() -> None:
    text = f"AccountName=other;AccountKey={KEY}"
    assert from_environ({"AZURE_STORAGE_CONNECTION_STRING": text}, "mine") is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (f"garbage {KEY[:-2]}", "not a connection string"),
        ("AccountName=mine", "neither AccountKey nor SharedAccessSignature"),
        (f"BlobEndpoint=ftp://x;AccountKey={KEY}", "BlobEndpoint must begin with http"),
        ("UseDevelopmentStorage=true", "emulator"),
    ],
)
def test_a_malformed_connection_string_is_not_repeated(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        from_environ({"AZURE_STORAGE_CONNECTION_STRING": text}, "mine")
    assert KEY[:-2] not in str(caught.value)
