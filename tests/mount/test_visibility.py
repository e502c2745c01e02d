"""Settings that hide entries, under a real mount: hidden entries are not listed and cannot be
opened. A model is shown whole or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.mount.conftest import Bucket, both_engines, faulty_url
from tests.mount.mounted import Mounted, Mounter, run, until, within
from tests.servers import faults
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, both_engines]

WAYS = ("whole", "directory", "exact")
KEYS = (
    *("bert/1/model.onnx", "bert/1/notes.tmp", "bert/READY", "bert/config.pbtxt"),
    *("half/1/model.onnx", "half/config.pbtxt", "readme.md"),
    *("resnet/1/model.onnx", "resnet/READY", "resnet/tmp/deep/model.onnx", "tmp/model.onnx"),
)
SETTINGS = ("--exclude", "*.tmp,tmp", "--include", "*.onnx,*.pbtxt,READY", "--publish-marker", "READY")
SHOWN = {
    *("bert", "bert/1", "bert/1/model.onnx", "bert/READY", "bert/config.pbtxt"),
    *("resnet", "resnet/1", "resnet/1/model.onnx", "resnet/READY"),
}
HIDDEN = (
    "bert/1/notes.tmp",
    "half",
    "half/config.pbtxt",
    "half/1/model.onnx",
    "readme.md",
    "resnet/tmp",
    "resnet/tmp/deep/model.onnx",
    "tmp",
)


@pytest.fixture
def store() -> Iterator[InThread[S3Faults]]:
    with InThread(S3Faults({f"b/{key}": key.encode() for key in KEYS})) as running:
        yield running


def put(store: InThread[S3Faults], *keys: str) -> None:
    for key in keys:
        store.do(store.server.put, f"b/{key}", key.encode())


def walk(mounted: Mounted) -> set[str]:
    return within(20, lambda: {str(path.relative_to(mounted.point)) for path in mounted.point.rglob("*")})


def exists(mounted: Mounted, path: str) -> bool:
    return within(20, (mounted.point / path).exists)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_of_listing_shows_the_same_tree(mounter: Mounter, store: InThread[S3Faults], way: str) -> None:
    mounted = mounter.mount(faulty_url(store), "--anonymous", "--listing", way, *SETTINGS)
    for path in SHOWN:
        assert exists(mounted, path), path
    assert walk(mounted) == SHOWN
    assert mounted.read("bert/1/model.onnx") == b"bert/1/model.onnx"


@pytest.mark.store
def test_the_tree_of_a_real_store(mounter: Mounter, bucket: Bucket) -> None:
    """The real store has its own order of keys, so the daemon lists by directory once it notices
    that.
    """
    for key in (*KEYS, "bert/1-old/model.onnx"):
        bucket.put(f"visible/{key}", key.encode())
    mounted = mounter.mount(bucket.url("visible"), *SETTINGS, env=bucket.env)
    assert walk(mounted) == SHOWN | {"bert/1-old", "bert/1-old/model.onnx"}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_excluded_cannot_be_reached(mounter: Mounter, store: InThread[S3Faults], way: str) -> None:
    mounted = mounter.mount(faulty_url(store), "--anonymous", "--listing", way, *SETTINGS)
    for path in HIDDEN:
        with pytest.raises(FileNotFoundError):
            mounted.read(path)
        with pytest.raises(FileNotFoundError):
            mounted.names(path)
    for path in ("bert/1/notes.tmp", "readme.md", "resnet/tmp", "tmp"):
        assert not store.server.requests_for(f"b/{path}"), "a hidden name must cost no request"


@pytest.mark.parametrize("way", WAYS)
def test_a_directory_appears_with_its_marker_and_vanishes_with_it(
    mounter: Mounter, store: InThread[S3Faults], way: str
) -> None:
    options = ("--anonymous", "--listing", way, "--metadata-ttl", "0.5s", "--negative-ttl", "0.5s")
    mounted = mounter.mount(faulty_url(store), *options, "--publish-marker", "READY,*/*/READY")
    whole = {"new": ["1", "READY", "config.pbtxt"], "new/1": ["READY", "a", "b"]}

    def seen() -> bool:
        """True if the model is there; then it must be complete."""
        if not exists(mounted, "new"):
            return False
        assert {path: mounted.names(path) for path in whole} == whole
        return True

    for key in ("new/1/a", "new/config.pbtxt", "new/1/b", "new/1/READY"):
        put(store, key, f"after-{Path(key).name}")
        until(partial(exists, mounted, f"after-{Path(key).name}"), "a new listing of the store")
        assert not seen()
    put(store, "new/READY")
    until(seen, "the model")
    assert {"bert", "new", "resnet"} <= set(mounted.names())
    assert mounted.names("bert") == ["READY", "config.pbtxt"], "its version has no marker"

    store.do(store.server.delete, "b/new/READY")
    until(lambda: not exists(mounted, "new"), "the end of the model")
    assert not {"half", "new"} & set(mounted.names())


def test_a_marker_that_cannot_be_asked_for_changes_nothing(mounter: Mounter, store: InThread[S3Faults]) -> None:
    options = ("--anonymous", "--listing", "directory", "--metadata-ttl", "0", "--publish-marker", "READY")
    mounted = mounter.mount(faulty_url(store), *options)
    before = mounted.names()
    assert before == ["bert", "readme.md", "resnet"]
    refused = faults.status(403, {}, b"")
    store.do(lambda: store.server.script(refused, key="b/resnet/READY", forever=True))
    put(store, "later/READY")
    assert mounted.names() == before
    assert mounted.read("resnet/1/model.onnx") == b"resnet/1/model.onnx"
    assert "serving the last listing" in mounted.log()
    store.do(lambda: store.server.script(key="b/resnet/READY"))
    until(lambda: "later" in mounted.names(), "a new listing")


def test_what_is_hidden_is_counted(mounter: Mounter, store: InThread[S3Faults]) -> None:
    url = faulty_url(store)
    mounted = mounter.mount(url, "--anonymous", *SETTINGS)
    walk(mounted)
    (repository,) = mounted.status()["repositories"]
    assert repository["hidden"] == {"name": 0, "excluded": 4, "unpublished": 1}
    said = run("status", mounted.point).stdout
    assert "4 hidden by include or exclude, 1 without their marker" in said
    listed = run("ls", url, "--anonymous", *SETTINGS)
    assert {line.split()[-1] for line in listed.stdout.splitlines()} == {"bert/", "resnet/"}
    assert "not shown: 2 hidden by include or exclude, 1 without their marker" in listed.stderr
    checked = run("check", url, "--anonymous", *SETTINGS, "--cache-dir", mounted.cache_dir).stdout
    checked = " ".join(checked.split())
    assert "5 of 11 objects are shown" in checked
    assert "publish marker */READY: 2 directories have it, 1 do not (half/)" in checked


def test_each_repository_has_its_own(mounter: Mounter, store: InThread[S3Faults], tmp_path: Path) -> None:
    config = tmp_path / "models.toml"
    config.write_text(
        f"""
        anonymous = true
        exclude = "tmp"
        [repositories.all]
        url = "{faulty_url(store)}"
        exclude = ""
        [repositories.bert]
        url = "{faulty_url(store, "bert")}"
        include = "/1/*.onnx"
        [repositories.published]
        url = "{faulty_url(store)}"
        publish-marker = "READY"
        """
    )
    mounted = mounter.mount("--config", str(config))
    assert mounted.names("all") == ["bert", "half", "readme.md", "resnet", "tmp"]
    assert (mounted.names("bert"), mounted.names("bert/1")) == (["1"], ["model.onnx"])
    assert mounted.names("published") == ["bert", "readme.md", "resnet"]


def test_what_is_no_marker_is_refused(mounter: Mounter, store: InThread[S3Faults]) -> None:
    refused = mounter.refused(faulty_url(store), "--anonymous", "--publish-marker", "READY/")
    assert (
        "--publish-marker 'READY/' ends in a slash, so it names no object; allowed: a name such as READY"
        in refused.stderr
    )
