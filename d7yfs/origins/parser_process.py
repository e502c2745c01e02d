"""Where the pages of an origin's listings are parsed: here, or for large listings in a process beside.

A page of a thousand entries holds the interpreter for 4 ms, which readers of the mount wait for. The
process (`parser`) is started by the fifth page in quick succession, and ends by itself. Whatever happens
to it, the page is parsed here.

Called in worker threads, by `bucket`.
"""

from __future__ import annotations

import logging
import math
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

from d7yfs.host.process import bare_environment, processors
from d7yfs.origins.listing_columns import decode
from d7yfs.origins.parser import IDLE_S, READY, receive, send
from d7yfs.origins.xml_listing import XmlListing, parse_listing

log = logging.getLogger(__name__)

PROGRAM = (sys.executable, "-P", "-m", "d7yfs.origins.parser")
FEW_PAGES = 5
"""Pages in succession that are parsed here: to start the process costs as much."""
_SUCCESSION_S = 1.0
"""The longest time between two pages of one listing, as far as time counts."""
PATIENCE_S = 2.0
"""Seconds after which a process that does not answer is given up."""
_PAUSE_S = 30.0
"""The time without a process after one that failed."""


class ListingParser:
    """Parses the listings of one origin. `archives` and `validator` are those of `parse_listing`."""

    def __init__(
        self,
        archives: Sequence[str] = (),
        validator: str = "ETag",
        *,
        program: Sequence[str] = PROGRAM,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._archives = tuple(archives)
        self._validator = validator
        self._program = program
        self._clock = clock
        self._lock = threading.Lock()
        """Held while the process has a page: others are parsed here."""
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._is_ready = self._is_closed = False
        self._pages = 0
        self._counted_at = self._used_at = self._paused_until = -math.inf
        self.pages_beside = 0
        """The pages that a process has parsed."""

    @property
    def pid(self) -> int | None:
        """The number of the process; None without one."""
        return None if self._process is None else self._process.pid

    def parse(self, body: bytes) -> XmlListing:
        """The listing in `body`. Raises ValueError as `parse_listing`."""
        if self._lock.acquire(blocking=False):
            try:
                if (page := self._parse_beside(body)) is not None:
                    return page
            finally:
                self._lock.release()
                if self._is_closed:
                    self.close()
        return parse_listing(body, archives=self._archives, validator=self._validator)

    def close(self) -> None:
        """Have the process end, once it has answered."""
        self._is_closed = True
        if self._lock.acquire(blocking=False):
            self._end()
            self._lock.release()

    def _parse_beside(self, body: bytes) -> XmlListing | None:
        """The listing, from the process; None if there is none that takes it, or the page is for here."""
        now = self._clock()
        self._pages = self._pages + 1 if now - self._counted_at < _SUCCESSION_S else 1
        self._counted_at = now
        if now - self._used_at >= IDLE_S - _SUCCESSION_S:
            self._end()  # it is about to end by itself, or has
        channel = self._channel
        if channel is None:
            if self._pages >= FEW_PAGES and now >= self._paused_until and processors() > 1:
                self._start(now)
            return None
        try:
            if not self._is_ready and not self._hear_first(channel):
                return None
            send(channel, body)
            columns = receive(channel)
            page = decode(columns) if columns else None
        except TimeoutError:
            self._fail("does not answer")
        except (OSError, EOFError):
            self._fail("has ended")
        except ValueError:
            self._fail("talks nonsense")
        else:
            self._used_at = self._clock()
            self.pages_beside += page is not None
            return page
        return None

    def _hear_first(self, channel: socket.socket) -> bool:
        """True if the process takes pages. Raises OSError, EOFError and ValueError."""
        if not select.select([channel], [], [], 0)[0]:
            return False
        word = channel.recv(len(READY))
        if word != READY:
            raise ValueError("another release") if word else EOFError
        self._is_ready = True
        return True

    def _start(self, now: float) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = subprocess.Popen(  # noqa: S603 - our own program
                    [*self._program, str(theirs.fileno()), self._validator, *self._archives],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,  # its standard error is the engine's, for a traceback
                    pass_fds=[theirs.fileno()],
                    env=bare_environment(),
                )
        except OSError as error:
            ours.close()
            self._paused_until = now + _PAUSE_S
            log.warning("no process could be started to parse listings: %s", error.strerror)
            return
        ours.settimeout(PATIENCE_S)
        self._process, self._channel, self._used_at = process, ours, now
        # So that it is no zombie once it has ended, whenever that is.
        threading.Thread(target=process.wait, name="parser's end", daemon=True).start()

    def _fail(self, trouble: str) -> None:
        log.warning("the process that parses listings (pid %s) %s: going on without it", self.pid, trouble)
        self._paused_until = self._clock() + _PAUSE_S
        if self._process is not None:
            self._process.kill()
        self._end()

    def _end(self) -> None:
        if self._channel is not None:
            self._channel.close()
        self._process = self._channel = None
        self._is_ready = False
