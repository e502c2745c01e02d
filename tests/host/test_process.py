"""The daemon's process: its limits, and that its memory stays its own."""

from __future__ import annotations

import gc
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from d7yfs.host.process import (
    OOM_SCORE_ADJ,
    ask_to_be_spared,
    pause_collector,
    processors,
    raise_descriptor_limit,
    shorten_turns,
    spare_collector,
)


def test_limit_is_raised() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        assert raise_descriptor_limit() == before[1]
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    ("own", "outer", "inner", "count"),
    [
        ("0::/\n", "200000 100000", "", 2),
        ("0::/pod/c\n", "max 100000", "150000 100000", 1),
        ("0::/pod/c\n", "350000 100000", "max 100000", 3),
        ("0::/pod/c\n", "", "50000 100000", 1),
        ("0::/pod/c\n", "max 100000", "max 100000", 4),
        ("1:cpu:/other\n", "100000 100000", "", 4),
    ],
)
def test_a_quota_is_as_good_as_fewer_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, outer: str, inner: str, count: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    group = tmp_path / "groups/pod/c"
    group.mkdir(parents=True)
    (tmp_path / "own").write_text(own)
    for path, text in ((tmp_path / "groups" / "cpu.max", outer), (group / "cpu.max", inner)):
        if text:
            path.write_text(text)
    assert processors(tmp_path / "own", tmp_path / "groups") == count
    assert processors(tmp_path / "absent", tmp_path / "groups") == 4


def test_others_are_killed_first(tmp_path: Path) -> None:
    path = tmp_path / "oom_score_adj"
    for before, after in (("0\n", str(OOM_SCORE_ADJ)), ("-900\n", "-900\n"), ("300\n", "300\n")):
        path.write_text(before)
        ask_to_be_spared(path)
        assert path.read_text() == after
    ask_to_be_spared(tmp_path / "absent")


def test_garbage_is_collected_again_after_the_start() -> None:
    before = gc.get_threshold()
    try:
        pause_collector()
        assert not gc.isenabled()
        spare_collector()
        assert gc.isenabled()
    finally:
        gc.enable()
        gc.set_threshold(*before)
        gc.unfreeze()


def test_threads_take_short_turns() -> None:
    before = sys.getswitchinterval()
    try:
        shorten_turns()
        assert sys.getswitchinterval() == 0.001
    finally:
        sys.setswitchinterval(before)


_SLEEPER = """
import signal
from d7yfs.host.process import forbid_core_dumps
signal.signal(signal.SIGQUIT, signal.SIG_DFL)  # a shell has its background jobs ignore it
forbid_core_dumps()
print(flush=True)
input()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to see what another user's process may")
def test_memory_is_neither_dumped_nor_read() -> None:
    """As any user: another process of the same user cannot read its memory, and it leaves no core."""
    command = [sys.executable, "-c", _SLEEPER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        assert [line.split()[4:6] for line in limits.splitlines() if "core file" in line] == [["0", "0"]]
        looked = subprocess.run(
            ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "cat", f"/proc/{process.pid}/environ"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "Permission denied" in looked.stderr
        process.send_signal(signal.SIGQUIT)
        assert os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1]) == -signal.SIGQUIT
        process.returncode = -signal.SIGQUIT
