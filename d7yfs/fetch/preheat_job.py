"""The jobs by which Dragonfly's manager has its daemons fetch objects before readers ask (preheat). Pure.

Owns the body of a job and the reading of its outcome. Facts: the source of manager 2.5.1
(`manager/types/job.go`, `internal/job/types.go`, `scheduler/job/job.go`).

- A job is a list of URLs, with one tag, application, piece length and set of headers for all of them.
  It has no content id. So only a task that its URL or its tag binds to a version can be preheated.
- With one seed for each object, an object that fails is left out of the outcome, and the job succeeds.
- With all seeds or all daemons, the successes of a host on which another object failed are left out.
- What a daemon says of a failure may repeat the signed URL.

Called by `preheat` in `control`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from d7yfs.bounds.values import bounded_text, read_integer
from d7yfs.fetch.dragonfly_task import Task

FILES_PER_JOB = 8
"""As many as the scheduler begins at once: none waits in its queue while its signature ages."""

_ENDED = ("SUCCESS", "FAILURE")
_REASON_CHARACTERS = 300
_PER_VERSION = frozenset({"if-match"})
"""Headers that differ from object to object. A bound version needs none of them."""
_SECRETS = re.compile(r"\?\S*|(?i:authorization\W{0,5}(?:bearer\W{1,3})?|bearer\s+)\S+")


@dataclass(frozen=True, slots=True, repr=False)
class JobTerms:
    """All that the objects of one job share. `headers` may hold secrets."""

    tag: str
    application: str
    piece_length_bytes: int
    filtered_params: tuple[str, ...]
    headers: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, task: Task) -> JobTerms:
        """The terms under which a job makes `task`, which has no content id."""
        headers = tuple(
            (name, value)
            for name, value in sorted(task.headers.items())
            if name.lower() not in _PER_VERSION and not name.lower().startswith("x-dragonfly-")
        )
        return cls(task.tag, task.application, task.piece_length_bytes, task.filtered_params, headers)


def obstacle(task: Task, *, keyed: bool) -> str:
    """Why no job can make `task`, and what to do; empty if one can. `keyed`: there is a p2p secret."""
    if any(name.lower() == "authorization" for name in task.headers):
        return (
            "the credentials cannot sign URLs, and the manager gets no bearer token; d7yfs warm on one host brings it"
        )
    if not task.content_id:
        return ""
    if keyed:
        return "p2p_secret_file is part of its name, which the manager cannot compute; d7yfs warm on one host brings it"
    return (
        "its URL names no version, and the manager takes no content ids; mount a bucket that keeps versions with "
        "--versioned, on all hosts, or run d7yfs warm on one host"
    )


def make_job(terms: JobTerms, urls: Sequence[str], scope: str) -> dict[str, Any]:
    """The body of the request that creates a job. It holds signed URLs."""
    args: dict[str, Any] = {
        "type": "file",
        "urls": list(urls),
        "tag": terms.tag,
        "application": terms.application,
        "filtered_query_params": "&".join(terms.filtered_params),
        "headers": dict(terms.headers),
        "scope": scope,
        "concurrent_task_count": FILES_PER_JOB,
    }
    if terms.piece_length_bytes:
        args["piece_length"] = terms.piece_length_bytes
    return {"type": "preheat", "bio": "d7yfs warm --cluster", "args": args}


@dataclass(frozen=True, slots=True, repr=False)
class Part:
    """The outcome of a job at one scheduler, by URL: hosts that have the object, and failures."""

    arrived: Mapping[str, Sequence[str]]
    failed: Mapping[str, str]
    """Host and reason."""
    error: str
    """Why nothing is said of an object; empty if nobody knows."""


@dataclass(frozen=True, slots=True, repr=False)
class JobOutcome:
    """A job as the manager knows it now; it looks at its schedulers after 30 s, and then ever more rarely."""

    state: str
    parts: Sequence[Part]

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDED

    def hosts_of(self, url: str) -> list[str]:
        """The hosts that have the object."""
        return [host for part in self.parts for host in part.arrived.get(url, ())]

    def failure_of(self, url: str) -> str:
        """Why the object is not everywhere where it was to be; empty if it is. For a job that has
        ended."""
        if not self.parts:
            return f"the manager says {self.state} and no more; the scheduler's log has the reason"
        for part in self.parts:
            if url in part.failed:
                return part.failed[url]
            if not part.arrived.get(url):
                return part.error or "no host says that it has it; the scheduler's log has the reason"
        return ""


def read_number(answer: Any) -> int:
    """The number of a job that was created. Raises ValueError."""
    return read_integer(_mapping(answer).get("id"))


def read_outcome(answer: Any) -> JobOutcome:
    """The outcome in a job as the manager shows it. Raises ValueError."""
    answer = _mapping(answer)
    result = _mapping(answer.get("result") or {})
    parts = [_part(_mapping(each)) for each in _list(result.get("job_states"))]
    return JobOutcome(bounded_text(answer.get("state")), parts)


def _part(state: Mapping[str, Any]) -> Part:
    arrived: dict[str, list[str]] = {}
    failed: dict[str, str] = {}
    for result in map(_mapping, _list(state.get("results"))):
        for each in map(_mapping, _list(result.get("success_tasks"))):
            arrived.setdefault(_url(each), []).append(_host(each))
        for each in map(_mapping, _list(result.get("failure_tasks"))):
            failed.setdefault(_url(each), f"{_host(each)}: {showable(each.get('description'))}")
    return Part(arrived, failed, showable(state.get("error")) if state.get("error") else "")


def showable(text: object) -> str:
    """The words of another program about a failure, in one bounded line, without queries of URLs and tokens."""
    shown = " ".join(_SECRETS.sub("…", str(text or "no reason is given")[: 16 * _REASON_CHARACTERS]).split())
    printable = "".join(each if each.isprintable() else "?" for each in shown)
    return printable if len(printable) <= _REASON_CHARACTERS else f"{printable[:_REASON_CHARACTERS]}…"


def _url(entry: Mapping[str, Any]) -> str:
    url = entry.get("url")
    if not isinstance(url, str):
        raise ValueError("an object without a URL")
    return url


def _host(entry: Mapping[str, Any]) -> str:
    return bounded_text(entry.get("hostname") or entry.get("ip") or "unknown")


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("no JSON object where one was expected")
    return value


def _list(value: Any) -> list[Any]:
    if value is None:  # Go writes an empty list so
        return []
    if not isinstance(value, list):
        raise ValueError("no list where one was expected")
    return value
