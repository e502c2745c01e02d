"""The supervisor of one mount: mounts, holds the connection to the kernel, and starts the workers that
serve it. A program of its own, of the standard library alone.

It decides nothing (`policy`), and must outlive what happens to workers:

- It never touches the mount: no path below it, no descriptor on it, no working directory.
- It waits for no worker. One that was killed may be held by the kernel until its successor runs.
- When it ends, for whatever reason, the workers end too: their channel breaks.

A worker begins as a standby: it reads its settings, and waits for its turn. The mount is made when
the first one asks for it, so nobody sees a mount that cannot be read yet. As a container's first
process the supervisor reaps all orphans.

Started by `d7yfs mount`, with a `Plan`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import MutableMapping
from contextlib import suppress
from pathlib import Path

from d7yfs.errors import MountError
from d7yfs.host import fuse_device, mount_table, process
from d7yfs.host.handed_session import HandedSession, make_session_files
from d7yfs.host.launch import Readiness
from d7yfs.supervisor.channel import Channel, Message
from d7yfs.supervisor.plan import SYSTEMD_VARIABLES, WORKER_VARIABLE, Plan, worker_command
from d7yfs.supervisor.policy import Do, Order, Supervision

_TICK_S = 1.0
_PRESSED_TICK_S = 0.02
_END_S = 2.0
"""The time that workers have to end before they are killed."""
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Supervisor:
    """One mount, from its first worker to its end."""

    def __init__(self, plan: Plan, environ: MutableMapping[str, str]) -> None:
        self._plan = plan
        self._readiness = Readiness(environ)
        self._in_background = self._readiness.in_background
        self._environ = {name: value for name, value in environ.items() if name not in SYSTEMD_VARIABLES}
        self._supervision = Supervision(standby=plan.standby, silence_s=plan.silence_s)
        # The connection takes the number of this descriptor once it is made.
        if plan.first is not None:
            self._session_fd, self._journal_fd = plan.first.session_fd, plan.first.journal_fd
            for fd in (self._session_fd, self._journal_fd):
                os.set_inheritable(fd, False)
        else:
            self._session_fd, self._journal_fd = make_session_files()
        self._device = ""
        """Of the mount; empty before it is made."""
        self._workers: dict[int, tuple[int, Channel]] = {}
        """Process id and channel by generation; those that have not been reaped."""
        self._within_s = 0.0
        """The time that running reads have at a stop, as the worker says."""
        self._told_ready = False
        self._told_failure = False
        self._told: object = None
        self._status: int | None = None
        self._poll = select.poll()
        self._wakeup_fd, wakeup = os.pipe()
        for fd in (self._wakeup_fd, wakeup):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        for number in _SIGNALS:
            signal.signal(number, lambda *_: None)
        self._poll.register(self._wakeup_fd, select.POLLIN)

    def run(self) -> int:
        """Supervise to the end; returns the exit status."""
        self._carry_out(self._supervision.begin(time.monotonic()))
        while self._status is None:
            self._tell_account()
            for fd, _ in self._poll.poll(1000 * (_PRESSED_TICK_S if self._supervision.is_pressed else _TICK_S)):
                if fd == self._wakeup_fd:
                    self._take_signals()
                else:
                    self._listen(fd)
            self._reap()
            self._look_at_connection()
            self._look_for_undead()
            self._carry_out(self._supervision.tick(time.monotonic()))
        self._end()
        return self._status

    # --- events ---

    def _take_signals(self) -> None:
        now = time.monotonic()
        for number in os.read(self._wakeup_fd, 4096):
            if number in (signal.SIGTERM, signal.SIGINT):
                self._readiness.notify("STOPPING=1")
                self._carry_out(self._supervision.asked_to_stop(now, self._within_s, 128 + number))
            elif number == signal.SIGHUP:
                self._carry_out(self._supervision.asked_to_reload())

    def _listen(self, fd: int) -> None:
        found = next((each for each, (_, channel) in self._workers.items() if channel.socket.fileno() == fd), None)
        if found is None or not self._hear_all(found):
            self._poll.unregister(fd)

    def _hear_all(self, generation: int) -> bool:
        """Take all messages of a worker; False if there will be no more."""
        channel = self._workers[generation][1]
        with suppress(BlockingIOError):
            while (received := channel.receive()) is not None:
                self._carry_out(self._hear(generation, channel, received[0]))
            return False
        return True

    def _hear(self, generation: int, channel: Channel, said: Message) -> list[Order]:
        now, supervision = time.monotonic(), self._supervision
        if "beat" in said:
            self._within_s = said["beat"]
            return supervision.heard(generation, now)
        if "prepared" in said:
            return supervision.prepared(generation, now)
        if "ready" in said:
            self._tell_ready(said)
            return supervision.became_ready(generation, now)
        if "failed" in said:
            self._told_failure = True
            if not self._told_ready:
                self._readiness.pass_on({"error": said["failed"], "hint": said["hint"], "usage": said["usage"]})
            return supervision.failed(generation, said["failed"], cannot_follow=said["cannot_follow"])
        if "notify" in said:
            self._readiness.notify(said["notify"])
            return supervision.reloaded(now) if said["notify"].startswith("RELOADING=1") else []
        if "left" in said:
            return supervision.left(generation, now)
        if "upgrade" in said:
            return supervision.asked_to_upgrade(now)
        if "mount" in said:
            self._mount(channel)
        elif "unmount" in said:
            channel.send(unmounted=self._unmount(lazy=said["unmount"] == "lazily"))
        return []

    def _tell_ready(self, said: Message) -> None:
        summary = said["ready"]
        if self._told_ready:
            self._readiness.notify(f"READY=1\nSTATUS={summary}")
            return
        self._told_ready = True
        self._readiness.tell_ready(summary, said["warnings"], Path(said["stderr"]) if said["stderr"] else None)

    def _reap(self) -> None:
        """Take the exit statuses of all children, of adopted ones too."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                for generation, (worker, _) in tuple(self._workers.items()):
                    if worker == pid:
                        code = os.waitstatus_to_exitcode(status)
                        how = f"it ended with status {code}" if code >= 0 else f"it was killed by {_signal_name(-code)}"
                        self._forget(generation, code if code >= 0 else None, how)

    def _forget(self, generation: int, status: int | None, how: str) -> None:
        self._hear_all(generation)
        _, channel = self._workers.pop(generation)
        with suppress(KeyError):
            self._poll.unregister(channel.socket)
        channel.socket.close()
        self._carry_out(self._supervision.ended(generation, time.monotonic(), status, how))

    def _look_for_undead(self) -> None:
        """Find workers that were killed, and of which the kernel holds a thread: they have no exit
        status yet (proc_pid_stat(5), field 3)."""
        for generation, (pid, _) in tuple(self._workers.items()):
            with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123  # a pathlib less
                if file.read().rpartition(b")")[2].split()[0] == b"Z":
                    self._carry_out(self._supervision.dying(generation, time.monotonic()))

    def _look_at_connection(self) -> None:
        """Notice that the mount is gone. (A poll that waits for it would be woken by each request.)"""
        if self._device and not self._is_connected():
            self._carry_out(self._supervision.connection_gone(time.monotonic()))

    def _is_connected(self) -> bool:
        poll = select.poll()
        poll.register(self._session_fd, 0)
        return not poll.poll(0)

    # --- orders ---

    def _carry_out(self, orders: list[Order]) -> None:
        for order in orders:
            worker = self._workers.get(order.generation)
            if order.do is Do.START:
                self._start(order.generation)
            elif order.do is Do.EXIT:
                self._status = order.status if self._status is None else self._status
                if order.said and (self._told_ready or not self._told_failure):
                    _say(f"{self._plan.mountpoint} cannot be served: {order.said}")
            elif worker is None:
                continue
            elif order.do is Do.GO:
                worker[1].send(go=True)
            elif order.do is Do.STOP:
                worker[1].send(stop=True)
            elif order.do is Do.REFUSE:
                worker[1].send(refused=order.said)
            else:
                number = {Do.KILL: signal.SIGKILL, Do.LEAVE: signal.SIGTERM, Do.RELOAD: signal.SIGHUP}[order.do]
                with suppress(ProcessLookupError):
                    os.kill(worker[0], number)

    def _start(self, generation: int) -> None:
        if generation == 1 and self._plan.first is not None:
            first = self._plan.first
            os.set_inheritable(first.channel_fd, False)
            self._adopt(1, first.pid, Channel(socket.socket(fileno=first.channel_fd)))
            return
        channel, theirs = Channel.make_pair()
        handed = HandedSession(self._session_fd, self._journal_fd, generation)
        inherited = (self._session_fd, self._journal_fd, theirs.fileno())
        about = self._plan.describe_for_worker(theirs.fileno(), self._readiness)
        about["in_background"] = self._in_background
        environ = {**self._environ, **handed.variables, WORKER_VARIABLE: json.dumps(about)}
        command = worker_command(self._plan)
        for fd in inherited:
            os.set_inheritable(fd, True)
        try:
            # A process group of its own: Ctrl-C in a terminal is the supervisor's.
            pid = os.posix_spawn(command[0], command, environ, setpgroup=0)
        except OSError as error:
            pid, trouble = 0, error.strerror
        finally:
            for fd in inherited:
                os.set_inheritable(fd, False)
            theirs.close()
        if pid:
            self._adopt(generation, pid, channel)
        else:
            channel.socket.close()
            _say(f"a worker cannot be started: {trouble}")
            self._carry_out(
                self._supervision.ended(generation, time.monotonic(), 1, f"it could not be started: {trouble}")
            )

    def _adopt(self, generation: int, pid: int, channel: Channel) -> None:
        self._workers[generation] = pid, channel
        self._poll.register(channel.socket, select.POLLIN)

    def _mount(self, channel: Channel) -> None:
        """Make the mount, and hand the connection to the first worker."""
        try:
            fd = fuse_device.connect(self._plan.mountpoint, self._plan.flags)
        except MountError as error:
            channel.send(mounted=error.message, hint=error.hint)
            return
        os.dup2(fd, self._session_fd, inheritable=False)
        os.close(fd)
        mount = mount_table.mounted_at(self._plan.mountpoint)
        self._device = mount.device if mount is not None else "?"
        channel.send_descriptor(self._session_fd, mounted="ok")

    def _unmount(self, *, lazy: bool) -> str:
        try:
            mount_table.unmount(self._plan.mountpoint, lazy=lazy)
        except mount_table.Busy:
            return "busy"
        except MountError as error:
            return error.message
        return "ok"

    def _tell_account(self) -> None:
        """Tell the workers what `status` shows, if it has changed."""
        account = self._supervision.account
        told = (account, tuple(self._workers))
        if told == self._told:
            return
        was, self._told = self._told, told
        for _, channel in self._workers.values():
            channel.send(account=account)
        if was is not None and not account["generation"]:
            _say(f"no worker serves {self._plan.mountpoint} just now: {account['last_reason']}; its readers wait")

    # --- the end ---

    def _end(self) -> None:
        """Take away the mount if it is still there, and see the workers off."""
        active = self._supervision.account["generation"]
        for generation, (pid, _) in self._workers.items():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM if generation == active else signal.SIGKILL)
        mount = mount_table.mounted_at(self._plan.mountpoint)
        if self._device and mount is not None and mount.device == self._device:
            mount_table.abort(self._plan.mountpoint)
            if (trouble := self._unmount(lazy=True)) != "ok":
                _say(trouble)
        deadline = time.monotonic() + _END_S
        while self._workers and time.monotonic() < deadline:
            self._poll.poll(1000 * _PRESSED_TICK_S)
            with suppress(BlockingIOError):
                os.read(self._wakeup_fd, 4096)
            self._drop_ended()
        for pid, _ in self._workers.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _drop_ended(self) -> None:
        with suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                self._workers = {name: each for name, each in self._workers.items() if each[0] != pid}


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"d7yfs: {text}\n".encode(errors="backslashreplace"))


def main() -> None:
    """Supervise as the plan in the descriptor `sys.argv[2]` says."""
    plan = Plan.read(int(sys.argv[2]))
    process.forbid_core_dumps()
    process.ask_to_be_spared()
    sys.exit(Supervisor(plan, os.environ).run())
