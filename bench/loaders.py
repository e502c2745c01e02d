"""Libraries that load models from a mount and from a local directory: each library's own loader,
each in its own form.

    python -m bench.loaders [--rounds 3] [--size 512] [--only NAME…]     as root

*Local* is a directory on the cache's disk, first with an empty page cache, then again. *Mount* is
d7yfs: cold with an empty cache, then again; then mounted anew with its cache and an empty page
cache, then again.

Each round goes through all loaders, each with its own mount. The table shows medians. In the first
round each loader's result is compared with the result from the local directory, and every file byte
by byte with its source. The libraries of scripts/loaders.sh run in its Python if that is installed,
and are left out otherwise. Their results are compared in every round.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
from tests.servers.model_loaders import LoaderError, ModelLoaders, find_python

MIB = 1 << 20
COLUMNS = ("local", "local again", "mount cold", "mount warm", "remount", "remount again")
_LIMIT_S = 300.0
_LAYER = 2048
"""Rows and columns of a layer of the ONNX model: 16 MiB of float32."""

NUMPY, WEIGHTS, ONNX = "model.npy", dataset.WEIGHTS, "model.onnx"
_ONNX_DATA = "model.onnx.data"
_ADAPTERS_MIB = 40
"""2,000 directories of two small files, 20 KiB together."""
LIBRARIES = {
    "transformers": ("transformers", "llama"),
    "vLLM's reader of weights": ("vllm weights", "llama"),
    "vLLM's reader, prefetch": ("vllm prefetch", "llama"),
    "SGLang's reader of weights": ("sglang weights", "llama"),
    "Run:ai model streamer": ("runai streamer", "llama"),
    "fastsafetensors": ("fastsafetensors", "llama"),
    "plan file, read whole": ("plan file", "llama"),
    "llama.cpp, GGUF": ("llama.cpp", "gguf"),
    "torch.load(mmap=True)": ("torch", "torch"),
    "peft, 2,000 adapters": ("peft scan", "adapters"),
    "2,000 adapters, read": ("plain scan", "adapters"),
}
"""The loader of tests/servers/loader_program.py and its kind of model, by the name of its row."""

Result = tuple[float, Any]
"""Seconds, and a digest of the loaded bytes."""


@dataclass(frozen=True, slots=True)
class Loader:
    """A library's loader; `load` runs in a child, with the directory and True if it must check
    every byte afterwards.
    """

    name: str
    files: tuple[str, ...]
    load: Callable[[Path, bool], Result]

    def paths(self, directory: Path) -> list[Path]:
        """The files of its model, relative to the directory; a folder stands for all below it."""
        given = [directory / name for name in self.files]
        found = [path for each in given for path in (each.rglob("*") if each.is_dir() else [each])]
        return [path.relative_to(directory) for path in found if path.is_file()]


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


def loaders(libraries: ModelLoaders | None) -> list[Loader]:
    """All loaders; those of the other Python too if it exists."""
    found = [
        Loader("safetensors load_file", (WEIGHTS,), _forked(load_file)),
        Loader("safetensors safe_open, all tensors", (WEIGHTS,), _forked(safe_open)),
        Loader(f"safetensors safe_open, 1 of {dataset.TENSORS}", (WEIGHTS,), _forked(safe_open_one)),
        Loader("onnxruntime, external data", (ONNX, _ONNX_DATA), _forked(onnx_session)),
        Loader("numpy.load(mmap_mode)", (NUMPY,), _forked(numpy_mapped)),
    ]
    if libraries:
        found += [
            Loader(name, (kind,), _library(libraries, loader, kind)) for name, (loader, kind) in LIBRARIES.items()
        ]
    return found


def _forked(load: Callable[[Path, bool], Result]) -> Callable[[Path, bool], Result]:
    return lambda directory, check: in_child(_LIMIT_S, load, directory, check)


def _library(libraries: ModelLoaders, loader: str, kind: str) -> Callable[[Path, bool], Result]:
    def load(directory: Path, _: bool) -> Result:
        try:
            done = libraries.load(loader, directory / kind)
        except LoaderError as error:
            raise ReadError(str(error)) from error
        return done.elapsed_s, done.answer

    return load


def make(buckets: Path, size_bytes: int) -> None:
    """Write one model per format, of about `size_bytes` each; the ONNX model's weights are a second
    file.
    """
    directory = buckets / BUCKET
    directory.mkdir(parents=True)
    source = numpy.random.default_rng(7)
    dataset.write_weights(directory / WEIGHTS, size_bytes, source)
    numpy.save(directory / NUMPY, numpy.frombuffer(source.bytes(size_bytes), dtype=numpy.uint8))
    (directory / dataset.LARGE).hardlink_to(directory / NUMPY)  # The store's ceiling is measured with this file.
    _make_onnx(directory / ONNX, max(1, size_bytes // (4 * _LAYER * _LAYER)), source)


def make_kinds(buckets: Path, size_bytes: int, libraries: ModelLoaders, kinds: Iterable[str]) -> None:
    """Have the libraries write a directory for each kind of model that they are to load."""
    for kind in kinds:
        libraries.make(kind, buckets / BUCKET / kind, _ADAPTERS_MIB if kind == "adapters" else size_bytes // MIB)


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
            f"| loader, {self.size_mib} MiB; seconds | {' | '.join(COLUMNS)} | cold ÷ | remount ÷ | again ÷ |",
            "|---|" + "---:|" * (len(COLUMNS) + 3),
        ]
        for name, by_column in self.seconds.items():
            medians = [statistics.median(by_column[column]) for column in COLUMNS]
            local, local_again, cold, _, anew, again = medians
            ratios = (f"{cold / local:.2f}", f"{anew / local:.2f}", f"{again / local_again:.2f}")
            lines.append("| " + " | ".join((name, *(f"{value:.3f}" for value in medians), *ratios)) + " |")
        return "\n".join([*lines, ""])


def one_turn(served: Store, local: Path, scratch: Path, loader: Loader, table: Table, *, check: bool) -> None:
    """Measure one loader, from the local directory and from its own mount. Raises PeerError,
    ReadError.
    """
    drop_page_cache()
    first_s, expected = loader.load(local, check)
    again_s, _ = loader.load(local, False)
    seconds = [first_s, again_s]
    with tempfile.TemporaryDirectory(prefix="d7yfs-loaders-", dir=scratch) as name:
        directory = Path(name)
        point, cache = directory / "mnt", directory / "cache"
        point.mkdir()
        cache.mkdir(mode=0o700)
        mount = Mount(PEERS["d7yfs"], Setting(served, LOOPBACK, point, cache), directory / "log")
        try:
            for column in COLUMNS[2:]:
                if column in ("mount cold", "remount"):
                    mount.unmount()
                    mount.mount()
                    mount.settle()
                    drop_page_cache()
                elapsed_s, found = loader.load(point, check)
                if found != expected:
                    raise ReadError(f"{loader.name}: {column}: the loaded bytes differ from the local ones")
                seconds.append(elapsed_s)
            if check:
                in_child(_LIMIT_S, reads.compare, [(point / path, local / path) for path in loader.paths(local)])
        finally:
            mount.unmount()
    for column, elapsed_s in zip(COLUMNS, seconds, strict=True):
        table.add(loader, column, elapsed_s)


def measure(
    served: Store, local: Path, arguments: argparse.Namespace, measured: Sequence[Loader], table: Table
) -> None:
    """Measure the loaders in rounds. Raises PeerError, ReadError."""
    shutil.copytree(served.data, local, ignore=shutil.ignore_patterns(dataset.LARGE))
    for number in range(arguments.rounds):
        for loader in measured:
            one_turn(served, local, arguments.scratch, loader, table, check=number == 0)
        print(f"round {number + 1}/{arguments.rounds}: load {os.getloadavg()[0]:.1f}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.loaders", description="Compare loaders on a mount and on a local directory."
    )
    parser.add_argument("--rounds", type=int, default=3, help="number of rounds (default: %(default)s)")
    parser.add_argument("--size", type=int, default=512, help="size of each model in MiB (default: %(default)s)")
    parser.add_argument(
        "--scratch", type=Path, default=Path("/var/tmp"), help="directory of data and caches (default: %(default)s)"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only the rows whose names contain one of these")
    parser.add_argument("--markdown", type=Path, help="write the table to this file too")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("a mount, and a cold read, need root")
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    python = find_python()
    if python is None:
        print("without the libraries that scripts/loaders.sh installs", file=sys.stderr)
    table = Table(arguments.size)
    size_bytes = arguments.size * MIB
    with (
        tempfile.TemporaryDirectory(prefix="d7yfs-loaders-local-", dir=arguments.scratch) as name,
        ModelLoaders(python or Path(), Path(name)) as libraries,
    ):
        named = loaders(libraries if python else None)
        measured = [each for each in named if not arguments.only or any(part in each.name for part in arguments.only)]
        kinds = sorted({LIBRARIES[each.name][1] for each in measured if each.name in LIBRARIES})
        local = Path(name) / "local"

        def make_all(buckets: Path) -> None:
            make(buckets, size_bytes)
            make_kinds(buckets, size_bytes, libraries, kinds)

        with store.running(
            make_all,
            (3 + len(kinds)) * size_bytes,
            arguments.scratch,
        ) as served:
            try:
                measure(served, local, arguments, measured, table)
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
