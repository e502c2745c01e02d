"""Data that dfdaemon hands over on its socket: a fake with the measured behaviour of the real one,
a real mount and a real store.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.conftest import MIB, Bucket, bytes_of
from tests.mount.mounted import Mounted, Mounter, until
from tests.servers.dfdaemon_socket import FakeDfdaemonSocket, Fault

pytestmark = [pytest.mark.mount, pytest.mark.store]

SIZE = 24 * MIB + 17


@pytest.fixture
def dfdaemon(tmp_path: Path) -> Iterator[FakeDfdaemonSocket]:
    with FakeDfdaemonSocket(tmp_path / "df") as running:
        yield running


@pytest.fixture(scope="module")
def weights(bucket: Bucket) -> bytes:
    body = bytes_of(78, SIZE)
    bucket.put("handed/weights.bin", body)
    bucket.put("handed/other.bin", body[::-1])
    return body


def _mount(
    mounter: Mounter, bucket: Bucket, dfdaemon: FakeDfdaemonSocket, *options: str, cache_dir: Path | None = None
) -> Mounted:
    socket = ("--dfdaemon-socket", dfdaemon.url)
    return mounter.mount(bucket.url("handed"), *socket, *options, env=bucket.env, cache_dir=cache_dir)


def _whole(mounted: Mounted, name: str) -> None:
    until(lambda: mounted.stat(name)["cached_bytes"] == SIZE, f"all of {name}")


def _link(mounted: Mounted) -> Path:
    (found,) = mounted.cache_dir.glob("v2/?/*.link")
    return found


def test_reads_and_what_status_says(
    mounter: Mounter, bucket: Bucket, dfdaemon: FakeDfdaemonSocket, weights: bytes
) -> None:
    mounted = _mount(mounter, bucket, dfdaemon)
    assert mounted.read("weights.bin") == weights
    _whole(mounted, "weights.bin")
    assert mounted.read_anew("weights.bin") == weights
    # The data of the reader's first requests may complete the file before the last piece is handed
    # over.
    until(lambda: mounted.status()["repositories"][0]["handover"]["source_bytes"] == SIZE, "every piece")
    (repository,) = mounted.status()["repositories"]
    assert repository["handover"]["state"] == "in use"
    assert repository["way"] == "socket"
    assert repository["fetched"]["direct_bytes"] <= 5 * MIB
    assert _link(mounted).stat().st_nlink == 2
    assert "X-Amz-Signature" not in mounted.log()


def test_kill_9_and_a_store_that_is_gone(
    mounter: Mounter, bucket: Bucket, dfdaemon: FakeDfdaemonSocket, weights: bytes
) -> None:
    mounted = _mount(mounter, bucket, dfdaemon)
    assert mounted.read("weights.bin") == weights
    _whole(mounted, "weights.bin")
    mounted.kill()
    mounted.wait_ended()
    dfdaemon.wipe()
    dfdaemon.orders.clear()
    again = _mount(mounter, bucket, dfdaemon, cache_dir=mounted.cache_dir)
    assert again.read("weights.bin") == weights
    until(
        lambda: again.stat("weights.bin")["p2p_proof"] == "proved",
        "the comparison, which may have been left to the second",
    )
    assert again.fetched()["direct_bytes"] == 0
    assert dfdaemon.orders == []


def test_dfdaemon_dies_in_mid_file(
    mounter: Mounter, bucket: Bucket, dfdaemon: FakeDfdaemonSocket, weights: bytes
) -> None:
    mounted = _mount(mounter, bucket, dfdaemon)
    with dfdaemon.failing(Fault.BREAKS_OFF):
        assert mounted.read("weights.bin") == weights
    dfdaemon.stop()
    assert mounted.read("other.bin") == weights[::-1]
    assert "broke off" in mounted.status()["repositories"][0]["handover"]["state"]


def test_a_damaged_store_is_not_served(
    mounter: Mounter, bucket: Bucket, dfdaemon: FakeDfdaemonSocket, weights: bytes
) -> None:
    mounted = _mount(mounter, bucket, dfdaemon)
    with dfdaemon.failing(Fault.WRONG_BYTES):
        assert mounted.read("weights.bin") == weights
    until(lambda: mounted.status()["repositories"][0]["handover"]["wrong_pieces"] == 1, "the wrong piece to be found")
    assert mounted.read_anew("weights.bin") == weights


def test_a_link_on_another_file_system_is_refused_and_said(
    mounter: Mounter, bucket: Bucket, dfdaemon: FakeDfdaemonSocket, weights: bytes
) -> None:
    mounted = _mount(mounter, bucket, dfdaemon)
    with dfdaemon.failing(Fault.OTHER_FILE_SYSTEM):
        assert mounted.read("weights.bin") == weights
    state = mounted.status()["repositories"][0]["handover"]["state"]
    assert "cross-device" in state
    assert mounted.log().count("files are not handed over") == 1


def test_without_the_packages_it_says_what_to_install(
    mounter: Mounter, bucket: Bucket, dfdaemon: FakeDfdaemonSocket, tmp_path: Path
) -> None:
    (tmp_path / "grpc.py").write_text("raise ImportError('no grpc', name='grpc')")
    arguments = (bucket.url(), "--dfdaemon-socket", dfdaemon.url)
    done = mounter.refused(*arguments, env=bucket.env | {"PYTHONPATH": str(tmp_path)})
    assert "extra [dragonfly]" in done.stderr
