"""Where log lines go and what they look like. Configured once, by `daemon` or a command, before anything else runs.

Lines for people on stderr or in a file that is rotated, one JSON object per line by option, or the system log for a daemon that
has neither. Libraries speak only from warnings on: at debug level the provider's SDK prints headers with signatures.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import sys
import time
from collections.abc import Mapping
from pathlib import Path

SYSTEM_LOG = Path("/dev/log")
_TEXT = "%(asctime)s %(levelname)-7s %(message)s"
_FIELDS = "d7yfs_fields"
_ROTATE_BYTES = 16 << 20
_ROTATE_KEEP = 3


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
            **getattr(record, _FIELDS, {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str, log_format: str, log_file: Path | None, *, background: Path | None = None) -> None:
    """Send the log of this process to `log_file`, else to stderr; a daemon in the background, which has no stderr, to the system log.

    `background` is the file that such a daemon writes where there is no system log. Raises OSError when a file cannot be opened.
    """
    handler: logging.Handler
    if log_file is not None or (background is not None and not SYSTEM_LOG.is_socket()):
        path = log_file or background
        assert path is not None
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        handler = logging.handlers.RotatingFileHandler(path, maxBytes=_ROTATE_BYTES, backupCount=_ROTATE_KEEP)
    elif background is not None:
        handler = logging.handlers.SysLogHandler(str(SYSTEM_LOG))
        handler.ident = "d7yfs: "
    else:
        handler = logging.StreamHandler(sys.stderr)
    text = "%(levelname)s %(message)s" if isinstance(handler, logging.handlers.SysLogHandler) else _TEXT
    handler.setFormatter(JsonFormatter() if log_format == "json" else logging.Formatter(text))
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
        old.close()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("d7yfs").setLevel(level.upper())


def destination() -> str:
    """Where the log of this process goes, in words."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, logging.FileHandler):
            return handler.baseFilename
        if isinstance(handler, logging.handlers.SysLogHandler):
            return "the system log"
    return "stderr"
