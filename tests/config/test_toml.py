"""The TOML file: right, wrong and malformed."""

from __future__ import annotations

from pathlib import Path

import pytest

from d7yfs.config.size_bound import SizeBound
from d7yfs.config.toml import TomlFile, read_toml
from d7yfs.config.url import RepositoryUrl
from d7yfs.errors import ConfigError


def read(directory: Path, text: str) -> TomlFile:
    path = directory / "config.toml"
    path.write_text(text)
    return read_toml(path)


def test_one_repository(tmp_path: Path) -> None:
    toml = read(
        tmp_path,
        """
        source = "s3://models/triton/"
        mountpoint = "/mnt/models"
        cache-size = "20GiB"
        metadata_ttl = 90
        read_timeout = 0.5
        allow_other = false
        file_mode = "0440"
        """,
    )
    assert {name: found.value for name, found in toml.layer.items()} == {
        "cache_size": SizeBound(20 << 30),
        "metadata_ttl": 90.0,
        "read_timeout": 0.5,
        "allow_other": False,
        "file_mode": 0o440,
    }
    assert {found.where for found in toml.layer.values()} == {str(tmp_path / "config.toml")}
    assert [(source.name, str(source.url)) for source in toml.sources] == [("", "s3://models/triton")]
    assert toml.mountpoint
    assert toml.mountpoint.value == Path("/mnt/models")


def test_several_repositories_with_options_of_their_own(tmp_path: Path) -> None:
    toml = read(
        tmp_path,
        """
        region = "eu-central-1"
        [repositories.llm]
        url = "s3://a/x"
        [repositories."vision models"]
        url = "s3://minio:9000/b"
        region = "us-west-2"
        no-such = 1
        """.replace("no-such = 1", "verify-tls = false"),
    )
    assert [source.name for source in toml.sources] == ["llm", "vision models"]
    assert toml.sources[1].url == RepositoryUrl.parse("s3://minio:9000/b")
    assert {name: found.value for name, found in toml.sources[1].layer.items()} == {
        "region": "us-west-2",
        "verify_tls": False,
    }
    assert toml.sources[1].layer["region"].where.endswith("config.toml: [repositories.vision models]")


def test_relative_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    toml = read(tmp_path, 'cache_dir = "cache"\nlog_file = "/var/log/d7yfs"\nmountpoint = "mnt"\nca_bundle = "ca.pem"')
    assert toml.layer["cache_dir"].value == tmp_path / "cache"
    assert toml.layer["log_file"].value == Path("/var/log/d7yfs")
    assert toml.mountpoint
    assert toml.mountpoint.value == tmp_path / "mnt"


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ('cache_sise = "1G"', "unknown key 'cache_sise'", "did you mean cache_size?"),
        ("no_fallback = true", "unknown key 'no_fallback'", "did you mean fallback=false?"),
        ("insecure-skip-tls-verify = true", "unknown key 'insecure_skip_tls_verify'", "did you mean verify_tls=false?"),
        ("zzzzzzzz = 1", "unknown key 'zzzzzzzz'", "allowed: endpoint_url, endpoint_suffix, region"),
        ('[cache]\nsize = "1G"', "unknown key 'cache'", ""),
        ('cache_size = "lots"', "cache_size = 'lots' is not a size; allowed: bytes", ""),
        ("cache_size = true", "cache_size = True is not a size", ""),
        ("file_mode = 444", "file_mode = 444 is not a permission; allowed: three octal digits", ""),
        ("region = 5", "region = 5 has the wrong type; allowed: text", ""),
        ("xattr = 1", "xattr = 1 is neither true nor false", ""),
        ("uid = -1", "uid = -1 is not a numeric user", ""),
        ('log_format = "xml"', "log_format = 'xml' is unknown; allowed: text, json", ""),
        ("cache_dir = []", "cache_dir = [] is not a path", ""),
        ("metadata_ttl = nan", "metadata_ttl = nan is not a duration", ""),
        ("metadata_ttl = 1979-05-27", "is not a duration", ""),
        ('mountpoint = ""', "mountpoint is not a path", ""),
        ("mountpoint = 5", "mountpoint is not a path", ""),
        ("source = 5", "source has the wrong type", ""),
        ('source = "models"', "source: repository URL 'models': has no scheme", "write s3://"),
        ("repositories = 5", "repositories has the wrong type", ""),
        ("[repositories]\nllm = 5", "[repositories.llm] has the wrong type", ""),
        ("[repositories.llm]\nregion = 'x'", "[repositories.llm] has no url", ""),
        ("[repositories.llm]\nurl = 's3://'", "[repositories.llm] url: repository URL", ""),
        (
            "[repositories.llm]\nurl = 's3://a'\nregon = 'x'",
            "[repositories.llm]: unknown key 'regon'",
            "did you mean region?",
        ),
        (
            "[repositories.llm]\nurl = 's3://a'\ncache_size = 1",
            "cache_size applies to the whole mount",
            "before the first",
        ),
        ("[repositories.llm]\nurl = 's3://a'\nanonymous = 5", "[repositories.llm]: anonymous = 5 is neither", ""),
        ("[repositories.'a/b']\nurl = 's3://a'", "'a/b' cannot be a directory", "one path component"),
        ("[repositories.'..']\nurl = 's3://a'", "'..' cannot be a directory", ""),
        ("source = 's3://a'\n[repositories.llm]\nurl = 's3://a'", "both source and [repositories]", ""),
        ("cache_size = 1\ncache-size = 2", "cache_size is given twice, once as cache-size", ""),
    ],
)
def test_refused_with_file_key_and_what_is_allowed(tmp_path: Path, text: str, what: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert caught.value.message.startswith(f"{tmp_path / 'config.toml'}: ")
    assert what in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize("key", ["proxy", "endpoint_url", "source"])
def test_a_password_in_an_address_is_not_repeated(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, f'{key} = "http://user:hunter2@h:1"')
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("cache_size = ", ":1:14: not valid TOML: Invalid value"),
        ('region = "x"\ncache_size = 20GiB\n', ":2:16: not valid TOML"),
        ('a = 1\nregion = "x', ":2:12: not valid TOML"),
        ("[repositories.llm\n", ":1:18: not valid TOML"),
        ("a = 1\na = 2\n", ":2:6: not valid TOML"),
    ],
)
def test_malformed_names_line_and_column(tmp_path: Path, text: str, place: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert f"{tmp_path / 'config.toml'}{place}" in caught.value.message


def test_unreadable(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_toml(tmp_path / "absent.toml")
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read_toml(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'region = "\xe9"')
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_toml(tmp_path / "latin.toml")
