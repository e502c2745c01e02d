"""Which problems an account shows, row by row; in real outages they are in tests/mount/test_problems.py."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from d7yfs.errors import (
    AccessDenied,
    BadReply,
    D7yfsError,
    OriginUnavailable,
    ProxyUnavailable,
    ReadTimeout,
    VersionGone,
)
from d7yfs.monitor.problems import find_problems, show_span
from d7yfs.monitor.watch import ProblemWatch
from d7yfs.stats.failures import FailureStatus
from d7yfs.stats.problems import CODES, ProblemStatus, count_by_code
from d7yfs.stats.status import MountStatus, as_json, parse
from tests.monitor.test_metrics import REPOSITORY, STATUS

NOW = 1_800_000_000.0
GIB = 1 << 30
ROOM: dict[str, Any] = {
    **STATUS["cache"],
    "limit_bytes": 50 * GIB,
    "free_bytes": 100 * GIB,
    "min_free_bytes": 2 * GIB,
    "keepable_bytes": 40 * GIB,
}
CLOSED = {"url": "http://h:4001", "breaker": "closed", "trips": 1, "binds_content_ids": True}
OPEN = CLOSED | {"breaker": "open"}
NONE = as_json(FailureStatus())
UNREACHABLE = OriginUnavailable("s3://b/k: 10.0.0.1:80 cannot be reached: Connection refused")
REFUSED = AccessDenied("s3://b/k: reading was refused (403 InvalidAccessKeyId)")


def failing(error: D7yfsError, *ago_s: float) -> dict[str, Any]:
    """Failures of one part, at these seconds before now."""
    made = FailureStatus()
    for each in sorted(ago_s, reverse=True):
        made.note(error, NOW - each)
    noted: dict[str, Any] = as_json(made)
    return noted


def account(*, cache: Mapping[str, Any] | None = None, several: bool = False, **repository: Any) -> MountStatus:
    failures = dict.fromkeys(("names", "data", "proxy", "reads", "versions"), NONE)
    failures |= {part: repository.pop(part) for part in list(repository) if part in failures}
    shown = REPOSITORY | {"proxies": [CLOSED], "credentials_expire_at": None, "failures": failures} | repository
    shown["listing"] = shown["listing"] | {"answered_s": 3600.0}
    others = [REPOSITORY | {"name": "other", "proxies": [CLOSED], "credentials_expire_at": None}] if several else []
    return parse(
        MountStatus, STATUS | {"repositories": [shown, *others], "cache": ROOM | dict(cache or {}), "problems": []}
    )


def found(shown: MountStatus) -> list[ProblemStatus]:
    return list(find_problems(shown, {}, {}, NOW))


def codes(shown: MountStatus) -> list[str]:
    return [each.code for each in found(shown)]


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ({}, []),
        ({"data": failing(UNREACHABLE, 2, 1)}, []),
        ({"data": failing(UNREACHABLE, 6)}, []),
        ({"data": failing(UNREACHABLE, 6, 1)}, ["store-unreachable"]),
        ({"names": failing(UNREACHABLE, 6, 1)}, ["store-unreachable"]),
        ({"data": failing(UNREACHABLE, 1), "reads": failing(ReadTimeout("x"), 0.5)}, ["store-unreachable"]),
        ({"data": failing(UNREACHABLE, 4000, 1)}, ["store-unreachable"]),
        ({"data": failing(REFUSED, 1), "reads": failing(REFUSED, 0.5)}, ["credentials-refused"]),
        ({"names": failing(REFUSED, 6, 1)}, ["credentials-refused"]),
        ({"names": failing(REFUSED, 6, 1), "credentials_expire_at": NOW - 60}, ["credentials-expired"]),
        ({"credentials_expire_at": NOW - 60}, []),
        ({"proxies": [OPEN], "proxy": failing(ProxyUnavailable("no"), 1)}, []),
        ({"proxies": [OPEN], "proxy": failing(ProxyUnavailable("no"), 6)}, ["proxy-down"]),
        ({"proxies": [OPEN]}, ["proxy-down"]),
        ({"proxies": [OPEN, CLOSED], "proxy": failing(ProxyUnavailable("no"), 6, 1)}, []),
        ({"names": failing(BadReply("the listing does not end"), 6, 1)}, ["listing-stale"]),
        ({"publication": {"trouble": "it is damaged"}}, ["publication-unusable"]),
        ({"publication": {"is_followed": True}}, []),
        ({"reads": failing(ReadTimeout("s3://b/k: nothing has come for 60 s"), 300)}, ["fill-gives-up"]),
        ({"reads": failing(ReadTimeout("s3://b/k: nothing has come for 60 s"), 601)}, []),
        ({"versions": failing(VersionGone("s3://b/k: was replaced"), 300)}, ["version-changed"]),
        ({"versions": failing(VersionGone("s3://b/k: was replaced"), 601)}, []),
        ({"state": "unreachable", "names": failing(UNREACHABLE, 0.1)}, ["store-unreachable"]),
        ({"cache": {"keepable_bytes": 0, "free_bytes": GIB}}, ["no-room-to-cache"]),
        ({"cache": {"full_s": 14.0}}, []),
        ({"cache": {"full_s": 15.0}}, ["no-room-to-cache"]),
        ({"cache": {"disk_stalled_s": 4.0}}, ["cache-disk-failing"]),
        ({"cache": {"disk_error": "Input/output error"}}, ["cache-disk-failing"]),
    ],
)
def test_the_signs(state: dict[str, Any], code: list[str]) -> None:
    assert codes(account(**state)) == code


def test_what_an_outage_says() -> None:
    reads = failing(ReadTimeout("s3://b/k: nothing has come for 60 s"), 60, 50, 40, 30)
    shown = account(names=failing(UNREACHABLE, 240, 3), data=failing(UNREACHABLE, 239, 30), reads=reads)
    (problem,) = found(shown)
    at = time.strftime("%H:%M", time.localtime(NOW - 3600))
    assert problem.since == NOW - 240
    assert problem.text == "store unreachable for 4 min (connection refused)"
    assert problem.served.startswith("cached files are served, the listing is from ")
    assert problem.served.endswith(f"{at}; 4 reads failed")
    assert problem.hint == "check --endpoint-url, the network and the store; d7yfs check tries them"
    assert problem.repository == "s3://b/llm"
    assert not problem.blocks_reads, "no other host serves more"


def test_a_store_that_answers_about_names_is_reachable() -> None:
    shown = account(data=failing(UNREACHABLE, 6, 1), reads=failing(ReadTimeout("x: nothing has come"), 1))
    (repository,) = shown.repositories
    answering = replace(repository, listing=replace(repository.listing, answered_s=2.0))
    assert codes(replace(shown, repositories=(answering,))) == ["fill-gives-up"]


@pytest.mark.parametrize(
    ("required", "served", "hint"),
    [
        (False, "files come straight from the store", "start dfdaemon"),
        (True, "cached files are served, others fail", "start dfdaemon, or mount without --no-fallback"),
    ],
)
def test_a_proxy_that_is_down(required: bool, served: str, hint: str) -> None:
    (problem,) = found(account(proxies=[OPEN], proxy_required=required))
    assert problem.text == "proxy down (it did not answer, http://h:4001)"
    assert (problem.served, problem.hint, problem.blocks_reads) == (served, hint, required)


@pytest.mark.parametrize(
    ("cache", "why"),
    [
        ({"free_bytes": GIB}, "1.0 GiB free on its disk, and --cache-min-free keeps 2.0 GiB"),
        ({"limit_bytes": 1 << 20, "used_bytes": 0}, "--cache-size is 1 MiB"),
    ],
)
def test_why_there_is_no_room(cache: dict[str, Any], why: str) -> None:
    (problem,) = found(account(cache=cache | {"keepable_bytes": 0}))
    assert problem.text == f"no room to cache ({why})"


def test_of_several_repositories_it_says_which() -> None:
    (problem,) = found(account(several=True, name="llm", names=failing(UNREACHABLE, 6, 1)))
    assert (problem.repository, problem.text) == ("llm", "llm: store unreachable for 6 s (connection refused)")


def test_failures_that_another_problem_explained_are_no_news_after_it() -> None:
    shown = account(reads=failing(ReadTimeout("x: nothing has come"), 9))
    assert [each.code for each in find_problems(shown, {}, {}, NOW)] == ["fill-gives-up"]
    assert not find_problems(shown, {}, {"s3://b/llm": NOW - 12}, NOW)


@pytest.mark.parametrize(
    ("span_s", "said"), [(0.4, "0 s"), (119, "119 s"), (240, "4 min"), (7200, "2 h"), (200_000, "2 d")]
)
def test_a_span(span_s: float, said: str) -> None:
    assert show_span(span_s) == said


def test_all_codes_are_counted() -> None:
    counts = count_by_code(found(account(proxies=[OPEN])))
    assert tuple(counts) == CODES
    assert [code for code, count in counts.items() if count] == ["proxy-down"]


def test_the_log_has_one_line_when_it_begins_and_one_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = iter((NOW, NOW + 5, NOW + 65, NOW + 70))
    watch = ProblemWatch(lambda: next(clock))
    outage = account(names=failing(UNREACHABLE, 60, 1))
    assert [each.text for each in watch.judge(outage).problems] == ["store unreachable for 60 s (connection refused)"]
    assert watch.judge(outage).problems
    assert not watch.judge(account()).problems
    assert not watch.judge(account()).problems
    said = [(each.levelname, each.getMessage()) for each in caplog.records]
    assert [level for level, _ in said] == ["WARNING", "INFO"]
    assert said[0][1].startswith("store-unreachable: store unreachable for 60 s (connection refused): cached files")
    assert said[1][1] == "store-unreachable of s3://b/llm is over, after 2 min"
