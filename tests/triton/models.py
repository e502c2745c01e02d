"""The model of these tests: it maps or reads a file of weights, compares its SHA-256, and answers
with some of its bytes.

Tests upload a model as a user would: the version's files first, config.pbtxt last.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from tests.mount.conftest import Bucket
from tests.servers.triton import Triton

MIB = 1 << 20

CODE = b"""\
import hashlib
import json
import mmap
import os

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        directory = os.path.join(args["model_repository"], args["model_version"])
        with open(os.path.join(directory, "weights.bin"), "rb") as file:
            if parameters["how"]["string_value"] == "map":
                self.weights = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            else:
                self.weights = file.read()
        with open(os.path.join(directory, "weights.sha256")) as file:
            wanted = file.read()
        found = hashlib.sha256(self.weights).hexdigest()
        if found != wanted:
            raise pb_utils.TritonModelException(f"the weights are {found} and not {wanted}")

    def execute(self, requests):
        responses = []
        for request in requests:
            offsets = pb_utils.get_input_tensor_by_name(request, "OFFSETS").as_numpy()
            found = numpy.array([self.weights[int(offset)] for offset in offsets], dtype=numpy.uint8)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("BYTES", found)]))
        return responses
"""

CONFIG = """\
backend: "python"
max_batch_size: 0
input [ {{ name: "OFFSETS" data_type: TYPE_INT64 dims: [ -1 ] }} ]
output [ {{ name: "BYTES" data_type: TYPE_UINT8 dims: [ -1 ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
parameters {{ key: "how" value {{ string_value: "{how}" }} }}
parameters {{ key: "label" value {{ string_value: "{label}" }} }}
"""


def config(*, how: str = "map", label: str = "", more: str = "") -> str:
    """A config.pbtxt. Two that differ only in `label` are one model to these tests and a changed
    one to Triton.
    """
    return CONFIG.format(how=how, label=label) + more


def weights_of(seed: int, size_bytes: int) -> bytes:
    """Bytes that differ by seed and by megabyte, made fast enough for a gigabyte."""
    one = random.Random(seed).randbytes(MIB)
    count = -(-size_bytes // MIB)
    return b"".join(number.to_bytes(8, "little") + one[8:] for number in range(count))[:size_bytes]


@dataclass(frozen=True, slots=True)
class Models:
    """A model repository at its own prefix in a bucket of the real store."""

    bucket: Bucket
    prefix: str

    def put(self, name: str, body: str | bytes) -> None:
        """Put one file of the repository."""
        self.bucket.put(f"{self.prefix}/{name}", body.encode() if isinstance(body, str) else body)

    def put_version(self, model: str, version: int, weights: bytes) -> None:
        self.put(f"{model}/{version}/weights.bin", weights)
        self.put(f"{model}/{version}/weights.sha256", hashlib.sha256(weights).hexdigest())
        self.put(f"{model}/{version}/model.py", CODE)

    def put_model(self, model: str, weights: bytes, *, how: str = "map") -> None:
        """Put the whole model, its version 1."""
        self.put_version(model, 1, weights)
        self.put(f"{model}/config.pbtxt", config(how=how))

    def put_published(self, model: str, weights: bytes, *, version: int = 1) -> None:
        """Put a whole version, and with the first one the model, each with its marker READY last."""
        self.put_version(model, version, weights)
        self.put(f"{model}/{version}/READY", "")
        if version == 1:
            self.put(f"{model}/config.pbtxt", config())
            self.put(f"{model}/READY", "")

    def remove(self, directory: str) -> None:
        """Remove a directory and all below it, because SeaweedFS goes on listing directories that
        became empty.
        """
        listed = self.bucket.client.list_objects_v2(Bucket=self.bucket.name, Prefix=f"{self.prefix}/{directory}/")
        keys = [each["Key"] for each in listed["Contents"]]
        directories = {
            f"{parent}/" for key in keys for parent in PurePosixPath(key).parents if parent != PurePosixPath()
        }
        gone = {each for each in directories if each.startswith(f"{self.prefix}/{directory}/")}
        for key in (*keys, *sorted(gone, reverse=True)):
            self.bucket.delete(key)

    @property
    def url(self) -> str:
        return self.bucket.url(self.prefix)

    def url_through(self, port: int) -> str:
        """The URL through a proxy in front of the store."""
        return f"s3://127.0.0.1:{port}/{self.bucket.name}/{self.prefix}"


def shown(triton: Triton, model: str, weights: bytes, *, version: int | None = None) -> bool:
    """True if inference gives these weights: their first and last byte and some between."""
    offsets: Sequence[int] = [0, *(random.Random(7).randrange(len(weights)) for _ in range(14)), len(weights) - 1]
    inputs = [{"name": "OFFSETS", "datatype": "INT64", "shape": [len(offsets)], "data": offsets}]
    (output,) = triton.infer(model, inputs, version=version)["outputs"]
    return bool(output["data"] == [weights[offset] for offset in offsets])


def mtimes(directory: Path) -> dict[str, int]:
    """Modification times in nanoseconds of all directories below `directory`."""
    return {str(each.relative_to(directory)): each.stat().st_mtime_ns for each in directory.rglob("*") if each.is_dir()}
