"""The files of TorchServe's earlier Dragonfly plugins, right and wrong."""

from __future__ import annotations

import json
import traceback
from pathlib import Path
from typing import Any

import pytest

from d7yfs.config.schema import Credentials, CredentialsFile, ProviderChain, StaticKeys
from d7yfs.config.torchserve import TorchServeFile, read
from d7yfs.errors import ConfigError
from d7yfs.objects import SecretStr

SECRET = "wJalrXUtnFEMI/hunter2"
KEYS = StaticKeys("AKIA", SecretStr(SECRET))
PUBLISHED = """{
  // where the models are: s3://your-bucket-name
  "accessKeyId": "AKIA",
  "secretAccessKey": "wJalrXUtnFEMI/hunter2",
  "region": "us-west-2",
  "bucketName": "your-bucket-name",
  "key": "your-object-key", // "quoted", too

  // what is loaded, and with how many workers
  "load_model": "all",
  "minWorker": "1",

}
"""


def written(directory: Path, content: Any) -> TorchServeFile:
    path = directory / "file.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return read(path)


def test_the_s3_plugins_sample_as_it_was_published(tmp_path: Path) -> None:
    file = written(tmp_path, PUBLISHED)
    assert file.warnings == ()
    assert file.storage
    assert str(file.storage.url) == "s3://your-bucket-name/your-object-key"
    assert (file.storage.credentials, file.storage.region) == (KEYS, "us-west-2")
    assert (file.models, file.initial_workers) == (("all",), 1)
    assert SECRET not in repr(file)


@pytest.mark.parametrize(("value", "workers"), [(None, 0), (0, 0), (3, 3), ("0", 0), (" 2 ", 2)])
def test_workers_are_text_or_a_number_and_0_when_absent(tmp_path: Path, value: Any, workers: int) -> None:
    content = {"load_model": "a"} | ({} if value is None else {"minWorker": value})
    assert written(tmp_path, content).initial_workers == workers


@pytest.mark.parametrize("value", [-1, "-1", "many", "", True, 1.5, "1.5", [1]])
def test_what_is_no_number_of_workers_is_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ConfigError, match="minWorker"):
        written(tmp_path, {"minWorker": value})


@pytest.mark.parametrize(
    ("said", "models"),
    [("all", ("all",)), ("resnet", ("resnet",)), ("a, b,,c ", ("a", "b", "c")), ("", ()), (" , ", ())],
)
def test_load_model_is_a_name_or_several(tmp_path: Path, said: str, models: tuple[str, ...]) -> None:
    assert written(tmp_path, {"load_model": said}).models == models


@pytest.mark.parametrize(
    ("key", "url"),
    [("", "s3://b"), ("/x/y/", "s3://b/x/y"), ("x/resnet.mar", "s3://b/x"), ("resnet.mar", "s3://b")],
)
def test_the_key_is_a_directory_or_an_archive_in_one(tmp_path: Path, key: str, url: str) -> None:
    file = written(tmp_path, {"bucketName": "b", "key": key})
    assert file.storage
    assert str(file.storage.url) == url
    assert file.storage.credentials == ProviderChain()


def test_without_a_bucket_it_still_says_what_to_load(tmp_path: Path) -> None:
    file = written(tmp_path, {"load_model": "a", "Region": "x"})
    assert (file.storage, file.models, file.dragonfly) == (None, ("a",), None)
    assert 'unknown key "Region"' in "".join(file.warnings)


def test_comments_and_commas_keep_lines_and_columns_right(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"file.json:3:17: not valid JSON"):
        written(tmp_path, '{ // here, }\n  "a//b": [1,],\n  "load_model": x,\n}')


@pytest.mark.parametrize("content", ['{"key": "a" /* c */}', '{"key": "a"', '{,"key": "a"}', '{"key": "a",,}'])
def test_other_liberties_are_not_taken(tmp_path: Path, content: str) -> None:
    with pytest.raises(ConfigError, match="not valid JSON"):
        written(tmp_path, content)


@pytest.mark.parametrize(
    ("addr", "proxy"),
    [
        ("http://127.0.0.1", "http://127.0.0.1:65001"),
        ("http://127.0.0.1/", "http://127.0.0.1:65001"),
        ("127.0.0.1", "http://127.0.0.1:65001"),
        ("[::1]", "http://[::1]:65001"),
        ("dfdaemon:4001", "http://dfdaemon:4001"),
        ("http://dfdaemon:65001", "http://dfdaemon:65001"),
    ],
)
def test_an_endpoints_address_without_a_port_means_65001(tmp_path: Path, addr: str, proxy: str) -> None:
    file = written(tmp_path, {"addr": addr})
    assert file.dragonfly
    assert (file.dragonfly.proxy, file.warnings) == (proxy, ())


def test_an_endpoints_file_as_it_lies_there(tmp_path: Path) -> None:
    content = {
        "addr": "http://127.0.0.1:65001",
        "header": {"X-Team": SECRET, "Host": "abc"},
        "filter": ["X-Amz-Credential&X-Amz-Date"],
        "object_storage": {"type": "s3", "bucket_name": "b", "access_key": "AKIA", "secret_key": SECRET, "x": 1},
        "adress": 1,
    }
    file = written(tmp_path, content)
    assert file.dragonfly
    assert file.dragonfly.headers["X-Team"].get_secret_value() == SECRET
    assert file.dragonfly.filter == ("X-Amz-Credential", "X-Amz-Date")
    assert len(file.warnings) == 3
    assert (file.models, file.initial_workers) == ((), None)
    assert SECRET not in repr(file)


@pytest.mark.parametrize(
    ("storage", "url", "credentials", "endpoint"),
    [
        (
            {"type": "s3", "bucket_name": "b", "access_key": "AKIA", "secret_key": SECRET, "endpoint": "http://m:9000"},
            "s3://b",
            KEYS,
            "http://m:9000",
        ),
        (
            {"type": "oss", "bucket_name": "b", "access_key_id": "AKIA", "access_key_secret": SECRET}
            | {"endpoint": "oss-cn-hangzhou.aliyuncs.com"},
            "oss://b",
            KEYS,
            "https://oss-cn-hangzhou.aliyuncs.com",
        ),
        (
            {"type": "gcs", "bucket_name": "b", "project_id": "p", "service_account_path": "/sa.json"},
            "gs://b",
            CredentialsFile(Path("/sa.json")),
            "",
        ),
        ({"type": "gcs", "bucket_name": "b"}, "gs://b", ProviderChain(), ""),
        ({"type": "gcs", "bucket_name": "b", "endpoint": "http://g:1"}, "gs://b", ProviderChain(), "http://g:1"),
        (
            {"type": "abs", "container_name": "c", "account_name": "Account", "account_key": SECRET},
            "as://account/c",
            StaticKeys("account", SecretStr(SECRET)),
            "",
        ),
        (
            {"type": "abs", "container_name": "c", "account_name": "account", "endpoint": "http://azurite:10000"},
            "as://account/c",
            ProviderChain(),
            "http://azurite:10000",
        ),
    ],
)
def test_object_storage_of_each_kind(
    tmp_path: Path, storage: dict[str, str], url: str, credentials: Credentials, endpoint: str
) -> None:
    file = written(tmp_path, {"addr": "h", "object_storage": storage})
    assert file.warnings == ()
    assert file.storage
    assert str(file.storage.url) == url
    assert (file.storage.credentials, file.storage.endpoint_url) == (credentials, endpoint)


@pytest.mark.parametrize("kind", ["s3", "oss"])
def test_a_region_is_passed_on(tmp_path: Path, kind: str) -> None:
    file = written(tmp_path, {"addr": "h", "object_storage": {"type": kind, "bucket_name": "b", "region": "r"}})
    assert file.warnings == ()
    assert file.storage
    assert file.storage.region == "r"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ({}, "no proxy address"),
        ({"addr": ""}, "no proxy address"),
        ({"addr": 1}, '"addr" has the wrong type'),
        ({"addr": "https://h:1"}, "plain http"),
        ({"addr": "h:1", "filter": "a"}, '"filter"'),
        ({"addr": "h", "object_storage": {"type": "ftp"}}, "object_storage.type"),
        ({"addr": "h", "object_storage": {"bucket_name": "b"}}, "object_storage.type"),
        ({"addr": "h", "object_storage": {"type": "s3"}}, "object_storage.bucket_name"),
        ({"addr": "h", "object_storage": {"type": "abs", "container_name": "c"}}, "object_storage.container_name"),
        ({"addr": "h", "object_storage": {"type": "s3", "bucket_name": "h:1/b"}}, "holds an address"),
        (
            {"addr": "h", "object_storage": {"type": "oss", "bucket_name": "b", "endpoint": "ftp://h"}},
            "object_storage.endpoint",
        ),
        (
            {"addr": "h", "object_storage": {"type": "s3", "bucket_name": "b", "secret_key": SECRET}},
            '"secret_key" without "access_key"',
        ),
        ({"accessKeyId": "AKIA"}, '"accessKeyId" without "secretAccessKey"'),
        ({"secretAccessKey": SECRET, "region": 1}, '"region" has the wrong type'),
        ({"bucketName": SECRET + "?", "key": "../x"}, '"bucketName" and "key"'),
    ],
)
def test_a_wrong_file_is_refused_without_its_secrets(tmp_path: Path, content: Any, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        written(tmp_path, content)
    assert what in caught.value.message
    shown = "".join(traceback.TracebackException.from_exception(caught.value, capture_locals=False).format())
    assert SECRET not in shown


def test_an_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path / "absent.json")
