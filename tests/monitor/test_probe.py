"""Asking a mount by a child process, without a mount: ordinary directories answer, a child that hangs is a program that sleeps."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import trio

from d7yfs.monitor.probe import Probe

_HANG = "hang"


def hang(_question: str, _point: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


async def test_a_directory_answers_and_what_is_not_there_does_not(tmp_path: Path) -> None:
    assert await Probe(tmp_path).answers()
    assert await Probe(tmp_path).serves()
    assert not await Probe(tmp_path / "absent").serves()


async def test_all_who_ask_at_once_share_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe, sent = Probe(tmp_path), 0
    send = Probe._sent

    async def counted(self: Probe, question: str, timeout_s: float) -> bool | None:
        nonlocal sent
        sent += 1
        return await send(self, question, timeout_s)

    monkeypatch.setattr(Probe, "_sent", counted)
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(probe.answers)
    assert sent == 1


async def test_one_that_hangs_is_left_and_no_other_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = Probe(tmp_path, hang)
    # As if the kernel held it: it cannot be killed.
    killed: list[int] = []
    monkeypatch.setattr(subprocess.Popen, "kill", lambda child: killed.append(child.pid))
    assert not await probe._sent(_HANG, 0.05)
    child = probe._children[_HANG]
    assert isinstance(child, subprocess.Popen)
    assert killed == [child.pid]
    assert not await probe._sent(_HANG, 0.05)
    assert probe._children[_HANG] is child
    monkeypatch.undo()
    child.kill()
    child.wait()
    assert not await probe._sent(_HANG, 0.05), "and asked again when it has ended"
    assert probe._children[_HANG] is not child
    after = probe._children[_HANG]
    assert isinstance(after, subprocess.Popen)
    after.wait()


async def test_a_host_that_is_full_says_nothing_about_the_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: object, **_options: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", full)
    assert await Probe(tmp_path).answers() is None


async def test_of_a_mount_that_is_elsewhere_nothing_is_claimed() -> None:
    assert await Probe(None).answers() is None
    assert await Probe(None).serves() is None
