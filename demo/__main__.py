"""`make demo`: a real S3 server, a model repository on it, a mount, and a model loaded from the
mount.

All steps use the command line, as a user would. The mount, the server and the scratch directory are
always gone afterwards. Exit status 0 means that every byte was right.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnxruntime
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from demo.repository import MODELS, WEIGHTS, files, make_repository
from tests.servers import seaweedfs

BUCKET, PREFIX = "models", "triton"
D7YFS = Path(sys.executable).with_name("d7yfs")
_READ_BYTES = 1 << 20

console = Console(highlight=False)


class DemoError(Exception):
    """A reason to end the demo; the message is for the user."""


class Timings:
    """The duration of each step, for the table at the end."""

    def __init__(self) -> None:
        self._rows: list[tuple[str, float, int]] = []

    @contextlib.contextmanager
    def measure(self, what: str, size_bytes: int = 0) -> Iterator[None]:
        """Time the block; with `size_bytes` the table shows a rate too."""
        start = time.perf_counter()
        yield
        self._rows.append((what, time.perf_counter() - start, size_bytes))

    def table(self) -> Table:
        table = Table(title="d7yfs demo")
        table.add_column("step")
        table.add_column("seconds", justify="right")
        table.add_column("MB/s", justify="right")
        for what, elapsed_s, size_bytes in self._rows:
            table.add_row(what, f"{elapsed_s:.3f}", f"{size_bytes / elapsed_s / 1e6:,.0f}" if size_bytes else "")
        return table


class Mount:
    """The mount under test, driven through the `d7yfs` command."""

    def __init__(self, server: seaweedfs.SeaweedFS, scratch: Path) -> None:
        self.path = scratch / "mnt"
        self.path.mkdir()
        self._log = scratch / "d7yfs.log"
        self._endpoint_url = server.endpoint_url
        self._cache = scratch / "cache"
        # The caller's own cloud configuration must not leak in.
        foreign = ("AWS_", "D7YFS_", "TRITON_")
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | {
            "AWS_ACCESS_KEY_ID": server.reader.key_id,
            "AWS_SECRET_ACCESS_KEY": server.reader.secret_key,
            "AWS_REGION": seaweedfs.REGION,
        }

    def mount(self) -> None:
        self.run(
            "mount",
            f"s3://{BUCKET}/{PREFIX}",
            str(self.path),
            f"--endpoint-url={self._endpoint_url}",
            f"--cache-dir={self._cache}",
            f"--log-file={self._log}",
        )

    def run(self, *arguments: str) -> None:
        """Run `d7yfs ARGUMENTS` and show its output. Raises DemoError if it fails or takes more
        than a minute.
        """
        console.print(f"[bold]$ d7yfs {escape(shlex.join(arguments))}", soft_wrap=True)
        try:
            subprocess.run([D7YFS, *arguments], env=self._environment, check=True, stdin=subprocess.DEVNULL, timeout=60)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            raise DemoError(f"d7yfs {arguments[0]}: {_reason(error)}\n{self._log_tail()}") from error

    def clean_up(self) -> None:
        """Unmount if the mount is still there, busy or dead; its daemon then ends."""
        if self._is_mounted():
            command = ["umount", "--lazy"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
            subprocess.run([*command, str(self.path)], check=False, timeout=30)

    def _is_mounted(self) -> bool:
        # Not os.path.ismount: it asks the file system, which may be dead.
        return any(line.split()[4] == str(self.path) for line in Path("/proc/self/mountinfo").read_text().splitlines())

    def _log_tail(self) -> str:
        return "".join(self._log.read_text().splitlines(keepends=True)[-20:]) if self._log.exists() else ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="make demo", description="Mount a model repository and read it.")
    parser.add_argument("--weights-mib", type=int, default=256, help="size of the large file (default: %(default)s)")
    parser.add_argument("--scratch", type=Path, help="directory of all files of the demo (default: the temp directory)")
    arguments = parser.parse_args()
    # With this, `kill` cleans up as Ctrl-C does.
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    try:
        check_prerequisites()
        run(arguments.weights_mib << 20, arguments.scratch)
    except (DemoError, OSError) as error:  # A dead mount answers with an OSError.
        console.print("[bold red]demo failed:", escape(str(error)), soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("interrupted")
        return 130
    return 0


def check_prerequisites() -> None:
    """Check the machine for a FUSE mount. Raises DemoError with the missing part."""
    if not Path("/dev/fuse").exists():
        raise DemoError(
            "there is no /dev/fuse: load the kernel's module (modprobe fuse); in a container: --device /dev/fuse"
        )
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        raise DemoError("/dev/fuse may not be opened by this user: run as root, or let the user read and write it")
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        raise DemoError("only root can mount without fusermount3: run as root, or install the package fuse3")
    if os.geteuid() != 0:
        console.print("Not root: d7yfs cannot raise the mount's read-ahead, so the figures are lower than root's.")


def run(weights_bytes: int, scratch_parent: Path | None) -> None:
    """Run all steps of the demo."""
    timings = Timings()
    with contextlib.ExitStack() as stack:
        scratch = Path(
            stack.enter_context(
                tempfile.TemporaryDirectory(prefix="d7yfs-demo-", dir=scratch_parent, ignore_cleanup_errors=True)
            )
        ).resolve()
        source = scratch / "source"
        make_repository(source, weights_bytes=weights_bytes)

        with timings.measure("start SeaweedFS"):
            server = stack.enter_context(seaweedfs.running(scratch / "seaweedfs"))
        with timings.measure("upload", sum((source / file).stat().st_size for file in files(source))):
            upload(server, source)

        mount = Mount(server, scratch)
        stack.callback(mount.clean_up)
        with timings.measure("mount"):
            mount.mount()
        with timings.measure("list"):
            listed = [(file, (mount.path / file).stat()) for file in files(mount.path)]
        for file, stat in listed:
            console.print(f"{stat.st_size:>12,}  {datetime.fromtimestamp(stat.st_mtime, UTC):%F %T}  {file}")

        with timings.measure("first read of the weights", weights_bytes):
            read(mount.path / WEIGHTS)
        with timings.measure("second read", weights_bytes):
            read(mount.path / WEIGHTS)
        compare(source, mount.path)
        for name in MODELS:
            with timings.measure(f"load and run {name} with onnxruntime"):
                output = infer(mount.path / name / "1/model.onnx")
            if not np.array_equal(output, infer(source / name / "1/model.onnx")):
                raise DemoError(f"{name} gives another answer if it is loaded from the mount")

        mount.run("status", str(mount.path))
        with timings.measure("unmount"):
            mount.run("umount", str(mount.path))
    console.print(timings.table())
    console.print("[bold green]Every byte and every answer was right.")


def upload(server: seaweedfs.SeaweedFS, source: Path) -> None:
    with contextlib.closing(server.client()) as client:
        client.create_bucket(Bucket=BUCKET)
        for file in files(source):
            client.upload_file(str(source / file), BUCKET, f"{PREFIX}/{file}")


def read(path: Path) -> None:
    """Read the file from start to end, as a program does that uses its bytes."""
    buffer = bytearray(_READ_BYTES)
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def compare(source: Path, mounted: Path) -> None:
    """Print the SHA-256 of every file in the mount. Raises DemoError unless names and contents are
    the source's.
    """
    expected, found = list(files(source)), list(files(mounted))
    if expected != found:
        raise DemoError(f"the mount shows {[*map(str, found)]}, the source has {[*map(str, expected)]}")
    for file in expected:
        digests = []
        for directory in (source, mounted):
            with (directory / file).open("rb") as content:
                digests.append(hashlib.file_digest(content, "sha256").hexdigest())
        if digests[0] != digests[1]:
            raise DemoError(f"{file}: the mount's SHA-256 is {digests[1]}, the source's {digests[0]}")
        console.print(f"sha256 {digests[1][:16]}…  ok  {file}")


def infer(model: Path) -> np.ndarray:
    """Load the model and run it once on a fixed input."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    feeds = {}
    for tensor in session.get_inputs():
        feeds[tensor.name] = np.linspace(0, 1, int(np.prod(tensor.shape)), dtype=np.float32).reshape(tensor.shape)
    return np.asarray(session.run(None, feeds)[0])


def _reason(error: subprocess.CalledProcessError | subprocess.TimeoutExpired) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"no end after {error.timeout:.0f} s"
    return f"exit status {error.returncode}"


if __name__ == "__main__":
    sys.exit(main())
