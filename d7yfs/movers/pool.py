"""The movers of one engine: started when bytes come fast, ended when they have nothing to do.

Owns the processes and their channels. A mover that dies, hangs or is stopped costs its jobs an
ending (`Ending.LOST`), its tunnels another (`TunnelState.LOST`), and nothing else: the caller goes on
at the last position that was told, or asks again. A mover that cannot even be killed, as its disk hangs, may write later: `Ending.STUCK`.

Called by the fetchers; run by `daemon`. Trio thread only.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable

import trio

from d7yfs.host.process import processors
from d7yfs.movers.demand import IDLE_S, TUNNEL_IDLE_S, Demand
from d7yfs.movers.protocol import (
    ALIVE_S,
    PACKET_BYTES,
    VERSION,
    Ending,
    Job,
    TunnelOrder,
    TunnelState,
    TunnelWord,
    Word,
    decode_word,
)
from d7yfs.movers.tunnel_end import TunnelEnd
from d7yfs.objects import ByteRange
from d7yfs.stats.status import MoversStatus
from d7yfs.tls import Trust

log = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-P", "-m", "d7yfs.movers.mover")
"""Given the descriptor of its end of the channel."""
SILENT_S = 3.0
"""A mover that says nothing for so long hangs, most likely on its disk."""
_START_S = 15.0
"""The same until its first word."""
_CANCEL_S = 0.5
"""The longest wait for a mover to leave a job, or to end."""
_PAUSE_S = 30.0
"""The time without new movers after one that hung, or ended by itself."""
MAX_JOBS = 64
"""Jobs of one mover at a time; what is more is received in the engine."""
MAX_TUNNELS = 128
"""Tunnels of one mover at a time, idle ones with them; TLS of what is more ends in the engine."""
LEAST_BYTES = 1 << 20
"""A rest of a body that is smaller is received in the engine: handing it over costs as much."""


class Moving:
    """A job under way. The connection and the file are the mover's as well until it has ended."""

    def __init__(self, job: Job, mover: _Mover, on_word: Callable[[Word], None]) -> None:
        self.job = job
        self.position = job.start
        self._mover = mover
        self._on_word = on_word
        self._ended = trio.Event()
        self._failure: Exception | None = None
        """Raised by the caller at a word, and raised again where it waits."""

    @property
    def is_behind(self) -> bool:
        """True if the mover has not spoken for a while, so that nobody knows what has come."""
        return trio.current_time() - self._mover.heard_at > 2 * ALIVE_S

    async def wait(self) -> None:
        """Return once it has ended, which its caller has been told. Cancelled, it waits a moment
        until the mover has left the job."""
        try:
            await self._ended.wait()
            if self._failure is not None:
                raise self._failure
        except trio.Cancelled:
            self._leave()
            with trio.move_on_after(_CANCEL_S, shield=True):
                await self._ended.wait()
            self.end(Ending.STUCK)
            raise

    def hear(self, word: Word) -> None:
        """Take a word, and tell the caller."""
        self.position = word.position
        if word.ending is not Ending.NONE:
            del self._mover.jobs[word.number]
            self._ended.set()
        if self._failure is None:
            try:
                self._on_word(word)
            except Exception as error:  # of this caller alone; the pool has others
                self._failure = error
                self._leave()

    def _leave(self) -> None:
        """Ask the mover to end the job."""
        self._mover.send(Job(self.job.number, self.job.start, self.job.start), [])

    def end(self, ending: Ending) -> None:
        """End the job in the mover's place, unless it has ended."""
        if not self._ended.is_set():
            self.hear(Word(self.job.number, self.position, ending=ending))


class _Mover:
    """One process, its channel, the jobs and the tunnels that it has."""

    def __init__(self, process: trio.Process, channel: socket.socket) -> None:
        self.process = process
        self.channel = channel
        self.jobs: dict[int, Moving] = {}
        self.tunnels: dict[int, TunnelEnd] = {}
        self.is_ready = False
        """True once it has said a word: its start takes longer than a job."""
        self.heard_at = self.busy_at = trio.current_time()
        """Times of its last word, and of the last one at which it had something to do."""

    @property
    def is_busy(self) -> bool:
        """True if it has something to do, be it to wait for a reply."""
        return bool(self.jobs) or any(tunnel.in_use for tunnel in self.tunnels.values())

    def send(self, order: Job | TunnelOrder, fds: list[int]) -> bool:
        """Hand an order over; False if the mover takes none now."""
        try:
            socket.send_fds(self.channel, [order.encode()], fds)
        except OSError:
            return False
        return True


class MoverPool:
    """At most `limit` movers."""

    def __init__(self, limit: int, *, at_once: bool = False, patience_s: float = SILENT_S) -> None:
        """With `at_once` all of them start with the first bytes. A mover that is silent for
        `patience_s` is given up."""
        self.demand = Demand(limit, at_once=at_once)
        self.patience_s = max(2 * ALIVE_S, patience_s)
        self.moved_bytes = 0
        """Bytes that movers have brought."""
        self.lost = 0
        """Movers that ended, or were ended, with something to do."""
        self._movers: list[_Mover] = []
        self._starting = 0
        self._paused_until = float("-inf")
        self._numbers = 0
        self._nursery: trio.Nursery | None = None

    @property
    def processes(self) -> list[int]:
        """The process ids of the movers."""
        return [mover.process.pid for mover in self._movers]

    @property
    def ready(self) -> list[_Mover]:
        """The movers that take jobs."""
        return [mover for mover in self._movers if mover.is_ready and len(mover.jobs) < MAX_JOBS]

    @property
    def jobs(self) -> int:
        """Jobs under way."""
        return sum(len(mover.jobs) for mover in self._movers)

    def status(self) -> MoversStatus:
        """Their account."""
        return MoversStatus(
            processes=len(self._movers),
            processes_limit=self.demand.limit,
            ready=sum(mover.is_ready for mover in self._movers),
            jobs=self.jobs,
            received_bytes=self.moved_bytes,
            lost=self.lost,
            tls_connections=sum(len(mover.tunnels) for mover in self._movers),
        )

    async def run(self) -> None:
        """Keep movers as they are needed, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    def count(self, size_bytes: int) -> None:
        """Count bytes that the engine has received itself, or a mover has; more movers may start."""
        now = trio.current_time()
        self.demand.count(size_bytes, now)
        if self._nursery is None or now < self._paused_until:
            return
        for _ in range(len(self._movers) + self._starting, self.demand.movers):
            self._starting += 1
            self._nursery.start_soon(self._live)

    def takes(self, size_bytes: int, tunnel: TunnelEnd | None = None) -> bool:
        """True if a body of which so many bytes are to come, by `tunnel` if there is one, may be handed
        over now."""
        return size_bytes >= LEAST_BYTES and self._best(tunnel) is not None

    def _best(self, tunnel: TunnelEnd | None) -> _Mover | None:
        """The mover for a job: its tunnel's, or else the one with the fewest."""
        if tunnel is not None:
            return tunnel.mover if tunnel.mover in self.ready else None
        return min(self.ready, key=lambda each: len(each.jobs), default=None)

    def open_tunnel(self, connection: int, server_name: str, trust: Trust) -> TunnelEnd | None:
        """Have the mover with the fewest tunnels end the TLS of a connection that is made; None if none
        takes it now. `opened` tells the outcome."""
        if (mover := self._freest) is None:
            return None
        self._numbers += 1
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        order = TunnelOrder(self._numbers, server_name, trust.ca_file, trust.verify)
        with theirs:
            if not mover.send(order, [connection, theirs.fileno()]):
                ours.close()
                return None
        tunnel = mover.tunnels[order.number] = TunnelEnd(order.number, mover, ours)
        return tunnel

    def suits(self, tunnel: TunnelEnd | None) -> bool:
        """True if no new connection with TLS were better for a large body than this one, as it ends in
        the engine (None), or its mover has more of them than another."""
        if (freest := self._freest) is None:
            return True
        return tunnel is not None and len(tunnel.mover.tunnels) <= len(freest.tunnels) + 1

    @property
    def _freest(self) -> _Mover | None:
        """The mover for the next tunnel."""
        able = [mover for mover in self._movers if mover.is_ready and len(mover.tunnels) < MAX_TUNNELS]
        return min(able, key=lambda each: len(each.tunnels), default=None)

    def hand_over(
        self,
        wanted: ByteRange,
        connection: int,
        file_fd: int,
        *,
        crc: int,
        idle_timeout_s: float,
        on_word: Callable[[Word], None],
        tunnel: TunnelEnd | None = None,
    ) -> Moving | None:
        """Have the mover with the fewest jobs, or that of `tunnel`, receive `wanted` from a connection
        and write it into a file; None if none takes it now.

        `on_word` is told of each word, up to the one with an ending."""
        self._numbers += 1
        job = Job(self._numbers, wanted.start, wanted.stop, crc, idle_timeout_s, tunnel.number if tunnel else 0)
        mover = self._best(tunnel)
        if mover is None or not mover.send(job, [connection, file_fd]):
            return None
        moving = mover.jobs[job.number] = Moving(job, mover, on_word)
        return moving

    async def _live(self) -> None:
        """Start a mover, hear it, and end it."""
        try:
            mover = await self._start()
        except OSError as error:
            log.warning("no process could be started to receive data: %s", error.strerror)
            self.demand.limit = len(self._movers)
            return
        finally:
            self._starting -= 1
        self._movers.append(mover)
        trouble: str | None = None
        try:
            while (trouble := await self._hear(mover)) is None:
                pass
            if trouble:
                self._paused_until = trio.current_time() + _PAUSE_S
                log.warning("a process that receives data %s (pid %d): going on without it", trouble, mover.process.pid)
        finally:
            self._movers.remove(mover)
            self.lost += mover.is_busy
            trio.lowlevel.notify_closing(mover.channel)
            mover.channel.close()
            if mover.jobs or trouble:
                mover.process.kill()
            for tunnel in list(mover.tunnels.values()):
                tunnel.hear(TunnelWord(tunnel.number, TunnelState.LOST))
            with trio.move_on_after(_CANCEL_S, shield=True):
                await mover.process.wait()
            # Once it is dead it writes no more. While its disk hangs not even a kill ends it.
            is_dead = mover.process.returncode is not None
            for moving in list(mover.jobs.values()):
                moving.end(Ending.LOST if is_dead else Ending.STUCK)
            if not is_dead:
                mover.process.kill()
                with trio.move_on_after(_CANCEL_S, shield=True):
                    await mover.process.wait()
                await mover.process.wait()  # to reap it; nobody else waits for that

    async def _start(self) -> _Mover:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs:
                process = await trio.lowlevel.open_process(
                    [*PROGRAM, str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # its standard error is the engine's, for a traceback
                    pass_fds=[theirs.fileno()],
                    env=_environment(),
                )
        except BaseException:
            ours.close()
            raise
        ours.setblocking(False)
        return _Mover(process, ours)

    async def _hear(self, mover: _Mover) -> str | None:
        """Hear what a mover says next. Returns the trouble if it is to be ended, empty for none."""
        with trio.move_on_after(self.patience_s if mover.is_ready else max(_START_S, self.patience_s)):
            await trio.lowlevel.wait_readable(mover.channel)
        heard = False
        while True:
            try:
                packet = mover.channel.recv(PACKET_BYTES)
            except BlockingIOError:
                break
            except OSError:
                packet = b""
            if not packet:
                return "has ended"
            try:
                word = decode_word(packet)
                if isinstance(word, TunnelWord):
                    if (tunnel := mover.tunnels.get(word.number)) is not None:  # or its caller has left
                        tunnel.hear(word)
                elif not word.number and word.position != VERSION:
                    return "is of another release (d7yfs upgrade replaces the daemon, too)"
                else:
                    self._apply(mover, word)
            except ValueError:
                return "talks nonsense"
            heard = True
        now = trio.current_time()
        if not heard:
            return "hangs"
        mover.heard_at = now
        if mover.is_busy:
            mover.busy_at = now
            return None
        return "" if now - mover.busy_at >= (TUNNEL_IDLE_S if mover.tunnels else IDLE_S) else None

    def _apply(self, mover: _Mover, word: Word) -> None:
        """Take a word. Raises ValueError for one that its job cannot have."""
        mover.is_ready = True
        if (moving := mover.jobs.get(word.number)) is None:
            return  # it lives; or its caller has left
        if not moving.job.may_hear(word, moving.position):
            raise ValueError
        size_bytes = word.position - moving.position
        self.moved_bytes += size_bytes
        self.count(size_bytes)
        moving.hear(word)


def _environment() -> dict[str, str]:
    """The variables of a mover: no credentials, no proxies."""
    known = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "PYTHONHOME", "PYTHONDONTWRITEBYTECODE", "PYTHONWARNINGS")
    return {name: os.environ[name] for name in known if name in os.environ}


def make_pool(asked: int | None, read_timeout_s: float) -> MoverPool:
    """The pool of a mount: as many movers as are `asked` for, from the first bytes on; without a
    number as many as the bytes are worth.
    """
    limit = default_limit(processors()) if asked is None else asked
    return MoverPool(limit, at_once=asked is not None, patience_s=min(SILENT_S, read_timeout_s / 4))


def default_limit(count: int) -> int:
    """The most movers where there are `count` processors: none where there is one alone."""
    return min(8, count - 1)
