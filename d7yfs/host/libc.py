"""System calls that `os` does not offer, by the C library. The standard library alone."""

from __future__ import annotations

import ctypes
import os

_PUNCH_HOLE_KEEP_SIZE = 0x02 | 0x01  # linux/falloc.h

_libc = ctypes.CDLL(None, use_errno=True)


def call(name: str, *arguments: object) -> None:
    """Call a function that returns 0 for success. An int is passed as a C int: wrap a longer one in
    a type of ctypes. Raises OSError."""
    if getattr(_libc, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def punch_hole(fd: int, offset: int, size_bytes: int) -> None:
    """Free that part of a file, which then reads as zeros; its size stays (fallocate(2)). Raises OSError."""
    call("fallocate", fd, _PUNCH_HOLE_KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(size_bytes))
