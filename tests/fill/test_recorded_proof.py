"""The proof of bytes that came through Dragonfly outlives the daemon: what one has left open, the next
compares. Real caches and transfers; the next daemon is another `Scene` on the same directory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from d7yfs.cache.proof import Proof
from d7yfs.errors import D7yfsError, NotFound, OriginUnavailable, ReadTimeout
from d7yfs.fetch.transport import Transport
from d7yfs.objects import ByteRange, ObjectVersion
from d7yfs.origins.origin import Checksums
from tests.fill.scene import BODY, KEY, MB, RIGHT, SUMS, WRONG, Scene, forged, through
from tests.servers import faults
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.http11 import Fault
from tests.servers.scripted import ScriptedServer


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    async with ScriptedServer({KEY: BODY}).running() as server:
        yield server


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    made = Transport(connect_timeout_s=3, first_byte_timeout_s=5, idle_timeout_s=5)
    yield made
    await made.aclose()


class Hosts:
    """The daemons of one cache directory, one after the other."""

    def __init__(self, path: Path, server: ScriptedServer, transport: Transport) -> None:
        self._parts = path, server, transport

    def next(self, recorded: Checksums | D7yfsError) -> Scene:
        """A daemon without a proxy, whose store answers so."""
        made = Scene(*self._parts)
        made.origin.recorded = recorded
        return made

    async def leave(self, *, fault: Fault = faults.honest) -> None:
        """Have a daemon bring all of the file through Dragonfly, and end before its store has
        answered. No reader waits: it would have some bytes straight from the store.
        """
        async with FakeDfdaemon(piece_bytes=MB).running() as dfdaemon:
            scene = through(dfdaemon, *self._parts)
            dfdaemon.script(fault)
            asked = trio.Event()

            async def silent(version: ObjectVersion) -> Checksums:
                asked.set()
                await trio.sleep_forever()

            scene.origin.checksums = silent  # type: ignore[method-assign]
            async with trio.open_nursery() as nursery:
                cached = await scene.open(nursery)
                await cached.fill_whole()
                cached.drop()
                await asked.wait()
                nursery.cancel_scope.cancel()
            await scene.cache.settle()


@pytest.fixture
def hosts(tmp_path: Path, server: ScriptedServer, transport: Transport) -> Hosts:
    return Hosts(tmp_path, server, transport)


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("recorded", [RIGHT, *SUMS.values(), Checksums()], ids=["crc32c", *SUMS, "samples"])
async def test_forged_bytes_that_no_daemon_compared_are_found_by_the_next(
    hosts: Hosts, recorded: Checksums, required: bool
) -> None:
    await hosts.leave(fault=forged)
    scene = hosts.next(recorded)
    assert (await scene.proof(), await scene.cached_bytes()) == (Proof.PENDING, len(BODY))
    scene.required = required
    read = await scene.read()
    assert (read == BODY) == required, "nobody reads it before, if that is required"
    assert scene.mismatches == 1
    assert await scene.read() == BODY
    if recorded is RIGHT:
        assert await scene.proof() is Proof.PROVED


async def test_right_bytes_are_compared_once_and_the_proof_stays(hosts: Hosts) -> None:
    await hosts.leave()
    scene = hosts.next(RIGHT)
    assert await scene.read() == BODY
    assert (scene.origin.compared, await scene.proof()) == ([scene.version], Proof.PROVED)
    later = hosts.next(WRONG)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            cached = await later.open(nursery)
            cached.drop()
    assert later.origin.compared == []
    assert later.fetcher.counters.p2p_versions == {"proved": 1}, "status tells of each version once"


async def test_what_could_not_be_proved_is_compared_again_once_in_a_run(hosts: Hosts) -> None:
    await hosts.leave()
    away = hosts.next(OriginUnavailable("503"))
    away.origin.refusals = [NotFound("gone")]
    await away.read()
    assert await away.proof() is Proof.NOT_PROVABLE
    scene = hosts.next(NotFound("gone"))
    scene.origin.refusals = [NotFound("gone")]
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            cached = await scene.open(nursery)
            cached.drop()
    assert len(scene.origin.compared) == 1
    assert await hosts.next(RIGHT).read() == BODY
    assert await scene.proof() is Proof.PROVED


async def test_only_so_many_comparisons_are_begun_by_opening(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    await hosts.leave()
    scene = hosts.next(RIGHT)
    with monkeypatch.context() as patched:
        patched.setattr("d7yfs.fill.verification._MOST_LEFT_OPEN", 0)
        assert await scene.read() == BODY
    assert (scene.origin.compared, await scene.proof()) == ([], Proof.PENDING)
    assert await scene.read() == BODY
    assert await scene.proof() is Proof.PROVED


async def test_a_stream_that_broke_off_is_recorded_before_its_bytes(hosts: Hosts, tmp_path: Path) -> None:
    hang = faults.Hang(after_body_bytes=2 * MB)
    async with FakeDfdaemon(piece_bytes=MB).running() as dfdaemon, trio.open_nursery() as nursery:
        scene = through(dfdaemon, *hosts._parts)
        dfdaemon.script(hang)
        cached = await scene.open(nursery)
        nursery.start_soon(cached.read, ByteRange(0, 3 * MB), None)
        await hang.reached.wait()
        assert await hosts.next(RIGHT).proof() is Proof.PENDING
        nursery.cancel_scope.cancel()
    later = hosts.next(RIGHT)
    assert await later.read() == BODY
    assert await later.proof() is Proof.PROVED


async def test_a_comparison_that_takes_too_long_is_told(hosts: Hosts) -> None:
    await hosts.leave()
    scene = hosts.next(RIGHT)
    scene.required = True
    scene.fetcher.read_timeout_s = 0.01
    answers, answer = trio.Event(), scene.origin.checksums

    async def late(version: ObjectVersion) -> Checksums:
        await answers.wait()
        return await answer(version)

    scene.origin.checksums = late  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        with pytest.raises(ReadTimeout, match="still being compared"):
            await scene.open(nursery)
        answers.set()
    assert await scene.read() == BODY
    assert await scene.proof() is Proof.PROVED


async def test_what_came_from_the_store_has_no_record(hosts: Hosts) -> None:
    scene = hosts.next(RIGHT)
    assert await scene.read() == BODY
    assert await hosts.next(RIGHT).proof() is None
