"""The files in which mounts keep the names of their repositories for the next mount.

    CACHE_DIR/v2/names/<digest>.names    what it has is `d7yfs.tree.snapshot`

The digest is of the repository and the identity of the credentials. A file is written beside its
name, synced, and renamed. The files' bytes count as the cache's; a part of its limit is all that
they may take, and the oldest go first.

Called from worker threads.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import secrets
import stat
import time
from collections.abc import Iterable
from pathlib import Path

from d7yfs.host.ownership import ANYTHING, find_fault

NAMES = "names"
"""The directory of these files, in that of the format."""
SUFFIX = ".names"
MAX_BYTES = 128 << 20
"""The most bytes of all files: some millions of names."""
PART = 16
"""The part of the cache's limit that they may take."""
_UNUSED_S = 30 * 86400.0
"""A file that no mount has written or read for so long is deleted."""
_FORGOTTEN_S = 3600.0
"""A file that was not renamed for so long was left by a daemon that died."""

log = logging.getLogger(__name__)


class KeptNames:
    """The files of kept names in one cache directory, below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def read(self, about: str) -> bytes | None:
        """The bytes kept about a subject; None if there are none, or if they may be another user's."""
        path = self._path(about)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("cache: %s cannot be read: %s; names are listed anew", path.name, error.strerror)
            return None
        try:
            found = os.fstat(fd)
            fault = find_fault(found, (os.geteuid(),), kind=stat.S_IFREG, denied=ANYTHING)
            if not fault and found.st_size > MAX_BYTES:
                fault = f"has {found.st_size} bytes"
            if fault:
                log.warning("cache: %s is ignored: it %s", path, fault)
                return None
            with contextlib.suppress(OSError):
                os.utime(fd)  # it is in use
            with os.fdopen(fd, "rb", closefd=False) as file:
                return file.read(MAX_BYTES)
        finally:
            os.close(fd)

    def write(self, about: str, parts: Iterable[bytes], most_bytes: int) -> int:
        """Keep what `parts` make. Returns its bytes; 0 if it would be too large. Raises OSError."""
        path = self._path(about)
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        size_bytes = 0
        try:
            with os.fdopen(fd, "wb") as file:
                for part in parts:
                    size_bytes += file.write(part)
                    if size_bytes > min(most_bytes, MAX_BYTES):
                        return 0
                file.flush()
                os.fsync(fd)
            new.rename(path)
        finally:
            with contextlib.suppress(OSError):
                new.unlink(missing_ok=True)
        return size_bytes

    def clear(self) -> None:
        """Delete all that is kept."""
        for path in self.root.glob(f"*{SUFFIX}"):
            with contextlib.suppress(OSError):
                path.unlink()

    def tidy(self, most_bytes: int) -> int:
        """Delete what is too much or too old, and return the bytes that are left."""
        found: list[tuple[float, int, Path]] = []
        now = time.time()
        for path in self.root.glob("*") if self.root.is_dir() else ():
            with contextlib.suppress(OSError):
                status = path.lstat()
                unused_s = _UNUSED_S if path.suffix == SUFFIX else _FORGOTTEN_S
                if now - status.st_mtime > unused_s:
                    path.unlink()
                else:
                    found.append((status.st_mtime, status.st_blocks * 512, path))
        left_bytes = sum(size_bytes for _, size_bytes, _ in found)
        for _, size_bytes, path in sorted(found):
            if left_bytes <= min(most_bytes, MAX_BYTES):
                break
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                left_bytes -= size_bytes
        return left_bytes

    def _path(self, about: str) -> Path:
        return self.root / f"{hashlib.sha256(about.encode(errors='surrogatepass')).hexdigest()}{SUFFIX}"
