"""Libraries that load weights from a mount and from a local directory: each library's own loader,
each in its own form.

    python -m bench.loaders [--rounds 3] [--size 512]     as root

*Local* is a directory on the cache's disk, first with an empty page cache, then again. *Mount* is
d7yfs: cold with an empty cache, then from its cache with an empty page cache, then again.

Each round goes through all loaders, each with its own mount. The table shows medians. In the first
round each loader's result is compared with the result from the local directory, and every file byte
by byte with its source. torch runs in the environment of scripts/torchserve.sh if that is
installed, and is left out otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import onnx
import onnxruntime
import safetensors
import safetensors.numpy

from bench import dataset, reads, store
from bench.catalog import BUCKET
from bench.children import ReadError, in_child
from bench.peers import PEERS, Mount, PeerError, Setting
from bench.processes import drop_page_cache
from bench.store import LOOPBACK, Store

MIB = 1 << 20
COLUMNS = ("local", "local again", "mount cold", "mount, cached", "mount again")
_LIMIT_S = 300.0
_LAYER = 2048
"""Rows and columns of a layer of the ONNX model: 16 MiB of float32."""

NUMPY, WEIGHTS, ONNX, TORCH = "model.npy", dataset.WEIGHTS, "model.onnx", "model.pt"
_ONNX_DATA = "model.onnx.data"
_TORCHSERVE = Path(__file__).resolve().parent.parent / "scripts" / "torchserve.sh"

Result = tuple[float, int]
"""Seconds, and a CRC of the loaded bytes."""

_TORCH_MAKE = """
import sys, torch
count, each = int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(7)
torch.save({f"layer.{n}": torch.randint(0, 255, (each,), dtype=torch.uint8) for n in range(count)}, sys.argv[1])
"""
_TORCH_LOAD = """
import json, sys, time, zlib, torch
start = time.perf_counter()
loaded = torch.load(sys.argv[1], mmap=True, weights_only=True)
for tensor in loaded.values():
    tensor[::4096].sum()
elapsed_s = time.perf_counter() - start
found = 0
for tensor in loaded.values() if sys.argv[2] == "check" else ():
    found = zlib.crc32(tensor.numpy(), found)
print(json.dumps([elapsed_s, found]))
"""
"""torch.load returns before it reads, so the program reads a byte of every page."""


@dataclass(frozen=True, slots=True)
class Loader:
    """A library's loader; `load` runs in a child, with the directory and True if it must check
    every byte afterwards.
    """

    name: str
    files: tuple[str, ...]
    load: Callable[[Path, bool], Result]


def _timed(load: Callable[[], Sequence[numpy.ndarray]], *, check: bool) -> Result:
    start = time.perf_counter()
    arrays = load()
    elapsed_s = time.perf_counter() - start
    found = 0
    for array in arrays if check else ():
        found = zlib.crc32(numpy.ascontiguousarray(array).data, found)
    return elapsed_s, found


def load_file(directory: Path, check: bool) -> Result:
    return _timed(lambda: list(safetensors.numpy.load_file(directory / WEIGHTS).values()), check=check)


def safe_open(directory: Path, check: bool, *, count: int = dataset.TENSORS) -> Result:
    """Load `count` tensors, one after the other."""

    def load() -> Sequence[numpy.ndarray]:
        with safetensors.safe_open(directory / WEIGHTS, framework="numpy") as file:
            return [file.get_tensor(f"layer.{number}.weight") for number in range(count)]

    return _timed(load, check=check)


def safe_open_one(directory: Path, check: bool) -> Result:
    return safe_open(directory, check, count=1)


def numpy_mapped(directory: Path, check: bool) -> Result:
    """Map the array, and read one byte of every page."""

    def load() -> Sequence[numpy.ndarray]:
        array = numpy.load(directory / NUMPY, mmap_mode="r")
        array[::4096].sum()
        return [array]

    return _timed(load, check=check)


def onnx_session(directory: Path, check: bool) -> Result:
    """Make a session over a model whose weights are external data, and infer once."""

    def load() -> Sequence[numpy.ndarray]:
        options = onnxruntime.SessionOptions()
        session = onnxruntime.InferenceSession(str(directory / ONNX), options, providers=["CPUExecutionProvider"])
        outputs = session.run(None, {"x": numpy.ones((1, _LAYER), dtype=numpy.float32)})
        return [outputs[0]]

    return _timed(load, check=check)


def loaders(torch: Path | None) -> list[Loader]:
    """All loaders; torch's too if an interpreter with it exists."""
    found = [
        Loader("safetensors load_file", (WEIGHTS,), load_file),
        Loader("safetensors safe_open, all tensors", (WEIGHTS,), safe_open),
        Loader(f"safetensors safe_open, 1 of {dataset.TENSORS}", (WEIGHTS,), safe_open_one),
        Loader("onnxruntime, external data", (ONNX, _ONNX_DATA), onnx_session),
        Loader("numpy.load(mmap_mode)", (NUMPY,), numpy_mapped),
    ]
    if torch:

        def torch_load(directory: Path, check: bool) -> Result:
            done = _run(torch, _TORCH_LOAD, str(directory / TORCH), "check" if check else "")
            elapsed_s, crc = json.loads(done)
            return elapsed_s, crc

        found.append(Loader("torch.load(mmap=True)", (TORCH,), torch_load))
    return found


def _run(python: Path, code: str, *arguments: str) -> str:
    done = subprocess.run([python, "-c", code, *arguments], capture_output=True, text=True, timeout=_LIMIT_S)
    if done.returncode:
        raise ReadError(f"torch: {done.stderr.strip()[-300:]}")
    return done.stdout


def find_torch() -> Path | None:
    """The interpreter that scripts/torchserve.sh installs, or None."""
    found = subprocess.run([_TORCHSERVE, "--installed"], stdout=subprocess.PIPE, text=True, check=False)
    return Path(found.stdout.strip()) / "python" if found.returncode == 0 else None


def make(buckets: Path, size_bytes: int, torch: Path | None) -> None:
    """Write one file per format, of about `size_bytes` each; the ONNX model's weights are a second
    file.
    """
    directory = buckets / BUCKET
    directory.mkdir(parents=True)
    source = numpy.random.default_rng(7)
    dataset.write_weights(directory / WEIGHTS, size_bytes, source)
    numpy.save(directory / NUMPY, numpy.frombuffer(source.bytes(size_bytes), dtype=numpy.uint8))
    (directory / dataset.LARGE).hardlink_to(directory / NUMPY)  # The store's ceiling is measured with this file.
    _make_onnx(directory / ONNX, max(1, size_bytes // (4 * _LAYER * _LAYER)), source)
    if torch:
        each_bytes = size_bytes // dataset.TENSORS
        _run(torch, _TORCH_MAKE, str(directory / TORCH), str(dataset.TENSORS), str(each_bytes))


def _make_onnx(path: Path, layers: int, source: numpy.random.Generator) -> None:
    """Write a model of `layers` matrix products, scaled so that numbers stay finite."""
    nodes, weights = [], []
    for number in range(layers):
        matrix = source.standard_normal((_LAYER, _LAYER), dtype=numpy.float32) / numpy.float32(_LAYER**0.5)
        weights.append(onnx.numpy_helper.from_array(matrix, f"w{number}"))
        given = "x" if number == 0 else f"h{number}"
        made = "y" if number == layers - 1 else f"h{number + 1}"
        nodes.append(onnx.helper.make_node("MatMul", [given, f"w{number}"], [made]))
    shape = [1, _LAYER]
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        nodes,
        "layers",
        [value("x", onnx.TensorProto.FLOAT, shape)],
        [value("y", onnx.TensorProto.FLOAT, shape)],
        weights,
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    onnx.save_model(model, path, save_as_external_data=True, location=_ONNX_DATA, size_threshold=0)


@dataclass
class Table:
    """A table of seconds by loader and column."""

    size_mib: int
    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, loader: Loader, column: str, elapsed_s: float) -> None:
        self.seconds.setdefault(loader.name, {}).setdefault(column, []).append(elapsed_s)

    def markdown(self) -> str:
        lines = [
            f"| loader, {self.size_mib} MiB; seconds | {' | '.join(COLUMNS)} | cached ÷ local | again ÷ again |",
            "|---|" + "---:|" * (len(COLUMNS) + 2),
        ]
        for name, by_column in self.seconds.items():
            medians = [statistics.median(by_column[column]) for column in COLUMNS]
            local, local_again, _, cached, again = medians
            ratios = (f"{cached / local:.2f}", f"{again / local_again:.2f}")
            lines.append("| " + " | ".join((name, *(f"{value:.3f}" for value in medians), *ratios)) + " |")
        return "\n".join([*lines, ""])


def one_turn(served: Store, local: Path, scratch: Path, loader: Loader, table: Table, *, check: bool) -> None:
    """Measure one loader, from the local directory and from its own mount. Raises PeerError,
    ReadError.
    """
    drop_page_cache()
    first_s, expected = in_child(_LIMIT_S, loader.load, local, check)
    again_s, _ = in_child(_LIMIT_S, loader.load, local, False)
    seconds = [first_s, again_s]
    with tempfile.TemporaryDirectory(prefix="d7yfs-loaders-", dir=scratch) as name:
        directory = Path(name)
        point, cache = directory / "mnt", directory / "cache"
        point.mkdir()
        cache.mkdir(mode=0o700)
        mount = Mount(PEERS["d7yfs"], Setting(served, LOOPBACK, point, cache), directory / "log")
        try:
            mount.mount()
            for column in COLUMNS[2:]:
                if column != "mount again":
                    drop_page_cache()
                elapsed_s, found = in_child(_LIMIT_S, loader.load, point, check)
                if found != expected:
                    raise ReadError(f"{loader.name}: {column}: the loaded bytes differ from the local ones")
                seconds.append(elapsed_s)
            if check:
                in_child(_LIMIT_S, reads.compare, [(point / file, served.data / file) for file in loader.files])
        finally:
            mount.unmount()
    for column, elapsed_s in zip(COLUMNS, seconds, strict=True):
        table.add(loader, column, elapsed_s)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.loaders", description="Compare loaders on a mount and on a local directory."
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: %(default)s)")
    parser.add_argument("--size", type=int, default=512, help="size of each model in MiB (default: %(default)s)")
    parser.add_argument(
        "--scratch", type=Path, default=Path("/var/tmp"), help="directory of data and caches (default: %(default)s)"
    )
    parser.add_argument("--markdown", type=Path, help="write the table to this file too")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("a mount, and a cold read, need root")
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    torch = find_torch()
    if torch is None:
        print("without torch: scripts/torchserve.sh installs it", file=sys.stderr)
    table = Table(arguments.size)
    size_bytes = arguments.size * MIB
    with (
        store.running(lambda buckets: make(buckets, size_bytes, torch), 4 * size_bytes, arguments.scratch) as served,
        tempfile.TemporaryDirectory(prefix="d7yfs-loaders-local-", dir=arguments.scratch) as name,
    ):
        local = Path(name) / "local"
        shutil.copytree(served.data, local, ignore=shutil.ignore_patterns(dataset.LARGE))
        try:
            for number in range(arguments.rounds):
                for loader in loaders(torch):
                    one_turn(served, local, arguments.scratch, loader, table, check=number == 0)
                print(f"round {number + 1}/{arguments.rounds}: load {os.getloadavg()[0]:.1f}", flush=True)
        except (PeerError, ReadError) as error:
            print(error, file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("interrupted: the results so far follow")
    text = table.markdown()
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
