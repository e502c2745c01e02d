"""Which worker serves, and when another one takes its place."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from d7yfs.supervisor import policy
from d7yfs.supervisor.policy import Do, Order, Supervision

SILENCE_S = 30.0


def begun(*, standby: bool = True) -> Supervision:
    """A supervision whose first worker serves since 10 s."""
    made = Supervision(standby=standby, silence_s=SILENCE_S)
    assert made.begin(0.0) == [Order(Do.START, 1), Order(Do.GO, 1)]
    assert made.prepared(1, 5.0) == []
    assert made.became_ready(1, 10.0) == []
    return made


def with_standby() -> Supervision:
    made = begun()
    assert made.tick(10.0 + policy.STANDBY_DELAY_S) == [Order(Do.START, 2)]
    assert made.prepared(2, 14.0) == []
    assert made.account["standby"] == "ready"
    return made


def test_the_standby_takes_over_at_once_and_another_one_follows_it() -> None:
    made = with_standby()
    assert made.ended(1, 20.0, None, "it was killed by SIGKILL") == [Order(Do.GO, 2)]
    assert made.account == {
        "generation": 2,
        "restarts": 1,
        "upgrades": 0,
        "last_reason": "it was killed by SIGKILL",
        "standby": "none",
    }
    assert made.tick(20.5) == []
    made.became_ready(2, 21.0)
    assert made.tick(21.4) == []
    assert made.is_pressed
    assert made.tick(21.5) == [Order(Do.START, 3)]
    assert not made.is_pressed


def test_without_a_standby_a_worker_is_started() -> None:
    made = begun(standby=False)
    assert made.tick(13.0) == made.tick(17.0) == []
    assert made.ended(1, 17.5, 1, "it ended with status 1") == [Order(Do.START, 2), Order(Do.GO, 2)]
    assert made.account["standby"] == "off"


def test_a_standby_that_is_not_prepared_yet_takes_over_all_the_same() -> None:
    made = begun()
    made.tick(12.0)
    assert made.ended(1, 12.1, None, "killed") == [Order(Do.GO, 2)]


def test_a_standby_waits_for_a_quiet_time_and_not_for_ever() -> None:
    made = begun()
    for now in (11.0, 12.0, 13.0):
        made.heard(1, now, busy=True)
        assert made.tick(now) == []
    made.heard(1, 14.0)
    assert made.tick(14.9) == []
    assert made.tick(15.0) == [Order(Do.START, 2)]
    made = begun()
    now = 10.0
    while not made.tick(now):
        now += 0.5
        made.heard(1, now, busy=True)
    assert now == 10.0 + policy.STANDBY_DELAY_S + policy.STANDBY_PATIENCE_S


def test_deaths_in_a_row_are_followed_after_longer_and_longer_pauses() -> None:
    made = begun(standby=False)
    now, generation = 20.0, 1
    for _ in range(5):
        assert made.ended(generation, now, 1, "broken")[0] == Order(Do.START, generation + 1)
        generation += 1
    pauses = []
    for _ in range(9):
        assert made.ended(generation, now, 1, "broken") == []
        assert made.is_pressed
        began_at = now
        while not (orders := made.tick(now)):
            now += 0.5
        pauses.append(now - began_at)
        generation += 1
        assert orders == [Order(Do.START, generation), Order(Do.GO, generation)]
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    made.prepared(generation, now)
    made.became_ready(generation, now)
    assert made.ended(generation, now + 4, 1, "broken") == [], "it had hardly served"
    orders = made.tick(now + 64)
    assert [order.do for order in orders] == [Do.START, Do.GO]
    for _ in range(20):
        generation, now = orders[0].generation, now + 70
        made.prepared(generation, now)
        made.became_ready(generation, now)
        orders = made.ended(generation, now + 6, 1, "broken")
        assert [order.do for order in orders] == [Do.START, Do.GO], "a healthy worker ends the row"


@pytest.mark.parametrize("status", [None, 0, 1, 2])
def test_before_the_first_worker_serves_its_end_is_the_end(status: int | None) -> None:
    made = Supervision(standby=True, silence_s=SILENCE_S)
    made.begin(0.0)
    made.prepared(1, 1.0)
    made.failed(1, "no such bucket")
    (order,) = made.ended(1, 2.0, status, "")
    assert (order.do, order.status) == (Do.EXIT, 1 if status is None else status)


def test_a_worker_that_ends_by_itself_with_status_0_ends_the_supervisor() -> None:
    assert with_standby().ended(1, 20.0, 0, "") == [Order(Do.EXIT)]


def test_a_worker_that_cannot_follow_ends_the_supervisor_and_not_as_a_standby() -> None:
    made = begun(standby=False)
    made.ended(1, 20.0, None, "killed")
    made.failed(2, "another mount", cannot_follow=True)
    assert made.ended(2, 21.0, 1, "") == [Order(Do.EXIT, said="another mount", status=1)]
    made = begun()
    made.tick(12.0)
    made.failed(2, "another mount", cannot_follow=True)
    assert made.ended(2, 13.0, 1, "") == []
    assert made.account["standby"] == "another mount"
    assert made.tick(13.0 + policy.STANDBY_RETRY_S) == [Order(Do.START, 3)]


def test_silence_is_a_hang() -> None:
    made = with_standby()
    now = 14.0
    while now < 40.0:
        now += 1.0
        assert made.heard(1, now) == made.tick(now) == []
    for _ in range(29):
        now += 1.0
        assert made.tick(now) == []
    now += 1.0
    assert made.tick(now) == [Order(Do.KILL, 1)]
    assert made.is_pressed
    assert made.tick(now + 0.1) == []
    assert made.tick(now + policy.DYING_S) == [Order(Do.GO, 2)], "it may never die before its successor runs"
    assert made.account["last_reason"] == "it gave no sign of life for 30 s"
    assert made.ended(1, now + 9, None, "killed") == [], "it counts no more"


def test_who_was_frozen_with_the_supervisor_is_no_hang() -> None:
    made = with_standby()
    made.tick(15.0)
    assert made.tick(1000.0) == []
    made.heard(1, 1000.5)
    assert made.tick(1001.0) == []


def test_a_worker_that_is_never_prepared_is_killed() -> None:
    made = begun()
    made.tick(12.0)
    now = 12.0
    while not (orders := made.tick(now)):
        made.heard(1, now)
        now += 1.0
    assert orders == [Order(Do.KILL, 2)]
    assert now == 12.0 + policy.PREPARATION_S
    assert made.ended(2, now + 0.1, None, "it was killed by SIGKILL") == []
    assert str(made.account["standby"]).startswith("it was not prepared")


def test_a_killed_worker_with_a_thread_that_hangs_is_followed_after_a_moment() -> None:
    made = with_standby()
    made.dying(1, 20.0)
    assert made.tick(20.1) == []
    assert made.tick(20.6) == [Order(Do.GO, 2)]
    made = with_standby()
    made.dying(1, 20.0)
    assert made.ended(1, 20.01, None, "it was killed by SIGKILL") == [Order(Do.GO, 2)]


def test_an_upgrade_ends_a_row_of_deaths() -> None:
    made, generation = begun(standby=False), 1
    for _ in range(3):
        for _ in range(5):
            assert made.ended(generation, 14.0, 1, "broken")[0] == Order(Do.START, generation + 1)
            generation += 1
            made.prepared(generation, 14.0)
            made.became_ready(generation, 14.0)
        assert made.asked_to_upgrade(14.0) == [Order(Do.START, generation + 1)]
        assert made.prepared(generation + 1, 14.0) == [Order(Do.LEAVE, generation)]
        generation += 1
        assert made.left(generation - 1, 14.0) == [Order(Do.GO, generation)]
        made.became_ready(generation, 14.0)


def test_an_upgrade_lets_the_old_worker_leave_once_the_new_one_is_prepared() -> None:
    made = with_standby()
    assert made.asked_to_upgrade(20.0) == [Order(Do.KILL, 2), Order(Do.START, 3)]
    assert made.asked_to_upgrade(20.1) == [Order(Do.REFUSE, 1, said="an upgrade is under way")]
    assert made.prepared(3, 21.0) == [Order(Do.LEAVE, 1)]
    assert made.left(1, 21.1) == [Order(Do.GO, 3)]
    assert made.ended(1, 21.5, 0, "") == []
    assert (made.account["upgrades"], made.account["restarts"]) == (1, 0)


def test_a_worker_that_does_not_leave_is_killed() -> None:
    made = begun(standby=False)
    made.asked_to_upgrade(20.0)
    made.prepared(2, 21.0)
    made.heard(1, 22.0)
    assert made.tick(21.0 + policy.LEAVE_S) == [Order(Do.KILL, 1)]
    assert made.ended(1, 24.1, None, "it was killed by SIGKILL") == [Order(Do.GO, 2)]
    assert made.account["upgrades"] == 1


def test_an_upgrade_that_cannot_be_prepared_is_refused_and_the_old_worker_goes_on() -> None:
    made = with_standby()
    made.asked_to_upgrade(20.0)
    made.failed(3, "cash_size is unknown")
    assert made.ended(3, 21.0, 2, "") == [Order(Do.REFUSE, 1, said="cash_size is unknown")]
    assert made.account["generation"] == 1


def test_no_upgrade_while_nothing_serves() -> None:
    made = begun(standby=False)
    made.ended(1, 20.0, None, "killed")
    assert made.asked_to_upgrade(20.1)[0].do is Do.REFUSE


def test_a_reload_replaces_the_standby() -> None:
    made = with_standby()
    assert made.asked_to_reload() == [Order(Do.RELOAD, 1)]
    assert made.reloaded(20.0) == [Order(Do.KILL, 2)]
    assert made.tick(20.0 + policy.STANDBY_DELAY_S) == [Order(Do.START, 3)]


def test_a_stop_lets_the_worker_unmount_within_its_time() -> None:
    made = with_standby()
    assert made.asked_to_stop(20.0, 8.0, 143) == [Order(Do.KILL, 2), Order(Do.STOP, 1)]
    assert made.asked_to_stop(20.1, 8.0, 143) == []
    assert made.tick(37.9) == []
    assert made.tick(38.0) == [Order(Do.EXIT)]
    made = with_standby()
    made.asked_to_stop(20.0, 8.0, 143)
    assert made.ended(1, 21.0, None, "killed") == [Order(Do.EXIT)], "nobody follows"


def test_a_stop_while_nothing_serves_or_before_the_start_is_over() -> None:
    made = begun(standby=False)
    made.ended(1, 20.0, None, "killed")
    assert made.asked_to_stop(20.1, 8.0, 143) == [Order(Do.EXIT)]
    made = Supervision(standby=True, silence_s=SILENCE_S)
    made.begin(0.0)
    assert made.asked_to_stop(1.0, 8.0, 143) == [Order(Do.EXIT, status=143)]


def test_when_the_mount_is_gone_a_worker_that_hangs_is_not_waited_for() -> None:
    made = with_standby()
    for now in (20.0, 21.0, 22.0):
        assert made.connection_gone(now) == made.tick(now) == []
    assert made.tick(20.0 + policy.GONE_S) == [Order(Do.EXIT)]


def test_only_what_the_worker_could_open_in_the_cache_is_registered(tmp_path: Path) -> None:
    file, device = tmp_path / "file", tmp_path.stat().st_dev
    file.write_bytes(b"x")

    def judged(path: Path, flags: int, *, cache_device: int = device) -> int:
        fd = os.open(path, flags)
        try:
            return policy.judge_backing(os.fstat(fd), fcntl.fcntl(fd, fcntl.F_GETFL), cache_device)
        finally:
            os.close(fd)

    assert judged(file, os.O_RDONLY) == judged(file, os.O_RDWR) == 0
    assert judged(file, os.O_PATH) == errno.EBADF, "that needs no right to read"
    assert judged(file, os.O_WRONLY) == errno.EBADF
    assert judged(tmp_path, os.O_RDONLY) == judged(Path("/dev/null"), os.O_RDONLY) == errno.EINVAL
    assert judged(Path("/proc/kallsyms"), os.O_RDONLY) == errno.EXDEV
    assert judged(file, os.O_RDONLY, cache_device=device + 1) == errno.EXDEV


def test_a_supervision_that_is_resumed_counts_on_and_gives_up_no_mount() -> None:
    made = Supervision(standby=False, silence_s=SILENCE_S, resumed=7)
    assert made.begin(0.0) == [Order(Do.START, 8), Order(Do.GO, 8)]
    assert made.account["last_reason"] == "its supervisor ended"
    assert made.ended(8, 1.0, 1, "no such bucket") == [Order(Do.START, 9), Order(Do.GO, 9)], "readers wait"
    assert made.asked_to_stop(2.0, 8.0, 143) == [Order(Do.EXIT)]
