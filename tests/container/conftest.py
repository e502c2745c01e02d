"""Fixtures of the tests of the image.

These are collected only if D7YFS_TEST_IMAGE names it, as in `make integration-container`.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from d7yfs.host import mount_table
from tests.mount.conftest import Bucket as Bucket
from tests.mount.conftest import _can_mount, bucket

__all__ = ["_can_mount", "bucket"]

_IMAGE = os.environ.get("D7YFS_TEST_IMAGE", "")  # Read now: the session removes such variables.
collect_ignore_glob = [] if _IMAGE else ["test_*.py"]

# Without --ulimit runc asks for limits that a nested container may not have. crun does not accept
# such a host's cgroups.
_LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=1000:1000")


# `docker` in a bash script. The image exists already; scripts/integration-container.sh builds it
# from this Dockerfile.
_DOCKER = """
docker() {
    case $1 in
        build) [ "$*" = "build -t d7yfs ." ] ;;
        run) shift; podman --runtime runc run --network host %(limits)s "$@" ;;
        *) echo "docker $1 is not known here" >&2; return 64 ;;
    esac
}
"""


class Containers:
    """The containers of one test, by name, which end with it; all use the host's network."""

    def __init__(self) -> None:
        self._prefix = f"d7yfs-test-{os.getpid()}-"
        self._made: list[str] = []

    def run_script(self, script: str, env: Mapping[str, str]) -> str:
        """Run a script of `docker` commands and return its output. Its containers get names of this
        test, and `d7yfs` is the image.
        """
        self._made += re.findall(r"--name (\S+)", script)
        script = re.sub(r"--name (?=\S)", f"--name {self._prefix}", script)
        script = re.sub(r"(?<=[ ])d7yfs(?= (mount|fuse-helper) )", _IMAGE, script)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", _DOCKER % {"limits": " ".join(_LIMITS)} + script],
            env=os.environ | env,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stderr}"
        return done.stdout

    def start(
        self, name: str, options: Sequence[str], command: Sequence[str], env: Mapping[str, str] | None = None
    ) -> None:
        variables = [f"--env={variable}={value}" for variable, value in (env or {}).items()]
        self._made.append(name)
        self._podman(
            *("--runtime", "runc", "run", "--detach", "--name", self._prefix + name, "--network", "host", *_LIMITS),
            *(*variables, *options, _IMAGE, *command),
        )

    def execute(self, name: str, *command: str) -> str:
        return self._podman("--runtime", "runc", "exec", self._prefix + name, *command)

    def log(self, name: str) -> str:
        done = subprocess.run(
            ["podman", "logs", self._prefix + name], capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout + done.stderr

    def state(self, name: str) -> tuple[str, int]:
        """The container's state in podman's words, and its exit status."""
        (found,) = json.loads(self._podman("inspect", self._prefix + name))
        return found["State"]["Status"], int(found["State"]["ExitCode"])

    def healthcheck(self, name: str) -> None:
        self._podman("--runtime", "runc", "healthcheck", "run", self._prefix + name)

    def stop(self, name: str) -> None:
        self._podman("--runtime", "runc", "stop", "--time", "40", self._prefix + name)

    def kill(self, name: str, signal: str = "KILL") -> None:
        self._podman("--runtime", "runc", "kill", "--signal", signal, self._prefix + name)

    def close(self) -> None:
        for name in reversed(self._made):
            subprocess.run(
                ["podman", "--runtime", "runc", "rm", "--force", "--time", "5", self._prefix + name],
                capture_output=True,
                timeout=120,
                check=False,
            )

    def _podman(self, *arguments: str) -> str:
        done = subprocess.run(["podman", *arguments], capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, f"podman {' '.join(arguments)}: {done.stderr}"
        return done.stdout


@pytest.fixture
def containers() -> Iterator[Containers]:
    made = Containers()
    yield made
    made.close()


@pytest.fixture
def ground() -> Iterator[Path]:
    """A directory to share, like a pod's volume, on a mount that propagates."""
    with tempfile.TemporaryDirectory(prefix="d7y-", dir="/var/tmp") as name:
        directory = Path(name)
        for each in ("volume/models", "cache", "run"):
            (directory / each).mkdir(parents=True)
        shared = str(directory / "volume")
        subprocess.run(["mount", "--bind", shared, shared], check=True)
        subprocess.run(["mount", "--make-shared", shared], check=True)
        try:
            yield directory
        finally:
            for point in (directory / "volume" / "models", directory / "volume"):
                while mount_table.mounted_at(point) is not None:
                    mount_table.unmount(point, lazy=True)
