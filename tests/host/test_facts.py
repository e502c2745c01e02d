"""Facts about this host for a bug report: ends of logs, processes, and what is not there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from d7yfs.host import facts


def test_the_end_of_a_log_file(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert facts.end_of_file(log, 3) == f"{log} cannot be read: No such file or directory"
    log.touch()
    assert facts.end_of_file(log, 3) == f"{log} is empty"
    log.write_text("".join(f"line {number} {'x' * 100}\n" for number in range(100_000)))
    assert [line.split()[1] for line in facts.end_of_file(log, 3).splitlines()] == ["99997", "99998", "99999"]
    assert len(facts.end_of_file(log, 10**6)) <= 256 << 10


def test_the_end_of_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal of its own, because a host of tests may have none."""
    (tmp_path / "journalctl").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert facts.end_of_journal(["--unit=d7yfs@x.service"], 7).endswith("--lines=7 --unit=d7yfs@x.service")
    monkeypatch.setattr(facts, "_SYSTEM_LOGS", (tmp_path / "syslog",))
    (tmp_path / "journalctl").write_text("#!/bin/sh\nexit 1\n")
    assert facts.end_of_journal([], 7) == "no line in the journal"
    ours = "Nov  3 12:00:00 host d7yfs: INFO ours\n2026-11-23T12:00:00+00:00 host d7yfs[7]: INFO ours"
    (tmp_path / "syslog").write_text(f"{ours}\nNov 23 12:00:01 host sshd[1]: theirs about d7yfs: x\n")
    assert facts.end_of_journal([], 7) == ours


def test_this_process() -> None:
    said = facts.describe_process(os.getpid())
    assert said.startswith(f"{os.getpid()}: ")
    assert "Max open files" in said
    assert f"  {os.getpid()} " in said, "its first thread"
    assert facts.describe_process(2**22 + 1).startswith("there is no process")
    assert facts.unit_of(os.getpid()) == ""
    assert facts.variables({"PATH": "x", "D7YFS_PROXY": "http://user:secret@h"}) == "D7YFS_PROXY"
    assert facts.variables({}) == "none"
