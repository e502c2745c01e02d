"""A bug in the daemon is an error for one caller: the mount and the other callers continue.

`fuse/test_errors.py` tests each handler.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount import buggy
from tests.mount.conftest import Bucket, both_engines
from tests.mount.mounted import READ_TIMEOUT_S, Mounter, within

pytestmark = [pytest.mark.mount, pytest.mark.store, both_engines]

PROGRAM = (sys.executable, str(Path(buggy.__file__)))


def test_an_unforeseen_exception_is_eio_for_one_caller_and_the_mount_lives_on(bucket: Bucket, mounter: Mounter) -> None:
    for name in (buggy.LOOKUP, f"{buggy.OPENDIR}/x", buggy.OPEN, buggy.READ, "sound", "untouched"):
        bucket.put(f"bugs/{name}", name.encode())
    mounted = mounter.foreground(bucket.url("bugs"), env=bucket.env, program=PROGRAM)
    with within(READ_TIMEOUT_S, lambda: (mounted.point / "sound").open("rb", buffering=0)) as opened:
        asked: dict[str, Callable[[], object]] = {
            buggy.LOOKUP: (mounted.point / buggy.LOOKUP).stat,
            buggy.OPENDIR: lambda: list((mounted.point / buggy.OPENDIR).iterdir()),
            buggy.OPEN: (mounted.point / buggy.OPEN).read_bytes,
            buggy.READ: (mounted.point / buggy.READ).read_bytes,
        }
        for ask in asked.values():
            for _ in range(2):
                with pytest.raises(OSError) as caught:  # noqa: PT011  # the test checks the errno
                    within(READ_TIMEOUT_S, ask)
                assert caught.value.errno == errno.EIO
        assert within(READ_TIMEOUT_S, opened.read) == b"sound", "a reader with an open file is not disturbed"
    assert mounted.read("untouched") == b"untouched"
    assert mounted.names() == sorted([buggy.LOOKUP, buggy.OPENDIR, buggy.OPEN, buggy.READ, "sound", "untouched"])
    assert mounted.process is not None
    assert mounted.process.poll() is None
    log = mounted.log()
    assert "Traceback" in log
    assert {name for name in asked if f"ZeroDivisionError: {name}" in log} == set(asked)
