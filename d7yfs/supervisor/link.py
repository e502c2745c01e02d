"""A worker's link to its supervisor: its turn, signs of life, and what the two ask of each other.

The link breaks when the supervisor ends. Then nobody holds the connection but this worker, and
nobody would follow it: it ends too, and its readers get ENOTCONN. (A signal at the parent's death,
PR_SET_PDEATHSIG, would take a worker whatever it is doing, and is lost with some system calls.)

Built by the command line, run by `daemon`. Trio thread only, but for `SupervisedReadiness`.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import select
import socket
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import trio

from d7yfs.errors import CannotTakeOver, D7yfsError, MountError, UsageError
from d7yfs.host import mount_table, privileges
from d7yfs.host.handed_session import HandedSession
from d7yfs.host.launch import Readiness, detach
from d7yfs.stats.status import TakeoverStatus
from d7yfs.supervisor.channel import Channel, Message
from d7yfs.supervisor.plan import WORKER_VARIABLE

log = logging.getLogger(__name__)

BEAT_S = 1.0
"""The pause between two signs of life."""
_BUSY_SHARE = 0.1
_REGISTRATION_S = 1.0
"""The longest time in which a supervisor registers a file; it takes some 100 µs."""


class SupervisorLink:
    """The link of one worker. `here`: the directory below which relative paths are."""

    def __init__(self, channel: Channel, handed: HandedSession, about: Message) -> None:
        self.handed = handed
        self.here = Path(about["here"])
        self.readiness = SupervisedReadiness(channel, about)
        self.stop_asked = trio.Event()
        """Set when the mount is to be taken down."""
        self.shutdown_timeout_s = 0.0
        """The time that running reads have at a stop."""
        self.supervisor_pid = os.getppid()
        self._mountpoint: str = about["mountpoint"]
        self._source: str = about["source"]
        self.control: socket.socket | None = None
        """The control socket, if the supervisor listens there because its workers run as another user."""
        if (control_fd := about["control_fd"]) is not None:
            os.set_inheritable(control_fd, False)
            self.control = socket.socket(fileno=control_fd)
            privileges.note_mounter(*about["mounter"])
        self._channel = channel
        self._account: Message = {}
        self._sent: dict[str, _Asking] = {}
        self._go = trio.Event()
        self._answers: dict[str, tuple[trio.Event, list[Message]]] = {}

    @classmethod
    def take(cls, environ: MutableMapping[str, str], handed: HandedSession) -> Self:
        """The link that `environ` names, out of reach of this process's children."""
        about = json.loads(environ.pop(WORKER_VARIABLE))
        os.set_inheritable(about["fd"], False)
        return cls(Channel(socket.socket(fileno=about["fd"])), handed, about)

    @property
    def account(self) -> TakeoverStatus:
        """The supervisor and its workers, for `status`."""
        return TakeoverStatus(worker_pid=os.getpid(), worker_uid=os.geteuid(), **self._account)

    @property
    def is_split(self) -> bool:
        """True if this worker runs as another user than its supervisor, and has no privilege."""
        return self.control is not None

    async def run(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do `work` and give signs of life. Ends this process if the supervisor ends."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._beat)
            nursery.start_soon(self._listen)
            await work()
            nursery.cancel_scope.cancel()

    def check(self, mountpoint: Path, source: str) -> None:
        """Make sure that the settings are for this mount. Raises CannotTakeOver."""
        for what, given, held in (("at", str(mountpoint), self._mountpoint), ("of", source, self._source)):
            if given != held:
                raise CannotTakeOver(
                    f"the settings are for a mount {what} {given}, and this one is {what} {held}",
                    hint="unmount, and mount anew",
                )

    async def wait_for_turn(self) -> None:
        """Tell that this worker is prepared, and wait until it is to serve."""
        self._channel.send(prepared=True)
        await self._go.wait()

    def tell_left(self) -> None:
        """Tell that this worker has let go of the connection."""
        self._channel.send(left=True)

    async def mount(self) -> None:
        """Have the mount made: `handed` has its connection then. Raises MountError."""
        answer = await self._ask("mounted", mount=True)
        if answer["mounted"] != "ok":
            raise MountError(answer["mounted"], hint=answer["hint"])

    async def unmount(self, *, lazy: bool) -> None:
        """Raises mount_table.Busy, MountError."""
        said = (await self._ask("unmounted", unmount="lazily" if lazy else "plainly"))["unmounted"]
        if said == "busy":
            raise mount_table.Busy("the mount is in use")
        if said != "ok":
            raise MountError(said)

    async def upgrade(self) -> None:
        """Have a new worker take over from this one; returns only if there will be none. Raises
        MountError."""
        answer = await self._ask("refused", upgrade=True)
        raise MountError(f"the mount goes on as it is: {answer['refused']}", hint="repair that, and upgrade again")

    async def tune(self) -> list[str]:
        """Have the mount's limits raised. Returns the failures in words."""
        troubles: list[str] = (await self._ask("tuned", tune=True))["tuned"]
        return troubles

    def send_child(self, question: str, _point: Path) -> _Asking:
        """Have the supervisor send a process that asks the mount: this one's user, or an automount, may
        not let it in."""
        asking = self._sent[question] = _Asking()
        self._channel.send(ask=question)
        return asking

    def register(self, data_fd: int) -> int:
        """Have the supervisor register a file (`Backings`). Waits for the answer, and takes what else
        the supervisor says meanwhile. Raises OSError."""
        self._channel.send_descriptor(data_fd, register=True)
        poll, deadline = select.poll(), time.monotonic() + _REGISTRATION_S
        poll.register(self._channel.socket, select.POLLIN)
        while poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
            said, fds = self._receive()
            if (backing_id := said.get("registered")) is None:
                self._take(said, fds)
            elif backing_id < 0:
                raise OSError(-backing_id, os.strerror(-backing_id))
            else:
                return int(backing_id)
        raise OSError(errno.EOPNOTSUPP, "the supervisor does not answer")

    def unregister(self, backing_id: int) -> None:
        """Have the supervisor let go of a file (`Backings`)."""
        self._channel.send(unregister=backing_id)

    async def _ask(self, key: str, **question: Any) -> Message:
        """The answer to a question; an earlier one with the same answer is forgotten."""
        event, answer = self._answers[key] = trio.Event(), []
        self._channel.send(**question)
        await event.wait()
        return answer[0]

    async def _beat(self) -> None:
        used_s = time.process_time()
        while True:
            before_s, used_s = used_s, time.process_time()
            self._channel.send(beat=self.shutdown_timeout_s, busy=used_s - before_s > _BUSY_SHARE * BEAT_S)
            await trio.sleep(BEAT_S)

    async def _listen(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._channel.socket)
            try:
                self._take(*self._receive())
            except BlockingIOError:
                continue

    def _receive(self) -> tuple[Message, list[int]]:
        received = self._channel.receive()
        if received is None:
            log.error("the supervisor has ended: so does this process, and the mount fails")
            os._exit(1)  # like a kill: nothing may hold up the end of the connection
        return received

    def _take(self, said: Message, fds: list[int]) -> None:
        for fd in fds:
            os.dup2(fd, self.handed.session_fd, inheritable=False)
            os.close(fd)
        if "go" in said:
            self._go.set()
        elif "stop" in said:
            self.stop_asked.set()
        elif "account" in said:
            before, self._account = self._account, said["account"]
            begins = self.account.generation == self.handed.generation != before.get("generation")
            if begins and self.account.last_reason:
                log.warning("the worker before this one ended: %s", self.account.last_reason)
        elif "asked" in said:
            self._sent[said["asked"]].take(said["number"])
        elif said.get("registered", 0) > 0:
            self.unregister(said["registered"])  # nobody waits for it any more
        for key in said.keys() & self._answers.keys():
            event, answer = self._answers.pop(key)
            answer.append(said)
            event.set()


class _Asking:
    """A process of the supervisor's that asks the mount, as `monitor.probe` knows one."""

    def __init__(self) -> None:
        self.returncode: int | None = None
        self._ended = False

    def poll(self) -> int | None:
        return 0 if self._ended and self.returncode is None else self.returncode

    def kill(self) -> None:
        """Do nothing: a process that a mount holds ends when the mount answers it."""

    def take(self, number: int | None) -> None:
        """Take its exit status; None if there was no room for a process."""
        self.returncode, self._ended = number, True


class Role(NamedTuple):
    """The place of a daemon: alone with its mount, or one of a supervisor's workers."""

    readiness: Readiness
    handed: HandedSession | None = None
    """The connection, if another process holds it."""
    link: SupervisorLink | None = None
    no_takeover: str = ""
    """Why nobody takes over when this process dies."""
    stderr: Path | None = None
    """The output of C libraries in the background goes there."""

    @property
    def pid(self) -> int:
        """The process to signal."""
        return os.getpid() if self.link is None else self.link.supervisor_pid

    @property
    def takeover(self) -> TakeoverStatus:
        """The account of it, for `status`."""
        return TakeoverStatus(off=self.no_takeover) if self.link is None else self.link.account

    def tell_wait(self, text: str) -> None:
        """Tell the log, and who waits for the mount, what keeps it."""
        log.warning("%s", text)
        self.readiness.tell_wait(text)

    async def upgrade(self) -> None:
        """Have a new worker take over from this process; returns never. Raises MountError."""
        if self.link is None:
            raise MountError(
                f"no worker can take over this mount: {self.no_takeover}", hint="unmount, and mount it anew"
            )
        await self.link.upgrade()


class SupervisedReadiness(Readiness):
    """The readiness of a worker, which its supervisor passes on."""

    def __init__(self, channel: Channel, about: Message) -> None:
        super().__init__({})
        self.watchdog_s = about["watchdog_s"]
        self._channel = channel
        self._in_background: bool = about["in_background"]
        self._is_notified: bool = about["is_notified"]

    @property
    def in_background(self) -> bool:
        return self._in_background

    @property
    def is_notified(self) -> bool:
        return self._is_notified

    def tell_ready(self, summary: str, warnings: Sequence[str], stderr: Path | None) -> None:
        path = str(stderr) if stderr is not None else None
        self._channel.send(ready=summary, warnings=list(warnings), stderr=path)
        if self.in_background:
            detach(stderr)

    def tell_wait(self, text: str) -> None:
        self._channel.send(waits=text)

    def tell_failed(self, error: D7yfsError) -> None:
        is_final, usage = isinstance(error, CannotTakeOver), isinstance(error, UsageError)
        self._channel.send(failed=error.message, hint=error.hint, usage=usage, cannot_follow=is_final)

    def notify(self, message: str, fd: int | None = None) -> None:  # noqa: ARG002  # workers have none to store
        self._channel.send(notify=message)
