"""The hand-over: dfdaemon brings an object into its own store and links that file into our cache.
No byte passes through us.

dfdaemon's word about a piece is not believed alone. The task must be this version's, the size the
known one, the link a link, and the piece must have the CRC32 that dfdaemon recorded when it came
(`verify`: each piece, some, or none). dfdaemon checks that CRC32 itself on pieces from peers, and
never on those from its own disk.

- A piece is wrong: the link is dropped, and the version comes from the origin from then on (the
  fetcher's suspects).
- A socket does not answer, or a file cannot be linked (another file system, another mount
  namespace, an older client): logged once, and tried again when the circuit breaker lets one
  through. Until then the other ways are taken.

Several daemons on one cache directory each ask for themselves: the second one's pieces are local to
dfdaemon, and their links one file.

One `Handover` per repository, built by `repository`; run by `StreamFiller` in place of a stream.
"""

from __future__ import annotations

import errno
import logging
import re
import ssl
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from d7yfs.cache.proof import Proof
from d7yfs.cache.version import CachedVersion
from d7yfs.config.schema import RepositoryConfig
from d7yfs.errors import AccessDenied, BadReply, ConfigError, HandoverUnavailable, ObjectArchived, VersionUnbound
from d7yfs.fetch import dragonfly_task
from d7yfs.fetch.dragonfly_proxy import Breaker, Limits, Registration
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.journal import COMPLETE, Fill
from d7yfs.objects import ObjectVersion
from d7yfs.origins.origin import ReadRequest
from d7yfs.stats.repository_status import HandoverStatus
from d7yfs.stats.status import blank

if TYPE_CHECKING:
    from d7yfs.fill.dfdaemon_socket import DfdaemonSocket, Order, Piece, Started

log = logging.getLogger(__name__)

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_SAMPLE = 16
"""One piece of so many is checked, where only some are."""


Checked = tuple[bool, list[int] | None]
"""True if a piece was compared with its CRC32, and the result of `LinkedStore.check`."""


class Verify(Enum):
    """The pieces that are compared with dfdaemon's CRC32 before a byte of them is readable."""

    FIRST_USE = "first-use"
    SAMPLED = "sampled"
    OFF = "off"


class Handover:
    """One repository's way over dfdaemon's socket."""

    def __init__(
        self,
        socket: DfdaemonSocket,
        fetcher: Fetcher,
        *,
        options: dragonfly_task.TaskOptions,
        limits: Limits,
        required: bool = False,
        verify: Verify = Verify.FIRST_USE,
        certificates: tuple[bytes, ...] = (),
    ) -> None:
        """`required`: bytes that come neither so nor through a proxy are never fetched from the
        origin. `certificates`: in DER, the only ones that may sign the origin's; dfdaemon is told,
        though 1.5.10 ignores it. `limits` are shared with the proxies.
        """
        self.required = required
        self.counters = blank(HandoverStatus)
        self._socket = socket
        self._fetcher = fetcher
        self._options = options
        self.limits = limits
        self._verify = verify
        self._certificates = certificates
        self._breaker = Breaker()
        self._binds_content_ids = True
        self._state = "not tried yet"

    @property
    def url(self) -> str:
        return self._socket.url

    @property
    def state(self) -> str:
        """`in use`, `not tried yet`, or why it is not in use."""
        return self._state

    @property
    def usable(self) -> bool:
        """True if the next object should be asked for here."""
        return self.required or self._breaker.admits(trio.current_time())

    @property
    def down(self) -> bool:
        """True if the last hand-over failed, for dfdaemon's part."""
        return self._breaker.is_open

    def describe(self) -> HandoverStatus:
        """The state and the counters, for `status`."""
        total = self._fetcher.models.total
        return replace(
            self.counters,
            socket=self.url,
            state=self._state,
            source_bytes=total.back_to_source_bytes,
            remote_peer_bytes=total.remote_peer_bytes,
            local_peer_bytes=total.local_peer_bytes,
        )

    def close(self) -> None:
        """Close the connection; nothing may be under way."""
        self._socket.close()

    def task(self, request: ReadRequest, version: ObjectVersion) -> dragonfly_task.Task:
        """Make the task of `version` for dfdaemon; `request` is from its origin."""
        identity, content_ids = self._fetcher.origin.identity, self._binds_content_ids
        return dragonfly_task.task(request, identity, version, self._options, content_ids=content_ids)

    def new_registration(self, is_wanted: Callable[[], bool] = lambda: True) -> Registration:
        """Make a registration for a slot at the scheduler, which `bring` takes; `is_wanted` is True
        if a reader waits now.
        """
        return Registration(self.limits, is_wanted)

    async def bring(
        self,
        target: CachedVersion,
        advance: Callable[[int], None],
        *,
        registration: Registration | None = None,
        small_too: bool = False,
    ) -> None:
        """Have all of `target` handed over, in its slot; `advance` is told up to where everything
        has come.

        Raises HandoverUnavailable when this way does not work now; BadReply, or the origin's answer
        to dfdaemon, when it does not for this version. Bytes that have come stay.
        """
        registration = registration or self.new_registration()
        self._breaker.begin(trio.current_time())
        try:
            try:
                await self._attempt(target, advance, registration, small_too=small_too, fresh=False)
            except ObjectArchived:
                raise
            except AccessDenied as error:
                log.info("%s; signing again", error.message)
                await self._attempt(target, advance, registration, small_too=small_too, fresh=True)
        except HandoverUnavailable as error:
            self._record_failure(error)
            raise
        except VersionUnbound:
            self._binds_content_ids = False
            raise
        self.counters.handovers += 1

    def _record_failure(self, error: HandoverUnavailable) -> None:
        self._breaker.record_failure(trio.current_time())
        self._binds_content_ids = True  # it may come back as another release
        self.counters.trips = self._breaker.trips
        # Without the object's name: the way fails, and the next object is no news.
        reason = error.message.partition(": ")[2]
        if reason != self._state:
            log.warning("files are not handed over by dfdaemon: %s; they come by other ways until that works", reason)
        self._state = reason

    def _record_success(self) -> None:
        self._breaker.record_success()
        if self._state != "in use":
            log.info("files are handed over by dfdaemon at %s", self.url)
        self._state = "in use"

    async def _attempt(
        self,
        target: CachedVersion,
        advance: Callable[[int], None],
        registration: Registration,
        *,
        small_too: bool,
        fresh: bool,
    ) -> None:
        from d7yfs.fill.dfdaemon_socket import Order

        version, origin = target.version, self._fetcher.origin
        request = await origin.read_request(version, presigned=True, fresh=fresh)
        name = self._fetcher.name(version)
        self._fetcher.tokens.judge(request, name, trio.current_time())
        task = self.task(request, version)
        if target.backing.link_is_wrong:
            self._fetcher.suspects.add(version.identity)
            raise BadReply(f"{name}: dfdaemon's file was written after its check, and is not used again")
        link_path = target.backing.new_link_path()
        if link_path is None:
            raise BadReply(f"{name}: there is no cache on disk to link it into")
        order = Order(task, name, version.size_bytes, link_path, small_too, self._certificates)
        with self._fetcher.journal.fill(name, version, route="socket", task_id=task.id) as fill:
            fill.outcome = "not handed over"
            try:
                async with registration:
                    receiver = Receiver(self, order, target, advance, registration, fill)
                    await self._socket.download(order, receiver)
            finally:
                target.backing.end_link(link_path)
            receiver.finish()
            fill.outcome = COMPLETE

    # --- what a download tells ---

    def count(self, version: ObjectVersion, piece: Piece, *, checked: bool) -> None:
        """Count a piece that has become readable."""
        self._record_success()
        self._fetcher.on_granted(version)
        self.counters.checked_pieces += checked
        self._fetcher.models.of(version.key).count_piece(piece.range.size, piece.traffic)

    def explain_link_failure(self, order: Order, error: OSError) -> HandoverUnavailable:
        """Make the error for a file that dfdaemon says it has linked, and that we cannot use."""
        self.counters.link_failures += 1
        why = {
            errno.ENOENT: "its link is not to be seen here: it sees another directory under the cache's path, or is too old to link",
            errno.EACCES: "its file may not be read by this user",
            errno.EXDEV: "it has copied its file and not linked it",
        }.get(error.errno or 0, error.strerror or "its file cannot be used")
        return HandoverUnavailable(f"{order.name}: {why}")

    def is_to_check(self, number: int) -> bool:
        """True if the `number`-th piece that comes, from 0, is to be compared with its CRC32."""
        return self._verify is Verify.FIRST_USE or (self._verify is Verify.SAMPLED and number % _SAMPLE == 0)

    def distrust(self, order: Order, target: CachedVersion, piece: Piece) -> BadReply:
        """Drop the link, as `piece` has other bytes than dfdaemon says; returns the error."""
        self.counters.wrong_pieces += 1
        self._fetcher.suspects.add(target.version.identity)
        target.drop_link()
        log.error("%s: dfdaemon's file is wrong at %s: dropped; it comes from the store now", order.name, piece.range)
        return BadReply(f"{order.name}: dfdaemon's file is wrong at {piece.range}")


class Receiver:
    """The receiver of one download, which fills `target`. A thread checks its pieces."""

    def __init__(
        self,
        handover: Handover,
        order: Order,
        target: CachedVersion,
        advance: Callable[[int], None],
        registration: Registration,
        fill: Fill,
    ) -> None:
        self._handover = handover
        self._fill = fill
        self._order = order
        self._target = target
        self._advance = advance
        self._registration = registration
        self._count = 0
        self._position = 0
        self._ahead: dict[int, int] = {}
        """Pieces that came before the ones in front of them: start to stop."""

    async def start(self, started: Started) -> None:
        """Take the first message, in the trio thread."""
        order = self._order
        if started.size_bytes != order.size_bytes:
            raise BadReply(
                f"{order.name}: dfdaemon speaks of {started.size_bytes} bytes, the listing of {order.size_bytes}"
            )
        if not order.task.is_proved_by(started.task_id):
            raise VersionUnbound(f"{order.name}: dfdaemon answered with another task than this version's")
        try:
            await self._target.backing.adopt_link(order.link_path)
        except OSError as error:
            raise self._handover.explain_link_failure(order, error) from error

    def check(self, piece: Piece) -> Checked:
        """Check a piece, in the download's own thread, in order."""
        to_check = self._handover.is_to_check(self._count)
        self._count += 1
        if to_check and piece.crc32 is None:
            raise BadReply(f"{self._order.name}: dfdaemon does not say what CRC32 its pieces have")
        linked = self._target.backing.linked
        assert linked is not None
        try:
            return to_check, linked.check(piece.range, piece.crc32 if to_check else None)
        except OSError as error:
            raise HandoverUnavailable(f"{self._order.name}: its file cannot be read: {error.strerror}") from error

    def land(self, piece: Piece, checked: Checked) -> None:
        """Take a piece and the result of `check`, in the trio thread, in order."""
        was_checked, crcs = checked
        if crcs is None:
            raise self._handover.distrust(self._order, self._target, piece)
        self._registration.release()
        self._handover.count(self._target.version, piece, checked=was_checked)
        self._fill.fetched_bytes += piece.range.size
        self._ahead[piece.range.start] = piece.range.stop
        while self._position in self._ahead:
            self._position = self._ahead.pop(self._position)
        self._advance(self._position)
        self._target.proof.record(Proof.PENDING)
        self._target.land_linked(piece.range, crcs)

    def finish(self) -> None:
        """Raise BadReply if a piece is missing at the end."""
        if self._position < self._order.size_bytes:
            raise BadReply(f"{self._order.name}: dfdaemon has ended before {self._position}, which it has not brought")


def open_handover(
    config: RepositoryConfig, fetcher: Fetcher, options: dragonfly_task.TaskOptions, limits: Limits
) -> Handover | None:
    """Make the hand-over of a configuration; None if it has no socket. Raises ConfigError."""
    if not config.dfdaemon_socket:
        return None
    try:
        from d7yfs.fill.dfdaemon_socket import DfdaemonSocket
    except ImportError as error:
        raise ConfigError(
            f"dfdaemon_socket needs packages that are not installed ({error.name or 'grpcio'})",
            hint="install d7yfs with its extra [dragonfly]: in a clone, `make install`, or pipx install '.[dragonfly]'; "
            "or leave dfdaemon_socket out",
        ) from error
    try:
        certificates = certificates_in(config.ca_bundle) if config.ca_bundle else ()
    except (OSError, ValueError) as error:
        raise ConfigError(f"ca_bundle: {config.ca_bundle} cannot be read") from error
    return Handover(
        DfdaemonSocket(config.dfdaemon_socket),
        fetcher,
        options=options,
        limits=limits,
        required=not config.fallback,
        verify=Verify.FIRST_USE if config.p2p_verify == "required" else Verify(config.p2p_verify),
        certificates=certificates,
    )


def certificates_in(path: Path) -> tuple[bytes, ...]:
    """The certificates of a PEM file, in DER. Raises OSError."""
    return tuple(ssl.PEM_cert_to_DER_cert(each) for each in _CERTIFICATE.findall(path.read_text()))
