"""What of changed settings a running mount heeds."""

from __future__ import annotations

from pathlib import Path

from d7yfs.config.schema import OPTIONS, Profile
from d7yfs.config.sources import Settings, load_settings
from d7yfs.control.reload import LIVE, changes


def settings(directory: Path, toml: str, **environ: str) -> Settings:
    (directory / "c.toml").write_text(toml)
    return load_settings({}, (), None, environ, Path("c.toml"), here=directory)


ONE = 'source = "s3://b/p"\nmountpoint = "m"\n'


def test_what_takes_effect_now_and_what_does_not(tmp_path: Path) -> None:
    old = settings(tmp_path, ONE + 'cache_size = "10GiB"\nproxy = "h:4001"\n')
    new = settings(
        tmp_path,
        ONE + 'cache_size = "20GiB"\nlog_level = "debug"\nproxy = "h:4002"\nread_timeout = "5s"\nfile_mode = "0400"\n',
    )
    found = changes(old, new)
    assert found.live == {"cache_size": "20GiB", "log_level": "debug"}
    assert sorted(found.later) == ["file_mode", "proxy", "read_timeout"]
    assert found.credentials == ()
    config = found.settings.config
    assert (config.cache_size_bytes, config.log_level) == (20 << 30, "debug")
    assert (config.read_timeout_s, config.file_mode) == (60.0, 0o444)
    assert config.repositories == old.config.repositories
    shown = found.settings.describe()
    assert shown["cache_size"]["value"] == "20GiB"
    assert "c.toml" in shown["log_level"]["from"]
    assert shown["read_timeout"] == {"value": "60s", "from": "default"}


def test_nothing_has_changed(tmp_path: Path) -> None:
    old, new = settings(tmp_path, ONE), settings(tmp_path, ONE)
    found = changes(old, new)
    assert (found.live, found.later, found.credentials) == ({}, (), ())
    assert found.settings == old


def test_a_setting_that_went_back_to_its_default(tmp_path: Path) -> None:
    found = changes(settings(tmp_path, ONE + 'metadata_ttl = "5s"\n'), settings(tmp_path, ONE))
    assert found.live == {"metadata_ttl": "60s"}
    assert found.settings.describe()["metadata_ttl"] == {"value": "60s", "from": "default"}


def test_credentials_from_elsewhere(tmp_path: Path) -> None:
    two = '{}mountpoint = "m"\n[repositories.a]\nurl = "s3://b/p"\n{}[repositories.b]\nurl = "s3://c/p"\n'
    found = changes(settings(tmp_path, two.format("", "")), settings(tmp_path, two.format("", 'profile = "other"\n')))
    assert (found.live, found.later, found.credentials) == ({}, (), ("a",))
    assert found.settings.credentials["a"] == Profile("other")


def test_other_repositories_and_another_place(tmp_path: Path) -> None:
    old = settings(tmp_path, ONE)
    assert changes(old, settings(tmp_path, ONE.replace('"m"', '"n"'))).later == ("mountpoint",)
    other = settings(tmp_path, 'mountpoint = "m"\n[repositories.a]\nurl = "s3://b/p"\n')
    assert changes(old, other).later == ("repositories",)
    assert changes(old, settings(tmp_path, ONE.replace("b/p", "b/q"))).later == ("url",)


def test_what_a_repository_has_for_itself(tmp_path: Path) -> None:
    two = 'mountpoint = "m"\n[repositories.a]\nurl = "s3://b/p"\n{}[repositories.b]\nurl = "s3://c/p"\n'
    found = changes(
        settings(tmp_path, two.format("")), settings(tmp_path, two.format('listing_limit = 7\nregion = "r"\n'))
    )
    assert (found.live, found.later) == ({"a.listing_limit": "7"}, ("a.region",))
    a, b = found.settings.config.repositories
    assert (a.listing_limit, a.region, b.listing_limit) == (7, "", 20_000)
    shown = found.settings.describe()["a.listing_limit"]
    assert shown["value"] == "7"
    assert "c.toml" in shown["from"]


def test_live_options_exist() -> None:
    assert OPTIONS.keys() >= LIVE
    assert {name for name in LIVE if OPTIONS[name].per_repository} == {"listing_limit"}
