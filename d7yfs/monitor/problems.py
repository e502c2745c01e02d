"""Which problems a mount has, by its account. Pure: times are seconds since the epoch.

`_OF_REPOSITORY` and `_OF_CACHE` are the table: for each problem the sign by which it is known, what
is still served, and what to do. A sign is seen in the facts that the owners of the numbers note, and
gone with their next success. One failure that a retry repairs is no problem: it lasts `PATIENCE_S`
or fails a program's read before it counts.

Called by `watch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from d7yfs.logs import show_time
from d7yfs.stats.cache_status import CacheStatus
from d7yfs.stats.failures import QUIET_S, REFUSED, UNUSABLE, FailureStatus
from d7yfs.stats.failures import UNREACHABLE as NO_ANSWER
from d7yfs.stats.problems import (
    CACHE_DISK_FAILING,
    CREDENTIALS_EXPIRED,
    CREDENTIALS_REFUSED,
    FILL_GIVES_UP,
    LISTING_STALE,
    NO_ROOM_TO_CACHE,
    PROXY_DOWN,
    PUBLICATION_UNUSABLE,
    STORE_UNREACHABLE,
    VERSION_CHANGED,
    ProblemStatus,
)
from d7yfs.stats.repository_status import UNREACHABLE, RepositoryStatus
from d7yfs.stats.status import MountStatus

PATIENCE_S = 5.0
"""Seconds of failures alone after which they are a problem."""
_NEWS_S = 60.0
"""Seconds for which an answer of the store proves that it answers: longer than `retrial` pauses."""
_FULL_S = 15.0
"""Seconds for which the cache may be full: longer than the pause of what evicts."""


@dataclass(frozen=True, slots=True)
class _Sign:
    """The sign of a problem: since when it is there (None: unknown), and why, in a few words."""

    since: float | None
    why: str


@dataclass(frozen=True, slots=True)
class _CacheRow:
    """One problem of the cache: how it is known, and what is said of it."""

    code: str
    title: str
    sign: Callable[[CacheStatus, float], _Sign | None]
    served: str
    hint: str


@dataclass(frozen=True, slots=True)
class _Row:
    """One problem of a repository, alike."""

    code: str
    title: str
    sign: Callable[[RepositoryStatus, float], _Sign | None]
    served: Callable[[RepositoryStatus, float], str]
    hint: Callable[[RepositoryStatus], str]
    blocks: Callable[[RepositoryStatus], bool] = lambda _: False


# --- signs ---


def _is_problem(failing: FailureStatus, repository: RepositoryStatus, now: float) -> bool:
    """True if failures have lasted, or have failed a program's read."""
    if failing.since is None:
        return False
    read_at = repository.failures.reads.last_at
    lasts = failing.count > 1 and now - failing.since >= PATIENCE_S
    return lasts or repository.state == UNREACHABLE or (read_at is not None and read_at >= failing.since)


def _fails(repository: RepositoryStatus, now: float, *kinds: str) -> _Sign | None:
    """The sign that the store fails questions about names, or requests for data, in such a way."""
    both = (repository.failures.data, repository.failures.names)
    seen = [each for each in both if each.kind in kinds and _is_problem(each, repository, now)]
    return _Sign(min(each.since or now for each in seen), seen[0].why) if seen else None


def _does_not_answer(repository: RepositoryStatus, now: float) -> _Sign | None:
    data, answered_s = repository.failures.data, repository.listing.answered_s
    if data.since is not None and answered_s is not None and answered_s < min(_NEWS_S, now - data.since):
        return None  # it answers questions about names: only some files cannot be read
    return _fails(repository, now, NO_ANSWER)


def _cannot_list(repository: RepositoryStatus, now: float) -> _Sign | None:
    failing = repository.failures.names
    if failing.kind in (NO_ANSWER, REFUSED) or not _is_problem(failing, repository, now):
        return None
    return _Sign(failing.since, failing.why)


def _have_expired(repository: RepositoryStatus, now: float) -> bool:
    """True if the credentials are past their time. Unless a request fails, the next one renews them."""
    expires_at = repository.credentials_expire_at
    return expires_at is not None and expires_at <= now


def _is_expired(repository: RepositoryStatus, now: float) -> _Sign | None:
    return _fails(repository, now, REFUSED, UNUSABLE) if _have_expired(repository, now) else None


def _is_refused(repository: RepositoryStatus, now: float) -> _Sign | None:
    return None if _have_expired(repository, now) else _fails(repository, now, REFUSED)


def _proxy_fails(repository: RepositoryStatus, now: float) -> _Sign | None:
    failing, open_ = repository.failures.proxy, [each for each in repository.proxies if each.breaker != "closed"]
    if not open_ or len(open_) < len(repository.proxies):
        return None
    why = f"{failing.why or 'it did not answer'}, {', '.join(each.url for each in open_)}"
    if not failing.count or _is_problem(failing, repository, now) or now - (failing.since or now) >= PATIENCE_S:
        return _Sign(failing.since, why)
    return None


def _reads_fail(repository: RepositoryStatus, now: float) -> _Sign | None:
    return _rare(repository.failures.reads, now)


def _versions_change(repository: RepositoryStatus, now: float) -> _Sign | None:
    return _rare(repository.failures.versions, now)


def _publication_fails(repository: RepositoryStatus, _now: float) -> _Sign | None:
    found = repository.publication
    return _Sign(found.trouble_since, found.trouble) if found is not None and found.trouble else None


def _rare(failing: FailureStatus, now: float) -> _Sign | None:
    if failing.last_at is None or now - failing.last_at > QUIET_S:
        return None
    return _Sign(failing.since, f"{failing.object}: {failing.why}" if failing.object else failing.why)


# --- what is said ---


def _what_is_known(repository: RepositoryStatus, now: float) -> str:
    """The files and names that are served without the store, and how many reads have failed."""
    kept, answered_s = repository.tree_cache, repository.listing.answered_s
    if repository.state == UNREACHABLE:
        said = "its directory is empty" if repository.name else "the mount is empty"
    elif kept is not None and kept.offline_since is not None and kept.listed_at is not None:
        said = f"cached files are served, the names are from {show_time(kept.listed_at)}"
    elif repository.failures.names.count and answered_s is not None:
        said = f"cached files are served, the listing is from {show_time(now - answered_s)}"
    else:
        said = "cached files are served"
    return said + _failed(repository)


def _by_other_way(repository: RepositoryStatus, _now: float) -> str:
    if repository.proxy_required:
        return "cached files are served, others fail" + _failed(repository)
    return "files come straight from the store" + _failed(repository)


def _others(_repository: RepositoryStatus, _now: float) -> str:
    return "other files can be read"


def _last_good(repository: RepositoryStatus, _now: float) -> str:
    found = repository.publication
    if found is None or not found.is_followed or found.published_at is None:
        return "names come from listings"
    return f"names are as they were published at {show_time(found.published_at)}"


def _publish_again(repository: RepositoryStatus) -> str:
    return f"run d7yfs publish {repository.url} again"


def _after_change(repository: RepositoryStatus) -> str:
    if repository.publication is not None and repository.publication.is_followed:
        return f"{_publish_again(repository)}; then have the programs open the files again"
    return "have the programs open them again; upload new versions under new names, or mount with --versioned"


def _failed(repository: RepositoryStatus) -> str:
    count = repository.failures.reads.count
    return f"; {count} {'read' if count == 1 else 'reads'} failed" if count else ""


_OF_REPOSITORY = (
    _Row(
        STORE_UNREACHABLE,
        "store unreachable",
        _does_not_answer,
        _what_is_known,
        lambda _: "check --endpoint-url, the network and the store; d7yfs check tries them",
    ),
    _Row(
        CREDENTIALS_EXPIRED,
        "credentials expired",
        _is_expired,
        _what_is_known,
        lambda _: "renew them, then d7yfs reload",
    ),
    _Row(
        CREDENTIALS_REFUSED,
        "credentials refused",
        _is_refused,
        _what_is_known,
        lambda each: f"check the credentials ({each.origin.get('credentials') or 'none'}), then d7yfs reload",
    ),
    _Row(
        PROXY_DOWN,
        "proxy down",
        _proxy_fails,
        _by_other_way,
        lambda each: "start dfdaemon" + (", or mount without --no-fallback" if each.proxy_required else ""),
        blocks=lambda each: each.proxy_required,
    ),
    _Row(
        LISTING_STALE,
        "listing fails",
        _cannot_list,
        _what_is_known,
        lambda _: "d7yfs check says what is wrong with the listing",
    ),
    _Row(PUBLICATION_UNUSABLE, "what is published is unusable", _publication_fails, _last_good, _publish_again),
    _Row(
        FILL_GIVES_UP,
        "reads fail",
        _reads_fail,
        lambda each, _: _others(each, _) + _failed(each),
        lambda _: "see the log for that object; d7yfs check tries a read",
    ),
    _Row(
        VERSION_CHANGED,
        "files changed under their readers",
        _versions_change,
        _others,
        _after_change,
    ),
)
EXPLAINING = {STORE_UNREACHABLE, CREDENTIALS_EXPIRED, CREDENTIALS_REFUSED, PROXY_DOWN, LISTING_STALE}
"""Problems that explain reads which fail: these are no problem of their own then."""


def _room_is_short(cache: CacheStatus, now: float) -> _Sign | None:
    if cache.keepable_bytes == 0:
        if cache.used_bytes + cache.free_bytes - cache.min_free_bytes < cache.limit_bytes:
            free, least = _size(cache.free_bytes), _size(cache.min_free_bytes)
            return _Sign(None, f"{free} free on its disk, and --cache-min-free keeps {least}")
        return _Sign(None, f"--cache-size is {_size(cache.limit_bytes)}")
    if cache.full_s >= _FULL_S:
        return _Sign(now - cache.full_s, "all that is cached is in use")
    return None


def _disk_fails(cache: CacheStatus, now: float) -> _Sign | None:
    if cache.disk_stalled_s:
        return _Sign(now - cache.disk_stalled_s, "it does not answer")
    return _Sign(None, cache.disk_error) if cache.disk_error else None


_OF_CACHE = (
    _CacheRow(
        NO_ROOM_TO_CACHE,
        "no room to cache",
        _room_is_short,
        "files are read from the store again and again",
        "free space there, lower --cache-min-free, raise --cache-size, or name another --cache-dir",
    ),
    _CacheRow(
        CACHE_DISK_FAILING,
        "cache disk failing",
        _disk_fails,
        "files are read past it",
        "see dmesg; name another --cache-dir",
    ),
)


def find_problems(
    account: MountStatus, begun: Mapping[tuple[str, str], float], explained: Mapping[str, float], now: float
) -> tuple[ProblemStatus, ...]:
    """The problems of a mount. `begun` has when those began that were there before, by code and
    repository; `explained`, by repository, until when problems have explained reads that fail."""
    several = len(account.repositories) > 1

    def problem(
        row: _Row | _CacheRow, name: str, sign: _Sign, served: str, hint: str, *, blocks: bool
    ) -> ProblemStatus:
        since = begun.get((row.code, name), now if sign.since is None else sign.since)
        lasted = f" for {show_span(now - since)}" if now - since >= 1 else ""
        text = f"{row.title}{lasted} ({sign.why})"
        return ProblemStatus(
            code=row.code,
            repository=name,
            since=round(since, 3),
            text=f"{name}: {text}" if several and name else text,
            served=served,
            hint=hint,
            blocks_reads=blocks,
        )

    found: list[ProblemStatus] = []
    for each in account.repositories:
        codes: set[str] = set()
        for row in _OF_REPOSITORY:
            until = now if codes & EXPLAINING else explained.get(each.label, 0.0)
            if row.code == FILL_GIVES_UP and (each.failures.reads.last_at or 0.0) <= until + PATIENCE_S:
                continue
            if (sign := row.sign(each, now)) is not None:
                codes.add(row.code)
                served, hint = row.served(each, now), row.hint(each)
                found.append(problem(row, each.label, sign, served, hint, blocks=row.blocks(each)))
    for shared in _OF_CACHE:
        if (sign := shared.sign(account.cache, now)) is not None:
            found.append(problem(shared, "", sign, shared.served, shared.hint, blocks=False))
    return tuple(found)


def show_span(span_s: float) -> str:
    """A time span for people: `12 s`, `4 min`, `3 h`, `2 d`."""
    for most, unit_s, unit in ((120, 1, "s"), (7200, 60, "min"), (172800, 3600, "h")):
        if span_s < most:
            return f"{max(0, int(span_s)) // unit_s} {unit}"
    return f"{int(span_s) // 86400} d"


def _size(size_bytes: int) -> str:
    gib = size_bytes / (1 << 30)
    return f"{gib:.1f} GiB" if gib >= 0.1 else f"{size_bytes >> 20} MiB"
