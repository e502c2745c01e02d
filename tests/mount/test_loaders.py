"""The loaders of model libraries on a mount: each returns the same as from a local directory, by
pread, by read and by memory maps.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import onnx
import pytest
import safetensors.numpy

from tests.mount.conftest import MIB, Bucket, both_engines
from tests.mount.mounted import COMMAND_TIMEOUT_S, Mounted, Mounter

pytestmark = [pytest.mark.mount, pytest.mark.store, both_engines]

_SIDE = 512

# Each prints a hash of its arrays. A map that fails kills its process, so each loader has its own.
LOADERS = {
    "safetensors load_file": "arrays = load_file('model.safetensors').values()",
    "safetensors safe_open": """
with safe_open('model.safetensors', framework='numpy') as file:
    arrays = [file.get_slice(name)[7:1500000] for name in file.keys()]""",
    "numpy load": "arrays = [numpy.load('model.npy')]",
    "numpy mmap": "arrays = [numpy.load('model.npy', mmap_mode='r')]",
    "numpy memmap": "arrays = [numpy.memmap('model.npy', mode='r')]",
    "numpy npz": "arrays = numpy.load('model.npz').values()",
    "onnxruntime external data": """
import onnxruntime
session = onnxruntime.InferenceSession('model.onnx', providers=['CPUExecutionProvider'])
arrays = session.run(None, {'x': numpy.eye(512, dtype=numpy.float32)})""",
}
_CODE = """
import hashlib, os, sys
import numpy
from safetensors import safe_open
from safetensors.numpy import load_file
os.chdir(sys.argv[1])
{loader}
digest = hashlib.sha256()
for array in arrays:
    digest.update(numpy.ascontiguousarray(array))
print(digest.hexdigest())
"""


def loaded(loader: str, directory: Path) -> str:
    code = _CODE.format(loader=LOADERS[loader])
    command = [sys.executable, "-W", "error", "-c", code, str(directory)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model of some megabytes per format, with parts that lie across blocks."""
    directory = tmp_path_factory.mktemp("models")
    source = numpy.random.default_rng(7)
    arrays = {f"layer.{n}": source.integers(0, 256, 2 * MIB + n, dtype=numpy.uint8) for n in range(3)}
    safetensors.numpy.save_file(arrays, directory / "model.safetensors")
    numpy.save(directory / "model.npy", source.standard_normal((_SIDE, 2 * _SIDE)))
    numpy.savez(directory / "model.npz", one=arrays["layer.0"], two=arrays["layer.1"])
    matrix = onnx.numpy_helper.from_array(source.standard_normal((_SIDE, _SIDE), dtype=numpy.float32), "w")
    value = onnx.helper.make_tensor_value_info
    shape = [_SIDE, _SIDE]
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])],
        "layer",
        [value("x", onnx.TensorProto.FLOAT, shape)],
        [value("y", onnx.TensorProto.FLOAT, shape)],
        [matrix],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(
        model, directory / "model.onnx", save_as_external_data=True, location="model.onnx.data", size_threshold=0
    )
    return directory


@pytest.fixture(scope="module")
def mounted(
    local: Path, bucket: Bucket, tmp_path_factory: pytest.TempPathFactory, fuse_engine: str
) -> Iterator[Mounted]:
    for path in local.iterdir():
        bucket.put(f"loaders/{path.name}", path.read_bytes())
    with Mounter(tmp_path_factory.mktemp("loaders")) as mounter:
        yield mounter.mount(bucket.url("loaders"), env=bucket.env)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_loader_finds_on_the_mount_what_it_finds_locally(loader: str, local: Path, mounted: Mounted) -> None:
    assert loaded(loader, mounted.point) == loaded(loader, local)
