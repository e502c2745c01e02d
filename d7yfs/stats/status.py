"""The account of one mount, in types: `commands` builds it; `d7yfs status`, scrapes and systemd are
told from it. Pure.

The fields are a promise: their names, order and docstrings are docs/status.md and its schema (`make
reference`). The owner of a number counts in the type of the account, or builds it: parts that are
not frozen begin as `blank`, and the account has copies of them. An account is JSON on the control
socket alone: `as_json` writes it there, and `parse` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache, partial
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from d7yfs.errors import MountError
from d7yfs.stats.cache_status import CacheStatus
from d7yfs.stats.problems import ProblemStatus, count_by_code
from d7yfs.stats.repository_status import OMITTED, RepositoryStatus

T = TypeVar("T")

_ABSENT = object()
_hints: Callable[[Any], dict[str, Any]] = cache(get_type_hints)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsStatus:
    """The listener for scrapes and probes."""

    listens_on: str
    """`IP:PORT`; empty when there is none."""
    error: str
    """Why there is none, although one is configured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeStatus:
    """The files and directories that are known now."""

    inodes: int
    """Files and directories."""
    inodes_limit: int
    """Most that are kept, apart from those in use (`--max-inodes`)."""
    directories: int
    directories_listed: int
    """Directories of which all entries are known."""
    files: int
    remembered: int
    """Inodes that the kernel or an open handle holds."""
    unlinked: int
    """Inodes that are held and are no entries any more."""
    hidden_keys: int
    """Keys that cannot be shown as files."""
    stale_listings_total: int
    """Listings that failed while an older one was served."""
    stale_answers_total: int
    """Lookups that were answered from such an older listing."""
    dropped_inodes_total: int
    """Inodes and known absences that were dropped to stay below the limit."""
    unmatched_forgets_total: int
    """Forgets of the kernel for more than it held."""


@dataclass(slots=True, kw_only=True)
class NoticesStatus:
    """The notices to the kernel about changed entries."""

    notices: int
    """Entries that the kernel was told to forget."""
    known: int
    """Of these, entries that it had."""
    overflow: int
    """Entries for which there was no room in the queue."""


@dataclass(slots=True, kw_only=True)
class WarmUpStatus:
    """One warm-up: its files, and its progress."""

    id: int
    """Its number in `d7yfs status` and in the log."""
    paths: tuple[str, ...]
    """Below the mount, without those that lie below another; the first hundred."""
    background: bool
    """True if it goes on without the command."""
    state: str
    """`planning`, `running`, and in the end `done` or `stopped`."""
    files: int
    """Files to bring."""
    files_done: int
    """Files that are whole in the cache, by this warm-up or by others."""
    size_bytes: int
    """Size of all these files."""
    missing_bytes: int
    """How much of them was not cached at the beginning."""
    fetched_bytes: int
    """Bytes that have come."""
    fits: bool
    """True if the cache can keep all of it at once."""
    room_bytes: int
    """How much the cache can keep."""
    files_left_out: int
    """For want of room, or because it was stopped; 0 before its end."""
    files_failed: int
    """Files that could not be brought."""
    failures: dict[str, str]
    """Why, by path: the first hundred."""
    elapsed_s: float
    rate_bytes_s: float
    eta_s: float | None
    """Null while nothing has come from which to judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshStatus:
    """The outcome of one refresh."""

    state: str = "done"
    """`done`."""
    directories: int
    """Directories that were asked for."""
    added: int
    """Entries that are new."""
    removed: int
    """Entries that are gone."""
    replaced: int
    """Entries that are another version now."""
    names: Mapping[str, tuple[str, ...]]
    """The first hundred of `added`, `removed` and `replaced`, below the mount."""
    elapsed_s: float


@dataclass(slots=True, kw_only=True)
class LatencyStatus:
    """The durations of one operation's requests."""

    counts: list[int]
    """Requests by bucket of `latency_bounds_s`; the last bucket has no bound."""
    sum_s: float
    """All durations, added up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestStatus:
    """One request of the kernel that is not answered yet."""

    operation: str
    path: str
    """Below the mount."""
    waited_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FuseStatus:
    """The requests of the kernel."""

    calls: Mapping[str, int]
    """Requests by operation."""
    errors: Mapping[str, int]
    """Requests that were answered with an error, by operation."""
    in_flight: int
    """Requests that are not answered yet."""
    oldest_request_s: float
    """For how long the oldest of these has waited; 0 if there is none."""
    waiting_reads: Mapping[str, int] = field(default_factory=dict)
    """Reads among these, by the uid of the user who opened the file, and opens that wait for bytes."""
    oldest_requests: tuple[RequestStatus, ...] = ()
    """The requests that have waited longest for an answer, ten at most."""
    latency_bounds_s: tuple[float, ...]
    """Upper bounds of the buckets."""
    latency: Mapping[str, LatencyStatus]
    """Durations by operation."""
    open_files: int
    """Files of the mount that are open."""
    open_files_limit: int = 0
    """Most that all users may have open. A file over 8 MiB may count as several."""
    open_directories: int = 0
    """Directories of the mount that are open."""
    open_directories_limit: int = 0
    """Most that all users may have open. One of a thousand names or more counts as several."""
    read_bytes: int
    """Bytes that readers got from the daemon, of all repositories. What the kernel reads by itself is
    not counted."""
    engine: str = ""
    """The engine that speaks with the kernel: `kernel` or `pyfuse3`."""
    passthrough: bool = False
    """True if the kernel reads whole files by itself from the cache."""
    passthrough_opens: int = 0
    """Opens of such files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingStatus:
    """One setting of the mount."""

    value: str
    """In words."""
    from_: str
    """The source of the value, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadStatus:
    """The outcome of reading the settings again."""

    at: float
    """When that was."""
    changed: Mapping[str, str] = field(default_factory=dict)
    """Options that have effect from now on, with their values in words."""
    later: tuple[str, ...] = ()
    """Settings that have effect at the next mount."""
    credentials: tuple[str, ...] = ()
    """Repositories, by name, whose credentials come from elsewhere now; all were looked for
    anew."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why credentials could not be had, by repository."""
    warnings: tuple[str, ...] = ()
    """About settings, in words."""
    error: str = ""
    """Why nothing has changed; empty if the settings could be read."""
    hint: str = ""
    """The way to repair the error."""

    @property
    def succeeded(self) -> bool:
        """True if everything could be read, credentials too."""
        return not self.error and not self.refused


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthStatus:
    """The health of one mount, for probes."""

    alive: bool | None = field(default=None, metadata=OMITTED)
    """True if the daemon answers its mount, as in `/healthz`."""
    ready: bool
    """True if the mount can be read, as in `/readyz`."""
    mount_answers: bool | None
    """True if the root could be read; null if it cannot be asked from there."""
    repositories: Mapping[str, str]
    """The `state` of each repository by its name, or URL."""
    problems: tuple[ProblemStatus, ...] = ()
    """As in `status`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverStatus:
    """The supervisor of the mount, and its workers: the daemons that serve it one after the other."""

    off: str = ""
    """Why nobody takes over when the daemon dies; empty if somebody does."""
    worker_pid: int = 0
    """The worker that serves the mount. The `pid` of the mount is its supervisor's."""
    worker_uid: int = 0
    """The user as whom it runs."""
    generation: int = 0
    """The number of this worker: 1 for the first."""
    restarts: int = 0
    """Workers that died, and were followed by another."""
    upgrades: int = 0
    """Workers that left for one of newer code, by `d7yfs upgrade`."""
    last_reason: str = ""
    """Why the worker before this one ended, in words."""
    standby: str = ""
    """The next worker: `ready`, `starting`, `none`, `off`, or why it could not be prepared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoversStatus:
    """The processes that receive file data beside the daemon."""

    processes: int = 0
    """Those that run now."""
    processes_limit: int = 0
    """Most that there may be (`--movers`)."""
    ready: int = 0
    """Those that have said that they take jobs."""
    jobs: int = 0
    """Bodies of replies that they receive now."""
    received_bytes: int = 0
    """Bytes that they have brought."""
    lost: int = 0
    """Processes that died, or hung, with jobs: the daemon went on by itself."""
    tls_connections: int = 0
    """Connections whose TLS they end, idle ones with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MountStatus:
    """One mount and its daemon."""

    schema: int
    """The number of this schema: 1."""
    mountpoint: str
    pid: int
    """The process to signal: the supervisor if there is one, else the daemon."""
    version: str
    """The version of d7yfs."""
    started_at: float
    uptime_s: float
    rss_bytes: int
    """Resident memory of the daemon."""
    log: str
    """Where the log goes, in words."""
    log_level: str
    """From which level on is logged."""
    problems: tuple[ProblemStatus, ...] = ()
    """Problems that the mount has now, by repository, the worst first."""
    metrics: MetricsStatus = MetricsStatus(listens_on="", error="known to newer daemons only")
    """The listener for scrapes and probes."""
    repositories: tuple[RepositoryStatus, ...]
    """In the order of the configuration."""
    cache: CacheStatus
    """The cache directory, and the outcome of reads."""
    tree: TreeStatus
    """The files and directories that are known now."""
    kernel_notices: NoticesStatus
    """Notices to the kernel about changed entries."""
    warm_ups: tuple[WarmUpStatus, ...]
    """The warm-ups that run, as `d7yfs warm --json` reports them."""
    fuse: FuseStatus
    """The requests of the kernel."""
    settings: Mapping[str, SettingStatus]
    """Each setting with its source."""
    takeover: TakeoverStatus = TakeoverStatus(off="known to newer daemons only")
    """The process that takes over when the daemon dies."""
    movers: MoversStatus = MoversStatus()
    """The processes that receive file data beside the daemon."""
    last_reload: ReloadStatus | None = None
    """The last outcome of reading the settings again, as `d7yfs reload --json` has it; null
    before."""
    warnings: tuple[str, ...]
    """About settings, in words."""

    @property
    def problems_by_code(self) -> dict[str, int]:
        """How many problems there are of each code."""
        return count_by_code(self.problems)

    @property
    def warm_ups_running(self) -> int:
        return len(self.warm_ups)

    @property
    def warm_ups_rest_bytes(self) -> int:
        """Bytes that the warm-ups have still to bring."""
        return sum(max(0, each.missing_bytes - each.fetched_bytes) for each in self.warm_ups)

    @property
    def warm_ups_failed_files(self) -> int:
        return sum(each.files_failed for each in self.warm_ups)


def as_json(part: object) -> Any:
    """An account, or a part of it, as JSON; optional fields without a value are left out."""
    if is_dataclass(part):
        shown = ((each, getattr(part, each.name)) for each in fields(part))
        return {
            key_of(each.name): as_json(value)
            for each, value in shown
            if value is not None or not each.metadata.get("omitted")
        }
    if isinstance(part, Mapping):
        return {key: as_json(value) for key, value in part.items()}
    return [as_json(each) for each in part] if isinstance(part, tuple) else part


def parse(kind: type[T], document: object) -> T:
    """The part `kind` of an account, from JSON or from an object with its fields; unknown fields
    are ignored.

    Raises MountError for a field that is missing and has no default, as in the answer of an older
    daemon.
    """
    get = document.get if isinstance(document, Mapping) else partial(getattr, document)
    values = {}
    for name, read, has_default in _readers(kind):  # type: ignore[arg-type]  # a class is hashable
        value = get(key_of(name), _ABSENT)
        if value is not _ABSENT:
            values[name] = read(value)
        elif not has_default:
            raise MountError(
                f"the daemon's answer lacks {key_of(name)!r} of {kind.__name__}",
                hint="it is of another version: see d7yfs status --json",
            )
    return kind(**values)


def blank(kind: type[T], **values: Any) -> T:
    """The part `kind` of an account before anything was counted, but for `values`."""
    hints = {name: hint for name, hint in _hints(kind).items() if name not in values}
    return kind(**values, **{name: _empty(hint) for name, hint in hints.items()})


def key_of(field_name: str) -> str:
    """The name of a field in JSON."""
    return field_name.rstrip("_")


@cache
def _readers(kind: type) -> list[tuple[str, Callable[[Any], Any], bool]]:
    """The fields of a part: name, reader of a JSON value, and whether there is a default."""
    hints = _hints(kind)
    return [
        (each.name, _reader(hints[each.name]), (each.default, each.default_factory) != (MISSING, MISSING))
        for each in fields(kind)
    ]


def _empty(hint: Any) -> Any:
    if isinstance(hint, type) and is_dataclass(hint):
        return blank(hint)
    kind = get_origin(hint) or hint
    return None if type(None) in get_args(hint) else {} if kind is Mapping else kind()


def _reader(hint: Any) -> Callable[[Any], Any]:
    origin, arguments = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return partial(parse, hint)
    if origin in (tuple, list):
        item = _reader(arguments[0])
        return lambda value: origin(map(item, value))
    if origin in (dict, Mapping):
        item = _reader(arguments[1])
        return lambda value: {key: item(each) for key, each in value.items()}
    if type(None) in arguments:
        item = _reader(arguments[0])
        return lambda value: None if value is None else item(value)
    return lambda value: value
