"""Triton in explicit mode on a mount: the bytes that `load` loads, and the cache after an unload."""

from __future__ import annotations

import json

import pytest

from tests.mount.mounted import Mounted, Mounter, run, until
from tests.servers.fault_proxy import FaultProxy
from tests.servers.in_thread import InThread
from tests.servers.triton import Triton, TritonError
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


FOR_TRITON = ("--for", "triton")


def test_for_triton_a_load_right_after_an_upload_serves_the_new_version(
    mounter: Mounter, models: Models, start: Start
) -> None:
    """No refresh, and no change of config.pbtxt: the listing would live for an hour."""
    triton = loaded(start, mount(mounter, models, *FOR_TRITON))
    models.put_version("m", 2, NEW)
    triton.load("m")
    assert shown(triton, "m", NEW)
    assert shown(triton, "m", NEW, version=2)


def test_for_triton_a_load_right_after_an_overwrite_serves_the_new_bytes(
    mounter: Mounter, models: Models, start: Start
) -> None:
    triton = loaded(start, mount(mounter, models, *FOR_TRITON))
    for weights in (NEW, OLD, NEW):
        models.put_version("m", 1, weights)
        triton.load("m")
        assert shown(triton, "m", weights)


def test_for_triton_a_new_model_is_loaded_right_after_its_upload(
    mounter: Mounter, models: Models, start: Start
) -> None:
    triton = loaded(start, mount(mounter, models, *FOR_TRITON))
    with pytest.raises(TritonError):
        triton.load("n")
    models.put_model("n", NEW)
    triton.load("n")
    assert shown(triton, "n", NEW)


def test_for_triton_a_load_of_what_has_not_changed_costs_few_requests(
    mounter: Mounter, models: Models, start: Start, counted: InThread[FaultProxy]
) -> None:
    models.put_model("m", OLD)
    url = models.url_through(counted.server.port)
    mounted = mounter.mount(url, "--metadata-ttl", "1h", *FOR_TRITON, env=models.bucket.env)
    triton = loaded(start, mounted)
    before = len(counted.server.requests)
    triton.load("m")
    asked = [(each.method, each.target) for each in counted.server.requests[before:]]
    assert triton.loads("m") == 1
    assert all(method == "HEAD" or "list-type=2" in target for method, target in asked), "no file is fetched again"
    assert len(asked) <= 6, asked


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
