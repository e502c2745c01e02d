"""The destination and format of log lines. Configured once, by `daemon` or a command, before
anything else runs.

Lines go to stderr or to a rotated file, as text or as one JSON object per line. A daemon without
either logs to the system log. If stderr is the journal (a service), lines have their priority, and
the journal adds the time. Libraries log only warnings and errors: at debug level the provider's SDK
prints headers with signatures.

A line on behalf of a request of the kernel has that request's number, also from the transfers that
it started. A line about a failure has its subject in fields (`fields_of`).

Repeats are left out (`Repeats`): too many of the same line, of lines about one object, or of one
place in the program within a minute. Their number is logged with the first line of the next minute,
by `tell_left_out`, which a daemon calls every minute, and at exit. Debug lines are never left out.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import logging
import logging.handlers
import math
import os
import stat
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from d7yfs.errors import D7yfsError
from d7yfs.objects import printable

SYSTEM_LOG = Path("/dev/log")
REQUEST: ContextVar[int] = ContextVar("request", default=0)
"""Number of the kernel's request that is being answered, or that started this work; 0 for none."""

_TEXT = "%(asctime)s %(levelname)-7s %(message)s"
_FIELDS = "d7yfs_fields"
_ROTATE_BYTES = 16 << 20
_ROTATE_KEEP = 3

PERIOD_S = 60.0
_PLACE_BURST, _OBJECT_BURST, _SAME_BURST = 100, 20, 3
"""Most lines in a period from one place; of these, about one object; of these, alike."""


def fields(values: Mapping[str, object]) -> dict[str, object]:
    """The argument `extra` of a log call that puts `values` into fields of JSON lines."""
    return {_FIELDS: dict(values)}


def fields_of(error: D7yfsError, **more: str) -> dict[str, object]:
    """The same for an expected failure: its kind, the reader's errno, its subject, and `more`."""
    return fields({"error": type(error).__name__, "errno": errno.errorcode[error.errno], **error.facts, **more})


class Trace:
    """The trace: a line for each request of the kernel, each request to a store or proxy, and each
    decision to fetch. No line holds a secret. Trio thread only.

    On while the log's level is debug, or somebody listens. Else it costs its callers one look at
    `is_on`.
    """

    def __init__(self) -> None:
        self.is_on = False
        self._is_logged = False
        self._hearers: list[Callable[[Mapping[str, object]], None]] = []

    def tell(self, message: str, **facts: object) -> None:
        """Add a line, with its facts for programs."""
        if self._is_logged:
            logging.getLogger(__name__).debug("%s", message, extra=fields(facts))
        if self._hearers:
            line = {"at": time.time(), "request": REQUEST.get(), "message": printable(message), **facts}
            for hear in self._hearers:
                hear(line)

    def tell_request(
        self,
        method: str,
        subject: str,
        outcome: str,
        began_at: float,
        *,
        way: str,
        request_id: str,
        range_said: str = "",
        **facts: object,
    ) -> None:
        """Add the line of a request to a store or proxy, which began at `began_at` (perf_counter).
        `request_id` is the store's; `way` the part of the mount that asked, and whom."""
        ms = round((time.perf_counter() - began_at) * 1000, 3)
        about = f"{subject} {range_said}".strip()
        named = f", request {request_id}" if request_id else ""
        facts |= {"kind": "store", "method": method, "object": subject, "way": way, "request_id": request_id}
        self.tell(f"{method} {about}: {outcome}, {ms:g} ms, {way}{named}", **facts, outcome=outcome, ms=ms)

    @contextmanager
    def heard_by(self, hear: Callable[[Mapping[str, object]], None]) -> Iterator[None]:
        """Give `hear` each line meanwhile."""
        self._hearers.append(hear)
        self.is_on = True
        try:
            yield
        finally:
            self._hearers.remove(hear)
            self.is_on = self._is_logged or bool(self._hearers)

    def follow_level(self) -> None:
        """Take up the log's level."""
        self._is_logged = logging.getLogger(__name__).isEnabledFor(logging.DEBUG)
        self.is_on = self._is_logged or bool(self._hearers)


TRACE = Trace()


class JsonFormatter(logging.Formatter):
    """A formatter of one JSON object per line: time (RFC 3339, UTC), level, logger, message, the
    line's fields, and any traceback."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": printable(record.getMessage()),
            **({"request": request} if (request := REQUEST.get()) else {}),
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)  # ASCII alone: nothing in it drives a terminal


class TextFormatter(logging.Formatter):
    """A formatter of lines for people, with the request's number.

    A message is one line, and a traceback is indented, so no name of an object can forge a line.
    """

    def formatException(self, ei: Any) -> str:  # logging's name
        return "\n".join(f"    {printable(line)}" for line in super().formatException(ei).split("\n"))

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging's name
        record.message = printable(record.message)
        said = super().formatMessage(record)
        return f"{said} [request {request}]" if (request := REQUEST.get()) else said


class _LogFile(logging.handlers.RotatingFileHandler):
    """A log file that this process made, or that belongs to its user or to root; mode 0600."""

    def _open(self) -> TextIOWrapper:
        """Raises OSError, also if another user could have put a link or a file there."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        fd = os.open(self.baseFilename, flags, 0o600)
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_uid not in (0, os.geteuid()):
            os.close(fd)
            raise OSError(errno.EPERM, "is no regular file of this user", self.baseFilename)
        os.fchmod(fd, 0o600)
        return TextIOWrapper(os.fdopen(fd, "ab"), encoding=self.encoding, errors=self.errors, line_buffering=True)


class JournalFormatter(logging.Formatter):
    """A formatter that puts the priority before each line of `inner`, as the journal reads them
    from a service's stderr (sd-daemon(3))."""

    _PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))

    def __init__(self, inner: logging.Formatter) -> None:
        super().__init__()
        self._inner = inner

    def format(self, record: logging.LogRecord) -> str:
        priority = next((each for level, each in self._PRIORITIES if record.levelno >= level), 7)
        return "\n".join(f"<{priority}>{line}" for line in self._inner.format(record).split("\n"))


class Repeats(logging.Filter):
    """A filter that leaves out repeats from one place in the program, and logs their number by
    `handler`. Its clock is the records' time.

    Bounded: per place it keeps one line that was left out, and at most as many others as were
    written in this period. For any thread.
    """

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler
        self._lock = threading.Lock()
        self._since = -math.inf
        """Start of this period, by the records' time."""
        self._written: Counter[tuple[object, ...]] = Counter()
        """Lines in this period by place, by place and object, and by place and words."""
        self._left_out: dict[tuple[object, ...], tuple[int, str, int, str]] = {}
        """Lines that were left out and not yet counted in a log line, by place: count, logger,
        level and words of the last one."""

    def filter(self, record: logging.LogRecord) -> bool:
        """True if the line is to be written; it may get a note that others will be left out."""
        if record.levelno <= logging.DEBUG or isinstance(record, _Count):
            return True
        try:
            said = record.getMessage()
        except Exception:
            return True  # the handler reports what is wrong with it
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
                count = self._left_out[place][0] + 1 if place in self._left_out else 1
                self._left_out[place] = (count, record.name, record.levelno, said)
        if is_over:
            self.tell()
        if room == 1:
            record.msg, record.args = f"{said} (more like this one are left out for {rest_s:.0f} s)", ()
        return room > 0

    def tell(self) -> None:
        """Log how many lines were left out since the last time."""
        with self._lock:
            left_out, self._left_out = self._left_out, {}
        for each in left_out.values():
            # Not with the number of the request that is being answered now.
            Context().run(self._handler.handle, _Count(*each))


class _Count(logging.LogRecord):
    """A line that says how many others were left out."""

    def __init__(self, count: int, logger: str, level: int, last: str) -> None:
        super().__init__(logger, level, __file__, 0, f"left out {count} like this: {last}", (), None)
        self.__dict__.update(fields({"left_out": count}))


def tell_left_out() -> None:
    """Make every log of this process say how many lines were left out since the last time."""
    for handler in logging.getLogger().handlers:
        for each in handler.filters:
            if isinstance(each, Repeats):
                each.tell()


def file_of_user(mountpoint: Path, environ: Mapping[str, str]) -> Path | None:
    """The log of a mount that a user other than root makes in the background: he may not read the system
    log. It is in his state directory (XDG), which is made; None if it cannot be.
    """
    xdg = Path(environ.get("XDG_STATE_HOME", ""))  # the specification says to ignore a relative path
    try:
        directory = (xdg if xdg.is_absolute() else Path.home() / ".local" / "state") / "d7yfs"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return None
    digest = hashlib.sha256(os.fsencode(mountpoint)).hexdigest()[:8]
    return directory / f"{mountpoint.name[:100]}-{digest}.log" if os.access(directory, os.W_OK) else None


def configure(level: str, log_format: str, log_file: Path | None, *, background: Path | None = None) -> None:
    """Send the log of this process to `log_file`, else to stderr; a daemon in the background has no
    stderr, and logs to the system log.

    `background` is the file for such a daemon if there is no system log. Raises OSError if a file
    cannot be opened.
    """
    handler: logging.Handler
    text = _TEXT
    in_journal = False
    if log_file is not None or (background is not None and not SYSTEM_LOG.is_socket()):
        path = log_file or background
        assert path is not None
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        handler = _LogFile(path, maxBytes=_ROTATE_BYTES, backupCount=_ROTATE_KEEP)
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
    atexit.unregister(tell_left_out)  # so that it is called once
    atexit.register(tell_left_out)


def _is_journal(fd: int) -> bool:
    """True if `fd` is a connection to systemd's journal ($JOURNAL_STREAM in systemd.exec(5))."""
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM", "") == f"{status.st_dev}:{status.st_ino}"


def set_level(level: str) -> None:
    """Log lines of `level` and above: debug, info, warning, error."""
    logging.getLogger("d7yfs").setLevel(level.upper())
    TRACE.follow_level()


def level() -> str:
    """The lowest level that is logged."""
    return logging.getLevelName(logging.getLogger("d7yfs").getEffectiveLevel()).lower()


def reopen() -> None:
    """Continue in a new file if the log file was moved away."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            handler.acquire()
            try:
                handler.close()  # the next line opens it again
            finally:
                handler.release()


def destination() -> str:
    """The destination of this process's log, in words."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            return handler.baseFilename
        if isinstance(handler, logging.handlers.SysLogHandler):
            return "the system log"
    return "stderr"


def show_time(moment: float) -> str:
    """A time.time() for people, by the host's clock: the hour, and the date if it is of another day."""
    then, now = time.localtime(moment), time.localtime()
    return time.strftime("%H:%M" if then[:3] == now[:3] else "%Y-%m-%d %H:%M", then)
