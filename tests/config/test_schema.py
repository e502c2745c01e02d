"""The options: names derived from the fields, defaults that their own kinds accept, values of every kind."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

from d7yfs.config import kinds
from d7yfs.config.schema import (
    GROUPS,
    OPTIONS,
    Config,
    Option,
    RepositoryConfig,
    StaticKeys,
    default_cache_dir,
)
from d7yfs.config.size_bound import SizeBound
from d7yfs.config.url import RepositoryUrl
from d7yfs.objects import SecretStr

REPOSITORY = RepositoryConfig(url=RepositoryUrl.parse("s3://h:9000/b/p"))


def test_names() -> None:
    assert set(OPTIONS) == {
        *("endpoint_url", "endpoint_suffix", "region", "internal_endpoint", "dual_stack", "accelerate"),
        *("profile", "credentials_file", "anonymous", "addressing_style", "signature", "versioned"),
        *("requester_pays", "billing_project", "verify_tls", "ca_bundle", "control_proxy"),
        *("include", "exclude", "publish_marker", "hide_agents"),
        *("proxy", "fallback", "dfdaemon_socket", "p2p_verify", "p2p", "p2p_tokens", "p2p_secret_file", "p2p_direct"),
        *("p2p_tag", "p2p_application", "p2p_priority", "p2p_piece_length", "p2p_hosts"),
        *("dragonfly_manager", "dragonfly_manager_token_file"),
        *(
            "cache_dir",
            "cache_size",
            "cache_min_free",
            "memory_buffer",
            "max_inodes",
            "verify",
            "cache_trust",
            "tree_cache",
        ),
        *("metadata_ttl", "negative_ttl", "read_timeout", "connect_timeout", "max_connections", "movers", "offline"),
        *("revalidate_on_open", "listing", "listing_limit"),
        *("for", "allow_other", "noexec", "allow_empty", "require_all", "uid", "gid", "file_mode", "dir_mode"),
        *("executable", "xattr"),
        *("fuse_helper", "fuse_engine", "passthrough", "open_wait", "takeover"),
        *("foreground", "worker_user", "shutdown_timeout", "log_level", "log_format", "log_file"),
        *("metrics_listen", "metrics_per_model"),
    }
    assert OPTIONS["memory_buffer"].field == "memory_buffer_bytes"
    assert OPTIONS["cache_size"].flag == "--cache-size"
    assert OPTIONS["cache_size"].variable == "D7YFS_CACHE_SIZE"
    assert OPTIONS["verify_tls"].off_flag == "--insecure-skip-tls-verify"
    assert {option.group for option in OPTIONS.values()} == set(GROUPS)


def test_options_that_a_running_mount_takes_over() -> None:
    assert {option.name for option in OPTIONS.values() if option.live} == {
        *("log_level", "metadata_ttl", "negative_ttl", "cache_size", "cache_min_free", "memory_buffer"),
        *("max_connections", "max_inodes", "metrics_per_model", "shutdown_timeout", "listing_limit"),
        *("dragonfly_manager", "dragonfly_manager_token_file"),
    }
    assert {option.name for option in OPTIONS.values() if option.live and option.per_repository} == {"listing_limit"}
    assert [option.name for option in OPTIONS.values() if option.names_credentials] == [
        *("profile", "credentials_file", "anonymous")
    ]


@pytest.mark.parametrize("option", OPTIONS.values(), ids=lambda option: option.name)
def test_default_has_a_value_that_reads_back(option: Option) -> None:
    holder = REPOSITORY if option.per_repository else Config(repositories=(REPOSITORY,))
    value = getattr(holder, option.field)
    assert option.help.endswith(".")
    assert option.default
    if value is not None:
        shown = option.kind.show(value)
        assert option.kind.parse(shown) == value
        assert option.on_by_default in (None, value)


def test_frozen_and_strict() -> None:
    with pytest.raises(FrozenInstanceError):
        REPOSITORY.region = "x"  # type: ignore[misc]
    with pytest.raises(TypeError):
        RepositoryConfig(url=REPOSITORY.url, colour="red")  # type: ignore[call-arg]


def test_cache_dir() -> None:
    assert default_cache_dir({}, root=True) == Path("/var/cache/d7yfs")
    assert default_cache_dir({"HOME": "/home/u"}, root=False) == Path("/home/u/.cache/d7yfs")
    assert default_cache_dir({"XDG_CACHE_HOME": "/x", "HOME": "/home/u"}, root=False) == Path("/x/d7yfs")
    assert default_cache_dir({"XDG_CACHE_HOME": "relative", "HOME": "/home/u"}, root=False) == Path(
        "/home/u/.cache/d7yfs"
    )


def test_keys_show_no_secret() -> None:
    keys = StaticKeys("AKIAIOSFODNN7EXAMPLE", SecretStr("hunter2"), SecretStr("token2"))
    assert str(keys) == "access key …MPLE with session token"
    assert "hunter2" not in repr(keys)
    assert "token2" not in repr(keys)
    assert str(StaticKeys("short", SecretStr("x"))) == "access key"


@pytest.mark.parametrize(
    ("kind", "raw", "value"),
    [
        (kinds.TRUTH, True, True),
        (kinds.TRUTH, "No", False),
        (kinds.TRUTH, "1", True),
        (kinds.MODE, "0440", 0o440),
        (kinds.MODE, "755", 0o755),
        (kinds.MODE, "0o444", 0o444),
        (kinds.NUMERIC_ID, "1000", 1000),
        (kinds.NUMERIC_ID, 0, 0),
        (kinds.ENDPOINT, "https://S3.example.com/", "https://s3.example.com"),
        (kinds.ENDPOINT, "", ""),
        (kinds.PROXIES, "none", ""),
        (kinds.PROXIES, "h:4001", "http://h:4001"),
        (kinds.PROXIES, "http://H:4001, service:1,h:4001", "http://h:4001,http://service:1"),
        (kinds.HEADER_TEXT, " team a ", "team a"),
        (kinds.P2P_PRIORITY, "3", 3),
        (kinds.P2P_PRIORITY, 0, 0),
        (kinds.PIECE_LENGTH, "16MiB", 16 << 20),
        (kinds.PATH, "a/b", Path("a/b")),
        (kinds.PATH, "~/x", Path.home() / "x"),
        (kinds.TIMEOUT, "0.1", 0.1),
        (kinds.OPEN_WAIT, "0", 0.0),
        (kinds.OPEN_WAIT, "10s", 10.0),
        (kinds.BUFFER_SIZE, "16MiB", 16 << 20),
        (kinds.SIZE, "20GiB", SizeBound(20 << 30)),
        (kinds.SIZE, 1000, SizeBound(1000)),
        (kinds.SIZE, "15%", SizeBound(percent=15)),
        (kinds.SIZE, " 0.5 % ", SizeBound(percent=0.5)),
        (kinds.SIZE, "50%,200G", SizeBound(200 << 30, 50)),
        (kinds.SIZE, "200G, 50%", SizeBound(200 << 30, 50)),
        (kinds.one_of("text", "json"), "JSON", "json"),
    ],
)
def test_values(kind: kinds.Kind, raw: object, value: object) -> None:
    assert kind.parse(raw) == value


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        (kinds.TEXT, 5),
        (kinds.TRUTH, "maybe"),
        (kinds.TRUTH, 1),
        (kinds.TRUTH, ""),
        (kinds.MODE, 444),
        (kinds.MODE, "888"),
        (kinds.MODE, "04444"),
        (kinds.NUMERIC_ID, "root"),
        (kinds.NUMERIC_ID, -1),
        (kinds.NUMERIC_ID, True),
        (kinds.NUMERIC_ID, 1 << 32),
        (kinds.CONNECTIONS, 0),
        (kinds.CONNECTIONS, 1.5),
        (kinds.ENDPOINT, "minio:9000"),
        (kinds.ENDPOINT, "https://u:p@h"),
        (kinds.ENDPOINT, "https://h?x=y"),
        (kinds.ENDPOINT, 9000),
        (kinds.PROXIES, "h"),
        (kinds.PROXIES, "https://h:1"),
        (kinds.PROXIES, "socks5://h:1"),
        (kinds.PROXIES, "http://h:1/x"),
        (kinds.PROXIES, "h:1,"),
        (kinds.PROXIES, "h:1,none"),
        (kinds.HEADER_TEXT, "a\r\nb"),
        (kinds.HEADER_TEXT, "é"),
        (kinds.P2P_PRIORITY, 1),
        (kinds.P2P_PRIORITY, 7),
        (kinds.PIECE_LENGTH, "2MiB"),
        (kinds.PIECE_LENGTH, "128MiB"),
        (kinds.PIECE_LENGTH, "5MiB"),
        (kinds.PATH, ""),
        (kinds.PATH, 5),
        (kinds.PATH, "a\0b"),
        (kinds.TIMEOUT, "0"),
        (kinds.OPEN_WAIT, "10.1s"),
        (kinds.OPEN_WAIT, "forever"),
        (kinds.TIMEOUT, "soon"),
        (kinds.BUFFER_SIZE, "1MiB"),
        (kinds.SIZE, []),
        (kinds.SIZE, ""),
        (kinds.SIZE, "101%"),
        (kinds.SIZE, "50%,60%"),
        (kinds.SIZE, "1G,2G"),
        (kinds.SIZE, "50%,"),
        (kinds.SIZE, "%"),
        (kinds.LIFETIME, {}),
        (kinds.one_of("text", "json"), "xml"),
    ],
)
def test_wrong_values_say_what_is_allowed(kind: kinds.Kind, raw: object) -> None:
    with pytest.raises(ValueError, match="allowed: "):
        kind.parse(raw)
