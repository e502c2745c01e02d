"""A real mount of a store that delivers wrong bytes of the right length: the daemon finds them and
drops them, in the kernel too.
"""

from __future__ import annotations

import pytest

from tests.mount.conftest import MIB, bytes_of, faulty_url
from tests.mount.mounted import Mounter, until
from tests.servers import faults
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, pytest.mark.store]

BODY = bytes_of(11, 6 * MIB + 17)


@pytest.mark.parametrize(("recorded", "options"), [(True, ()), (False, ("--verify", "full"))], ids=["checksum", "full"])
def test_wrong_bytes_are_found_and_fetched_again(
    mounter: Mounter, faulty: InThread[S3Faults], recorded: bool, options: tuple[str, ...]
) -> None:
    """Verification uses the CRC32C if there is one, else the MD5 in the ETag."""
    store = faulty.server
    faulty.do(store.put, "b/file", BODY)
    if recorded:
        faulty.do(store.record_crc32c, "b/file")
    faulty.do(lambda: store.script(faults.altered(0), key="b/file"))
    mounted = mounter.mount(faulty_url(faulty), "--anonymous", *options)
    assert mounted.read("file") != BODY
    until(lambda: mounted.read("file") == BODY, "the right bytes, once the kernel's wrong pages are gone")
    assert mounted.status()["cache"]["checksum_mismatches"] == 1
    assert mounted.fetched()["direct_bytes"] == 2 * len(BODY)
    assert "dropped from the cache" in mounted.log()


def test_verification_can_be_turned_off(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    """A request that is not sent makes no event. By the fourth file the first one's request would
    have come.
    """
    names = [f"file{number}" for number in range(4)]
    for name in names:
        faulty.do(faulty.server.put, f"b/{name}", BODY)
    mounted = mounter.mount(faulty_url(faulty), "--anonymous", "--verify", "off")
    for name in names:
        assert mounted.read(name) == BODY
    assert "HEAD" not in [request.method for request in faulty.server.requests]
