"""Reports how a running mount is: pages for Prometheus, for probes and for people, `d7yfs health`,
systemd's watchdog.

Nothing here may hold up or end the mount. A port that is taken is told in the log and in `status`;
the mount goes on without it and tries again, because its holder may be a mount that is about to
end.

- /healthz: 200 while the daemon answers its mount (statfs), else 503. A restart repairs it.
- /readyz: 200 while the root of the mount can be read, and a repository serves more than its cached
  files, or its store is away from all hosts alike: another host would serve no more.
- systemd's watchdog is fed while the daemon answers its mount, even if its stores fail: a kill
  costs every reader of the mount.

A mount that cannot be asked from here (`/dev/fd/N`, or no room for a process) counts as well, and
`mount_answers` is null. Every minute the log is told how many lines were left out of it.

Built and run by `daemon`; `commands` asks it for the health.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import trio

from d7yfs import logs
from d7yfs.errors import MountError
from d7yfs.host.launch import Readiness
from d7yfs.monitor import http_listener
from d7yfs.monitor.http_listener import HttpPage, SharedPage
from d7yfs.monitor.probe import Probe
from d7yfs.monitor.rate_history import RateHistory
from d7yfs.monitor.watch import PERIOD_S, ProblemWatch
from d7yfs.stats.repository_status import REACHABLE, UNREACHABLE
from d7yfs.stats.status import HealthStatus, MountStatus, as_json

log = logging.getLogger(__name__)

_FEEDINGS = 4
"""Feedings within the watchdog's time."""
_STATUS_PERIOD_S = 30.0
"""Pause between two notices to systemd where there is no watchdog."""
LISTEN_RETRY_S = 30.0
"""Pause before a port that is taken is tried again."""


class Reporter:
    """The reports of one mount to its monitors. `snapshot` gives its account, judged by `watch`, and must
    not wait. `try_again` tries what fails."""

    def __init__(
        self,
        snapshot: Callable[[], MountStatus],
        probe: Probe,
        readiness: Readiness,
        try_again: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint,
    ) -> None:
        self.watch = ProblemWatch()
        self._history = RateHistory()
        self._snapshot = snapshot
        self._try_again = try_again
        self._probe = probe
        self._readiness = readiness
        self._runs = False
        """False before the mount is made: then its mount point is an ordinary directory, which
        answers too."""
        self._try_now = trio.Event()
        self.listens_on = ""
        """Empty while nothing is listened on."""
        self.trouble = ""
        """Why it does not listen although it should."""

    async def run(self, address: str) -> None:
        """Serve pages on `address` (`IP:PORT`, or empty) and notify systemd, until cancelled."""
        self._runs = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_left_out)
            nursery.start_soon(self.watch.run, lambda: self._history.note(self._snapshot()))
            nursery.start_soon(self._try_failed)
            if self._readiness.is_notified:
                nursery.start_soon(self._tell_systemd)
            if address:
                nursery.start_soon(self._serve, address)

    def describe(self) -> str:
        """One line about the mount as it is now, for `systemctl status`."""
        return summarize(self._snapshot())

    def listen_now(self) -> None:
        """Try a port that was taken again now."""
        self._try_now.set()

    async def check_health(self) -> HealthStatus:
        """Tell whether the mount is `alive` and `ready`, as the pages do. Takes at most 15 s."""
        if not self._runs:
            account = self._snapshot()
            return HealthStatus(
                alive=False,
                ready=False,
                mount_answers=False,
                repositories=_states(account),
                problems=account.problems,
            )
        health = await self._check_ready()
        return replace(health, alive=health.mount_answers or await self._probe.answers() is not False)

    async def _serve(self, address: str) -> None:
        listener = await self._listen(address)
        # Late, because importing takes some 40 ms, which would delay the mount.
        from d7yfs.monitor import metrics, status_page

        def prepare_metrics() -> Callable[[], HttpPage]:
            account = self._snapshot()
            return lambda: HttpPage(200, metrics.CONTENT_TYPE, metrics.render(account))

        def prepare_status() -> Callable[[], HttpPage]:
            account = self._snapshot()
            rates, activity = self._history.describe(account)
            return partial(status_page.render, account, rates, activity, now=time.time(), period_s=PERIOD_S)

        pages = {
            "/": SharedPage(prepare_status).show,
            "/metrics": SharedPage(prepare_metrics).show,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
        }
        name = listener.socket.getsockname()
        self.listens_on = f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
        where = self.listens_on
        log.info("metrics are at http://%s/metrics, the status page is at http://%s/", where, where)
        await http_listener.serve(listener, pages)

    async def _listen(self, address: str) -> trio.SocketListener:
        while True:
            try:
                listener = http_listener.listen(address)
            except MountError as error:
                if error.message != self.trouble:
                    log.warning("%s; tried again every %.0f s", error, LISTEN_RETRY_S)
                self.trouble = error.message
            else:
                self.trouble = ""
                return listener
            self._try_now = trio.Event()
            with trio.move_on_after(LISTEN_RETRY_S):
                await self._try_now.wait()

    async def _healthz(self) -> HttpPage:
        answers = await self._probe.answers()
        alive = answers is not False
        return HttpPage.of_json(200 if alive else 503, {"alive": alive, "mount_answers": answers})

    async def _readyz(self) -> HttpPage:
        health = await self._check_ready()
        return HttpPage.of_json(200 if health.ready else 503, as_json(health))

    async def _check_ready(self) -> HealthStatus:
        serves, account = await self._probe.serves(), self._snapshot()
        blocked = {each.repository for each in account.problems if each.blocks_reads}
        can_read = any(each.state != UNREACHABLE and each.label not in blocked for each in account.repositories)
        ready = serves is not False and can_read
        return HealthStatus(ready=ready, mount_answers=serves, repositories=_states(account), problems=account.problems)

    async def _try_failed(self) -> None:
        while True:
            await trio.sleep(PERIOD_S)
            await self._try_again()

    async def _tell_left_out(self) -> None:
        while True:
            await trio.sleep(logs.PERIOD_S)
            logs.tell_left_out()

    async def _tell_systemd(self) -> None:
        watchdog_s = self._readiness.watchdog_s
        while True:
            await trio.sleep(watchdog_s / _FEEDINGS if watchdog_s else _STATUS_PERIOD_S)
            if not watchdog_s or await self._probe.answers() is not False:
                self._readiness.notify(f"WATCHDOG=1\nSTATUS={self.describe()}")
            else:
                log.error("the mount does not answer: systemd will end this daemon if that lasts for %g s", watchdog_s)


def _states(account: MountStatus) -> dict[str, str]:
    return {each.label: each.state for each in account.repositories}


def summarize(status: MountStatus) -> str:
    """One line about a mount, for `systemctl status`. Pure."""
    where = ", ".join(each.url for each in status.repositories)
    said = f"{where} on {status.mountpoint}: {status.fuse.open_files} files open, {_gib(status.fuse.read_bytes)} read, "
    said += f"cache {_gib(status.cache.used_bytes)} of {_gib(status.cache.limit_bytes)}"
    bad = [f"{each.label} is {each.state}" for each in status.repositories if each.state != REACHABLE]
    bad += [each.text for each in status.problems]
    if (reload := status.last_reload) is not None:
        bad += [f"settings stay as they are: {reload.error}"] if reload.error else []
        bad += [f"the credentials of {name or 'the repository'}: {why}" for name, why in reload.refused.items()]
    return " ".join("; ".join([said, *bad]).split())


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"
