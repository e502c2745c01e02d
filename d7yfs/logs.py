"""Where log lines go and what they look like. Configured once, by `daemon` or a command, before anything else runs.

Lines for people on stderr or in a file that is rotated, one JSON object per line by option, or the system log for a daemon that
has neither. Where stderr is the journal (a service), lines carry their priority and leave the time to it. Libraries speak only from
warnings on: at debug level the provider's SDK prints headers with signatures.

What is logged on behalf of a request of the kernel carries that request's number, also from the transfers that it set off. A line about a
failure carries what it is about in fields (`fields_of`).

Repeats are left out (`Repeats`): the same line, lines about one object, lines of one place in the program, beyond so many within a minute.
How many is told with the first line of the next minute, whatever it is about, by `tell_left_out`, which a daemon calls every minute, and
at exit. Debug lines are never left out.
"""

from __future__ import annotations

import atexit
import errno
import json
import logging
import logging.handlers
import math
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextvars import Context, ContextVar
from dataclasses import dataclass
from pathlib import Path

from d7yfs.errors import D7yfsError

SYSTEM_LOG = Path("/dev/log")
REQUEST: ContextVar[int] = ContextVar("request", default=0)
"""Number of the kernel's request that is being answered, or that set off what runs now; 0 for none."""

_TEXT = "%(asctime)s %(levelname)-7s %(message)s"
_FIELDS = "d7yfs_fields"
_ROTATE_BYTES = 16 << 20
_ROTATE_KEEP = 3

PERIOD_S = 60.0
_PLACE_BURST, _OBJECT_BURST, _SAME_BURST = 100, 20, 3
"""Lines within a period that come from one place in the program; of these, that are about one object; of these, with the same words."""


def fields(values: Mapping[str, object]) -> dict[str, object]:
    """The argument `extra` of a log call by which `values` stand in fields of their own where lines are JSON."""
    return {_FIELDS: dict(values)}


def fields_of(error: D7yfsError, **more: str) -> dict[str, object]:
    """The same for a line about an expected failure: its kind, the errno that a reader gets for it, what it is about, and `more`."""
    return fields({"error": type(error).__name__, "errno": errno.errorcode[error.errno], **error.facts, **more})


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
    """Leaves out what one place in the program says too often, and has `handler` tell how much. Its clock is the records' own time.

    Bounded: per place it remembers one line that was left out, and at most as many others as were written in this period. Any thread's.
    """

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler
        self._lock = threading.Lock()
        self._since = -math.inf
        """When this period began."""
        self._written: Counter[tuple[object, ...]] = Counter()
        """Lines in this period by place, by place and object, and by place and words."""
        self._left_out: dict[tuple[object, ...], _LeftOut] = {}
        """By place, what nobody has been told of."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is to be written; it may get a word about others that will not be."""
        if record.levelno <= logging.DEBUG or isinstance(record, _Count):
            return True
        try:
            said = record.getMessage()
        except Exception:
            return True  # what is wrong with it is the handler's to tell
        place = (record.pathname, record.lineno)
        about = getattr(record, _FIELDS, {}).get("object", "")
        kind = record.exc_info[0] if record.exc_info else None
        limits: dict[tuple[object, ...], int] = {place: _PLACE_BURST, (*place, hash((said, kind))): _SAME_BURST}
        if about:
            limits[*place, "object", about] = _OBJECT_BURST
        with self._lock:
            if is_over := not 0 <= record.created - self._since < PERIOD_S:
                self._since = record.created
                self._written.clear()
            rest_s = self._since + PERIOD_S - record.created
            room = min(limit - self._written[key] for key, limit in limits.items())
            if room:
                self._written.update(limits.keys())
            else:
                before = self._left_out.get(place)
                count = before.count + 1 if before is not None else 1
                self._left_out[place] = _LeftOut(count, record.name, record.levelno, said)
        if is_over:
            self.tell()
        if room == 1:
            record.msg, record.args = f"{said} (more like this one are left out for {rest_s:.0f} s)", ()
        return room > 0

    def tell(self) -> None:
        """Have written how many lines were left out since that was told last."""
        with self._lock:
            left_out, self._left_out = self._left_out, {}
        for each in left_out.values():
            # Not as the request of the kernel that happens to be answered now.
            Context().run(self._handler.handle, _Count(each))


@dataclass(frozen=True, slots=True)
class _LeftOut:
    count: int
    logger: str
    level: int
    last: str
    """The words of the last one."""


class _Count(logging.LogRecord):
    """A line that says how many others were left out."""

    def __init__(self, left_out: _LeftOut) -> None:
        said = f"left out {left_out.count} like this: {left_out.last}"
        super().__init__(left_out.logger, left_out.level, __file__, 0, said, (), None)
        self.__dict__.update(fields({"left_out": left_out.count}))


def tell_left_out() -> None:
    """Have every log of this process say how many lines were left out, if any were, and nobody has been told."""
    for handler in logging.getLogger().handlers:
        for each in handler.filters:
            if isinstance(each, Repeats):
                each.tell()


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
    handler.addFilter(Repeats(handler))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    set_level(level)
    atexit.unregister(tell_left_out)  # lest it is called twice
    atexit.register(tell_left_out)


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
