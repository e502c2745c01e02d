"""The format of log lines, and the limit on a call site that logs too much."""

from __future__ import annotations

import contextvars
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from d7yfs import logs
from d7yfs.errors import AccessDenied


class Written(logging.Handler):
    """A handler that keeps the lines it would write."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.as_json: list[dict[str, object]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.as_json.append(json.loads(logs.JsonFormatter().format(record)))


@pytest.fixture
def written() -> Written:
    handler = Written()
    handler.addFilter(logs.Repeats(handler))
    return handler


def tell(handler: Written) -> None:
    (repeats,) = (each for each in handler.filters if isinstance(each, logs.Repeats))
    repeats.tell()


def record(
    message: str = "said %d",
    *args: object,
    at: float = 1000.0,
    level: int = logging.INFO,
    line: int = 7,
    about: str = "",
) -> logging.LogRecord:
    made = logging.LogRecord("d7yfs.x", level, "x.py", line, message, args, None)
    made.created = at
    if about:
        made.__dict__.update(logs.fields({"object": about}))
    return made


def test_a_place_says_so_much_a_minute_and_what_was_left_out_is_counted(written: Written) -> None:
    for number in range(150):
        written.handle(record("said %d", number))
    assert written.lines[:99] == [f"said {number}" for number in range(99)]
    assert written.lines[99:] == ["said 99 (more like this one are left out for 60 s)"]
    written.handle(record("another place", line=8))
    assert written.lines[100:] == ["another place"]
    written.handle(record("said %d", 150, at=1059.9))
    assert len(written.lines) == 101
    written.handle(record("something else", at=1060.0, line=9))
    assert written.lines[101:] == ["left out 51 like this: said 150", "something else"]
    written.handle(record("said %d", 151, at=1061.0))
    written.handle(record("said %d", 152, at=2000.0))
    assert written.lines[103:] == ["said 151", "said 152"], "no line may be left out"


def test_the_same_line_is_written_three_times_a_minute_and_hides_no_other(written: Written) -> None:
    for number in range(1000):
        written.handle(record("read: %s: refused", "s3://b/a", at=1000.0 + number / 100))
    written.handle(record("read: %s: refused", "s3://b/b", at=1010.0))
    assert written.lines == [
        *["read: s3://b/a: refused"] * 2,
        "read: s3://b/a: refused (more like this one are left out for 60 s)",
        "read: s3://b/b: refused",
    ]


def test_what_is_said_of_one_object_hides_no_other(written: Written) -> None:
    for number in range(1000):
        written.handle(record("s3://b/a: reading on at %d", number, about="s3://b/a"))
    written.handle(record("s3://b/b: reading on at %d", 0, about="s3://b/b"))
    assert len(written.lines) == 21
    assert written.lines[-2:] == [
        "s3://b/a: reading on at 19 (more like this one are left out for 60 s)",
        "s3://b/b: reading on at 0",
    ]


def test_another_failure_in_the_same_words_is_written(written: Written) -> None:
    for error in (ValueError(), ValueError(), ValueError(), ValueError(), KeyError()):
        made = record("read failed unexpectedly")
        made.exc_info = (type(error), error, None)
        written.handle(made)
    assert len(written.lines) == 4


def test_what_was_left_out_is_told_though_nothing_more_is_said(written: Written) -> None:
    for _ in range(5):
        written.handle(record("the same", level=logging.WARNING))
    tell(written)
    assert written.lines[3:] == ["left out 2 like this: the same"]
    assert (written.as_json[3]["left_out"], written.as_json[3]["level"]) == (2, "warning")
    tell(written)
    assert len(written.lines) == 4, "the count is reported once"


def test_the_count_belongs_to_no_request(written: Written) -> None:
    def as_request() -> None:
        logs.REQUEST.set(12)
        for _ in range(4):
            written.handle(record("the same"))
        written.handle(record("the same", at=1060.0))

    contextvars.copy_context().run(as_request)
    assert [each.get("request") for each in written.as_json] == [12, 12, 12, None, 12]


def test_debug_lines_are_never_left_out(written: Written) -> None:
    for _ in range(150):
        written.handle(record("the same", level=logging.DEBUG))
    assert len(written.lines) == 150


def test_a_flood_takes_no_memory() -> None:
    repeats = logs.Repeats(logging.NullHandler())
    for number in range(10_000):
        repeats.filter(record("said %d", number, about=f"s3://b/{number}"))
    assert len(repeats._written) < 300
    assert len(repeats._left_out) == 1


def test_a_line_that_cannot_be_put_together_is_its_handlers_trouble(written: Written) -> None:
    (repeats,) = (each for each in written.filters if isinstance(each, logs.Repeats))
    assert repeats.filter(record("said %d %d", 1))


def test_a_failures_line_says_what_it_is_about() -> None:
    error = AccessDenied("s3://b/k: refused").about(object="s3://b/k", store_request="4BM", repository="")
    error.about(object="somebody further away", repository="llm")
    made = record("read: %s", error)
    made.__dict__.update(logs.fields_of(error, operation="read"))
    shown = json.loads(logs.JsonFormatter().format(made))
    assert {name: value for name, value in shown.items() if name not in ("time", "level", "logger", "message")} == {
        "error": "AccessDenied",
        "errno": "EACCES",
        "object": "s3://b/k",
        "repository": "llm",
        "store_request": "4BM",
        "operation": "read",
    }


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
    for _ in range(5):
        log.info("repeated")
    logs.tell_left_out()
    *_, before, last = [json.loads(line)["message"] for line in path.read_text().splitlines()]
    assert before.startswith("repeated (more like this one")
    assert last == "left out 2 like this: repeated"
    assert path.read_text().count("anew") == 1


def test_what_was_left_out_is_told_at_the_end(tmp_path: Path) -> None:
    program = """
import logging, pathlib, sys
from d7yfs import logs
from d7yfs.errors import AccessDenied
logs.configure("info", "text", pathlib.Path(sys.argv[1]))
for _ in range(10):
    logging.getLogger("d7yfs.x").info("the same")
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "log")], check=True, timeout=60)
    assert (tmp_path / "log").read_text().splitlines()[-1].endswith("left out 7 like this: the same")


# --- attackers ---

EVIL = "models/\n2026-01-01 00:00:00,000 ERROR   forged \x1b[2J\u202e"


@pytest.mark.parametrize("formatter", [logs.TextFormatter(logs._TEXT), logs.JsonFormatter()])
def test_no_name_forges_a_line_or_drives_a_terminal(formatter: logging.Formatter) -> None:
    made = record("cannot read %s", EVIL)
    try:
        raise ValueError(EVIL)
    except ValueError:
        made.exc_info = sys.exc_info()
    first, *traceback = formatter.format(made).split("\n")
    assert "forged" in first
    assert all(line.startswith("    ") for line in traceback)
    assert not {"\x1b", "\u202e"} & set(formatter.format(made))


@pytest.fixture
def log_file(tmp_path: Path) -> Iterator[Path]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = []
    yield tmp_path / "d7yfs.log"
    for made in root.handlers:
        made.close()
    root.handlers[:] = handlers
    root.setLevel(level)


def test_a_log_file_is_its_users_alone(log_file: Path) -> None:
    log_file.write_text("earlier\n")
    log_file.chmod(0o644)
    logs.configure("info", "text", log_file)
    logging.getLogger("d7yfs").warning("later")
    assert log_file.read_text().splitlines()[0] == "earlier"
    assert "later" in log_file.read_text()
    assert log_file.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file to another user")
@pytest.mark.parametrize("attack", ["link", "fifo", "owner"])
def test_a_log_file_that_another_user_placed_is_refused(log_file: Path, tmp_path: Path, attack: str) -> None:
    target = tmp_path / "target"
    target.write_text("precious")
    if attack == "link":
        log_file.symlink_to(target)
    elif attack == "fifo":
        os.mkfifo(log_file)
    else:
        log_file.touch()
        os.chown(log_file, 54321, -1)
    with pytest.raises(OSError):  # noqa: PT011  # each attack has an errno of its own
        logs.configure("info", "text", log_file)
    assert target.read_text() == "precious"
