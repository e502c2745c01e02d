"""A Python model may ship the program that runs it: Triton starts it from the mount.

Triton tries to start it, and if it cannot, makes it executable with chmod(2), which a read-only
mount refuses (python_backend, src/stub_launcher.cc).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mount.mounted import Mounter, within
from tests.servers.triton import TritonError
from tests.triton.conftest import PROGRAM, Start
from tests.triton.models import MIB, Models, shown, weights_of

pytestmark = [pytest.mark.mount, pytest.mark.store]

STUB = "triton_python_backend_stub"
(PACKAGES,) = PROGRAM.resolve().parent.glob("lib/*/site-packages")
# The program looks for its libraries beside the place where it was installed.
LIBRARIES = {"LD_LIBRARY_PATH": str(PACKAGES / "nvidia_pytriton.libs")}


def put_model_with_stub(models: Models, weights: bytes) -> None:
    models.put_model("m", weights)
    (own,) = PACKAGES.glob(f"pytriton/tritonserver/backends/python/{STUB}")
    models.put(f"m/{STUB}", own.read_bytes())


def programs_of(point: Path) -> list[str]:
    """The files of the mount that processes execute, relative to it."""
    found = []
    for exe in Path("/proc").glob("[0-9]*/exe"):
        try:
            found.append(exe.readlink())
        except OSError:  # it ended, or it is a thread of the kernel
            continue
    return [str(each.relative_to(point)) for each in found if each.is_relative_to(point)]


def test_a_model_that_ships_its_stub_loads_and_runs_it(mounter: Mounter, models: Models, start: Start) -> None:
    weights = weights_of(1, MIB)
    put_model_with_stub(models, weights)
    mounted = mounter.mount(models.url, env=models.bucket.env)
    triton = start(mounted.point, env=LIBRARIES)
    triton.wait_for("m")
    assert shown(triton, "m", weights)
    assert within(20, lambda: programs_of(mounted.point)) == [f"m/{STUB}"]


def test_without_the_permission_it_does_not_load(mounter: Mounter, models: Models, start: Start) -> None:
    put_model_with_stub(models, weights_of(1, MIB))
    mounted = mounter.mount(models.url, "--executable", "", env=models.bucket.env)
    triton = start(mounted.point, env=LIBRARIES)
    with pytest.raises(TritonError, match="Failed to give execute permission"):
        triton.wait_for("m", timeout_s=20)
