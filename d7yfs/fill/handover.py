"""The hand-over: dfdaemon brings an object into its own store and links that file into our cache; no byte of it passes through us.

dfdaemon's word about a piece is only the beginning: the task must be this version's, the size the known one, the link a link, and the
piece's bytes must have the CRC32 that dfdaemon recorded when it came (`verify`: each, some, or none of them). dfdaemon checks that CRC32
itself on what peers send, and never on what it reads from its own disk.

- A piece that is wrong: the link is dropped, and the version comes from the origin from then on (the fetcher's suspects).
- A socket that does not answer, or a file that cannot be linked (another file system, another mount namespace, an older client): said
  once, and tried again when the breaker lets one through; until then the other ways are taken.

Several daemons on one cache directory each ask for themselves: the second one's pieces are local to dfdaemon, and their links one file.

One `Handover` per repository, built by `repository`; run by `StreamFiller` in place of a stream.
"""

from __future__ import annotations

import errno
import logging
import re
import ssl
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from d7yfs.cache.filler import FillTarget
from d7yfs.config.schema import RepositoryConfig
from d7yfs.errors import AccessDenied, BadReply, ConfigError, HandoverUnavailable, ObjectArchived, VersionUnbound
from d7yfs.fetch import dragonfly_task
from d7yfs.fetch.dragonfly_proxy import Breaker
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.journal import COMPLETE, Fill
from d7yfs.fetch.proxies import Limits, Registration
from d7yfs.objects import ObjectVersion
from d7yfs.origins.origin import ReadRequest

if TYPE_CHECKING:
    from d7yfs.fill.dfdaemon_socket import DfdaemonSocket, Order, Piece, Started

log = logging.getLogger(__name__)

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
_SAMPLE = 16
"""Of so many pieces one is checked, where only some are."""


class Verify(Enum):
    """Which pieces are compared with the CRC32 that dfdaemon recorded, before a byte of them is readable."""

    FIRST_USE = "first-use"
    SAMPLED = "sampled"
    OFF = "off"


@dataclass(slots=True)
class HandoverCounters:
    """Since start, for `status` and metrics. Bytes are those of pieces that became readable here."""

    handovers: int = 0
    """Objects that came whole."""
    source_bytes: int = 0
    """Brought by dfdaemon from the origin."""
    remote_peer_bytes: int = 0
    local_peer_bytes: int = 0
    """Were in dfdaemon's store already."""
    checked_pieces: int = 0
    wrong_pieces: int = 0
    link_failures: int = 0
    trips: int = 0
    """How often the socket, or the link, was found not to work."""

    def count_piece(self, size_bytes: int, traffic: str, *, checked: bool) -> None:
        """A piece has become readable."""
        self.checked_pieces += checked
        if traffic == "source":
            self.source_bytes += size_bytes
        elif traffic == "remote_peer":
            self.remote_peer_bytes += size_bytes
        elif traffic == "local_peer":
            self.local_peer_bytes += size_bytes


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
        """`required`: what comes neither so nor through a proxy is never fetched from the origin instead. `certificates`: in DER, who alone
        may sign the origin's; dfdaemon is told, though 1.5.10 does not heed it. `limits` are shared with the proxies.
        """
        self.required = required
        self.counters = HandoverCounters()
        self._socket = socket
        self._fetcher = fetcher
        self._options = options
        self._limits = limits
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
        """Whether the next object should be asked for here."""
        return self.required or self._breaker.admits(trio.current_time())

    def describe(self) -> dict[str, object]:
        """For `status`."""
        return {"socket": self.url, "state": self._state, **asdict(self.counters)}

    def close(self) -> None:
        """Close the connection; nothing may be under way."""
        self._socket.close()

    def task(self, request: ReadRequest, version: ObjectVersion) -> dragonfly_task.Task:
        """How dfdaemon is asked for `version`, which `request` gets from its origin."""
        identity, content_ids = self._fetcher.origin.identity, self._binds_content_ids
        return dragonfly_task.task(request, identity, version, self._options, content_ids=content_ids)

    def registration(self, is_wanted: Callable[[], bool] = lambda: True) -> Registration:
        """A turn at the scheduler, to be had by `bring`; `is_wanted`: whether a reader waits, now."""
        return Registration(self._limits, is_wanted)

    async def bring(
        self,
        target: FillTarget,
        advance: Callable[[int], None],
        *,
        registration: Registration | None = None,
        small_too: bool = False,
    ) -> None:
        """Have all of `target` handed over, in its turn; `advance` is told up to where everything has come.

        Raises HandoverUnavailable when this way does not work now; BadReply, or what the origin said to dfdaemon, when it does not for this
        version. What has come stays.
        """
        registration = registration or self.registration()
        self._breaker.asked(trio.current_time())
        try:
            try:
                await self._attempt(target, advance, registration, small_too=small_too, fresh=False)
            except ObjectArchived:
                raise
            except AccessDenied as error:
                log.info("%s; signing again", error.message)
                await self._attempt(target, advance, registration, small_too=small_too, fresh=True)
        except HandoverUnavailable as error:
            self._failed(error)
            raise
        except VersionUnbound:
            self._binds_content_ids = False
            raise
        self.counters.handovers += 1

    def _failed(self, error: HandoverUnavailable) -> None:
        self._breaker.failed(trio.current_time())
        self._binds_content_ids = True  # it may come back as another release
        self.counters.trips = self._breaker.trips
        # Without the object's name: it is the way that fails, and the next object will not make it news.
        reason = error.message.partition(": ")[2]
        if reason != self._state:
            log.warning("files are not handed over by dfdaemon: %s; they come by other ways until that works", reason)
        self._state = reason

    def _succeeded(self) -> None:
        self._breaker.succeeded()
        if self._state != "in use":
            log.info("files are handed over by dfdaemon at %s", self.url)
        self._state = "in use"

    async def _attempt(
        self,
        target: FillTarget,
        advance: Callable[[int], None],
        registration: Registration,
        *,
        small_too: bool,
        fresh: bool,
    ) -> None:
        from d7yfs.fill.dfdaemon_socket import Order

        version, origin = target.version, self._fetcher.origin
        request = await origin.read_request(version, presigned=True, fresh=fresh)
        task = self.task(request, version)
        name = self._fetcher.name(version)
        link_path = target.new_link_path()
        if link_path is None:
            raise BadReply(f"{name}: there is no cache on disk to link it into")
        order = Order(task, name, version.size_bytes, link_path, small_too, self._certificates)
        with self._fetcher.journal.fill(name, version, route="socket", task_id=task.id) as fill:
            fill.outcome = "not handed over"
            try:
                async with registration:
                    receiver = _Receiver(self, order, target, advance, registration, fill)
                    await self._socket.download(order, receiver)
            finally:
                target.clear_link_path(link_path)
            receiver.ended()
            fill.outcome = COMPLETE

    # --- what a download tells ---

    def count(self, version: ObjectVersion, piece: Piece, *, checked: bool) -> None:
        """`piece` of `version` has become readable."""
        self._succeeded()
        self.counters.count_piece(piece.range.size, piece.traffic, checked=checked)
        self._fetcher.models.of(version.key).count_piece(piece.range.size, piece.traffic)

    def link_failed(self, order: Order, error: OSError) -> HandoverUnavailable:
        """dfdaemon says that it has linked its file, and we cannot use it."""
        self.counters.link_failures += 1
        why = {
            errno.ENOENT: "its link is not to be seen here: it sees another directory under the cache's path, or is too old to link",
            errno.EACCES: "its file may not be read by this user",
            errno.EXDEV: "it has copied its file and not linked it",
        }.get(error.errno or 0, error.strerror or "its file cannot be used")
        return HandoverUnavailable(f"{order.name}: {why}")

    def is_to_check(self, number: int) -> bool:
        """Whether the piece that comes as the `number`-th, from 0, is to be compared with its CRC32."""
        return self._verify is Verify.FIRST_USE or (self._verify is Verify.SAMPLED and number % _SAMPLE == 0)

    def distrust(self, order: Order, target: FillTarget, piece: Piece) -> BadReply:
        """The bytes of `piece` are not those that dfdaemon speaks of."""
        self.counters.wrong_pieces += 1
        self._fetcher.suspects.add(target.version.identity)
        target.drop_link()
        log.error("%s: dfdaemon's file is wrong at %s: dropped; it comes from the store now", order.name, piece.range)
        return BadReply(f"{order.name}: dfdaemon's file is wrong at {piece.range}")


class _Receiver:
    """Makes `target` out of what one download tells. Its pieces are checked in the download's thread."""

    def __init__(
        self,
        handover: Handover,
        order: Order,
        target: FillTarget,
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
        """Pieces that have come before what lies before them: start to stop."""

    async def started(self, started: Started) -> None:
        order = self._order
        if started.size_bytes != order.size_bytes:
            raise BadReply(
                f"{order.name}: dfdaemon speaks of {started.size_bytes} bytes, the listing of {order.size_bytes}"
            )
        if not order.task.is_proved_by(started.task_id):
            raise VersionUnbound(f"{order.name}: dfdaemon answered with another task than this version's")
        try:
            await self._target.adopt_link(order.link_path)
        except OSError as error:
            raise self._handover.link_failed(order, error) from error

    def check(self, piece: Piece) -> tuple[bool, list[int] | None]:
        """Whether it was compared, and what `FillTarget.check_linked` says of it."""
        to_check = self._handover.is_to_check(self._count)
        self._count += 1
        if to_check and piece.crc32 is None:
            raise BadReply(f"{self._order.name}: dfdaemon does not say what CRC32 its pieces have")
        try:
            return to_check, self._target.check_linked(piece.range, piece.crc32 if to_check else None)
        except OSError as error:
            raise HandoverUnavailable(f"{self._order.name}: its file cannot be read: {error.strerror}") from error

    def landed(self, piece: Piece, checked: tuple[bool, list[int] | None]) -> None:
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
        self._target.land_linked(piece.range, crcs)

    def ended(self) -> None:
        """Nothing more will come. Raises BadReply when something lacks."""
        if self._position < self._order.size_bytes:
            raise BadReply(f"{self._order.name}: dfdaemon has ended before {self._position}, which it has not brought")


def open_handover(
    config: RepositoryConfig, fetcher: Fetcher, options: dragonfly_task.TaskOptions, limits: Limits
) -> Handover | None:
    """As a repository is configured; None where it names no socket. Raises ConfigError."""
    if not config.dfdaemon_socket:
        return None
    try:
        from d7yfs.fill.dfdaemon_socket import DfdaemonSocket
    except ImportError as error:
        raise ConfigError(
            f"dfdaemon_socket needs packages that are not installed ({error.name or 'grpcio'})",
            hint="pip install 'd7yfs[dragonfly]', or leave dfdaemon_socket out",
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
        verify=Verify(config.p2p_verify),
        certificates=certificates,
    )


def certificates_in(path: Path) -> tuple[bytes, ...]:
    """The certificates of a PEM file, in DER. Raises OSError."""
    return tuple(ssl.PEM_cert_to_DER_cert(each) for each in _CERTIFICATE.findall(path.read_text()))
