"""Where log lines go and what they look like. Configured once, by `daemon` or a command, before anything else runs.

Lines for people on stderr or in a file that is rotated, one JSON object per line by option, or the system log for a daemon that
has neither. Where stderr is the journal (a service), lines carry their priority and leave the time to it. Libraries speak only from
warnings on: at debug level the provider's SDK prints headers with signatures.

What is logged on behalf of a request of the kernel carries that request's number, also from the transfers that it set off. A place in the
program that says more than `_BURST` lines within a minute is silenced for the rest of it and says afterwards how many were left out; lines
that carry fields (`fields`) and debug lines are never.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import sys
import time
from collections.abc import Mapping
from contextvars import ContextVar
from pathlib import Path

SYSTEM_LOG = Path("/dev/log")
REQUEST: ContextVar[int] = ContextVar("request", default=0)
"""Number of the kernel's request that is being answered, or that set off what runs now; 0 for none."""

_TEXT = "%(asctime)s %(levelname)-7s %(message)s"
_FIELDS = "d7yfs_fields"
_ROTATE_BYTES = 16 << 20
_ROTATE_KEEP = 3
_BURST = 100
_PERIOD_S = 60.0


def fields(values: Mapping[str, object]) -> dict[str, object]:
    """The argument `extra` of a log call by which `values` stand in fields of their own where lines are JSON."""
    return {_FIELDS: dict(values)}


class JsonFormatter(logging.Formatter):
    """One object per line: time (RFC 3339, UTC), level, logger, message, the line's own fields, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **({"request": request} if (request := REQUEST.get()) else {}),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """For people."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's name
        said = super().formatMessage(record)
        return f"{said} [request {request}]" if (request := REQUEST.get()) else said


class JournalFormatter(logging.Formatter):
    """What `inner` makes, each line with its priority in front, as the journal takes them from a service's stderr (sd-daemon(3))."""

    _PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        priority = next((each for level, each in self._PRIORITIES if record.levelno >= level), 7)
        return "\n".join(f"<{priority}>{line}" for line in self._inner.format(record).split("\n"))


class Repeats(logging.Filter):
    """Silences a place that says too much. Its clock is the records' own time."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, int], tuple[float, int]] = {}
        """By place in the program: since when is counted, and how many lines."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is to be written; it may get a word about others that were not."""
        if record.levelno <= logging.DEBUG or hasattr(record, _FIELDS):
            return True
        place = (record.pathname, record.lineno)
        since, count = self._seen.get(place, (record.created, 0))
        if not 0 <= record.created - since < _PERIOD_S:
            if count > _BURST:
                _add(record, f"{count - _BURST} lines like this one were left out before it")
            since, count = record.created, 0
        self._seen[place] = (since, count + 1)
        if count + 1 == _BURST:
            _add(record, f"more like this one are left out for {_PERIOD_S - (record.created - since):.0f} s")
        return count < _BURST


def _add(record: logging.LogRecord, said: str) -> None:
    record.msg, record.args = f"{record.getMessage()} ({said})", ()


def configure(level: str, log_format: str, log_file: Path | None, *, background: Path | None = None) -> None:
    """Send the log of this process to `log_file`, else to stderr; a daemon in the background, which has no stderr, to the system log.

    `background` is the file that such a daemon writes where there is no system log. Raises OSError when a file cannot be opened.
    """
    handler: logging.Handler
    text = _TEXT
    in_journal = False
    if log_file is not None or (background is not None and not SYSTEM_LOG.is_socket()):
        path = log_file or background
        assert path is not None
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(path, maxBytes=_ROTATE_BYTES, backupCount=_ROTATE_KEEP)
    elif background is not None:
        handler = logging.handlers.SysLogHandler(str(SYSTEM_LOG))
        handler.ident = "d7yfs: "
        text = "%(levelname)s %(message)s"
    else:
        handler = logging.StreamHandler(sys.stderr)
        if in_journal := _is_journal(sys.stderr.fileno() if sys.stderr is not None else -1):
            text = "%(message)s"
    formatter = JsonFormatter() if log_format == "json" else TextFormatter(text)
    handler.setFormatter(JournalFormatter(formatter) if in_journal else formatter)
    handler.addFilter(Repeats())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    set_level(level)


def _is_journal(fd: int) -> bool:
    """Whether `fd` is a connection to systemd's journal ($JOURNAL_STREAM in systemd.exec(5))."""
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM", "") == f"{status.st_dev}:{status.st_ino}"


def set_level(level: str) -> None:
    """Log from `level` on: debug, info, warning, error."""
    logging.getLogger("d7yfs").setLevel(level.upper())


def level() -> str:
    """From which level on is logged."""
    return logging.getLevelName(logging.getLogger("d7yfs").getEffectiveLevel()).lower()


def reopen() -> None:
    """Go on in a new file where the log file was moved away."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            handler.acquire()
            try:
                handler.close()  # the next line opens it again
            finally:
                handler.release()


def destination() -> str:
    """Where the log of this process goes, in words."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            return handler.baseFilename
        if isinstance(handler, logging.handlers.SysLogHandler):
            return "the system log"
    return "stderr"
