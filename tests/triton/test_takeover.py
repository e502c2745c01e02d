"""Workers are killed and upgraded under a Triton that loads models from their mount."""

from __future__ import annotations

import hashlib
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from tests.mount.mounted import READ_TIMEOUT_S, Mounter, run, within
from tests.mount.readers import Readers, from_the_worker, mapped, run_program
from tests.mount.test_supervisor import await_generation, takeover
from tests.servers.triton import Triton
from tests.triton.conftest import Start
from tests.triton.models import MIB, Models, shown, weights_of

pytestmark = [pytest.mark.mount, pytest.mark.store]

_ROUNDS, _KILLS = 5, 4
_WEIGHTS = {f"m{seed}": weights_of(seed, 6 * MIB + seed) for seed in range(3)}


def loads_anew(triton: Triton, model: str) -> bool:
    """Unload and load a model; True if it serves the right bytes."""
    triton.unload(model)
    triton.wait_until(lambda: triton.index()[model] == "UNAVAILABLE: unloaded", f"{model} is unloaded")
    triton.load(model)
    return triton.is_ready(model) and shown(triton, model, _WEIGHTS[model])


def test_nobody_notices_twenty_kills_and_five_upgrades(mounter: Mounter, models: Models, start: Start) -> None:
    for model, weights in _WEIGHTS.items():
        models.put_model(model, weights, how="read" if model == "m1" else "map")
    mounted = mounter.mount(models.url, "--metadata-ttl", "1s", "--takeover", "standby", env=models.bucket.env)
    triton = start(mounted.point, mode="explicit", options=["--load-model=*"])
    for model in _WEIGHTS:
        triton.wait_for(model)
    readers, top = Readers(), mounted.point
    for model in ("m0", "m1"):
        readers.start(partial(loads_anew, triton, model), True)
    find, cat = ("find", str(top), "-type", "f", "-ls"), ("sh", "-c", f"cat {top}/*/config.pbtxt {top}/*/1/*")
    for command in (find, cat):
        readers.start(partial(run_program, *command), within(READ_TIMEOUT_S, partial(run_program, *command)))
    for read in (mapped, from_the_worker):
        readers.start(partial(read, weights_file(top, "m2")), hashlib.sha256(_WEIGHTS["m2"]).digest())
    for _ in range(_ROUNDS):
        for _ in range(_KILLS):
            found = takeover(mounted)
            os.kill(found["worker_pid"], signal.SIGKILL)
            await_generation(mounted, found["generation"] + 1, standby="ready")
            readers.go_on()
        upgraded = run("upgrade", mounted.point)
        assert (upgraded.returncode, upgraded.stderr) == (0, "")
        await_generation(mounted, takeover(mounted)["generation"], standby="ready")
        readers.go_on()
    readers.stop()
    found = takeover(mounted)
    assert (found["restarts"], found["upgrades"]) == (_ROUNDS * _KILLS, _ROUNDS)
    assert all(triton.is_ready(model) and shown(triton, model, weights) for model, weights in _WEIGHTS.items())
    print(f"{readers.rounds} rounds, the longest took {readers.longest_s:.2f} s")
    assert "Traceback" not in mounted.log()
    assert " ERROR " not in mounted.log()


def weights_file(top: Path, model: str) -> Path:
    return top / model / "1" / "weights.bin"
