"""Triton loads models of any size from a mount and serves them, as any user."""

from __future__ import annotations

import pytest

from tests.mount.mounted import Mounter
from tests.triton.conftest import Start
from tests.triton.models import MIB, Models, shown, weights_of

pytestmark = [pytest.mark.mount, pytest.mark.store]

NOBODY = 65534


@pytest.mark.parametrize(
    ("size_bytes", "how"),
    [(MIB, "read"), (64 * MIB + 1, "map"), (64 * MIB + 1, "read"), (1024 * MIB, "map"), (1024 * MIB, "read")],
)
def test_models_of_every_size_are_loaded(
    mounter: Mounter, models: Models, start: Start, size_bytes: int, how: str
) -> None:
    weights = weights_of(1, size_bytes)
    models.put_model("m", weights, how=how)
    mounted = mounter.mount(models.url, env=models.bucket.env)
    triton = start(mounted.point)
    triton.wait_for("m", timeout_s=120)
    assert shown(triton, "m", weights)


def test_several_models_at_once(mounter: Mounter, models: Models, start: Start) -> None:
    weights = {f"m{seed}": weights_of(seed, 8 * MIB + seed) for seed in range(4)}
    for model, each in weights.items():
        models.put_model(model, each)
    mounted = mounter.mount(models.url, env=models.bucket.env)
    triton = start(mounted.point)
    for model, each in weights.items():
        triton.wait_for(model)
        assert shown(triton, model, each)


def test_a_server_of_another_user(mounter: Mounter, models: Models, start: Start) -> None:
    weights = weights_of(1, 8 * MIB)
    models.put_model("m", weights)
    mounted = mounter.mount(models.url, "--allow-other", env=models.bucket.env)
    triton = start(mounted.point, uid=NOBODY)
    triton.wait_for("m")
    assert shown(triton, "m", weights)
