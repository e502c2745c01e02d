"""Triton in poll mode on a mount: it loads changes of the store in time, and does not reload
unchanged models.

The tests count polls instead of seconds. Triton begins a poll at the earliest a second after the
last has ended. So a change must be seen after one poll per second of the listing's life, and one
more.
"""

from __future__ import annotations

import pytest

from tests.mount.mounted import Mounter, within
from tests.servers.fault_proxy import FaultProxy
from tests.servers.in_thread import InThread
from tests.servers.triton import Triton
from tests.triton.conftest import Start
from tests.triton.models import MIB, Models, config, mtimes, shown, weights_of

pytestmark = [pytest.mark.mount, pytest.mark.store]

TTL_S = 3
OLD, NEW = weights_of(1, MIB), weights_of(2, 2 * MIB)


@pytest.fixture
def polling(mounter: Mounter, models: Models, start: Start) -> Triton:
    """A server that has loaded model m from a mount whose listings live for TTL_S."""
    models.put_model("m", OLD)
    mounted = mounter.mount(models.url, "--metadata-ttl", f"{TTL_S}s", env=models.bucket.env)
    triton = start(mounted.point, mode="poll")
    triton.wait_for("m")
    assert shown(triton, "m", OLD)
    return triton


def in_time(triton: Triton, polls_before: int, sign: str) -> bool:
    """True if `sign` appears in the log by the poll after the listing's life."""
    before, found, _ = triton.log().partition(sign)
    assert found
    return (
        before.count('"Polling model repository"') - polls_before <= TTL_S + 2
    )  # One more, which ran during the change.


def test_a_new_version_is_loaded(polling: Triton, models: Models) -> None:
    polls = polling.polls()
    models.put_version("m", 2, NEW)
    polling.wait_for("m", version=2)
    assert shown(polling, "m", NEW)
    assert in_time(polling, polls, '"loading: m:2"')
    polling.wait_until(lambda: not polling.is_ready("m", 1), "the latest version alone serves")


def test_a_changed_config_is_loaded(polling: Triton, models: Models) -> None:
    polls = polling.polls()
    models.put("m/config.pbtxt", config(label="changed"))
    polling.wait_until(
        lambda: polling.config("m")["parameters"]["label"] == {"string_value": "changed"}, "the model is loaded"
    )
    assert in_time(polling, polls, 'string_value: "changed"')
    assert shown(polling, "m", OLD)


def test_changed_weights_of_the_same_version_are_loaded(polling: Triton, models: Models) -> None:
    models.put_version("m", 1, NEW)
    loads = polling.loads("m")
    polling.wait_until(lambda: polling.loads("m") > loads and shown(polling, "m", NEW), "the new weights serve")


def test_a_new_model_is_loaded(polling: Triton, models: Models) -> None:
    polls = polling.polls()
    models.put_model("n", NEW)
    polling.wait_for("n")
    assert shown(polling, "n", NEW)
    assert in_time(polling, polls, '"loading: n:1"')
    assert polling.loads("m") == 1


def test_a_removed_model_is_unloaded(polling: Triton, models: Models) -> None:
    models.put_model("n", NEW)
    polling.wait_for("n")
    polls = polling.polls()
    models.remove("m")
    polling.wait_until(lambda: not polling.is_ready("m"), "the model is unloaded")
    assert in_time(polling, polls, "Stopping backend thread for m_0")
    assert shown(polling, "n", NEW)


def test_a_model_that_is_moved_to_another_name(polling: Triton, models: Models) -> None:
    models.put_model("n", OLD)
    models.remove("m")
    polling.wait_for("n")
    polling.wait_until(lambda: not polling.is_ready("m"), "the old name is gone")
    assert shown(polling, "n", OLD)


def test_a_version_and_a_model_are_loaded_once_their_markers_are_there(
    mounter: Mounter, models: Models, start: Start
) -> None:
    """Publishing in poll mode as in docs/publishing.md. A version published at the same time shows
    that the listing was renewed.
    """
    for model in ("m", "other"):
        models.put_published(model, OLD)
    options = ("--publish-marker", "READY,*/*/READY", "--metadata-ttl", f"{TTL_S}s")
    mounted = mounter.mount(models.url, *options, env=models.bucket.env)
    triton = start(mounted.point, mode="poll")
    for model in ("m", "other"):
        triton.wait_for(model)

    models.put("m/2/weights.bin", NEW)  # Half a version, and half a model.
    models.put_version("n", 1, NEW)
    models.put_published("other", NEW, version=2)
    triton.wait_for("other", version=2)
    idle(triton, 1)
    assert not triton.is_ready("m", 2)
    assert set(triton.index()) == {"m", "other"}

    models.put_version("m", 2, NEW)  # Whole, but not published.
    models.put_model("n", NEW)
    models.put_published("other", OLD, version=3)
    triton.wait_for("other", version=3)
    idle(triton, 1)
    assert not triton.is_ready("m", 2)
    assert set(triton.index()) == {"m", "other"}
    assert triton.loads("m") == 1
    assert shown(triton, "m", OLD)

    for marker in ("m/2/READY", "n/1/READY", "n/READY"):
        models.put(marker, "")
    triton.wait_for("m", version=2)
    triton.wait_for("n")
    assert shown(triton, "m", NEW)
    assert shown(triton, "n", NEW)
    assert "Poll failed for model directory" not in triton.log()


def idle(triton: Triton, polls: int) -> None:
    """Return after that many more polls."""
    wanted = triton.polls() + polls + 1
    triton.wait_until(lambda: triton.polls() >= wanted, f"{polls} polls")


def test_polls_while_the_listing_is_fresh_cost_nothing(
    mounter: Mounter, models: Models, start: Start, counted: InThread[FaultProxy]
) -> None:
    for model in ("m", "n"):
        models.put_model(model, OLD)
    url = models.url_through(counted.server.port)
    mounted = mounter.mount(url, "--metadata-ttl", "1h", env=models.bucket.env)
    triton = start(mounted.point, mode="poll")
    for model in ("m", "n"):
        triton.wait_for(model)
    idle(triton, 1)
    asked, times = len(counted.server.requests), within(20, lambda: mtimes(mounted.point))
    idle(triton, 4)
    assert len(counted.server.requests) == asked
    assert within(20, lambda: mtimes(mounted.point)) == times
    assert [triton.loads(model) for model in ("m", "n")] == [1, 1]


def test_polls_with_nothing_changed_reload_nothing(
    mounter: Mounter, models: Models, start: Start, counted: InThread[FaultProxy]
) -> None:
    """The listing is renewed again and again meanwhile."""
    models.put_model("m", OLD)
    url = models.url_through(counted.server.port)
    mounted = mounter.mount(url, "--metadata-ttl", "1s", env=models.bucket.env)
    triton = start(mounted.point, mode="poll")
    triton.wait_for("m")
    idle(triton, 1)
    asked, times = len(counted.server.requests), within(20, lambda: mtimes(mounted.point))
    idle(triton, 6)
    again = counted.server.requests[asked:]
    assert again
    assert all("list-type=2" in request.target for request in again)
    assert within(20, lambda: mtimes(mounted.point)) == times
    assert triton.loads("m") == 1
