"""Reading the settings of a running mount again: on SIGHUP, or when a client asks for it (`d7yfs
reload`).

Live are the log's level, times to live of listings, limits, and credentials. Everything else is
built into the mount when it begins, and waits for the next one. `compare` tells the two apart.

One reading at a time; it is done to its end even if its client leaves. A mistake in a file changes
nothing, and no failure ends the mount. The log, systemd and the client are told.

Built by `daemon`, which applies the changes; `commands` hands `reload` to the control socket. Trio
thread only.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import trio

from d7yfs import logs
from d7yfs.config.schema import OPTIONS, Config, Option, RepositoryConfig
from d7yfs.config.sources import Settings
from d7yfs.errors import D7yfsError
from d7yfs.host.launch import Readiness
from d7yfs.stats.status import ReloadStatus, as_json

log = logging.getLogger(__name__)

AnyConfig = TypeVar("AnyConfig", Config, RepositoryConfig)


Apply = Callable[[Settings, ReloadStatus], Awaitable[Mapping[str, str]]]
"""Applies new settings and their changes to the mount; returns why credentials could not be had, by
repository."""


class Reloader:
    """The settings of one mount, read again on request. `read` blocks, and raises D7yfsError."""

    def __init__(
        self,
        mountpoint: Path,
        settings: Settings,
        read: Callable[[], Settings],
        apply: Apply,
        readiness: Readiness,
        describe: Callable[[], str],
    ) -> None:
        """`describe` gives the line about the mount for `systemctl status`, the last reading included."""
        self.settings = settings
        """The settings that hold now."""
        self.last: ReloadStatus | None = None
        self._mountpoint = mountpoint
        self._read = read
        self._apply = apply
        self._readiness = readiness
        self._describe = describe
        self._turn = trio.Lock()

    async def run(self) -> None:
        """Read the settings again on SIGHUP, until cancelled."""
        with trio.open_signal_receiver(signal.SIGHUP) as signals:
            async for _ in signals:
                await self.reload()

    async def reload(self) -> dict[str, Any]:
        """Read the settings again; returns the outcome."""
        async with self._turn:
            self._readiness.notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
            self.last = outcome = await self._take_settings()
            self._readiness.notify(f"READY=1\nSTATUS={self._describe()}")
            return {"mountpoint": str(self._mountpoint), **as_json(outcome)}

    async def _take_settings(self) -> ReloadStatus:
        logs.reopen()
        try:
            # A file on a file system that hangs must not hold up the end of the mount.
            new = await trio.to_thread.run_sync(self._read, abandon_on_cancel=True)
        except D7yfsError as error:
            log.error("reload: settings stay as they are: %s", error)
            return ReloadStatus(at=time.time(), error=error.message, hint=error.hint)
        except Exception as error:
            log.exception("reload: reading the settings again failed unexpectedly")
            return ReloadStatus(at=time.time(), error=f"unexpected {type(error).__name__}; see the log")
        self.settings, found = compare(self.settings, new)
        refused: Mapping[str, str] = {}
        trouble = ""
        try:
            refused = await self._apply(self.settings, found)
        except Exception as error:
            log.exception("reload: not all changes could be applied")
            trouble = f"unexpected {type(error).__name__} while they took effect; see the log"
        _tell(found, refused)
        return replace(found, at=time.time(), refused=refused, error=trouble)


def _tell(found: ReloadStatus, refused: Mapping[str, str]) -> None:
    said = [f"{name} = {value}" for name, value in found.changed.items()]
    said += [f"credentials of {name or 'the repository'}" for name in found.credentials]
    log.info(
        "reload: %s", "changed: " + ", ".join(said) if said else "no setting has changed; credentials were read again"
    )
    for name, reason in refused.items():
        log.warning("reload: the credentials of %s: %s", name or "the repository", reason)
    if found.later:
        log.warning("reload: takes effect at the next mount: %s", ", ".join(found.later))


def compare(old: Settings, new: Settings) -> tuple[Settings, ReloadStatus]:
    """The settings that hold from now on in a mount that runs with `old`, and the changes. Pure.

    Options of a named repository are called `NAME.listing_limit`. The caller says when it was.
    """
    live: dict[str, str] = {}
    later: list[str] = []
    provenance = dict(old.provenance)

    def take(before: AnyConfig, after: AnyConfig, options: Iterable[Option], prefix: str = "") -> AnyConfig:
        """`before` with the live options of `after`; notes all that has changed."""
        values: dict[str, Any] = {}
        for option in options:
            value, name = getattr(after, option.field), f"{prefix}{option.name}"
            if getattr(before, option.field) == value:
                continue
            if option.live:
                live[name] = option.kind.show(value)
                values[option.field] = value
                provenance[name] = new.provenance.get(name, "default")
            else:
                later.append(name)
        return replace(before, **values)

    config = take(old.config, new.config, (option for option in OPTIONS.values() if not option.per_repository))
    if old.config.mountpoint != new.config.mountpoint:
        later.append("mountpoint")
    known = {each.name: each for each in new.config.repositories}
    if known.keys() == {each.name for each in old.config.repositories}:
        repositories = []
        for each in old.config.repositories:
            prefix = f"{each.name}." if each.name else ""
            if each.url != known[each.name].url:
                later.append(f"{prefix}url")
            options = (option for option in OPTIONS.values() if option.per_repository and not option.names_credentials)
            repositories.append(take(each, known[each.name], options, prefix))
        config = replace(config, repositories=tuple(repositories))
    else:
        later.append("repositories")
    later += [name for name in ("headers", "filter") if getattr(old, name) != getattr(new, name)]
    both = old.credentials.keys() & new.credentials.keys()
    credentials = tuple(
        name for name in old.credentials if name in both and old.credentials[name] != new.credentials[name]
    )
    settings = replace(
        old,
        config=config,
        credentials={**old.credentials, **{name: new.credentials[name] for name in credentials}},
        provenance=provenance,
        warnings=new.warnings,
    )
    found = ReloadStatus(at=0.0, changed=live, later=tuple(later), credentials=credentials, warnings=new.warnings)
    return settings, found
