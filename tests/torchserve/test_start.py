"""Models that TorchServe loads from a mount when it starts."""

from __future__ import annotations

import pytest

from tests.mount.mounted import Mounter
from tests.torchserve.conftest import Start
from tests.torchserve.models import Models, served_from, weights_of


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"models": ["all"]}, ["one", "two", "flat"]),
        ({"models": ["one.mar"]}, ["one"]),
        ({"models": ["one.mar", "flat"]}, ["one", "flat"]),
        ({"models": ["renamed=one.mar", "also=flat"]}, ["renamed", "also"]),
        ({"load_models": "all"}, ["one", "two", "flat"]),
        ({"load_models": "two.mar,renamed=one.mar"}, ["two", "renamed"]),
    ],
    ids=str,
)
def test_models_of_the_start_serve_from_the_mount(
    models: Models, mounter: Mounter, start: Start, options: dict[str, object], names: list[str]
) -> None:
    weights = {name: weights_of(number) for number, name in enumerate(("one", "two", "flat"))}
    for name, content in weights.items():
        models.put(name if name == "flat" else f"{name}.mar", content)
    mounted = mounter.mount(models.url, env=models.bucket.env)
    # The registration at start needs neither token nor model API.
    server = start(mounted.point, model_api=False, **options)
    of = weights | {"renamed": weights["one"], "also": weights["flat"]}
    for name in names:
        directory = served_from(server, name, of[name])
        in_place = name in ("flat", "also")
        assert directory.is_relative_to(mounted.point) == in_place, "only a directory is read in place"
    for name in weights.keys() - set(names):
        status, said = server.manage("GET", f"/models/{name}")
        assert status == 404, said


def test_a_second_start_fetches_nothing(models: Models, mounter: Mounter, start: Start) -> None:
    weights = weights_of(1, 20 << 20)
    models.put("one.mar", weights)
    mounted = mounter.mount(models.url, env=models.bucket.env)
    first = start(mounted.point, models=["all"])
    served_from(first, "one", weights)
    first.stop()
    requests = mounted.data_requests()
    assert requests > 0
    served_from(start(mounted.point, models=["all"]), "one", weights)
    assert mounted.data_requests() == requests
