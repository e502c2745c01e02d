"""The life of movers: real processes, and programs in their place that misbehave."""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from d7yfs.checksum import crc32c
from d7yfs.movers import demand, pool
from d7yfs.movers.pool import MoverPool, Moving
from d7yfs.movers.protocol import Ending, Word
from d7yfs.objects import BLOCK_BYTES, ByteRange

BODY = os.urandom(2 * BLOCK_BYTES + 99)


@asynccontextmanager
async def running(limit: int = 1, *, ready: int | None = None, patience_s: float = 60.0) -> AsyncIterator[MoverPool]:
    """A pool that starts its movers at once, when `ready` (default: all) take jobs."""
    made = MoverPool(limit, at_once=True, patience_s=patience_s)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.run)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(limit):
            made.count(1)
        await until(lambda: len(made.ready) == (limit if ready is None else ready))
        yield made
        nursery.cancel_scope.cancel()
    assert made.processes == []


async def until(happens: Callable[[], bool]) -> None:
    with trio.fail_after(60):
        while not happens():  # noqa: ASYNC110  # nothing tells of it
            await trio.sleep(0.01)


class Caller:
    """A caller of the pool: a connection with a peer, a file, and the words that it hears."""

    def __init__(self, movers: MoverPool, path: Path, *, idle_timeout_s: float) -> None:
        ours, self.peer = socket.socketpair()
        self.words: list[Word] = []
        self.file_fd = os.open(path / "data", os.O_RDWR | os.O_CREAT)
        with ours:
            moving = movers.hand_over(
                ByteRange(0, len(BODY)),
                ours.fileno(),
                self.file_fd,
                crc=0,
                idle_timeout_s=idle_timeout_s,
                on_word=self.words.append,
            )
        assert moving is not None
        self.moving: Moving = moving

    def close(self) -> None:
        self.peer.close()
        os.close(self.file_fd)

    async def send(self, data: bytes) -> None:
        await trio.to_thread.run_sync(self.peer.sendall, data)

    @property
    def ending(self) -> Ending:
        return self.words[-1].ending if self.words else Ending.NONE

    @property
    def crcs(self) -> list[int]:
        """The last one that was told of each block."""
        told: dict[int, int] = {}
        position = 0
        for word in self.words:
            told |= dict(enumerate(word.crcs, position // BLOCK_BYTES))
            position = word.position
        return [told[index] for index in sorted(told)]


Hand = Callable[..., Caller]


@pytest.fixture
def hand(tmp_path: Path) -> Iterator[Hand]:
    """Hands a job to a pool."""
    with ExitStack() as stack:

        def make(movers: MoverPool, *, idle_timeout_s: float = 60.0) -> Caller:
            caller = Caller(movers, tmp_path, idle_timeout_s=idle_timeout_s)
            stack.callback(caller.close)
            return caller

        yield make


def as_program(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Have movers run `code`, which has its end of the channel in `channel`."""
    begin = "import os, signal, socket, sys, time; channel = socket.socket(fileno=int(sys.argv[1])); "
    monkeypatch.setattr(pool, "PROGRAM", (sys.executable, "-c", begin + code))


async def test_it_writes_what_comes_and_says_how_far_with_the_crc_of_each_block(hand: Hand) -> None:
    async with running() as movers:
        caller = hand(movers)
        await caller.send(BODY[:1000])
        await until(lambda: bool(caller.words))
        assert caller.words[-1].position == 1000
        await caller.send(BODY[1000:])
        await caller.moving.wait()
        assert caller.ending is Ending.DONE
        assert caller.words[-1].tail == BODY[-4096:]
        assert os.pread(caller.file_fd, len(BODY) + 1, 0) == BODY
        assert caller.crcs == [crc32c(BODY[at : at + BLOCK_BYTES]) for at in range(0, len(BODY), BLOCK_BYTES)]
        assert movers.status().received_bytes == len(BODY)


async def test_a_peer_that_sends_nothing_is_told_and_a_mover_that_waits_for_it_lives(hand: Hand) -> None:
    async with running(patience_s=1.0) as movers:
        caller = hand(movers, idle_timeout_s=2.5)
        await caller.moving.wait()
        assert caller.ending is Ending.SILENT
        assert movers.lost == 0


async def test_it_ends_when_it_has_had_nothing_to_do_for_a_while(hand: Hand, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running() as movers:
        caller = hand(movers)
        monkeypatch.setattr(pool, "IDLE_S", 0.0)
        handed_at = trio.current_time()
        await until(lambda: not movers.processes or movers.ready[0].heard_at > handed_at)
        assert movers.processes
        await caller.send(BODY)
        await until(lambda: not movers.processes)
        assert caller.ending is Ending.DONE
        assert movers.lost == 0
        movers.count(1)  # and it is followed by another
        await until(lambda: bool(movers.processes))
    assert demand.IDLE_S > 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_job_of_a_mover_that_ends_or_hangs_is_lost(hand: Hand, number: signal.Signals) -> None:
    async with running(patience_s=1.0) as movers:
        caller = hand(movers)
        await caller.send(BODY[:1000])
        await until(lambda: bool(caller.words))
        (pid,) = movers.processes
        os.kill(pid, number)
        await caller.moving.wait()
        assert caller.words[-1] == Word(caller.moving.job.number, 1000, ending=Ending.LOST)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        assert movers.status().lost == 1
        movers.count(1)
        assert not movers._starting, "there must be a pause before another one"


async def test_a_callers_bug_is_its_own(hand: Hand) -> None:
    async with running() as movers:
        caller, other = hand(movers), hand(movers)

        def fail(word: Word) -> None:
            raise ZeroDivisionError

        caller.moving._on_word = fail
        await caller.send(BODY[:1000])
        with pytest.raises(ZeroDivisionError):
            await caller.moving.wait()
        await other.send(BODY)
        await other.moving.wait()
        assert other.ending is Ending.DONE
        assert movers.jobs == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGTERM])
async def test_signals_for_all_processes_of_a_mount_are_the_daemons(hand: Hand, number: signal.Signals) -> None:
    async with running() as movers:
        caller = hand(movers)
        os.kill(movers.processes[0], number)
        await caller.send(BODY)
        await caller.moving.wait()
        assert caller.ending is Ending.DONE


async def test_one_that_ends_before_its_first_word_takes_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    as_program(monkeypatch, "sys.exit()")
    async with running(ready=0) as movers:
        await until(lambda: movers._paused_until > trio.current_time())
        assert not movers.takes(1 << 30)
        assert movers.lost == 0


async def test_one_that_never_says_its_first_word_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "_START_S", 0.1)
    as_program(monkeypatch, "time.sleep(600)")
    async with running(ready=0, patience_s=0.0) as movers:
        await until(lambda: bool(movers.processes))
        assert not movers.takes(1 << 30)
        await until(lambda: not movers.processes)


NONSENSE = [
    "b'x'",
    "Word(1, 3 << 20).encode()",
    "Word(1, 1000, ()).encode()",
    "Word(1, 1000, (7, 8)).encode()",
    "Word(1, 5, (7,), Ending.DONE).encode()",
    "struct.pack('=QQBiH', 1, 0, 9, 0, 0)",
    "struct.pack('=QQBiH', 1, 0, 0, 0, 9)",
    "struct.pack('=QQBiH', 1, 0, 99, 0, 0)",
    "struct.pack('=QQBiH', 1, 0, 64, 0, 9)",
]


@pytest.mark.parametrize("word", NONSENSE)
async def test_one_that_talks_nonsense_is_not_believed(monkeypatch: pytest.MonkeyPatch, hand: Hand, word: str) -> None:
    says = f"channel.send(ALIVE.encode()); channel.recv(9999); channel.send({word}); time.sleep(600)"
    imports = "import struct; from d7yfs.movers.protocol import ALIVE, Ending, Word; "
    as_program(monkeypatch, imports + says)
    async with running() as movers:
        caller = hand(movers)
        await caller.moving.wait()
        assert caller.words == [Word(caller.moving.job.number, 0, ending=Ending.LOST)]


async def test_one_of_another_release_gets_no_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    imports = "from d7yfs.movers.protocol import VERSION, Word; "
    as_program(monkeypatch, imports + "channel.send(Word(0, VERSION + 1).encode()); time.sleep(600)")
    async with running(ready=0) as movers:
        await until(lambda: movers._paused_until > trio.current_time())
        assert not movers.takes(1 << 30)
    assert "is of another release (d7yfs upgrade" in caplog.text


async def test_the_one_with_the_fewest_jobs_gets_the_next_and_none_has_too_many(
    monkeypatch: pytest.MonkeyPatch, hand: Hand
) -> None:
    monkeypatch.setattr(pool, "MAX_JOBS", 2)
    async with running(2) as movers:
        callers = [hand(movers) for _ in range(4)]
        assert [len(mover.jobs) for mover in movers._movers] == [2, 2]
        assert not movers.takes(1 << 30)
        await callers[1].send(BODY)
        await callers[1].moving.wait()
        assert movers.takes(1 << 30)
        assert movers.status().jobs == 3


async def test_a_burst_of_one_body_does_not_keep_another_waiting(hand: Hand) -> None:
    async with running() as movers:
        endless, short = hand(movers), hand(movers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(endless.send, BODY[:-1])
            nursery.start_soon(short.send, BODY)
            await short.moving.wait()
        assert endless.ending is Ending.NONE


async def test_it_has_no_descriptor_variable_or_library_that_it_does_not_need(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "5ecre7")
    with (tmp_path / "open").open("wb") as opened:
        os.set_inheritable(opened.fileno(), True)  # as a careless library does
        async with running() as movers:
            process = Path(f"/proc/{movers.processes[0]}")
            assert "5ecre7" not in (process / "environ").read_text()
            found = {fd.name: str(fd.readlink()) for fd in (process / "fd").iterdir()}
            ends = {target.partition(":")[0] for fd, target in found.items() if int(fd) > 2}
            assert ends == {"socket", "anon_inode"}  # its channel, and epoll
            assert {found["0"], found["1"]} == {"/dev/null"}
            assert f"Max core file size{'0':>9}" in (process / "limits").read_text()
            mapped = (process / "maps").read_text()
            assert not [name for name in ("_ssl.", "libfuse", "pyfuse3", "libcrypto") if name in mapped]


async def test_movers_end_at_once_with_their_engine() -> None:
    """An engine that is killed says nothing: its end of the channel closes."""
    engine = (
        "import sys, trio; from d7yfs.movers.pool import MoverPool\n"
        "async def main():\n"
        "    pool = MoverPool(2, at_once=True)\n"
        "    async with trio.open_nursery() as nursery:\n"
        "        nursery.start_soon(pool.run)\n"
        "        while len(pool.ready) < 2: pool.count(1); await trio.sleep(0.01)\n"
        "        print(*pool.processes, flush=True)\n"
        "        await trio.sleep_forever()\n"
        "trio.run(main)"
    )
    process = await trio.lowlevel.open_process([sys.executable, "-c", engine], stdout=-1)
    assert process.stdout is not None
    said = b""
    while not said.endswith(b"\n"):
        said += await process.stdout.receive_some()
    pids = [int(pid) for pid in said.split()]
    assert len(pids) == 2
    process.kill()
    await process.wait()
    await until(lambda: not any(is_running(pid) for pid in pids))
    await process.stdout.aclose()


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
