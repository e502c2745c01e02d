"""Triton's credential file and the Dragonfly agent's configuration, right and wrong."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import pytest

from d7yfs.config.schema import CredentialsFile, Profile, ProviderChain, StaticKeys
from d7yfs.config.sources import load_settings
from d7yfs.config.triton import (
    CredentialEntry,
    CredentialFile,
    DragonflyFile,
    Located,
    locate,
    read_credentials,
    read_dragonfly,
)
from d7yfs.config.url import RepositoryUrl
from d7yfs.errors import ConfigError
from d7yfs.objects import SecretStr

SECRET = "wJalrXUtnFEMI/hunter2"


def write(directory: Path, content: Any) -> Path:
    path = directory / "file.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def credentials(directory: Path, content: Any) -> CredentialFile:
    return read_credentials(write(directory, content))


def dragonfly(directory: Path, content: Any) -> DragonflyFile:
    return read_dragonfly(write(directory, content))


def entry_of(file: CredentialFile, url: str) -> CredentialEntry:
    return file.match(RepositoryUrl.parse(url))


def test_all_sections(tmp_path: Path) -> None:
    file = credentials(
        tmp_path,
        {
            "gs": {"": "/etc/gs.json", "gs://b": ""},
            "s3": {"": {"secret_key": SECRET, "key_id": "AKIA", "region": "r", "session_token": "t", "profile": "p"}},
            "as": {"as://account/container": {"account_str": "account", "account_key": SECRET}},
            "oss": {"": {"secret_key": SECRET, "key_id": "LTAI"}},
            "obs": {},
        },
    )
    assert file.warnings == ()
    assert entry_of(file, "gs://x/y").credentials == CredentialsFile(Path("/etc/gs.json"))
    assert entry_of(file, "gs://b").credentials == ProviderChain(else_anonymous=True)
    assert entry_of(file, "as://account/container/models").credentials == StaticKeys("account", SecretStr(SECRET))
    keys = entry_of(file, "s3://any").credentials
    assert isinstance(keys, StaticKeys)
    assert keys.key_id == "AKIA"
    assert keys.secret_key.get_secret_value() == SECRET
    assert keys.session_token
    assert keys.session_token.get_secret_value() == "t"
    assert SECRET not in repr(file) + repr(keys) + str(keys)


@pytest.mark.parametrize(
    ("url", "region"),
    [
        ("s3://elsewhere", "default"),
        ("s3://models", "bucket"),
        ("s3://models/", "bucket"),
        ("s3://models/a", "a"),
        ("s3://models/a/b/c", "ab"),
        ("s3://models/ab", "bucket"),
        ("s3://minio:9000/models/a", "minio"),
        ("s3://http://minio:9000/models", "minio"),
        ("s3://https://minio:9000/models", "default"),
        ("s3://https://tls/b/x", "tls"),
    ],
)
def test_longest_key_on_a_path_boundary_wins(tmp_path: Path, url: str, region: str) -> None:
    regions = {
        "": "default",
        "s3://models/": "bucket",
        "s3://models/a": "a",
        "s3://models/a/b/": "ab",
        "s3://minio:9000/models": "minio",
        "s3://https://tls": "tls",
    }
    file = credentials(tmp_path, {"s3": {key: {"region": region} for key, region in regions.items()}})
    assert entry_of(file, url).region == region


@pytest.mark.parametrize("content", [{}, {"gs": {"": "x"}}, {"s3": {}}, {"s3": {"s3://models/triton": {}}}])
def test_no_match_names_the_url_and_the_keys(tmp_path: Path, content: Any) -> None:
    file = credentials(tmp_path, content)
    with pytest.raises(ConfigError) as caught:
        file.match(RepositoryUrl.parse("s3://models/tri"))
    message = caught.value.message
    assert str(file.path) in message
    assert "s3://models/tri;" in message
    assert ('"s3://models/triton"' if content.get("s3") else "keys there: none") in message


def test_no_match_names_what_is_wrong_with_the_keys(tmp_path: Path) -> None:
    file = credentials(tmp_path, {"s3": {"s3:/models": {}}})
    with pytest.raises(ConfigError) as caught:
        file.match(RepositoryUrl.parse("s3://models/tri"))
    assert caught.value.hint.endswith(f'\n  {file.path}: s3["s3:/models"] is not a URL, so it covers nothing')


@pytest.mark.parametrize(
    ("entry", "expected", "warning"),
    [
        ({}, ProviderChain(), ""),
        ({"secret_key": "", "key_id": "", "region": "", "session_token": "", "profile": ""}, ProviderChain(), ""),
        ({"profile": "dev"}, Profile("dev"), ""),
        ({"profile": "dev", "key_id": "AKIA"}, Profile("dev"), "no secret_key"),
        ({"secret_key": SECRET}, ProviderChain(), "no key_id"),
        ({"session_token": SECRET}, ProviderChain(), "session_token without keys"),
        (
            {"profile": "dev", "colour": "red"},
            Profile("dev"),
            'unknown key "colour" in s3[""] is ignored; known: key_id,',
        ),
        (
            {"profile": "dev", "secretkey": SECRET},
            Profile("dev"),
            '"secretkey" in s3[""] is ignored; did you mean "secret_key"?',
        ),
        ({"profile": "dev", "keyId": "x"}, Profile("dev"), 'did you mean "key_id"?'),
    ],
)
def test_keys_else_profile_else_chain(tmp_path: Path, entry: Any, expected: object, warning: str) -> None:
    file = credentials(tmp_path, {"s3": {"": entry}})
    assert entry_of(file, "s3://b").credentials == expected
    warnings = file.section_warnings["s3"]
    assert len(warnings) == bool(warning)
    assert warning in "".join(warnings)
    assert SECRET not in "".join(warnings)
    assert file.warnings == ()


def test_empty_session_token_is_absent(tmp_path: Path) -> None:
    file = credentials(tmp_path, {"s3": {"": {"key_id": "AKIA", "secret_key": SECRET, "session_token": ""}}})
    keys = entry_of(file, "s3://b").credentials
    assert isinstance(keys, StaticKeys)
    assert keys.session_token is None


def test_what_is_unknown_warns(tmp_path: Path) -> None:
    content = {"hf": {"": "x"}, "S3": {"": {}}, "s3": {"": {}, "models": {}, "gs://b": {}}}
    file = credentials(tmp_path, content)
    warnings = file.warnings + file.section_warnings["s3"]
    assert len(warnings) == 4
    assert all(str(file.path) in warning for warning in warnings)
    assert [word for word in ('"hf"', 's3["models"]', 's3["gs://b"]') if word not in "".join(warnings)] == []
    assert 'unknown section "S3" in the file is ignored; did you mean "s3"?' in warnings[1]
    assert len(file.sections["s3"]) == 1


def test_what_a_mount_has_no_use_for_does_not_warn(tmp_path: Path) -> None:
    """Triton's documentation has such a name of an account, and many files do."""
    entry = {"account_str": "a", "account_key": SECRET}
    path = write(tmp_path, {"s3": {"": {"colour": ""}}, "as": {"": entry, "as://Account-002/Container": entry}})
    path.chmod(0o600)
    environ = {"TRITON_CLOUD_CREDENTIAL_PATH": str(path)}

    def warnings(url: str) -> tuple[str, ...]:
        return load_settings({"cache_dir": tmp_path}, [url], None, environ, None).warnings

    assert [text.partition(": ")[2] for text in warnings("s3://b")] == [
        'unknown key "colour" in s3[""] is ignored; known: key_id, secret_key, session_token, region, profile'
    ]
    (said,) = warnings("as://account/models")
    assert "Account-002" in said
    assert warnings("gs://b") == ()


def test_two_spellings_of_one_place(tmp_path: Path) -> None:
    same = {"s3": {"s3://h:1/b": {"region": "r"}, "s3://http://h:1/b/": {"region": "r"}}}
    assert len(credentials(tmp_path, same).sections["s3"]) == 1
    same["s3"]["s3://h:1/b"] = {"region": "other"}
    with pytest.raises(ConfigError, match="name the same place"):
        credentials(tmp_path, same)


WRONG_CREDENTIALS: list[tuple[Any, str]] = [
    ([], "the file has the wrong type"),
    ({"s3": []}, '"s3" has the wrong type'),
    ({"s3": {"": SECRET}}, 's3[""] has the wrong type'),
    ({"s3": {"": {"secret_key": [SECRET]}}}, 's3[""].secret_key has the wrong type'),
    ({"s3": {"s3://b": {"key_id": 5, "secret_key": SECRET}}}, 's3["s3://b"].key_id has the wrong type'),
    ({"s3": {"": {"session_token": 5, "secret_key": SECRET}}}, 's3[""].session_token has the wrong type'),
    ({"gs": {"": {"key": SECRET}}}, 'gs[""] has the wrong type'),
    ({"as": {"": {"account_key": {"x": SECRET}}}}, 'as[""].account_key has the wrong type'),
    ({"oss": {"": {"secret_key": [SECRET]}}}, 'oss[""].secret_key has the wrong type'),
]
MALFORMED: list[tuple[Any, str]] = [
    ("", ":1:1: not valid JSON"),
    (f'{{"s3": {{\n  "": "{SECRET}" "x"\n}}}}', ":2:"),
    (f'{{"s3": {{"": {{"secret_key": "{SECRET}', ":1:"),
    (f'{{"a": "{SECRET}", "a": "{SECRET}"}}', 'key "a" appears twice'),
    ("[" * 100_000, "nested too deep"),
    ('{"a": ' + "9" * 5000 + "}", "number too long"),
]


@pytest.mark.parametrize(("content", "what"), WRONG_CREDENTIALS + MALFORMED)
def test_wrong_credentials_name_file_and_key_but_no_secret(tmp_path: Path, content: Any, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        credentials(tmp_path, content)
    assert str(tmp_path / "file.json") in caught.value.message
    assert what in caught.value.message
    shown = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=False).format())
    assert SECRET not in shown
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_byte_order_mark_is_fine_but_not_other_encodings(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(b'\xef\xbb\xbf{"proxy": "h:1"}')
    assert read_dragonfly(path).proxy == "http://h:1"
    path.write_bytes('{"proxy": "h:1"}'.encode("utf-16"))
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_dragonfly(path)


@pytest.mark.parametrize("name", ["absent.json", "."])
def test_unreadable_file(tmp_path: Path, name: str) -> None:
    for read in (read_credentials, read_dragonfly):
        with pytest.raises(ConfigError, match="cannot be read"):
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "proxy"),
    [
        ({"proxy": "http://127.0.0.1:4001"}, "http://127.0.0.1:4001"),
        ({"proxy": "http://127.0.0.1:4001/"}, "http://127.0.0.1:4001"),
        ({"proxy": "127.0.0.1:4001"}, "http://127.0.0.1:4001"),
        ({"proxy": "[::1]:4001"}, "http://[::1]:4001"),
        ({"proxy": {"addr": "dfdaemon:4001"}}, "http://dfdaemon:4001"),
        ({"addr": "http://127.0.0.1:4001"}, "http://127.0.0.1:4001"),
        ({"proxy/addr": "http://127.0.0.1:4001"}, "http://127.0.0.1:4001"),
        ({"proxy": "", "addr": "127.0.0.1:4001"}, "http://127.0.0.1:4001"),
        ({"proxy": "h:1", "addr": "http://h:1"}, "http://h:1"),
    ],
)
def test_address(tmp_path: Path, content: Any, proxy: str) -> None:
    file = dragonfly(tmp_path, content)
    assert file.proxy == proxy
    assert file.warnings == ()


@pytest.mark.parametrize(
    "content", [{}, {"proxy": "", "addr": ""}, {"proxy": "none"}, {"proxy": {}}, {"proxy": None, "header": None}]
)
def test_without_an_address_reads_are_direct_and_a_warning_says_so(tmp_path: Path, content: Any) -> None:
    file = dragonfly(tmp_path, content)
    assert (file.proxy, file.headers, file.filter) == ("", {}, ())
    (warning,) = file.warnings
    assert "gives no proxy address" in warning


def test_a_mistyped_address_names_the_key_that_is_meant(tmp_path: Path) -> None:
    first, second = dragonfly(tmp_path, {"Proxi": "h:1", "proxy": ""}).warnings
    assert 'unknown key "Proxi" in the file is ignored; did you mean "proxy"?' in first
    assert "gives no proxy address" in second


def test_null_means_absent(tmp_path: Path) -> None:
    file = dragonfly(tmp_path, {"proxy": "h:1", "addr": None, "header": {"X-Team": None}, "filter": None})
    assert (file.proxy, file.headers, file.filter, file.warnings) == ("http://h:1", {}, (), ())
    entry = {"key_id": "k", "secret_key": SECRET, "session_token": None, "region": None, "profile": None}
    held = credentials(tmp_path, {"s3": {"": entry}, "gs": None, "as": {"": None}})
    assert held.match(RepositoryUrl.parse("s3://b/p")).credentials == StaticKeys("k", SecretStr(SECRET), None)
    assert (held.sections.get("gs"), held.sections["as"], held.warnings) == (None, (), ())


def test_two_addresses_warn(tmp_path: Path) -> None:
    file = dragonfly(tmp_path, {"proxy": "a:1", "addr": "b:1"})
    assert file.proxy == "http://a:1"
    assert '"addr" gives another address' in "".join(file.warnings)


def test_published_example(tmp_path: Path) -> None:
    file = dragonfly(
        tmp_path,
        {
            "proxy": "http://127.0.0.1:65001",
            "header": {"Host": "abc", "X-Team": SECRET},
            "filter": ["X-Amz-Credential&X-Amz-Date", "a, b,,a", " ", "c"],
        },
    )
    assert file.filter == ("X-Amz-Credential", "X-Amz-Date", "a", "b", "c")
    assert {name: value.get_secret_value() for name, value in file.headers.items()} == {"X-Team": SECRET}
    assert len(file.warnings) == 1
    assert "Host" in file.warnings[0]
    assert SECRET not in repr(file)


@pytest.mark.parametrize(
    ("name", "passes"),
    [
        *((name, False) for name in ("host", "Range", "If-Match", "IF-NONE-MATCH", "authorization", "Accept-Encoding")),
        *((name, False) for name in ("Connection", "TE", "Trailer", "Transfer-Encoding", "Upgrade", "Keep-Alive")),
        *(
            (name, False)
            for name in ("Proxy-Authorization", "Content-Length", "X-Dragonfly-Use-P2P", "X-Dragonfly-Filter")
        ),
        *((name, False) for name in ("x-dragonfly-content-for-calculating-task-id", "X-Dragonfly-Output-Path")),
        *(
            (name, True)
            for name in ("X-Dragonfly-Tag", "X-Dragonfly-Application", "X-Dragonfly-Priority", "Iffy", "X-Host")
        ),
    ],
)
def test_headers_of_the_request_itself_are_ignored_by_name(tmp_path: Path, name: str, passes: bool) -> None:
    file = dragonfly(tmp_path, {"proxy": "h:1", "header": {name: SECRET}})
    assert (name in file.headers) is passes
    assert [name in warning for warning in file.warnings] == ([] if passes else [True])
    assert SECRET not in "".join(file.warnings)


WRONG_DRAGONFLY: list[tuple[Any, str]] = [
    ({"proxy": 4001}, '"proxy" has the wrong type'),
    ({"proxy": {"addr": 4001}}, "proxy.addr has the wrong type"),
    ({"proxy": "dfdaemon"}, '"proxy" is not a proxy address'),
    ({"proxy": "https://h:1"}, "plain http"),
    ({"proxy": "http://h:1/path"}, "is not a proxy address"),
    ({"proxy": f"http://user:{SECRET}@h:1"}, "holds credentials"),
    ({"proxy": "h:1", "header": []}, '"header" has the wrong type'),
    ({"proxy": "h:1", "header": {"X-A": [SECRET]}}, 'header "X-A" has the wrong type'),
    ({"proxy": "h:1", "header": {"X-A": f"{SECRET}\r\nHost: evil"}}, 'the value of header "X-A" cannot be sent'),
    ({"proxy": "h:1", "header": {"X-A": f"{SECRET}é"}}, 'the value of header "X-A" cannot be sent'),
    ({"proxy": "h:1", "header": {"X A": SECRET}}, "is not a header name"),
    ({"proxy": "h:1", "filter": "a,b"}, '"filter" has the wrong type'),
    ({"proxy": "h:1", "filter": ["a", 5]}, "filter[1] has the wrong type"),
    ({"proxy": "h:1", "filter": ["a\r\nHost: evil"]}, "cannot be sent"),
]


@pytest.mark.parametrize(("content", "what"), WRONG_DRAGONFLY + MALFORMED)
def test_wrong_dragonfly_names_file_and_key_but_no_secret(tmp_path: Path, content: Any, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dragonfly(tmp_path, content)
    assert str(tmp_path / "file.json") in caught.value.message
    assert what in caught.value.message
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_unknown_dragonfly_keys_warn(tmp_path: Path) -> None:
    file = dragonfly(tmp_path, {"proxy": {"addr": "h:1", "tls": True}, "headers": {"X": SECRET}})
    assert len(file.warnings) == 2
    assert '"tls"' in file.warnings[0]
    assert '"headers"' in file.warnings[1]
    assert SECRET not in "".join(file.warnings)


def test_locate(tmp_path: Path) -> None:
    default = tmp_path / "default.json"
    assert locate({}, "V", default) == Located(None)
    default.touch()
    assert locate({}, "V", default) == Located(default)
    assert locate({"V": ""}, "V", default) == Located(None)
    assert locate({"V": "/absent"}, "V", default) == Located(Path("/absent"), named=True)
    default.chmod(0o666)
    found = locate({}, "V", default)
    assert found.path is None
    assert (
        found.ignored
        == f"{default} is ignored: {default} can be written by other users (mode 666); set V to use it nevertheless"
    )
