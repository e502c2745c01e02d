"""The filler of a version that is served with an edit: a model configuration without Dragonfly's agent.

It brings the whole object into memory, makes the edit, and hands the cache the result. So a cached
file has the edited bytes alone, whoever reads it, and its identity says so. The bytes are compared
with the store's checksum before the edit, where the settings ask for that: afterwards nothing could
prove them.

Such objects are small, so they come straight from the store, as small objects do. Only where the
mode is `always` they come through the proxy. dfdaemon never hands their file over.
"""

from __future__ import annotations

import logging

import trio

from d7yfs.cache.version import CachedVersion
from d7yfs.config.p2p import Mode
from d7yfs.errors import D7yfsError, Stopped
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.transfer import DIRECT, InMemory, Urgency
from d7yfs.fill.p2p_budget import Policy
from d7yfs.fill.route import Reason
from d7yfs.fill.verification import Verifier
from d7yfs.logs import fields
from d7yfs.objects import ByteRange
from d7yfs.servers.agentless_config import without_agent

log = logging.getLogger(__name__)


class EditedFiller:
    """A filler of `target`, all at once, single flight in this process.

    Two daemons that bring it write the same bytes. `verifier` is None where nothing is compared.
    """

    def __init__(
        self,
        target: CachedVersion,
        fetcher: Fetcher,
        nursery: trio.Nursery,
        policy: Policy,
        verifier: Verifier | None,
    ) -> None:
        self._target = target
        self._fetcher = fetcher
        self._nursery = nursery
        self._proxied = fetcher.proxy is not None and policy.mode_of(target.version.key) is Mode.ALWAYS
        self._required = fetcher.proxy is not None and fetcher.proxy.required
        self._verifier = verifier
        self._under_way: Urgency | None = None

    @property
    def window_bytes(self) -> int:
        return 0

    def request(self, wanted: ByteRange, ahead: ByteRange | None) -> None:  # noqa: ARG002 - it brings all
        self._start(urgent=True)

    def prefetch(self, ahead: ByteRange) -> None:  # noqa: ARG002
        self.fill()

    def fill(self) -> None:
        if self._target.keeps:
            self._start(urgent=False)

    def stop_filling(self) -> None:
        """Nothing: what is under way is small."""

    def _start(self, *, urgent: bool) -> None:
        if self._under_way is None:
            self._under_way = Urgency(urgent=urgent)
            self._nursery.start_soon(self._bring, self._under_way)
            self._target.begin_work()
        elif urgent:
            self._under_way.make_urgent()

    async def _bring(self, urgency: Urgency) -> None:
        target = self._target
        name, whole = self._fetcher.name(target.version), target.version.whole
        error: Exception | None = None
        try:
            if target.missing(whole):  # else another daemon has brought it
                data = await self._fetch(urgency)
                await target.write(0, memoryview(await trio.to_thread.run_sync(without_agent, data)))
        except D7yfsError as failure:
            error = failure
        except Exception as failure:
            log.exception("%s: fetching it to change it failed unexpectedly", name)
            error = failure
        except BaseException:
            # Cancelled: readers must not ask again.
            error = Stopped(f"{name}: reading was stopped")
            raise
        finally:
            self._under_way = None
            try:
                target.end_transfer(whole, error)
            finally:
                target.end_work()

    async def _fetch(self, urgency: Urgency) -> bytes:
        """The object's bytes, fetched once more if the first ones are wrong."""
        version, suspects = self._target.version, self._fetcher.suspects
        while True:
            known = version.identity in suspects
            proxied = self._proxied and (self._required or not known)
            sink, reason = InMemory(version.whole), Reason.SMALL if self._fetcher.proxy is not None else DIRECT
            await self._fetcher.fetch(version, version.whole, sink, urgency=urgency, proxied=proxied, reason=reason)
            data = bytes(sink.data)
            if self._verifier is None or not (wrong := await self._verifier.find_fault(version, data, p2p=proxied)):
                return data
            suspects.add(version.identity)
            await self._target.record_mismatch(strike_out=False)
            name, done = self._fetcher.name(version), "kept as it is" if known else "fetched again"
            log.error("%s: %s: %s", name, wrong, done, extra=fields({"object": name}))
            if known:
                return data
