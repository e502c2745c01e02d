"""The model of these tests: torch maps weights from the model's directory, and its answers contain
some of their bytes.

torch-model-archiver makes the archives, and the tests put them into the bucket as a user would.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.mount.conftest import Bucket, bytes_of
from tests.servers.torchserve import TorchServe

HANDLER = """\
import os

import torch

weights = None
directory = None


def handle(data, context):
    global weights, directory
    if weights is None:
        directory = context.system_properties["model_dir"]
        path = os.path.join(directory, "weights.bin")
        weights = torch.from_file(path, shared=False, size=os.path.getsize(path), dtype=torch.uint8)
    if data is None:
        return None
    return [
        {"bytes": [int(weights[offset]) for offset in row["body"]["offsets"]], "directory": directory} for row in data
    ]
"""


_FORMATS = {".mar": "default", ".tar.gz": "tgz"}


@dataclass(frozen=True, slots=True)
class Models:
    """A model store at its own prefix in a bucket of the real store."""

    bucket: Bucket
    prefix: str
    programs: Path
    work: Path

    def put(
        self, archive: str, weights: bytes, *, name: str = "", version: str = "1.0", handler: str = HANDLER
    ) -> None:
        """Put `NAME.mar` or `NAME.tar.gz` as an archive, any other name as a directory
        (`no-archive`). `name` is the name in its manifest.
        """
        suffix = next((each for each in _FORMATS if archive.endswith(each)), "")
        name = name or archive.removesuffix(suffix)
        made = self.work / archive.replace(".", "-")
        made.mkdir()
        (made / "weights.bin").write_bytes(weights)
        (made / "handler.py").write_text(handler)
        command: list[str | Path] = [
            *(
                self.programs / "torch-model-archiver",
                "--model-name",
                name,
                "--version",
                version,
                "--archive-format",
                _FORMATS.get(suffix, "no-archive"),
            ),
            *("--serialized-file", made / "weights.bin", "--handler", made / "handler.py", "--export-path", made),
        ]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=120)
        if suffix:
            self.bucket.put(f"{self.prefix}/{archive}", (made / f"{name}{suffix}").read_bytes())
            return
        for path in (path for path in (made / name).rglob("*") if path.is_file()):
            self.bucket.put(f"{self.prefix}/{archive}/{path.relative_to(made / name)}", path.read_bytes())

    @property
    def url(self) -> str:
        return self.bucket.url(self.prefix)


def weights_of(seed: int, size_bytes: int = 3 << 20) -> bytes:
    return bytes_of(seed, size_bytes)


def served_from(server: TorchServe, model: str, weights: bytes, *, token: str = "") -> Path:
    """The directory from which `model` reads. Its answers must be right."""
    random_offsets = random.Random(7)
    offsets: Sequence[int] = [0, *(random_offsets.randrange(len(weights)) for _ in range(14)), len(weights) - 1]
    answer = server.infer(model, offsets, token=token)
    assert answer["bytes"] == [weights[offset] for offset in offsets]
    # For a directory used in place, TorchServe gives its workers a link of its own.
    return Path(answer["directory"]).resolve()
