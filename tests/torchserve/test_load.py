"""torch on a mount, with the interpreter of TorchServe's workers."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.mount.mounted import Mounter
from tests.torchserve.models import Models

_SAVE = """
import sys, torch
torch.manual_seed(7)
torch.save({f"layer.{n}": torch.rand(512, 1024) for n in range(5)}, sys.argv[1])
"""
_LOAD = """
import hashlib, sys, torch
for name, tensor in torch.load(sys.argv[1], mmap=True, weights_only=True).items():
    print(name, hashlib.sha256(tensor.numpy().tobytes()).hexdigest())
print(any(line.rstrip().endswith(sys.argv[1]) for line in open("/proc/self/maps")))
"""


def python(models: Models, program: str, path: Path) -> list[str]:
    command: list[str | Path] = [models.programs / "python", "-c", program, path]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_torch_load_maps_what_a_local_file_holds(models: Models, mounter: Mounter, ground: Path) -> None:
    python(models, _SAVE, ground / "model.pt")
    models.bucket.put(f"{models.prefix}/model.pt", (ground / "model.pt").read_bytes())
    mounted = mounter.mount(models.url, env=models.bucket.env)
    loaded = python(models, _LOAD, mounted.point / "model.pt")
    assert loaded == python(models, _LOAD, ground / "model.pt")
    assert (len(loaded), len(set(loaded)), loaded[-1]) == (6, 6, "True")
