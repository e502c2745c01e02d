"""The functions opendir(3), readdir(3), telldir(3) and seekdir(3) of C: Python cannot seek in a
directory.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from types import TracebackType
from typing import Self

_libc = ctypes.CDLL(None, use_errno=True)
_libc.opendir.restype = _libc.readdir64.restype = ctypes.c_void_p
_libc.opendir.argtypes = [ctypes.c_char_p]
_libc.readdir64.argtypes = _libc.closedir.argtypes = _libc.telldir.argtypes = _libc.rewinddir.argtypes = [
    ctypes.c_void_p
]
_libc.telldir.restype = ctypes.c_long
_libc.seekdir.argtypes = [ctypes.c_void_p, ctypes.c_long]
_libc.seekdir.restype = _libc.rewinddir.restype = None

_NAME_OFFSET = 19
"""The offset in bytes of d_name in struct dirent64 (bits/dirent.h), after d_ino, d_off, d_reclen
and d_type.
"""


class LibcDirectory:
    """An open directory for use by one thread."""

    def __init__(self, path: Path) -> None:
        self._dir = _libc.opendir(os.fsencode(path))
        if not self._dir:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _libc.closedir(self._dir)

    def read(self, count: int = 1 << 62) -> list[str]:
        """The next names, without the dots; fewer at the end. Raises OSError."""
        names: list[str] = []
        while len(names) < count:
            ctypes.set_errno(0)
            entry = _libc.readdir64(self._dir)
            if not entry:
                if ctypes.get_errno():
                    raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
                break
            name = os.fsdecode(ctypes.string_at(entry + _NAME_OFFSET))
            if name not in (".", ".."):
                names.append(name)
        return names

    def tell(self) -> int:
        return int(_libc.telldir(self._dir))

    def seek(self, place: int) -> None:
        _libc.seekdir(self._dir, place)

    def rewind(self) -> None:
        _libc.rewinddir(self._dir)
