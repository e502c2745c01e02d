"""URLs of what is cached: each names one object and what lies below it, whatever store and key it has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.config.place import Place, azure_account_url, store_of
from d7yfs.config.url import RepositoryUrl
from d7yfs.errors import ConfigError
from d7yfs.objects import StoreIdentity

AWS = StoreIdentity("s3", "aws", "models")
PUBLIC = StoreIdentity("as", "https://account.blob.core.windows.net", "models", "account")
STORES = [
    AWS,
    StoreIdentity("s3", "aws", "model"),
    StoreIdentity("s3", "http://127.0.0.1:9000", "models"),
    StoreIdentity("s3", "https://127.0.0.1:9000", "models"),
    StoreIdentity("s3", "https://minio", "models"),
    StoreIdentity("s3", "http://[::1]:9000", "models"),
    StoreIdentity("s3", "https://host/storage/v1/s3", "models"),
    StoreIdentity("gs", "google", "models"),
    StoreIdentity("gs", "http://127.0.0.1:4443", "models"),
    PUBLIC,
    StoreIdentity("as", "https://another.blob.core.windows.net", "models", "another"),
    StoreIdentity("as", "https://account.blob.core.chinacloudapi.cn", "models", "account"),
    StoreIdentity("as", "http://127.0.0.1:10000/account", "models", "account"),
    StoreIdentity("as", "http://gateway.example/azure/account", "models", "account"),
    StoreIdentity("as", "https://account.privatelink.example", "models", "account"),
    StoreIdentity("oss", "aliyuncs.com", "models"),
    StoreIdentity("oss", "corp.example", "models"),
    StoreIdentity("oss", "http://10.0.0.1", "models"),
    StoreIdentity("obs", "myhuaweicloud.com", "models"),
    StoreIdentity("obs", "myhuaweicloud.eu", "models"),
    StoreIdentity("obs", "https://obs.corp.example:8443", "models"),
]
ODD = [
    "a b",
    " a ",
    "a?b",
    "a#b",
    "a%20b",
    "a%2Fb",
    "a//b",
    "a/",
    "/a",
    "//",
    "a\nb",
    "a\x1b[2Jb",
    "a\x9bb",
    "ü/模",
    "a\udcffb",
    "a\ud800",
]
ODD += [
    "..",
    "a/../b",
    "s3://b/c",
    "http://h/b",
    "u:p@h/b",
    "\u202eab",
    "a\u00a0b",
    "a\\b",
    "a;b",
    "+encoded://aws/b/c",
]

keys = st.one_of(
    st.sampled_from(ODD),
    st.text(st.sampled_from("ab/.% ?#\n\x1b\udcff模@:"), min_size=1, max_size=6),
    st.text(min_size=1, max_size=12),
)
places = st.builds(Place, st.sampled_from(STORES), keys)


@given(places)
def test_what_is_printed_is_read_back(place: Place) -> None:
    assert Place.parse(str(place)) == place


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("key", ["", *ODD])
def test_what_is_odd_is_read_back(store: StoreIdentity, key: str) -> None:
    assert Place.parse(str(Place(store, key))) == Place(store, key)


@given(places, places)
def test_it_covers_that_object_and_what_is_below(place: Place, other: Place) -> None:
    read = Place.parse(str(place))
    assert read.covers(place.store, place.key)
    assert Place(place.store).covers(place.store, place.key)
    below = other.key == place.key or other.key.startswith(f"{place.key}/")
    assert read.covers(other.store, other.key) == (other.store == place.store and below)
    assert (str(place) == str(other)) == (place == other)


@given(places)
def test_it_is_a_line_that_can_be_printed_and_copied(place: Place) -> None:
    text = str(place)
    assert text.isprintable()
    assert text == text.strip()
    assert text.encode()


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (Place(AWS, "a/b c?d#e%20"), "s3://models/a/b c?d#e%20"),
        (Place(PUBLIC, "a//b"), "as://account/models/a//b"),
        (Place(AWS, "a\nb/ü"), "s3+encoded://aws/models/a%0Ab/%C3%BC"),
        (Place(AWS, "/a/"), "s3+encoded://aws/models/%2Fa%2F"),
        (Place(PUBLIC, "a/"), "as+encoded://https:%2F%2Faccount.blob.core.windows.net/account/models/a%2F"),
        (Place(STORES[2], "a/../b"), "s3+encoded://http:%2F%2F127.0.0.1:9000/models/a/../b"),
    ],
)
def test_spellings(place: Place, text: str) -> None:
    assert str(place) == text
    assert Place.parse(text) == place
    assert Place.parse(f"{text}/") == place, "as people write directories"


@pytest.mark.parametrize(
    ("url", "store"),
    [
        ("az://account/models", PUBLIC),
        ("abfss://models@account.dfs.core.windows.net", PUBLIC),
        ("as://account.blob.core.windows.net/models", PUBLIC),
        ("as://account.blob.core.chinacloudapi.cn/models", STORES[11]),
        ("as://127.0.0.1:10000/account/models", STORES[12]),
        ("gs://https://storage.googleapis.com/models", StoreIdentity("gs", "google", "models")),
        ("oss://https://oss-cn-hangzhou.aliyuncs.com/models", StoreIdentity("oss", "aliyuncs.com", "models")),
        ("oss://models.oss-cn-a-internal.aliyuncs.com", StoreIdentity("oss", "aliyuncs.com", "models")),
        ("obs://https://obs.cn-north-4.myhuaweicloud.com/models", StoreIdentity("obs", "myhuaweicloud.com", "models")),
        ("obs://https://obs.eu-west-101.myhuaweicloud.eu/models", StoreIdentity("obs", "myhuaweicloud.eu", "models")),
        ("S3+Encoded://aws/models", AWS),
    ],
)
def test_every_spelling_of_a_store_names_it(url: str, store: StoreIdentity) -> None:
    assert Place.parse(url) == Place(store)


def test_without_an_endpoint_it_is_the_providers_own() -> None:
    assert store_of(RepositoryUrl.parse("s3://models/a")) == AWS
    assert not Place.parse("s3://models").covers(STORES[2], "a")


@pytest.mark.parametrize(
    ("account", "endpoint_url", "url"),
    [
        ("account", "", "https://account.blob.core.windows.net"),
        ("account", "http://gateway.example/azure", "http://gateway.example/azure/account"),
        ("account", "http://127.0.0.1:10000/account", "http://127.0.0.1:10000/account"),
        ("account", "https://account.privatelink.example", "https://account.privatelink.example"),
    ],
)
def test_azure_accounts(account: str, endpoint_url: str, url: str) -> None:
    assert azure_account_url(account, endpoint_url) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "models",
        "ftp://models",
        "ftp+encoded://aws/models",
        "s3+encoded://",
        "s3+encoded://aws",
        "s3+encoded:///models",
        "s3+encoded://aws//a",
        "as+encoded://https:%2F%2Fh/account",
        "s3+encoded://aws/models/%FF",
        "s3+encoded://aws/%FF/a",
        "s3+encoded://aws/models/\udcff",
        "s3://models/a\nb",
    ],
)
def test_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Place.parse(text)
    assert caught.value.hint


@given(st.text())
def test_anything_else_is_a_config_error(text: str) -> None:
    for candidate in (text, f"s3+encoded://{text}", f"as+encoded://a/b/{text}"):
        try:
            place = Place.parse(candidate)
        except ConfigError:
            continue
        assert Place.parse(str(place)) == place


def test_credentials_are_never_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        Place.parse("s3+encoded://KEY:hunter2@minio")
    assert "hunter2" not in str(caught.value)
