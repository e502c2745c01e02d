"""What lines look like, and that a place which says too much is silenced."""

from __future__ import annotations

import contextvars
import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from d7yfs import logs


def record(message: str = "said %d", *args: object, at: float = 1000.0, level: int = logging.INFO) -> logging.LogRecord:
    made = logging.LogRecord("d7yfs.x", level, "x.py", 7, message, args, None)
    made.created = at
    return made


def said(repeats: logs.Repeats, made: logging.LogRecord) -> str | None:
    return made.getMessage() if repeats.filter(made) else None


def test_repeats_are_left_out_and_counted() -> None:
    repeats = logs.Repeats()
    lines = [said(repeats, record("said %d", number)) for number in range(150)]
    assert lines[:99] == [f"said {number}" for number in range(99)]
    assert lines[99] == "said 99 (more like this one are left out for 60 s)"
    assert set(lines[100:]) == {None}
    assert said(repeats, record("said %d", 7, at=1059.9)) is None
    assert said(repeats, record("said %d", 8, at=1060.0)) == "said 8 (51 lines like this one were left out before it)"
    assert said(repeats, record("said %d", 9, at=1061.0)) == "said 9"
    assert said(repeats, record("said %d", 9, at=2000.0)) == "said 9", "nothing was left out"


def test_facts_and_debug_lines_are_never_left_out() -> None:
    repeats = logs.Repeats()
    for _ in range(150):
        fact = record()
        fact.__dict__.update(logs.fields({"object": "o"}))
        assert repeats.filter(fact)
        assert repeats.filter(record(level=logging.DEBUG))


def test_lines_carry_the_number_of_the_request_they_belong_to() -> None:
    def as_request(formatter: logging.Formatter) -> str:
        logs.REQUEST.set(12)
        return formatter.format(record("said"))

    text, as_json = logs.TextFormatter("%(levelname)s %(message)s"), logs.JsonFormatter()
    assert text.format(record("said")) == "INFO said"
    assert contextvars.copy_context().run(as_request, text) == "INFO said [request 12]"
    assert "request" not in json.loads(as_json.format(record("said")))
    assert json.loads(contextvars.copy_context().run(as_request, as_json))["request"] == 12


@pytest.mark.parametrize(
    ("level", "priority"), [(logging.DEBUG, 7), (logging.INFO, 6), (logging.WARNING, 4), (logging.CRITICAL, 3)]
)
def test_the_journal_gets_priorities(level: int, priority: int) -> None:
    formatter = logs.JournalFormatter(logging.Formatter("%(message)s"))
    assert formatter.format(record("two\nlines", level=level)) == f"<{priority}>two\n<{priority}>lines"


@pytest.fixture
def _configured() -> Iterator[None]:
    root, d7yfs = logging.getLogger(), logging.getLogger("d7yfs")
    before = root.handlers[:], root.level, d7yfs.level
    root.handlers[:] = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers[:], root.level, level = before
    d7yfs.setLevel(level)


@pytest.mark.usefixtures("_configured")
def test_a_service_logs_to_the_journal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "journal").open("w") as stream:
        status = os.fstat(stream.fileno())
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        logs.configure("info", "text", None)
        logging.getLogger("d7yfs.x").warning("said")
    assert (tmp_path / "journal").read_text() == "<4>said\n"


@pytest.mark.usefixtures("_configured")
def test_the_level_and_the_file_change_while_it_runs(tmp_path: Path) -> None:
    path = tmp_path / "log"
    logs.configure("info", "json", path)
    log = logging.getLogger("d7yfs.x")
    assert (logs.level(), logs.destination()) == ("info", str(path))
    log.debug("unheard")
    logs.set_level("debug")
    log.debug("heard")
    path.rename(tmp_path / "moved")
    logs.reopen()
    log.info("anew")
    assert [json.loads(line)["message"] for line in (tmp_path / "moved").read_text().splitlines()] == ["heard"]
    assert [json.loads(line)["message"] for line in path.read_text().splitlines()] == ["anew"]
