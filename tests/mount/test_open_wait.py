"""Opens that wait until their file is whole (`--open-wait`): `fs/test_open_wait.py` has which do."""

from __future__ import annotations

import os

import pytest

from tests.mount import passthrough
from tests.mount.conftest import faulty_url
from tests.mount.mounted import READ_TIMEOUT_S, Mounter, in_background, within
from tests.mount.passthrough import BODY, SMALL, opened, pread, told
from tests.servers.faults import Hang
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount]

kernel_reads_by_itself, store = passthrough.kernel_reads_by_itself, passthrough.store


def test_an_open_may_wait_for_a_file_that_comes_soon(mounter: Mounter, store: InThread[S3Faults]) -> None:
    mounted = mounter.mount(faulty_url(store), "--anonymous", "--open-wait", "10s")
    with opened(mounted) as fd:
        assert pread(fd) == BODY
        assert told(mounted) == (1, 0)
    assert mounted.read("small") == SMALL
    assert told(mounted)[1] > 0, "a small file waits for nothing"


def test_an_open_waits_no_longer_than_it_may(mounter: Mounter, store: InThread[S3Faults]) -> None:
    """Other requests go on meanwhile, and the file comes behind it."""
    mounted, hang = mounter.mount(faulty_url(store), "--anonymous", "--open-wait", "0.5s"), Hang()
    store.do(lambda: store.server.script(hang, key="b/file"))
    opening = in_background(lambda: os.open(mounted.point / "file", os.O_RDONLY))
    store.wait(hang.reached)
    assert mounted.read("small") == SMALL
    fd = opening.result(READ_TIMEOUT_S)
    try:
        reading = in_background(lambda: os.pread(fd, len(BODY), 0))
        store.do(hang.resume.set)
        assert reading.result(READ_TIMEOUT_S) == BODY
        assert told(mounted)[0] == 0
    finally:
        within(READ_TIMEOUT_S, lambda: os.close(fd))
