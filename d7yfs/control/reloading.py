"""A running mount reads its settings again: on SIGHUP, or when it is asked to (`d7yfs reload`).

Owns the settings that hold, and what came of the last time. One reading at a time; what was asked for is done though its client has left.
A mistake in a file changes nothing, and whatever else goes wrong is no reason to end the mount. The log, systemd and who asked are told.

Built by `daemon`, which has the parts of the mount heed what `reload` finds; `commands` hands `report` to the control socket. Trio thread
only.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import trio

from d7yfs import logs
from d7yfs.config.sources import Settings
from d7yfs.control import reload
from d7yfs.control.control_socket import reporting
from d7yfs.control.reload import Changes
from d7yfs.errors import D7yfsError
from d7yfs.host.launch import Readiness

log = logging.getLogger(__name__)

Apply = Callable[[Changes], Awaitable[Mapping[str, str]]]
"""Has the mount heed what has changed; why credentials could not be had, by repository."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of reading the settings again, for its client and for `status` (docs/status.md)."""

    at: float = field(default_factory=time.time)
    """Seconds since the epoch."""
    changed: Mapping[str, str] = field(default_factory=dict)
    later: Sequence[str] = ()
    credentials: Sequence[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    error: str = ""
    hint: str = ""


class Reloader:
    """That of one mount. `read` gives the settings as files and environment say now; it blocks, and raises D7yfsError."""

    def __init__(
        self,
        mountpoint: Path,
        settings: Settings,
        read: Callable[[], Settings],
        apply: Apply,
        readiness: Readiness,
        nursery: trio.Nursery,
    ) -> None:
        self.settings = settings
        """What holds now."""
        self.last: dict[str, Any] | None = None
        """The last `Outcome`."""
        self._mountpoint = mountpoint
        self._read = read
        self._apply = apply
        self._readiness = readiness
        self._nursery = nursery
        self._turn = trio.Lock()

    async def run(self) -> None:
        """Heed SIGHUP, until cancelled."""
        with trio.open_signal_receiver(signal.SIGHUP) as signals:
            async for _ in signals:
                await self._reload()

    def report(self, _request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Read the settings again; tell that it runs, and at its end what came of it."""
        return reporting(self._nursery, self._reload)

    async def _reload(self) -> dict[str, Any]:
        async with self._turn:
            self._readiness.notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
            outcome = await self._outcome()
            self.last = asdict(outcome)
            said = " ".join(outcome.error.split())
            self._readiness.notify(f"READY=1\nSTATUS=settings stay as they are: {said}" if said else "READY=1")
            return {"mountpoint": str(self._mountpoint), **self.last}

    async def _outcome(self) -> Outcome:
        logs.reopen()
        try:
            # A file on a file system that hangs must not hold up the end of the mount.
            new = await trio.to_thread.run_sync(self._read, abandon_on_cancel=True)
        except D7yfsError as error:
            log.error("reload: settings stay as they are: %s", error)
            return Outcome(error=error.message, hint=error.hint)
        except Exception as error:
            log.exception("reload: reading the settings again failed unexpectedly")
            return Outcome(error=f"unexpected {type(error).__name__}; see the log")
        found = reload.changes(self.settings, new)
        self.settings = found.settings
        outcome = Outcome(
            changed=found.live, later=found.later, credentials=found.credentials, warnings=found.settings.warnings
        )
        try:
            outcome.refused = await self._apply(found)
        except Exception as error:
            log.exception("reload: what has changed could not all be heeded")
            outcome.error = f"unexpected {type(error).__name__} while they took effect; see the log"
        _tell(found, outcome.refused)
        return outcome


def _tell(found: Changes, refused: Mapping[str, str]) -> None:
    said = [f"{name} = {value}" for name, value in found.live.items()]
    said += [f"credentials of {name or 'the repository'}" for name in found.credentials]
    log.info(
        "reload: %s", "changed: " + ", ".join(said) if said else "no setting has changed; credentials were looked at"
    )
    for name, reason in refused.items():
        log.warning("reload: the credentials of %s: %s", name or "the repository", reason)
    if found.later:
        log.warning("reload: takes effect at the next mount: %s", ", ".join(found.later))
