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

import errno
import fcntl
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
from d7yfs.host import descriptor_store, fuse_device, mount_table, privileges, process
from d7yfs.host.handed_session import HandedSession, make_session_files
from d7yfs.host.launch import Readiness
from d7yfs.supervisor.channel import Channel, Message
from d7yfs.supervisor.plan import SYSTEMD_VARIABLES, WORKER_VARIABLE, Plan, worker_command
from d7yfs.supervisor.policy import Do, Order, Supervision, judge_backing

_MOST_ASKING = 8
"""Processes that ask the mount: a worker sends two at once, and one that hangs may leave some behind."""
_CLIENTS = 16
"""Clients of the control socket that wait for a worker."""
_TICK_S = 1.0
_PRESSED_TICK_S = 0.02
_END_S = 2.0
"""The time that workers have to end before they are killed."""
_PASSED_ON = ("READY=1", "STATUS=", "WATCHDOG=1", "RELOADING=1", "MONOTONIC_USEC=")
"""The beginnings of the lines that workers may tell systemd: not the pid of another process, for example."""
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class Supervisor:
    """One mount, from its first worker to its end."""

    def __init__(self, plan: Plan, environ: MutableMapping[str, str]) -> None:
        self._plan = plan
        self._readiness = Readiness(environ)
        self._in_background = self._readiness.in_background
        self._environ = {name: value for name, value in environ.items() if name not in SYSTEMD_VARIABLES}
        self._supervision = Supervision(standby=plan.standby, silence_s=plan.silence_s, resumed=plan.resumed)
        # The connection takes the number of this descriptor once it is made.
        if plan.first is not None:
            self._session_fd, self._journal_fd = plan.first.session_fd, plan.first.journal_fd
            for fd in (self._session_fd, self._journal_fd):
                os.set_inheritable(fd, False)
        else:
            self._session_fd, self._journal_fd = make_session_files()
        self._device = self._find_device() if plan.resumed else ""
        """Of the mount; empty before it is made."""
        self._workers: dict[int, tuple[int, Channel]] = {}
        """Process id and channel by generation; those that have not been reaped."""
        self._asking: dict[int, tuple[int, str]] = {}
        """Generation and question by the pid of each process that asks the mount."""
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
        if plan.split is not None:
            os.set_inheritable(plan.split.control_fd, False)
            with socket.socket(fileno=os.dup(plan.split.control_fd)) as control:
                control.listen(_CLIENTS)  # clients see the pid of the process that listened last

    def run(self) -> int:
        """Supervise to the end; returns the exit status."""
        self._carry_out(self._supervision.begin(time.monotonic()))
        looked_at, is_due = 0.0, True
        while self._status is None:
            self._tell_account()
            is_soon = self._supervision.is_pressed or not is_due
            is_due = False
            for fd, _ in self._poll.poll(1000 * (_PRESSED_TICK_S if is_soon else _TICK_S)):
                if fd == self._wakeup_fd:
                    self._take_signals()
                    is_due = True
                else:
                    self._listen(fd)
            # Not with each of the messages that come one after the other.
            is_due = is_due or time.monotonic() - looked_at >= _PRESSED_TICK_S
            if not is_due:
                continue
            looked_at = time.monotonic()
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
                said, fds = received
                self._carry_out(self._hear(generation, channel, said, fds))
                for fd in fds:
                    os.close(fd)
            return False
        return True

    def _hear(self, generation: int, channel: Channel, said: Message, fds: list[int]) -> list[Order]:
        now, supervision = time.monotonic(), self._supervision
        if "beat" in said:
            self._within_s = said["beat"]
            return supervision.heard(generation, now, busy=said.get("busy", False))
        if "prepared" in said:
            return supervision.prepared(generation, now)
        if "ready" in said:
            self._tell_ready(said)
            return supervision.became_ready(generation, now)
        if "waits" in said:
            if not self._told_ready:
                self._readiness.tell_wait(said["waits"])
            return []
        if "failed" in said:
            self._told_failure = True
            if not self._told_ready:
                self._readiness.pass_on({"error": said["failed"], "hint": said["hint"], "usage": said["usage"]})
            return supervision.failed(generation, said["failed"], cannot_follow=said["cannot_follow"])
        if "notify" in said:
            lines = [line for line in said["notify"].splitlines() if line.startswith(_PASSED_ON)]
            self._readiness.notify("\n".join(lines))
            return supervision.reloaded(now) if "RELOADING=1" in lines else []
        if "left" in said:
            return supervision.left(generation, now)
        if "upgrade" in said:
            return supervision.asked_to_upgrade(now)
        if "mount" in said:
            self._mount(channel)
        elif "unmount" in said:
            channel.send(unmounted=self._unmount(lazy=said["unmount"] == "lazily"))
        elif "register" in said:
            channel.send(registered=self._register(fds))
        elif "unregister" in said:
            with suppress(OSError):
                self._backings.unregister(said["unregister"])
        elif "tune" in said:
            channel.send(tuned=mount_table.tune(self._plan.mountpoint))
        elif "ask" in said:
            self._send_asking(generation, channel, said["ask"])
        return []

    def _tell_ready(self, said: Message) -> None:
        summary = " ".join(said["ready"].split())
        if self._told_ready:
            self._readiness.notify(f"READY=1\nSTATUS={summary}")
            return
        self._told_ready = True
        # A worker of another user names no file for root to write.
        stderr = Path(said["stderr"]) if said["stderr"] and self._plan.split is None else None
        self._readiness.tell_ready(summary, said["warnings"], stderr)

    def _reap(self) -> None:
        """Take the exit statuses of all children, of adopted ones too."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                if pid in self._asking:
                    self._tell_asked(pid, os.waitstatus_to_exitcode(status))
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
        if self._device and not descriptor_store.is_connected(self._session_fd):
            self._carry_out(self._supervision.connection_gone(time.monotonic()))

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
        if generation == self._plan.resumed + 1 and self._plan.first is not None:
            first = self._plan.first
            os.set_inheritable(first.channel_fd, False)
            self._adopt(generation, first.pid, Channel(socket.socket(fileno=first.channel_fd)))
            return
        channel, theirs = Channel.make_pair()
        handed = HandedSession(self._session_fd, self._journal_fd, generation)
        split = self._plan.split
        inherited = [self._session_fd, self._journal_fd, theirs.fileno()]
        if split is not None:
            inherited.append(split.control_fd)
        about = self._plan.describe_for_worker(theirs.fileno(), self._readiness)
        about["in_background"] = self._in_background
        environ = {**self._environ, **handed.variables, WORKER_VARIABLE: json.dumps(about)}
        command = worker_command(self._plan)
        for fd in inherited:
            os.set_inheritable(fd, True)
        try:
            # A process group of its own: Ctrl-C in a terminal is the supervisor's.
            if split is not None:
                pid = privileges.spawn(split.user, command, environ)
            else:
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
        self._device = self._find_device()
        for message, stored in zip(
            descriptor_store.storing(self._plan.mountpoint), (self._session_fd, self._journal_fd), strict=True
        ):
            self._readiness.notify(message, stored)
        channel.send_descriptor(self._session_fd, mounted="ok")

    def _find_device(self) -> str:
        mount = mount_table.mounted_at(self._plan.mountpoint)
        return mount.device if mount is not None else "?"

    def _unmount(self, *, lazy: bool) -> str:
        try:
            mount_table.unmount(self._plan.mountpoint, lazy=lazy)
        except mount_table.Busy:
            return "busy"
        except MountError as error:
            return error.message
        return "ok"

    @property
    def _backings(self) -> fuse_device.KernelBackings:
        return fuse_device.KernelBackings(self._session_fd)

    def _register(self, fds: list[int]) -> int:
        """The kernel's id for a worker's file, or an error number below zero."""
        if self._plan.split is None or not fds:
            return -errno.EPERM
        try:
            found, flags = os.fstat(fds[0]), fcntl.fcntl(fds[0], fcntl.F_GETFL)
            return -judge_backing(found, flags, self._plan.split.cache_device) or self._backings.register(fds[0])
        except OSError as error:
            return -(error.errno or errno.EIO)

    def _send_asking(self, generation: int, channel: Channel, question: str) -> None:
        """Have a process ask the mount: this one never touches it."""
        try:
            if len(self._asking) >= _MOST_ASKING:
                raise BlockingIOError
            command = mount_table.asking_command(question, self._plan.mountpoint)
            self._asking[os.posix_spawn(command[0], command, self._environ)] = generation, question
        except OSError:
            channel.send(asked=question, number=None)

    def _tell_asked(self, pid: int, number: int) -> None:
        generation, question = self._asking.pop(pid)
        if (worker := self._workers.get(generation)) is not None:
            worker[1].send(asked=question, number=number)

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
        for message in descriptor_store.removing(self._plan.mountpoint):
            self._readiness.notify(message)
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
        if self._plan.split is not None:
            Path(self._plan.split.control_path).unlink(missing_ok=True)

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
    if plan.split is not None:
        os.chdir("/")
        privileges.keep_for_supervising()
    sys.exit(Supervisor(plan, os.environ).run())
