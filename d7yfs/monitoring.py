"""How a running mount tells others how it is: pages for Prometheus and for probes, and systemd's watchdog.

Nothing here may hold up or end the mount: a port that is taken is said in the log and in `status`, and the mount goes on without.

- /healthz: 200 while the daemon answers its mount (statfs), else 503. A restart mends what it finds.
- /readyz: 200 while the root of the mount can be looked at, and a store answers or what was listed before is served.
- systemd's watchdog is fed while the daemon answers its mount, whatever its stores do: a kill costs every reader of the mount.

Built and run by `daemon`, which hands it the status that all this is made of.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import trio

from d7yfs import metrics_http
from d7yfs.errors import MountError
from d7yfs.health import Probe
from d7yfs.metrics_http import Page
from d7yfs.readiness import Readiness

log = logging.getLogger(__name__)

_FEEDINGS = 4
"""Within the time after which systemd's watchdog bites."""
_STATUS_PERIOD_S = 30.0
"""How often systemd is told how the mount is, where there is no watchdog."""


class Monitoring:
    """One mount's. `snapshot` gives what `status` says; it must not wait."""

    def __init__(self, snapshot: Callable[[], Mapping[str, Any]], probe: Probe, readiness: Readiness) -> None:
        self._snapshot = snapshot
        self._probe = probe
        self._readiness = readiness
        self.listens_on = ""
        """Empty while nothing is listened on."""
        self.trouble = ""
        """Why not, where it was to be."""

    async def run(self, address: str) -> None:
        """Serve on `address` (`IP:PORT`; empty: nowhere) and keep systemd informed, until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._readiness.is_notified:
                nursery.start_soon(self._tell_systemd)
            if address:
                await self._listen(address, nursery)

    async def _listen(self, address: str, nursery: trio.Nursery) -> None:
        try:
            listener = metrics_http.listen(address)
        except MountError as error:
            self.trouble = error.message
            log.warning("%s", error)
            return
        # Importing takes some 40 ms, which nobody who waits for the mount should pay.
        from d7yfs import metrics

        async def show_metrics() -> Page:
            return Page(200, metrics.CONTENT_TYPE, await trio.to_thread.run_sync(metrics.render, self._snapshot()))

        pages = {"/metrics": show_metrics, "/healthz": self._healthz, "/readyz": self._readyz}
        name = listener.socket.getsockname()
        self.listens_on = f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
        log.info("metrics are at http://%s/metrics", self.listens_on)
        nursery.start_soon(metrics_http.serve, listener, pages)

    async def _healthz(self) -> Page:
        answers = await self._probe.answers()
        return Page.of_json(200 if answers else 503, {"alive": answers})

    async def _readyz(self) -> Page:
        serves = await self._probe.serves()
        states = {each["name"] or each["url"]: each["state"] for each in self._snapshot()["repositories"]}
        ready = serves and any(state != "unreachable" for state in states.values())
        return Page.of_json(200 if ready else 503, {"ready": ready, "mount_answers": serves, "repositories": states})

    async def _tell_systemd(self) -> None:
        watchdog_s = self._readiness.watchdog_s
        while True:
            await trio.sleep(watchdog_s / _FEEDINGS if watchdog_s else _STATUS_PERIOD_S)
            if not watchdog_s or await self._probe.answers():
                self._readiness.notify(f"WATCHDOG=1\nSTATUS={summary(self._snapshot())}")
            else:
                log.error("the mount does not answer: systemd will end this daemon if that lasts for %g s", watchdog_s)


def summary(status: Mapping[str, Any]) -> str:
    """One line about a mount, for `systemctl status`. Pure."""
    where = ", ".join(each["url"] for each in status["repositories"])
    cache, fuse = status["cache"], status["fuse"]
    said = f"{where} on {status['mountpoint']}: {fuse['open_files']} files open, {_gib(fuse['read_bytes'])} read, "
    said += f"cache {_gib(cache['used_bytes'])} of {_gib(cache['limit_bytes'])}"
    bad = [
        f"{each['name'] or each['url']} is {each['state']}"
        for each in status["repositories"]
        if each["state"] != "reachable"
    ]
    return "; ".join([said, *bad])


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"
