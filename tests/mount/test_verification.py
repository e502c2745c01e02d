"""A real mount of a store that delivers wrong bytes of the right length: the daemon finds them and
drops them, in the kernel too.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from tests.mount.conftest import MIB, bytes_of, faulty_url
from tests.mount.mounted import Mounter, until
from tests.servers import faults
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.http11 import Answer, Exchange
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


async def _forged(exchange: Exchange, answer: Answer) -> None:
    """Zeros in place of all bytes but the first MiB's."""
    body = await answer.whole()
    await exchange.deliver(replace(answer, body=body[:MIB] + bytes(len(body) - MIB)))


async def _without_checksums(exchange: Exchange, answer: Answer) -> None:
    """No answer to a HEAD, which asks for checksums."""
    if exchange.request.method == "HEAD":
        await trio.sleep_forever()
    await exchange.deliver(answer)


@pytest.mark.parametrize("required", [False, True], ids=["auto", "required"])
def test_what_a_killed_daemon_had_not_compared_the_next_one_compares(
    mounter: Mounter, faulty: InThread[S3Faults], required: bool
) -> None:
    """A CRC64NVME, S3's own default, for which the file is read back."""
    store, url = faulty.server, faulty_url(faulty)
    faulty.do(store.put, "b/model.safetensors", BODY)
    faulty.do(store.record_crc64nvme, "b/model.safetensors")
    faulty.do(lambda: store.script(_without_checksums, key="b/model.safetensors", forever=True))
    with InThread(FakeDfdaemon(piece_bytes=MIB)) as dfdaemon:
        dfdaemon.do(lambda: dfdaemon.server.script(_forged, forever=True))
        killed = mounter.mount(url, "--anonymous", "--proxy", dfdaemon.server.url)
        assert killed.read("model.safetensors") != BODY
        until(lambda: "HEAD" in [request.method for request in store.requests], "the question for its checksum")
        assert killed.stat("model.safetensors")["p2p_proof"] == "not compared yet"
        killed.kill()
        killed.wait_ended()

    faulty.do(lambda: store.script(faults.honest, key="b/model.safetensors"))
    options = ("--p2p-verify", "required") if required else ()
    mounted = mounter.mount(url, "--anonymous", *options, cache_dir=killed.cache_dir)
    assert mounted.stat("model.safetensors")["p2p_proof"] == "not compared yet", (
        "its record is read before it is opened"
    )
    first = mounted.read("model.safetensors")
    assert (first == BODY) or not required, "nobody reads it before it is compared"
    until(lambda: mounted.read("model.safetensors") == BODY, "the right bytes")
    assert "its CRC64NVME is" in mounted.log()
    assert mounted.status()["cache"]["checksum_mismatches"] == 1
    # What came while the map was being struck out is in memory alone, and the file not whole yet.
    until(
        lambda: (
            mounted.read_anew("model.safetensors") == BODY
            and mounted.stat("model.safetensors")["p2p_proof"] == "proved"
        ),
        "the proof of the store's own bytes",
    )
    mounted.kill()
    mounted.wait_ended()

    later = mounter.mount(url, "--anonymous", cache_dir=killed.cache_dir)
    assert later.stat("model.safetensors")["p2p_proof"] == "proved"
    assert later.read("model.safetensors") == BODY
    assert later.fetched()["p2p_versions"] == {"proved": 1}
