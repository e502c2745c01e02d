"""Triton in explicit mode on a mount: the bytes that `load` loads, and the cache after an unload."""

from __future__ import annotations

import json

import pytest

from tests.mount.mounted import Mounted, Mounter, run, until
from tests.servers.triton import Triton
from tests.triton.conftest import Start
from tests.triton.models import MIB, Models, config, shown, weights_of

pytestmark = [pytest.mark.mount, pytest.mark.store]

OLD, NEW = weights_of(1, 6 * MIB), weights_of(2, 7 * MIB)


def mount(mounter: Mounter, models: Models, *options: str) -> Mounted:
    """Mount model m with a listing that lives for an hour."""
    models.put_model("m", OLD)
    return mounter.mount(models.url, "--metadata-ttl", "1h", *options, env=models.bucket.env)


def loaded(start: Start, mounted: Mounted) -> Triton:
    """A server that started empty and has loaded m."""
    triton = start(mounted.point, mode="explicit")
    triton.wait_until(lambda: triton.is_live(), "the server listens")
    assert not triton.is_ready("m")
    triton.load("m")
    assert shown(triton, "m", OLD)
    return triton


def test_load_unload_and_load_again(mounter: Mounter, models: Models, start: Start) -> None:
    triton = loaded(start, mount(mounter, models))
    triton.unload("m")
    triton.wait_until(lambda: triton.index() == {"m": "UNAVAILABLE: unloaded"}, "the model is unloaded")
    assert not triton.is_ready("m")
    triton.load("m")
    assert shown(triton, "m", OLD)


def test_models_loaded_at_start(mounter: Mounter, models: Models, start: Start) -> None:
    models.put_model("n", NEW)
    triton = start(mount(mounter, models).point, mode="explicit", options=["--load-model=m"])
    triton.wait_for("m")
    assert shown(triton, "m", OLD)
    assert triton.index() == {"m": "READY", "n": ""}


def refresh(mounted: Mounted, path: str) -> None:
    done = run("refresh", mounted.point / path)
    assert done.returncode == 0, done.stderr


def test_load_after_an_upload_and_a_refresh_serves_the_new_version(
    mounter: Mounter, models: Models, start: Start
) -> None:
    mounted = mount(mounter, models)
    triton = loaded(start, mounted)
    models.put_version("m", 2, NEW)
    refresh(mounted, "m")
    triton.load("m")
    assert shown(triton, "m", NEW)
    assert shown(triton, "m", NEW, version=2)


def test_load_after_an_overwrite_and_a_refresh_serves_the_new_bytes(
    mounter: Mounter, models: Models, start: Start
) -> None:
    mounted = mount(mounter, models)
    triton = loaded(start, mounted)
    models.put_version("m", 1, NEW)
    refresh(mounted, "m")
    triton.load("m")
    assert shown(triton, "m", NEW)


def test_a_new_model_after_a_refresh(mounter: Mounter, models: Models, start: Start) -> None:
    mounted = mount(mounter, models)
    triton = loaded(start, mounted)
    models.put_model("n", NEW)
    refresh(mounted, ".")
    triton.load("n")
    assert shown(triton, "n", NEW)


def test_a_config_that_is_revalidated_on_open_is_the_stores(mounter: Mounter, models: Models, start: Start) -> None:
    """This works without a refresh, for hosts on which the uploader cannot call it."""
    triton = loaded(start, mount(mounter, models, "--revalidate-on-open", "config.pbtxt"))
    models.put("m/config.pbtxt", config(label="changed"))
    triton.load("m")
    assert triton.config("m")["parameters"]["label"] == {"string_value": "changed"}


def test_a_version_that_came_with_a_config_is_seen_by_its_revalidation(
    mounter: Mounter, models: Models, start: Start
) -> None:
    triton = loaded(start, mount(mounter, models, "--revalidate-on-open", "config.pbtxt"))
    models.put_version("m", 2, NEW)
    models.put("m/config.pbtxt", config(label="changed"))
    triton.load("m")
    assert shown(triton, "m", NEW, version=2)


def test_a_model_is_there_once_its_marker_is(mounter: Mounter, models: Models, start: Start) -> None:
    for directory in ("m", "m/1"):
        models.put(f"{directory}/READY", "")
    mounted = mount(mounter, models, "--publish-marker", "READY")
    triton = loaded(start, mounted)
    models.put_model("n", NEW)
    refresh(mounted, ".")
    assert mounted.names() == ["m"]
    for directory in ("n/1", "n"):
        models.put(f"{directory}/READY", "")
    refresh(mounted, ".")
    triton.load("n")
    assert shown(triton, "n", NEW)


def test_what_was_unloaded_can_be_evicted(mounter: Mounter, models: Models, start: Start) -> None:
    mounted = mount(mounter, models)
    triton = loaded(start, mounted)

    def dropped() -> bool:
        return run("cache", "drop", "--all", "--cache-dir", mounted.cache_dir).returncode == 0

    assert not dropped(), "the cache must keep mapped weights"
    triton.unload("m")
    until(dropped, "the cache is no longer in use")
    listed = run("cache", "ls", "--json", "--cache-dir", mounted.cache_dir)
    assert json.loads(listed.stdout)["files"] == []
    triton.load("m")
    assert shown(triton, "m", OLD)
