"""How a running mount tells others how it is: pages for Prometheus and for probes, `d7yfs health`, systemd's watchdog. And the log, which
is to say every minute how many lines were left out of it.

Nothing here may hold up or end the mount: a port that is taken is said in the log and in `status`, the mount goes on without, and it is
tried again, for its holder may be a mount that is about to end.

- /healthz: 200 while the daemon answers its mount (statfs), else 503. A restart mends what it finds.
- /readyz: 200 while the root of the mount can be looked at, and a store answers or what was listed before is served.
- systemd's watchdog is fed while the daemon answers its mount, whatever its stores do: a kill costs every reader of the mount.

A mount that cannot be asked from here (`/dev/fd/N`, or no room for a process) is taken to be well, and `mount_answers` is null.

Built and run by `daemon`, which hands it the status that all this is made of; `commands` asks it for the health.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import trio

from d7yfs import logs
from d7yfs.errors import MountError
from d7yfs.host.launch import Readiness
from d7yfs.monitor import http_listener
from d7yfs.monitor.http_listener import Page
from d7yfs.monitor.probe import Probe

log = logging.getLogger(__name__)

_FEEDINGS = 4
"""Within the time after which systemd's watchdog bites."""
_STATUS_PERIOD_S = 30.0
"""How often systemd is told how the mount is, where there is no watchdog."""
LISTEN_RETRY_S = 30.0
"""How often a port that is taken is tried again."""


class Monitoring:
    """One mount's. `snapshot` gives what `status` says; it must not wait."""

    def __init__(self, snapshot: Callable[[], Mapping[str, Any]], probe: Probe, readiness: Readiness) -> None:
        self._snapshot = snapshot
        self._probe = probe
        self._readiness = readiness
        self._runs = False
        """Before that the mount point is an ordinary directory, which answers too."""
        self._try_now = trio.Event()
        self.listens_on = ""
        """Empty while nothing is listened on."""
        self.trouble = ""
        """Why not, where it was to be."""

    async def run(self, address: str) -> None:
        """Once there is a mount: serve on `address` (`IP:PORT`; empty: nowhere) and tell who is to be told, until cancelled."""
        self._runs = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._tell_left_out)
            if self._readiness.is_notified:
                nursery.start_soon(self._tell_systemd)
            if address:
                nursery.start_soon(self._serve, address)

    def listen_now(self) -> None:
        """Try again now, where the port was taken."""
        self._try_now.set()

    async def health(self) -> dict[str, Any]:
        """Whether the mount is `alive` and `ready`, as the pages have it. Waits for its answer, for 15 s at most."""
        if not self._runs:
            return {"alive": False, "ready": False, "mount_answers": False, "repositories": self._states()}
        told = await self._readiness_now()
        return {"alive": told["mount_answers"] or await self._probe.answers() is not False} | told

    async def _serve(self, address: str) -> None:
        listener = await self._listener(address)
        # Importing takes some 40 ms, which nobody who waits for the mount should pay.
        from d7yfs.monitor import metrics

        async def show_metrics() -> Page:
            return Page(200, metrics.CONTENT_TYPE, await trio.to_thread.run_sync(metrics.render, self._snapshot()))

        pages = {"/metrics": show_metrics, "/healthz": self._healthz, "/readyz": self._readyz}
        name = listener.socket.getsockname()
        self.listens_on = f"[{name[0]}]:{name[1]}" if ":" in name[0] else f"{name[0]}:{name[1]}"
        log.info("metrics are at http://%s/metrics", self.listens_on)
        await http_listener.serve(listener, pages)

    async def _listener(self, address: str) -> trio.SocketListener:
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

    async def _healthz(self) -> Page:
        answers = await self._probe.answers()
        alive = answers is not False
        return Page.of_json(200 if alive else 503, {"alive": alive, "mount_answers": answers})

    async def _readyz(self) -> Page:
        told = await self._readiness_now()
        return Page.of_json(200 if told["ready"] else 503, told)

    async def _readiness_now(self) -> dict[str, Any]:
        serves, states = await self._probe.serves(), self._states()
        ready = serves is not False and any(state != "unreachable" for state in states.values())
        return {"ready": ready, "mount_answers": serves, "repositories": states}

    def _states(self) -> dict[str, str]:
        return {each["name"] or each["url"]: each["state"] for each in self._snapshot()["repositories"]}

    async def _tell_left_out(self) -> None:
        while True:
            await trio.sleep(logs.PERIOD_S)
            logs.tell_left_out()

    async def _tell_systemd(self) -> None:
        watchdog_s = self._readiness.watchdog_s
        while True:
            await trio.sleep(watchdog_s / _FEEDINGS if watchdog_s else _STATUS_PERIOD_S)
            if not watchdog_s or await self._probe.answers() is not False:
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
    if (reload := status.get("last_reload")) and reload["error"]:
        bad.append("its settings could not be read again")
    return "; ".join([said, *bad])


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 30):.1f} GiB"
