"""The demo's model repository in Triton's layout: two real ONNX models and one large file of
weights.

The `onnx` package ships the models for its own tests. They are real architectures with generated
weights, so they are small and onnxruntime loads and runs them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

MODELS = {"densenet121": "light_densenet121.onnx", "squeezenet": "light_squeezenet.onnx"}
WEIGHTS = Path("llm/1/weights.bin")
_CHUNK_BYTES = 8 << 20


def make_repository(directory: Path, *, weights_bytes: int) -> None:
    """Write the repository into `directory`, with the same bytes in every run."""
    shipped = Path(onnx.__file__).parent / "backend/test/data/light"
    for name, file in MODELS.items():
        model = directory / name / "1/model.onnx"
        model.parent.mkdir(parents=True)
        shutil.copyfile(shipped / file, model)
        model.parent.with_name("config.pbtxt").write_text(_config(name, onnx.load(model)))
    weights = directory / WEIGHTS
    weights.parent.mkdir(parents=True)
    random = np.random.default_rng(seed=7)
    with weights.open("wb") as out:
        for start in range(0, weights_bytes, _CHUNK_BYTES):
            out.write(random.bytes(min(_CHUNK_BYTES, weights_bytes - start)))


def files(directory: Path) -> Iterator[Path]:
    """Every regular file below `directory`, relative to it, in order of name."""
    return (path.relative_to(directory) for path in sorted(directory.rglob("*")) if path.is_file())


def _config(name: str, model: onnx.ModelProto) -> str:
    weights = {initializer.name for initializer in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    return "\n".join(
        [
            f'name: "{name}"',
            'platform: "onnxruntime_onnx"',
            *(f"input [ {_tensor(value)} ]" for value in inputs),
            *(f"output [ {_tensor(value)} ]" for value in model.graph.output),
            "",
        ]
    )


def _tensor(value: onnx.ValueInfoProto) -> str:
    dims = ", ".join(str(dim.dim_value) for dim in value.type.tensor_type.shape.dim)
    return f'{{ name: "{value.name}", data_type: TYPE_FP32, dims: [ {dims} ] }}'
