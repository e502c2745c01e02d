"""The doings of ordinary users, for tests: commands with a real uid, without the right to mount."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.mount.mounted import READ_TIMEOUT_S

NOBODY = 65534
AS_NOBODY = (
    *("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)
"""Nobody, with one capability: to read this Python, wherever it is installed."""


@contextmanager
def ground_of_nobody() -> Iterator[Path]:
    """A directory of his, with an empty `mnt`."""
    with tempfile.TemporaryDirectory(prefix="d7yfs-nobody-") as name:
        for path in (Path(name), Path(name) / "mnt"):
            path.mkdir(exist_ok=True)
            os.chown(path, NOBODY, NOBODY)
        yield Path(name)


def with_everybodys_device(ground: Path) -> Sequence[str]:
    """The beginning of a command of nobody's, in a mount namespace where all may open /dev/fuse, as
    on most hosts."""
    device = ground / "fuse"
    if not device.exists():
        os.mknod(device, stat.S_IFCHR, Path("/dev/fuse").stat().st_rdev)
        device.chmod(0o666)
    script = 'mount --bind "$0" /dev/fuse && exec "$@"'
    return ("unshare", "--mount", "sh", "-c", script, str(device), *AS_NOBODY)


def cat_as_nobody(path: str, directory: Path) -> bytes:
    """The bytes that he reads."""
    return subprocess.run(
        ["cat", path],
        cwd=directory,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        capture_output=True,
        check=True,
        timeout=READ_TIMEOUT_S,
    ).stdout
