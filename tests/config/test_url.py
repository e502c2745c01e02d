"""Every spelling of a repository, its normal form, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.config.url import SCHEMES, RepositoryUrl, normal_endpoint, redact
from d7yfs.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "endpoint_url", "bucket", "prefix"),
    [
        ("s3://models", "", "models", ""),
        ("s3://models/", "", "models", ""),
        ("S3://models/triton", "", "models", "triton"),
        ("s3://models//triton//", "", "models", "triton"),
        ("s3://models/a//b/", "", "models", "a//b"),
        ("s3://models/A b%20c=d@e?f#g", "", "models", "A b%20c=d@e?f#g"),
        ("s3://models.example.com/x", "", "models.example.com", "x"),
        ("s3://models/..a/b..", "", "models", "..a/b.."),
        ("s3://minio:9000/b", "http://minio:9000", "b", ""),
        ("s3://minio:9000/b/p/q/", "http://minio:9000", "b", "p/q"),
        ("s3://MinIO:09000//b/p@q", "http://minio:9000", "b", "p@q"),
        ("s3://http://minio:9000/b/p", "http://minio:9000", "b", "p"),
        ("s3://http://minio:80/b/p", "http://minio", "b", "p"),
        ("s3://minio:80/b/p", "http://minio", "b", "p"),
        ("s3://https://minio/b", "https://minio", "b", ""),
        ("s3://HTTPS://S3.example.com:443/b/P", "https://s3.example.com", "b", "P"),
        ("s3://https://my_store:8443/b", "https://my_store:8443", "b", ""),
        ("s3://[::1]:9000/b/p", "http://[::1]:9000", "b", "p"),
        ("s3://[0:0:0:0:0:0:0:1]:9000/b/p", "http://[::1]:9000", "b", "p"),
        ("s3://https://[2001:DB8::1]/b", "https://[2001:db8::1]", "b", ""),
        ("s3://[::1]/b", "http://[::1]", "b", ""),
        ("s3://10.0.0.1:9000/b", "http://10.0.0.1:9000", "b", ""),
    ],
)
def test_spellings(text: str, endpoint_url: str, bucket: str, prefix: str) -> None:
    assert RepositoryUrl.parse(text) == RepositoryUrl("s3", endpoint_url, bucket, prefix)


@pytest.mark.parametrize("scheme", ["gs", "oss", "obs"])
def test_other_providers_parse(scheme: str) -> None:
    assert str(RepositoryUrl.parse(f"{scheme}://bucket/p/")) == f"{scheme}://bucket/p"


@pytest.mark.parametrize(
    ("text", "endpoint_url", "account", "container", "prefix"),
    [
        ("as://models/c", "", "models", "c", ""),
        ("as://Models/c/a//b/", "", "models", "c", "a//b"),
        ("az://models/c/p", "", "models", "c", "p"),
        ("as://models.blob.core.windows.net/c/p", "", "models", "c", "p"),
        ("as://MODELS.blob.core.windows.net//c/P", "", "models", "c", "P"),
        (
            "as://models.blob.core.chinacloudapi.cn/c/p",
            "https://models.blob.core.chinacloudapi.cn",
            "models",
            "c",
            "p",
        ),
        ("abfs://c@models.dfs.core.windows.net/p/q", "", "models", "c", "p/q"),
        ("abfss://c@models.dfs.core.windows.net", "", "models", "c", ""),
        ("wasb://c@models.blob.core.windows.net/p", "", "models", "c", "p"),
        ("wasbs://c@models.blob.core.windows.net/p/q", "", "models", "c", "p/q"),
        ("as://http://127.0.0.1:10000/models/c/p", "http://127.0.0.1:10000", "models", "c", "p"),
        ("as://127.0.0.1:10000/models/c", "http://127.0.0.1:10000", "models", "c", ""),
    ],
)
def test_azure_spellings(text: str, endpoint_url: str, account: str, container: str, prefix: str) -> None:
    url = RepositoryUrl.parse(text)
    assert url == RepositoryUrl("as", endpoint_url, container, prefix, account)
    assert RepositoryUrl.parse(str(url)) == url


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("as://", "no account"),
        ("as://models", "no container"),
        ("as://my-models/c", "not a storage account"),
        ("as://ab/c", "not a storage account"),
        ("as://models:hunter2@host/c", "credentials"),
        ("abfs://c:hunter2@models.dfs.core.windows.net/p", "credentials"),
    ],
)
def test_azure_refusals(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        RepositoryUrl.parse(text)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "endpoint_url", "bucket", "prefix"),
    [
        ("oss://models/triton", "", "models", "triton"),
        ("oss://models.oss-cn-hangzhou.aliyuncs.com/p", "https://oss-cn-hangzhou.aliyuncs.com", "models", "p"),
        (
            "oss://models.oss-cn-hangzhou-internal.aliyuncs.com",
            "https://oss-cn-hangzhou-internal.aliyuncs.com",
            "models",
            "",
        ),
        ("oss://https://oss.example.com/models/p", "https://oss.example.com", "models", "p"),
    ],
)
def test_oss_spellings(text: str, endpoint_url: str, bucket: str, prefix: str) -> None:
    assert RepositoryUrl.parse(text) == RepositoryUrl("oss", endpoint_url, bucket, prefix)


@pytest.mark.parametrize(
    ("place", "url", "covers"),
    [
        ("as://models", "as://models/c/p", True),
        ("as://models", "as://other/c/p", False),
        ("as://", "as://models/c", True),
        ("as://models/c", "as://models/c/p", True),
        ("as://models/c", "as://models/d/p", False),
        ("as://models.blob.core.windows.net", "as://models/c", True),
    ],
)
def test_an_account_covers_its_containers(place: str, url: str, covers: bool) -> None:
    assert RepositoryUrl.parse_prefix(place).covers(RepositoryUrl.parse(url)) is covers


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no scheme"),
        ("models/triton", "no scheme"),
        ("/mnt/models", "no scheme"),
        ("s3:/models", "no scheme"),
        ("ftp://models", "scheme ftp:// is not supported"),
        ("https://minio/models", "scheme https:// alone is not supported"),
        ("s3://", "no bucket"),
        ("s3:///models", "no bucket"),
        ("s3://minio:9000", "no bucket"),
        ("s3://https://minio/", "no bucket"),
        ("s3://ftp://minio/b", "endpoint scheme ftp://"),
        ("s3://minio:/b", "port"),
        ("s3://minio:0/b", "port"),
        ("s3://minio:65536/b", "port"),
        ("s3://minio:9x/b", "port"),
        ("s3://::1:9000/b", "host name"),
        ("s3://[::zz]:9000/b", "IPv6"),
        ("s3://[fe80::1%eth0]:9000/b", "zone"),
        ("s3://[::1/b", "IPv6 address in brackets"),
        ("s3://mod els/b", "'mod els' is not a bucket name"),
        ("s3://../b", "'..' is not a bucket name"),
        ("s3://minio:9000/../b", "'..' is not a bucket name"),
        ("s3://models/a/../../other", "'.' or '..' segment"),
        ("s3://models/./a", "'.' or '..' segment"),
        ("s3://models/a\nb", "control character"),
        ("s3://models/a\udcffb", "not UTF-8"),
    ],
)
def test_refused(text: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RepositoryUrl.parse(text)
    assert what in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "same"), [("s3a://b/p", "s3://b/p"), ("s3n://b", "s3://b"), ("gcs://b/p/q", "gs://b/p/q")]
)
def test_spellings_of_other_tools(text: str, same: str) -> None:
    assert RepositoryUrl.parse(text) == RepositoryUrl.parse(same)


def test_a_hub_is_no_store_and_the_way_is_told() -> None:
    with pytest.raises(ConfigError, match="hf:// is not supported") as caught:
        RepositoryUrl.parse("hf://org/name")
    assert "copy it to a bucket" in caught.value.hint


def test_unsupported_scheme_lists_the_supported() -> None:
    with pytest.raises(ConfigError, match="supported: s3://") as caught:
        RepositoryUrl.parse("hdfs://models")
    assert all(f"{scheme}://" in caught.value.message for scheme in SCHEMES)


@pytest.mark.parametrize(
    "text",
    [
        "s3://KEY:hunter2@minio:9000/b",
        "s3://KEY:hunter2/hunter2@minio:9000/b",
        "s3://KEY:hun?ter2hunter2@minio:9000/b",
        "s3://https://KEY:hunter2@minio/b",
        "s3://https://KEY:hunter2://hunter2@minio/b",
        "https://minio/b?X-Amz-Signature=hunter2",
        "KEY:hunter2@minio/b",
    ],
)
def test_credentials_are_refused_and_never_repeated(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        RepositoryUrl.parse(text)
    assert "hunter2" not in str(caught.value)


def test_redact_keeps_what_is_harmless() -> None:
    assert redact("s3://models/triton") == "s3://models/triton"
    assert redact("http://u:p@proxy:4001") == "http://…@proxy:4001"


@pytest.mark.parametrize(
    ("key", "url", "covers"),
    [
        ("s3://b", "s3://b", True),
        ("s3://b/", "s3://b/models/x", True),
        ("s3://b/models", "s3://b/models", True),
        ("s3://b/models", "s3://b/models/x", True),
        ("s3://b/mo", "s3://b/models", False),
        ("s3://b/models/x", "s3://b/models", False),
        ("s3://b", "s3://bb", False),
        ("s3://h:9000/b", "s3://http://h:9000/b/x", True),
        ("s3://http://h:9000/b", "s3://h:9000/b/", True),
        ("s3://https://h:9000/b", "s3://h:9000/b", False),
        ("s3://h:9000", "s3://h:9000/b", True),
        ("s3://h:9000", "s3://h:9001/b", False),
        ("s3://", "s3://h:9000/b", True),
        ("s3://", "s3://b/x", True),
        ("s3://", "gs://b/x", False),
        ("s3://b", "s3://h:9000/b", False),
    ],
)
def test_covers_on_path_boundaries(key: str, url: str, covers: bool) -> None:
    assert RepositoryUrl.parse_prefix(key).covers(RepositoryUrl.parse(url)) is covers


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("https://S3.example.com:443/", "https://s3.example.com"),
        ("http://h:80/storage/v1/s3/", "http://h/storage/v1/s3"),
        ("https://[::1]:9000", "https://[::1]:9000"),
    ],
)
def test_endpoint(text: str, normal: str) -> None:
    assert normal_endpoint(text) == normal


hosts = st.sampled_from(["minio", "MINIO.example.com", "10.0.0.1", "[::1]", "[2001:DB8:0:0::1]"])
ports = st.integers(1, 65535).map(lambda port: f":{port}")
endpoints = st.one_of(
    st.just(""),
    st.builds(lambda host, port: f"{host}{port}/", hosts, ports),
    st.builds(
        lambda scheme, host, port: f"{scheme}://{host}{port}/",
        st.sampled_from(["http", "https", "HTTP"]),
        hosts,
        st.one_of(st.just(""), ports),
    ),
)
segments = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=8).filter(
    lambda text: text not in (".", "..")
)
urls = st.builds(
    lambda scheme, endpoint, bucket, prefix: (
        f"{scheme}://{endpoint}{'Account/' if scheme == 'as' else ''}{bucket}/{'/'.join(prefix)}"
    ),
    st.sampled_from(["s3", "S3", "gs", "as", "oss", "obs"]),
    endpoints,
    st.from_regex(r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,20}\Z"),
    st.lists(segments, max_size=5),
)


@given(urls)
def test_normal_form_is_stable_and_complete(text: str) -> None:
    url = RepositoryUrl.parse(text)
    again = RepositoryUrl.parse(str(url))
    assert again == url
    assert str(again) == str(url)
    assert RepositoryUrl.parse(f"{url}/") == url
    assert url.covers(url)


@given(st.text())
def test_anything_else_is_a_config_error(text: str) -> None:
    for candidate in (text, f"s3://{text}", f"s3://https://{text}"):
        try:
            url = RepositoryUrl.parse(candidate)
        except ConfigError:
            continue
        assert url.bucket
        assert RepositoryUrl.parse(str(url)) == url


@pytest.mark.parametrize(
    "query",
    [
        "sv=2022-11-02&ss=b&sig=SECRET",
        "sig=SECRET",
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=SECRET",
        "X-Amz-Expires=60&X-Amz-Signature=SECRET",
        "x-amz-security-token=SECRET",
        "X-Goog-Signature=SECRET",
        "OSSAccessKeyId=id&Expires=1&Signature=SECRET",
        "AWSAccessKeyId=SECRET",
        "AccessKeyId=SECRET",
        "token=SECRET",
        "versionId=1&access_token=SECRET",
    ],
)
@pytest.mark.parametrize(
    "url",
    [
        "s3://b/p",
        "s3://https://h/b/p",
        "gs://b",
        "oss://b/p",
        "obs://b/p",
        "as://acct/c",
        "abfs://c@a.dfs.core.windows.net/p",
    ],
)
def test_a_signature_in_the_query_is_refused_and_not_repeated(url: str, query: str) -> None:
    with pytest.raises(ConfigError, match="has a signature or a token in its query") as caught:
        RepositoryUrl.parse(f"{url}?{query}")
    assert "SECRET" not in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("url", ["s3://b/a?b.txt", "s3://b/is?this=a&key=too", "s3://b/token=1"])
def test_a_question_mark_may_be_part_of_a_key(url: str) -> None:
    assert str(RepositoryUrl.parse(url)) == url
