"""The dry run: each prerequisite that fails is found, named, and leaves the others to say what they can."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from d7yfs.check.dry_run import check, check_host
from d7yfs.check.findings import Finding, Severity
from d7yfs.config.schema import Config
from d7yfs.config.size_bound import SizeBound
from d7yfs.config.sources import Settings, load_settings
from d7yfs.host import mount_table
from tests.host.test_mount_table import MuteMounts
from tests.servers import faults
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.gcs import GcsServer
from tests.servers.s3_faults import S3Faults

SIZE = 6 << 20


@pytest.fixture
async def store() -> AsyncIterator[S3Faults]:
    async with S3Faults({"b/models/a/model.onnx": b"m" * SIZE, "b/models/top": b"t"}).running() as running:
        yield running


def settings_for(store: S3Faults, tmp_path: Path, prefix: str = "models", **flags: object) -> Settings:
    flags = {"anonymous": True, "cache_dir": tmp_path / "cache", "read_timeout": "2s", **flags}
    point = tmp_path / "mnt"
    point.mkdir(exist_ok=True)
    return load_settings(flags, [f"s3://127.0.0.1:{store.port}/b/{prefix}"], point, {}, None)


async def findings(settings: Settings) -> dict[str, Finding]:
    """The last finding of each probe."""
    return {finding.probe: finding async for finding in check(settings)}


async def test_all_is_well(store: S3Faults, tmp_path: Path) -> None:
    found = await findings(settings_for(store, tmp_path))
    for probe in ("credentials", "list", "read", "proxy", "cache", "mount point"):
        assert found[probe].verdict is Severity.OK, found[probe]
    assert "anonymous) (from --anonymous)" in found["credentials"].said
    assert "1 directory, 1 file at the top" in found["list"].said
    assert "none configured" in found["proxy"].said
    assert not (tmp_path / "cache").exists(), "a dry run makes nothing"
    assert list((tmp_path / "mnt").iterdir()) == []
    assert {request.method for request in store.requests} <= {"GET", "HEAD"}


async def test_an_absent_prefix(store: S3Faults, tmp_path: Path) -> None:
    found = await findings(settings_for(store, tmp_path, "model"))
    assert found["list"].verdict is Severity.FAILED
    assert "b/models" in found["list"].hint
    assert "read" not in found
    assert found["cache"].verdict is Severity.OK


async def test_an_empty_repository_that_is_wanted(store: S3Faults, tmp_path: Path) -> None:
    found = await findings(settings_for(store, tmp_path, "model", allow_empty=True))
    assert found["list"].verdict is Severity.OK
    assert found["read"].verdict is Severity.WARNING


async def test_a_listing_that_is_refused(store: S3Faults, tmp_path: Path) -> None:
    store.script(faults.status(403, {}, b"<Error><Code>AccessDenied</Code></Error>"), key="b", forever=True)
    found = await findings(settings_for(store, tmp_path))
    assert found["list"].verdict is Severity.FAILED
    assert "s3:ListBucket" in found["list"].said + found["list"].hint
    assert "--listing exact" in found["list"].hint
    found = await findings(settings_for(store, tmp_path, listing="exact"))
    assert found["list"].verdict is Severity.WARNING, "it can be mounted"


async def test_one_object_needs_no_right_to_list(store: S3Faults, tmp_path: Path) -> None:
    store.script(faults.status(403, {}, b"<Error><Code>AccessDenied</Code></Error>"), key="b", forever=True)
    found = await findings(settings_for(store, tmp_path, "models/top"))
    assert found["list"].verdict is Severity.OK
    assert found["read"].verdict is Severity.OK


async def test_objects_that_are_stored_compressed(gcs: GcsServer, tmp_path: Path) -> None:
    account = tmp_path / "account.json"
    account.write_text(json.dumps(gcs.account()))
    gcs.put("check", "models/plain.bin", b"plain")
    gcs.put("check", "models/packed.json", gzip.compress(b"{}"), encoding="gzip")
    flags = {"credentials_file": account, "endpoint_url": gcs.url, "cache_dir": tmp_path / "cache"}
    found = await findings(load_settings(flags, ["gs://check/models"], None, {}, None))
    assert found["encoding"].verdict is Severity.WARNING
    assert "1 of 2 objects are stored compressed ('models/packed.json': gzip)" in found["encoding"].said
    assert found["read"].verdict is Severity.OK


async def test_a_read_that_is_refused(store: S3Faults, tmp_path: Path) -> None:
    store.script(faults.status(403), key="b/models/a/model.onnx", forever=True)
    found = await findings(settings_for(store, tmp_path))
    assert found["list"].verdict is Severity.OK
    assert found["read"].verdict is Severity.FAILED
    assert "b/models/a/model.onnx" in found["read"].said


async def test_a_server_that_ignores_ranges(store: S3Faults, tmp_path: Path) -> None:
    store.script(store.whole_object, key="b/models/a/model.onnx", forever=True)
    found = await findings(settings_for(store, tmp_path))
    assert found["read"].verdict is Severity.FAILED
    assert "ignores Range" in found["read"].said + found["read"].hint


@pytest.mark.parametrize("after_body_bytes", [None, 0])
async def test_a_server_that_hangs(store: S3Faults, tmp_path: Path, after_body_bytes: int | None) -> None:
    store.script(faults.Hang(after_body_bytes), key="b/models/a/model.onnx", forever=True)
    found = await findings(settings_for(store, tmp_path, read_timeout="0.2s"))
    assert found["read"].verdict is Severity.FAILED


async def filter_findings(settings: Settings) -> list[Finding]:
    return [finding async for finding in check(settings) if finding.probe == "filters"]


async def test_what_filters_hide_is_counted(store: S3Faults, tmp_path: Path) -> None:
    assert await filter_findings(settings_for(store, tmp_path)) == []
    for key in ("a/x.tmp", "a/READY", "c/x", "d/x", "e/x", "f/x"):
        store.put(f"b/models/{key}", b"x")
    flags = {"include": "*.onnx,top,x", "exclude": "*.tmp,tmp/*", "publish_marker": "READY"}
    (finding,) = await filter_findings(settings_for(store, tmp_path, **flags))
    assert finding.verdict is Severity.OK
    for said in (
        *("2 of 8 objects are shown", "exclude *.tmp hides 1 (models/a/x.tmp);", "exclude tmp/* hides 0;"),
        *("include *.onnx matches 1;", "include top matches 1;", "include x matches 4;"),
        "publish marker */READY: 1 directories have it, 4 do not (models/c/, models/d/, models/e/, …)",
    ):
        assert said in finding.said
    assert "models/a/x.tmp: hidden by include or exclude" in finding.names
    assert "models/c/: its marker is not there" in finding.names
    found = await findings(settings_for(store, tmp_path, **flags))
    assert "1 directory, 1 file at the top" in found["list"].said, "as they are shown"


async def test_filters_that_hide_everything_or_match_nothing(store: S3Faults, tmp_path: Path) -> None:
    hidden, idle = await filter_findings(settings_for(store, tmp_path, include="*.ONNX"))
    assert hidden.verdict is idle.verdict is Severity.WARNING
    assert "0 of 2 objects are shown" in hidden.said
    assert "include *.ONNX matches none of 2 objects" in idle.said
    assert "case matters" in idle.hint
    (hidden,) = await filter_findings(settings_for(store, tmp_path, "models/top", exclude="top"))
    assert (hidden.verdict, "0 of 1 objects are shown" in hidden.said) == (Severity.WARNING, True)
    shown, astray = await filter_findings(settings_for(store, tmp_path, publish_marker="*/*/READY"))
    assert (shown.verdict, astray.verdict) == (Severity.OK, Severity.WARNING)
    assert "matches no directory" in astray.said


async def test_each_kind_of_key_that_cannot_be_shown_is_named(store: S3Faults, tmp_path: Path) -> None:
    """Wherever in the repository they are; and all of them in `names`."""
    deep = "/".join("d" * 257)
    keys = {
        "an empty path segment": ["a//x", "a/b//y", "//z"],
        "that is . or ..": ["a/../x", "./y"],
        "NUL in the name": ["a/n\0l"],
        "a name that is too long": ["a/" + "n" * 256],
        "too many directories": [f"{deep}/x"],
        "the name of a directory": ["top"],
    }
    store.put("b/models/top/below", b"x")
    for key in [key for kind in keys.values() for key in kind if key != "top"]:
        store.put(f"b/models/{key}", b"x")
    found = [each async for each in check(settings_for(store, tmp_path)) if each.probe == "names"]
    assert {each.verdict for each in found} == {Severity.WARNING}
    assert len(found) == len(keys)
    for kind, some in keys.items():
        (finding,) = [each for each in found if kind in each.said]
        assert f"{len(some)} key{'s' * (len(some) > 1)} cannot be shown" in finding.said
        assert len(finding.names) == len(some)


async def test_many_keys_that_cannot_be_shown(store: S3Faults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("d7yfs.check.findings.NAMES_MAX", 20)
    for number in range(120):
        store.put(f"b/models/a/{number}" + "n" * 256, b"x")
    store.put("b/models/a/z//x", b"x")
    named, other = [each async for each in check(settings_for(store, tmp_path)) if each.probe == "names"]
    assert "120 keys cannot be shown" in named.said
    assert len(named.names) == 20
    assert "1 key cannot be shown, with an empty path segment" in other.said


async def test_the_proxy(store: S3Faults, tmp_path: Path) -> None:
    async with FakeDfdaemon().running() as dfdaemon:
        settings = settings_for(store, tmp_path, proxy=dfdaemon.url)
        found = await findings(settings)
        assert found["proxy"].verdict is Severity.OK, found["proxy"]
        assert dfdaemon.url in found["proxy"].said
        assert len(dfdaemon.requests_for("b/models/a/model.onnx")) == 1
        dfdaemon.kill()
        found = await findings(settings)
        assert found["proxy"].verdict is Severity.WARNING
        assert found["proxy"].hint
        assert found["read"].verdict is Severity.OK, "the store itself is well"


async def test_warnings_of_the_configuration(store: S3Faults, tmp_path: Path) -> None:
    environ = {"D7YFS_CASH_SIZE": "1"}
    url = f"s3://127.0.0.1:{store.port}/b/models"
    flags = {"anonymous": True, "cache_dir": tmp_path}
    found = await findings(load_settings(flags, [url], None, environ, None))
    assert found["configuration"].verdict is Severity.WARNING
    assert "D7YFS_CASH_SIZE" in found["configuration"].said
    assert "mount point" not in found


def host(tmp_path: Path, **changes: object) -> dict[str, Finding]:
    values: dict[str, object] = {"cache_dir": tmp_path / "cache", **changes}
    config = Config(repositories=(), **values)  # type: ignore[arg-type]
    return {finding.probe: finding for finding in check_host(config)}


def test_mount_points(tmp_path: Path) -> None:
    assert "mount point" not in host(tmp_path)
    for point, verdict in ((tmp_path / "absent", Severity.FAILED), (Path("/"), Severity.FAILED)):
        assert host(tmp_path, mountpoint=point)["mount point"].verdict is verdict


def test_cache_directories(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert host(tmp_path, cache_dir=tmp_path / "file")["cache"].verdict is Severity.FAILED
    (tmp_path / "there").mkdir()
    assert host(tmp_path, cache_dir=tmp_path / "there")["cache"].verdict is Severity.OK
    full = host(tmp_path, cache_dir=tmp_path / "there", cache_min_free=SizeBound(1 << 60))["cache"]
    assert full.verdict is Severity.WARNING
    assert "--cache-min-free" in full.hint


@pytest.mark.mount
def test_a_cache_directory_of_somebody_else(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("needs root")
    (tmp_path / "theirs").mkdir()
    os.chown(tmp_path / "theirs", 12345, 12345)
    found = host(tmp_path, cache_dir=tmp_path / "theirs")["cache"]
    assert found.verdict is Severity.FAILED
    assert "12345" in found.said


@pytest.mark.mount
def test_what_is_mounted_by_fuse_is_dead_only_if_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() or not Path("/dev/fuse").exists():
        pytest.skip("needs root and /dev/fuse")
    monkeypatch.setattr(mount_table, "PROBE_TIMEOUT_S", 0.3)
    with closing(MuteMounts()) as made:
        _judge(tmp_path, made.make(tmp_path))


def _judge(tmp_path: Path, fd: int) -> None:
    found = host(tmp_path, mountpoint=tmp_path, cache_dir=tmp_path.parent / "cache")["mount point"]
    assert found.verdict is Severity.FAILED
    assert "which does not answer" in found.said
    os.close(fd)
    found = host(tmp_path, mountpoint=tmp_path, cache_dir=tmp_path.parent / "cache")["mount point"]
    assert found.verdict is Severity.WARNING
    assert "is a dead mount" in found.said
    assert mount_table.mounted_at(tmp_path) is not None, "a dry run changes nothing"
