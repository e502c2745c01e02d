"""The record, beside a cached version, of the identities to which the store has granted it.

One extended attribute of the version's map holds one identity's grant: its name is a keyed digest
of the identity, its value the time. So a record goes with its version, other releases never see it,
and nobody without the key, which lies in the cache directory (0600), learns an identity from it.
Where the file system has no such attributes (tmpfs before Linux 6.6) nothing is recorded.

A record is a hint for the daemons of one user, who alone may write here. `fs.rights` decides what
it is worth. Trio thread, except for `read_grants` and `load_key`, which may wait for the disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import secrets
import struct
from functools import partial
from pathlib import Path

from d7yfs.cache.disk import Disk
from d7yfs.cache.pair import VersionFiles

KEY_BYTES = 32
_PREFIX = "user.d7yfs.grant."
_TIME = struct.Struct("<d")


def load_key(path: Path) -> bytes:
    """The key of one cache directory's digests, made at first use. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        if len(key := path.read_bytes()) == KEY_BYTES:
            return key
        path.unlink()
    new = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(file, secrets.token_bytes(KEY_BYTES))
        # Of two daemons that begin at once, one is first.
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(new)
    finally:
        os.close(file)
        new.unlink()
    return path.read_bytes()


def digest(key: bytes, principal: str) -> str:
    """The name under which grants to `principal` are recorded."""
    return hmac.new(key, principal.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()[:32]


def read_grants(map_fd: int) -> dict[str, float]:
    """The recorded grants: time.time() by digest."""
    found = {}
    with contextlib.suppress(OSError, struct.error):
        for name in os.listxattr(map_fd):
            if name.startswith(_PREFIX):
                (found[name.removeprefix(_PREFIX)],) = _TIME.unpack(os.getxattr(map_fd, name))
    return found


class RecordedGrants:
    """The recorded grants of one open version; without `files` they last as long as it is open."""

    def __init__(self, files: VersionFiles | None, disk: Disk) -> None:
        # By its path, as the map may be closed while the version is open.
        self._map_path = files.map_path if files is not None else None
        self._disk = disk
        self._known = dict(files.grants) if files is not None else {}

    def use(self, files: VersionFiles | None) -> None:
        """Go by the records of `files`, which have been opened since, and add those made meanwhile."""
        if files is not None and self._map_path is None:
            made, self._known = self._known, dict(files.grants)
            self._map_path = files.map_path
            for grantee, granted_at in made.items():
                self.record(grantee, granted_at)

    def recorded_at(self, grantee: str) -> float | None:
        """time.time() of the last grant to a digest; None without one."""
        return self._known.get(grantee)

    def record(self, grantee: str, now: float) -> None:
        """Record a grant; `now` is time.time()."""
        self._known[grantee] = now
        if self._map_path is not None:
            self._disk.run_soon(partial(_set, self._map_path, grantee, now))

    def strike(self, grantee: str) -> None:
        """Forget a grant, as the store has refused the identity since."""
        if self._known.pop(grantee, None) is not None and self._map_path is not None:
            self._disk.run_soon(partial(_remove, self._map_path, grantee))


def _set(map_path: Path, grantee: str, now: float) -> None:
    with contextlib.suppress(OSError):  # without a record, the store is asked again
        os.setxattr(map_path, _PREFIX + grantee, _TIME.pack(now))


def _remove(map_path: Path, grantee: str) -> None:
    with contextlib.suppress(OSError):
        os.removexattr(map_path, _PREFIX + grantee)
