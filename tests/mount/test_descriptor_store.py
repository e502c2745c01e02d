"""systemd's store of descriptors: a supervisor is killed, and the next one goes on with its mount.

A double stands in for systemd: it keeps what FDSTORE=1 brings, and passes it on as $LISTEN_FDS.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from d7yfs.host import kernel
from tests.mount.conftest import MIB, Bucket
from tests.mount.mounted import D7YFS, Mounted, Mounter, ended, in_background, is_mounted, until
from tests.mount.passthrough import opened, pread

pytestmark = [pytest.mark.mount, pytest.mark.store]

_LAUNCHER = """
import os, sys
passed, *command = sys.argv[1:]
fds = [int(fd) for fd in passed.split()]
high = [os.dup2(fd, 100 + number) for number, fd in enumerate(fds)]
for fd in fds:
    os.close(fd)
for number, fd in enumerate(high):
    os.dup2(fd, 3 + number)
    os.close(fd)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execvp(command[0], command)
"""
"""Puts descriptors where systemd does, in a process of its own: a `preexec_fn` would fork this one, and
gRPC's handlers of fork(2) run threads in the child that lose their descriptors to it."""


@pytest.fixture(scope="module", autouse=True)
def needs_the_kernels_help(fuse_engine: str) -> None:
    if obstacle := kernel.takeover_obstacle(fuse_engine):
        pytest.skip(f"no process takes over here: {obstacle}")


class ServiceManager:
    """A double of systemd, as a service with FileDescriptorStoreMax= sees it."""

    def __init__(self, mounter: Mounter) -> None:
        self.point = mounter.point()
        self.store: dict[str, int] = {}
        self._mounter = mounter
        self._path = mounter.directory / "manager"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self._path))

    def start(self, *arguments: str, env: dict[str, str]) -> Mounted:
        """Start the service with what is stored, and wait until it is ready."""
        names = list(self.store)
        passed = [os.dup(self.store[name]) for name in names]

        directory = self._mounter.directory
        cache_dir, log_file = directory / "cache", directory / "log"
        listening = {"LISTEN_FDS": str(len(names)), "LISTEN_FDNAMES": ":".join(names)} if names else {}
        process = subprocess.Popen(
            [
                *(
                    sys.executable,
                    "-c",
                    _LAUNCHER,
                    " ".join(map(str, passed)),
                    *D7YFS,
                    "mount",
                    "--foreground",
                    *arguments,
                ),
                *("--cache-dir", str(cache_dir), "--log-file", str(log_file), "--metrics-listen", "none"),
                str(self.point),
            ],
            env=os.environ | env | listening | {"NOTIFY_SOCKET": str(self._path)},
            stdin=subprocess.DEVNULL,
            pass_fds=passed,
            text=True,
        )
        for fd in passed:
            os.close(fd)
        mounted = Mounted(self.point, cache_dir, log_file, process.pid, process)
        self._mounter.made.append(mounted)
        while "READY=1" not in self.hear():
            pass
        return mounted

    def hear(self) -> str:
        """The next message; what it stores or removes is done."""
        self._socket.settimeout(30)
        message, fds, _, _ = socket.recv_fds(self._socket, 4096, 4)
        lines = message.decode().splitlines()
        name = next((line.removeprefix("FDNAME=") for line in lines if line.startswith("FDNAME=")), "")
        if "FDSTORE=1" in lines:
            assert "FDPOLL=0" in lines, "each request of a reader would wake systemd"
            (self.store[name],) = fds
        elif "FDSTOREREMOVE=1" in lines and name in self.store:
            os.close(self.store.pop(name))
        return message.decode()

    def close(self) -> None:
        for fd in self.store.values():
            os.close(fd)
        self._socket.close()


@pytest.fixture
def manager(mounter: Mounter) -> Iterator[ServiceManager]:
    made = ServiceManager(mounter)
    yield made
    made.close()


@contextmanager
def killed(mounted: Mounted) -> Iterator[None]:
    """The supervisor is killed, and so are its workers."""
    worker = mounted.worker_pid
    mounted.kill(signal.SIGKILL)
    assert mounted.process is not None
    mounted.process.wait(20)
    until(lambda: ended(worker), "the end of the worker")
    yield


def test_a_killed_supervisor_is_a_pause(manager: ServiceManager, bucket: Bucket) -> None:
    mounted = manager.start(bucket.url("library"), env=bucket.env)
    assert len(manager.store) == 2
    with opened(mounted, "twenty.bin") as fd:
        assert pread(fd, MIB) == bucket.files["twenty.bin"][:MIB]
        for generation in (2, 3):
            with killed(mounted):
                reader = in_background(partial(mounted.read, "over.bin"))
                again = manager.start(bucket.url("library"), env=bucket.env)
                assert reader.result(30) == bucket.files["over.bin"]
            assert pread(fd, MIB, 15 * MIB) == bucket.files["twenty.bin"][15 * MIB : 16 * MIB]
            takeover = again.status()["takeover"]
            assert (takeover["generation"], takeover["last_reason"]) == (generation, "its supervisor ended")
            mounted = again
        os.kill(mounted.worker_pid, signal.SIGKILL)
        assert mounted.names() == sorted({name.split("/")[0] for name in bucket.files})
        assert pread(fd, MIB, 18 * MIB) == bucket.files["twenty.bin"][18 * MIB : 19 * MIB]
    mounted.kill(signal.SIGTERM)
    while manager.store:
        manager.hear()
    mounted.wait_ended()
    assert not is_mounted(manager.point)


def test_a_session_of_another_source_is_a_dead_mount(manager: ServiceManager, bucket: Bucket) -> None:
    mounted = manager.start(bucket.url("library"), env=bucket.env)
    with killed(mounted):
        again = manager.start(bucket.url("library/model"), env=bucket.env)
    assert again.status()["takeover"]["generation"] == 1
    assert again.read("config.pbtxt") == bucket.files["model/config.pbtxt"]
    assert len(manager.store) == 2, "the new one's"


def test_a_session_whose_mount_is_gone_is_none(manager: ServiceManager, bucket: Bucket) -> None:
    mounted = manager.start(bucket.url("library"), env=bucket.env)
    with killed(mounted):
        subprocess.run(["umount", "--lazy", "--", str(manager.point)], check=True, timeout=20)
        again = manager.start(bucket.url("library"), env=bucket.env)
    assert again.status()["takeover"]["generation"] == 1
    assert again.read("one.bin") == bucket.files["one.bin"]
