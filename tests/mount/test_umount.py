"""`d7yfs umount` of daemons that do not answer, and of all mounts."""

from __future__ import annotations

import signal
import time

import pytest

from tests.mount.conftest import Bucket
from tests.mount.mounted import Mounter, is_mounted, run

pytestmark = [pytest.mark.mount, pytest.mark.store]


def test_a_daemon_that_is_stopped_is_told_of_soon_and_taken_away_by_force(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), "--takeover", "off", env=bucket.env)
    mounted.kill(signal.SIGSTOP)
    try:
        began = time.monotonic()
        done = run("umount", mounted.point)
        assert 4.9 < time.monotonic() - began < 15
        assert done.returncode == 1
        assert f"the daemon of {mounted.point} has not answered within 5 s" in done.stderr
        assert f"hint: d7yfs umount --force {mounted.point} takes the mount away without it" in done.stderr
        assert is_mounted(mounted.point)
        assert run("umount", "--force", mounted.point).returncode == 0
        assert not is_mounted(mounted.point)
    finally:
        mounted.kill(signal.SIGCONT)
    mounted.wait_ended()


def test_a_supervisor_that_is_stopped_is_named_once_the_mount_is_gone(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), "--takeover", "cold", env=bucket.env)
    assert mounted.pid != mounted.worker_pid
    mounted.kill(signal.SIGSTOP)
    try:
        done = run("umount", mounted.point)
        assert (done.returncode, is_mounted(mounted.point)) == (1, False)
        assert f"{mounted.point} is unmounted, but its daemon (pid {mounted.pid}) is stopped" in done.stderr
        assert f"hint: kill -CONT {mounted.pid}" in done.stderr
    finally:
        mounted.kill(signal.SIGCONT)
    mounted.wait_ended()


def test_all_mounts_of_a_user_are_unmounted_whatever_one_says(mounter: Mounter, bucket: Bucket) -> None:
    made = [mounter.mount(bucket.url("library"), "--metrics-listen", "none", env=bucket.env) for _ in range(3)]
    dead = made[0]
    dead.kill(signal.SIGKILL)
    dead.wait_ended()
    with (made[2].point / "one.bin").open("rb"):
        done = run("umount", "--all")
        assert done.returncode == 1
        assert f"{made[2].point} is in use" in done.stderr
        assert [is_mounted(each.point) for each in made] == [False, False, True]
    assert run("umount", "--all").returncode == 0
    assert not is_mounted(made[2].point)
    done = run("umount", "--all")
    assert (done.returncode, done.stdout) == (0, "nothing is mounted\n")
    assert run("umount", "--all", made[0].point).returncode == 2
