"""Reads by io_uring(7), as fast loaders make them, through the bare system calls.

Layouts are those of linux/io_uring.h.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import struct

_SETUP, _ENTER = 425, 426
_OP_READ = 22
_GETEVENTS = 1
_PARAMS_BYTES, _SQ_OFFSETS, _CQ_OFFSETS = 120, 40, 80
_SQES_AT = 0x10000000
_SINGLE_MMAP = 1
_SQE = struct.Struct("=BBHiQQIIQ24x")
"""struct io_uring_sqe: opcode, flags, ioprio, fd, off, addr, len, rw_flags, user_data."""
_CQE = struct.Struct("=QiI")
_U32 = struct.Struct("=I")
_libc = ctypes.CDLL(None, use_errno=True)


def _call(*arguments: object) -> int:
    result = _libc.syscall(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


def read_by_io_uring(fd: int, *, size_bytes: int, piece_bytes: int = 1 << 20) -> bytes:
    """Read a file's first bytes in pieces that are all under way at once. Raises OSError."""
    starts = range(0, size_bytes, piece_bytes)
    parameters = ctypes.create_string_buffer(_PARAMS_BYTES)
    ring_fd = _call(_SETUP, len(starts), parameters)
    try:
        entries, completions, _, _, _, features = struct.unpack_from("=6I", parameters.raw)
        assert features & _SINGLE_MMAP
        _, tail_at, mask_at, _, _, _, array_at = struct.unpack_from("=7I", parameters.raw, _SQ_OFFSETS)
        _, done_at, _, _, _, cqes_at = struct.unpack_from("=6I", parameters.raw, _CQ_OFFSETS)
        ring_bytes = max(array_at + 4 * entries, cqes_at + _CQE.size * completions)
        with mmap.mmap(ring_fd, ring_bytes) as ring, mmap.mmap(ring_fd, _SQE.size * entries, offset=_SQES_AT) as sqes:
            buffer = ctypes.create_string_buffer(size_bytes)
            tail, mask = _U32.unpack_from(ring, tail_at)[0], _U32.unpack_from(ring, mask_at)[0]
            for number, start in enumerate(starts):
                size = min(piece_bytes, size_bytes - start)
                address = ctypes.addressof(buffer) + start
                _SQE.pack_into(sqes, number * _SQE.size, _OP_READ, 0, 0, fd, start, address, size, 0, start)
                _U32.pack_into(ring, array_at + 4 * ((tail + number) & mask), number)
            _U32.pack_into(ring, tail_at, tail + len(starts))
            _call(_ENTER, ring_fd, len(starts), len(starts), _GETEVENTS, None, 0)
            assert _U32.unpack_from(ring, done_at)[0] == len(starts)
            for number in range(len(starts)):
                start, count, _ = _CQE.unpack_from(ring, cqes_at + number * _CQE.size)
                if count < 0:
                    raise OSError(-count, os.strerror(-count))
                assert count == min(piece_bytes, size_bytes - start), "a short read"
        return buffer.raw
    finally:
        os.close(ring_fd)
