"""Fixtures of the tests of the package as it is installed.

These are collected only if D7YFS_TEST_PACKAGES names the directory of the sdist and the wheel, as in
`make integration-install`. D7YFS_TEST_SYSTEMS are the roots of bare systems, with `:` between them.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

_PACKAGES = os.environ.get("D7YFS_TEST_PACKAGES", "")  # Read now: the session removes such variables.
_SYSTEMS = os.environ.get("D7YFS_TEST_SYSTEMS", "")
collect_ignore_glob = [] if _PACKAGES else ["test_*.py"]

_ENTER = """
mount -t proc proc "$0/proc"
mount --rbind /dev "$0/dev"
mount --rbind /sys "$0/sys"
for each in /tmp /run /root /var/cache; do mount -t tmpfs -o mode=700 tmpfs "$0$each"; done
mount --bind "$1" "$0/srv"
for each in /etc/resolv.conf /etc/hosts /etc/ssl/certs/ca-certificates.crt; do
    [ ! -e "$each" ] || [ ! -e "$0$each" ] || mount --bind "$each" "$0$each"
done
exec chroot "$0" sh -euc 'cd /srv; exec sh -eu ./script "$@"' "${@:2}"
"""
"""Runs a script in a root file system that stays as it is: in a mount namespace of its own, with the
network and the trust of this machine."""

_ASK_VERSION = ("-c", "import sys; print('%d.%d' % sys.version_info[:2])")


class System:
    """A place with one Python: a bare root file system, or this machine if there is no `root`."""

    def __init__(self, root: Path | None, python: str) -> None:
        self.root = root
        self.python = python

    def run(self, script: str, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a script of sh in `directory`; its first argument is the Python. No compiler is there."""
        (directory / "script").write_text(script)
        command = ["sh", "-eu", "./script"]
        if self.root is not None:
            command = [
                *("unshare", "--mount", "--propagation", "private", "bash", "-euc", _ENTER),
                *(str(self.root), str(directory), "sh"),
            ]
        environment = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
        environment |= {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": "/root",
            "CC": "/bin/false",
            "CXX": "/bin/false",
        }
        return subprocess.run(
            [*command, self.python, *arguments],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
        )


@pytest.fixture(scope="session")
def packages() -> Path:
    return Path(_PACKAGES)


@pytest.fixture(scope="session")
def systems() -> dict[str, System]:
    """A system for each version of Python that there is; a bare one, if it can be had."""
    found: dict[str, System] = {}
    for root in map(Path, filter(None, _SYSTEMS.split(":"))):
        found[_version(["chroot", str(root), "python3"])] = System(root, "python3")
    for minor in range(11, 20):
        elsewhere = Path("~/.pyenv/versions").expanduser().glob(f"3.{minor}.*/bin/python")
        for python in (f"python3.{minor}", *map(str, elsewhere)):
            if path := _version([python], ("-c", "import sys; print(sys.executable)")):
                found.setdefault(f"3.{minor}", System(None, path))
    return found


def _version(python: Sequence[str], ask: Sequence[str] = _ASK_VERSION) -> str:
    """The answer of that Python; empty if there is none. Version managers leave programs that fail."""
    try:
        done = subprocess.run([*python, *ask], capture_output=True, text=True, timeout=60, check=False)
    except FileNotFoundError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
