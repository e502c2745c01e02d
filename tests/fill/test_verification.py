"""Bytes that came are compared with the store's record: real caches, real transfers, and an origin
that says what the test wants.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from d7yfs.cache.proof import Proof
from d7yfs.checksum import crc32c
from d7yfs.config.p2p import P2p
from d7yfs.errors import AccessDenied, BadReply, D7yfsError, NotFound, OriginUnavailable
from d7yfs.fetch.dragonfly_proxy import Proxies, Proxy
from d7yfs.fetch.transport import Transport
from d7yfs.fill.p2p_budget import Policy
from d7yfs.fill.verification import PAGE_BYTES, SAMPLE, SAMPLED_PAGES
from d7yfs.objects import ObjectVersion
from d7yfs.origins.origin import Checksums
from tests.fill.scene import BODY, KEY, MB, RIGHT, SIZE, SMALL_BODY, SMALL_KEY, SUMS, WRONG, Scene, forged, through
from tests.servers import faults
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.scripted import ScriptedServer


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer({KEY: BODY, SMALL_KEY: SMALL_BODY}).running() as server:
        yield server


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    made = Transport(connect_timeout_s=3, first_byte_timeout_s=5, idle_timeout_s=5)
    yield made
    await made.aclose()


@pytest.fixture
def scene(tmp_path: Path, server: ScriptedServer, transport: Transport) -> Scene:
    return Scene(tmp_path, server, transport)


async def test_a_file_that_is_right_is_compared_once(scene: Scene) -> None:
    scene.origin.recorded = RIGHT
    assert await scene.read() == BODY
    assert scene.origin.compared == [scene.version]
    assert await scene.read() == BODY
    assert scene.origin.compared == [scene.version], "it was whole when it was opened"
    assert (scene.mismatches, scene.forgotten) == (0, [])
    assert scene.server.sent_bytes[KEY] == SIZE


async def test_wrong_bytes_are_found_and_fetched_again(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.origin.recorded = RIGHT
    scene.server.script(faults.altered(0))
    assert await scene.read() != BODY
    assert (scene.mismatches, await scene.cached_bytes()) == (1, 0)
    assert scene.forgotten == [scene.version]
    (error,) = (each.getMessage() for each in caplog.records if each.levelno == logging.ERROR)
    assert KEY in error
    assert f"{RIGHT.crc32c:08x}" in error
    assert "dropped from the cache" in error

    assert await scene.read() == BODY
    assert scene.server.sent_bytes[KEY] == 2 * SIZE
    assert scene.origin.compared == [scene.version] * 2
    assert (scene.mismatches, await scene.cached_bytes()) == (1, SIZE)


async def test_wrong_bytes_are_fetched_again_for_a_reader_who_has_the_file_open(scene: Scene) -> None:
    scene.origin.recorded = RIGHT
    scene.server.script(faults.altered(0))
    async with trio.open_nursery() as nursery:
        cached = await scene.open(nursery)
        assert await cached.read(scene.version.whole, None) != BODY
        await scene.struck_out.wait()
        assert await cached.read(scene.version.whole, None) == BODY
        cached.drop()


async def test_what_is_wrong_twice_is_kept(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    scene.origin.recorded = WRONG
    for _ in range(3):
        assert await scene.read() == BODY
    assert scene.server.sent_bytes[KEY] == 2 * SIZE
    assert (scene.mismatches, await scene.cached_bytes()) == (2, SIZE)
    assert scene.forgotten == [scene.version]
    assert "kept as it is" in caplog.text


@pytest.mark.parametrize("error", [OriginUnavailable("503"), NotFound("gone"), BadReply("no S3")])
async def test_a_store_that_cannot_be_asked_disturbs_nobody(
    scene: Scene, error: D7yfsError, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    scene.origin.recorded = error
    assert await scene.read() == BODY
    assert scene.origin.compared == [scene.version], "once"
    assert (scene.mismatches, await scene.cached_bytes()) == (0, SIZE)
    assert [each.levelname for each in caplog.records if "could not be compared" in each.getMessage()] == ["INFO"]


async def test_where_nothing_is_recorded_nothing_is_compared(scene: Scene) -> None:
    scene.server.script(faults.altered(0))
    assert await scene.read() != BODY
    assert scene.mismatches == 0


async def test_a_file_that_is_not_whole_is_not_compared(scene: Scene) -> None:
    scene.origin.recorded = WRONG
    assert await scene.read(stop=5 * MB) == BODY[: 5 * MB]
    assert scene.origin.compared == []
    assert await scene.read() == BODY
    assert scene.origin.compared == [scene.version]


async def test_what_another_daemon_has_brought_is_compared_too(
    tmp_path: Path, scene: Scene, server: ScriptedServer, transport: Transport
) -> None:
    other = Scene(tmp_path, server, transport)
    other.origin.recorded = RIGHT
    async with trio.open_nursery() as nursery:
        cached = await other.open(nursery)
        server.script(faults.altered(0))
        assert await scene.read() != BODY
        assert await cached.read(other.version.whole, None) != BODY
        cached.drop()
    assert (other.mismatches, await other.cached_bytes()) == (1, 0)
    assert server.sent_bytes[KEY] == SIZE


async def test_without_room_on_the_disk_nothing_is_compared(scene: Scene) -> None:
    scene.origin.recorded = WRONG
    scene.cache._directory.size_limit_bytes = 3 * MB
    assert await scene.read() == BODY
    assert scene.origin.compared == []


async def test_no_reader_waits_and_the_file_stays_open_meanwhile(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = trio.Event()

    async def late(version: ObjectVersion) -> Checksums:
        await answered.wait()
        return WRONG

    monkeypatch.setattr(scene.origin, "checksums", late)
    async with trio.open_nursery() as nursery:
        cached = await scene.open(nursery)
        assert await cached.read(scene.version.whole, None) == BODY
        cached.drop()
        await wait_all_tasks_blocked()
        assert scene.cache.statistics().open_versions == 1
        answered.set()
    assert (scene.mismatches, await scene.cached_bytes()) == (1, 0)


async def test_the_end_of_the_mount_waits_for_no_comparison(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(version: ObjectVersion) -> Checksums:
        await trio.sleep_forever()

    monkeypatch.setattr(scene.origin, "checksums", never)
    async with trio.open_nursery() as nursery:
        cached = await scene.open(nursery)
        await cached.read(scene.version.whole, None)
        cached.drop()
        nursery.cancel_scope.cancel()
    assert scene.cache.statistics().open_versions == 0


# --- small files, and checksums that cost reading the file back ---


@pytest.mark.parametrize("full", [False, True])
async def test_small_files_are_worth_a_request_on_demand_only(scene: Scene, full: bool) -> None:
    scene.full = full
    scene.origin.recorded = Checksums(crc32c=crc32c(SMALL_BODY))
    assert await scene.read(SMALL_KEY) == SMALL_BODY
    assert len(scene.origin.compared) == full
    assert scene.mismatches == 0


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("recorded", SUMS.values(), ids=SUMS)
async def test_the_file_is_read_back_on_demand_only(scene: Scene, recorded: Checksums, full: bool) -> None:
    scene.full = full
    scene.origin.recorded = recorded
    scene.server.script(faults.altered(0))
    assert await scene.read() != BODY
    assert scene.mismatches == full
    assert (await scene.read() == BODY) == full
    assert scene.mismatches == full


@pytest.mark.parametrize(
    "recorded",
    [
        Checksums(RIGHT.crc32c, crc64nvme=0, md5="0" * 32),
        Checksums(crc64nvme=SUMS["crc64nvme"].crc64nvme, md5="0" * 32),
    ],
    ids=["crc32c", "crc64nvme"],
)
async def test_one_checksum_is_enough_the_cheapest(scene: Scene, recorded: Checksums) -> None:
    scene.full = True
    scene.origin.recorded = recorded
    assert await scene.read() == BODY
    assert scene.mismatches == 0


@pytest.mark.parametrize("recorded", SUMS.values(), ids=SUMS)
async def test_what_was_given_up_while_it_was_read_back_is_not_wrong(
    tmp_path: Path, scene: Scene, recorded: Checksums
) -> None:
    scene.full = True
    async with trio.open_nursery() as nursery:
        cached = await scene.open(nursery)

        async def give_up(version: ObjectVersion) -> Checksums:
            await cached.backing.strike_out()
            (data,) = tmp_path.glob("v2/?/*.data")
            with data.open("r+b") as file:
                file.write(bytes(MB))
            return recorded

        scene.origin.checksums = give_up  # type: ignore[method-assign]
        await cached.read(scene.version.whole, None)
        cached.drop()
    assert scene.mismatches == 0


# --- through the proxy ---


@pytest.mark.parametrize("required", [False, True])
async def test_the_proxy_is_not_asked_again_unless_it_is_the_only_way(
    tmp_path: Path, server: ScriptedServer, transport: Transport, required: bool
) -> None:
    async with FakeDfdaemon(piece_bytes=MB).running() as dfdaemon:
        scene = Scene(tmp_path, server, transport, Proxies([Proxy(dfdaemon.url, transport)], required=required))
        scene.origin.recorded = RIGHT
        dfdaemon.script(faults.altered(-1))  # the stream
        await scene.read(stop=2 * MB)  # and the stream brings the rest
        assert (scene.mismatches, await scene.cached_bytes()) == (1, 0)
        asked = len(dfdaemon.requests)
        assert await scene.read() == BODY
        assert (len(dfdaemon.requests) > asked) == required


@pytest.mark.parametrize("recorded", [*SUMS.values(), Checksums(), NotFound("no HEAD")])
async def test_a_proxy_that_forges_is_found_out_without_a_crc(
    tmp_path: Path, server: ScriptedServer, transport: Transport, recorded: Checksums | D7yfsError
) -> None:
    async with FakeDfdaemon(piece_bytes=MB).running() as dfdaemon:
        scene = through(dfdaemon, tmp_path, server, transport)
        scene.origin.recorded = recorded
        dfdaemon.script(forged)
        # A reader that waits may have bytes from the store: too few to leave a choice of right samples.
        await scene.read(stop=2 * MB)
        assert (scene.mismatches, await scene.cached_bytes()) == (1, 0)
        assert await scene.proof() is Proof.WRONG
        asked = len(dfdaemon.requests)
        assert await scene.read() == BODY
        assert len(dfdaemon.requests) == asked, "it comes from the store now"
        assert scene.fetcher.counters.p2p_versions.pop("wrong") == 1


@pytest.mark.parametrize(
    ("recorded", "proof"),
    [
        (RIGHT, Proof.PROVED),
        (SUMS["crc64nvme"], Proof.PROVED),
        (SUMS["md5"], Proof.PROVED),
        (Checksums(), Proof.SAMPLED),
    ],
)
async def test_how_far_a_version_is_proved_is_told(
    tmp_path: Path, server: ScriptedServer, transport: Transport, recorded: Checksums, proof: Proof
) -> None:
    async with FakeDfdaemon(piece_bytes=MB).running() as dfdaemon:
        scene = through(dfdaemon, tmp_path, server, transport)
        scene.origin.recorded = recorded
        assert await scene.read() == BODY
        assert await scene.proof() is proof
        assert scene.fetcher.counters.p2p_versions == {proof.value: 1}
        sampled_bytes = scene.fetcher.counters.direct_bytes_by_reason.get(SAMPLE, 0)
        assert bool(sampled_bytes) == (proof is Proof.SAMPLED)
        assert sampled_bytes <= SAMPLED_PAGES * PAGE_BYTES


async def test_a_small_file_that_came_through_the_proxy_is_compared_whole(
    tmp_path: Path, server: ScriptedServer, transport: Transport
) -> None:
    async with FakeDfdaemon(piece_bytes=MB).running() as dfdaemon:
        scene = through(dfdaemon, tmp_path, server, transport)
        scene.policy = Policy(P2p.parse("always"))
        dfdaemon.script(faults.altered(-1))
        assert await scene.read(SMALL_KEY) != SMALL_BODY
        assert await scene.read(SMALL_KEY) == SMALL_BODY
        assert await scene.proof(SMALL_KEY) is Proof.PROVED


@pytest.mark.parametrize("required", [False, True])
async def test_what_cannot_be_compared_is_told_or_refused(
    tmp_path: Path, server: ScriptedServer, transport: Transport, required: bool
) -> None:
    async with FakeDfdaemon(piece_bytes=MB).running() as dfdaemon:
        scene = through(dfdaemon, tmp_path, server, transport)
        scene.required = required

        async def denied(version: ObjectVersion) -> Checksums:
            scene.origin.refusals = [AccessDenied("no GET")] * 2
            return Checksums()

        scene.origin.checksums = denied  # type: ignore[method-assign]
        assert await scene.read() == BODY
        assert await scene.proof() is Proof.NOT_PROVABLE
        assert scene.fetcher.counters.p2p_versions == {"not provable": 1}
        assert await scene.cached_bytes() == (0 if required else SIZE)
        assert scene.forgotten == ([scene.version] if required else [])
        scene.origin.refusals.clear()
        asked = len(dfdaemon.requests)
        assert await scene.read() == BODY
        assert len(dfdaemon.requests) == asked, "from the cache, or from the store"


async def test_what_came_straight_from_the_store_needs_no_proof(scene: Scene) -> None:
    assert await scene.read() == BODY
    assert await scene.proof() is None
    assert scene.server.sent_bytes[KEY] == SIZE
