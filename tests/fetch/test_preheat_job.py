"""Bodies of preheat jobs, and outcomes that are none."""

from __future__ import annotations

from typing import Any

import pytest

from d7yfs.fetch.dragonfly_task import TaskOptions, task
from d7yfs.fetch.preheat_job import JobTerms, make_job, obstacle, read_number, read_outcome, showable
from d7yfs.objects import ObjectVersion, StoreIdentity
from d7yfs.origins.origin import ReadRequest

STORE = StoreIdentity("s3", "aws", "b")
VERSION = ObjectVersion("k", 9, '"e"', 1)
URL = "https://b.example/k?versionId=1&sig=5ecre7"


def test_a_job_has_the_terms_of_its_tasks() -> None:
    headers = {"X-Team": "llm", "X-Dragonfly-Tag": "theirs", "x-ms-version": "2021"}
    request = ReadRequest(URL, {"If-Match": '"e"', "x-ms-version": "2020"}, 1e9, frozenset({"own"}))
    made = task(request, STORE, VERSION, TaskOptions(application="app", filter=("a",), headers=headers))
    terms = JobTerms.of(made)
    assert dict(terms.headers) == {"X-Team": "llm", "x-ms-version": "2020"}
    args = make_job(terms, [made.url], "all_peers")["args"]
    assert (args["tag"], args["application"], args["scope"]) == ("theirs", "app", "all_peers")
    assert {"own", "a"} <= set(args["filtered_query_params"].split("&"))
    assert "versionId" not in args["filtered_query_params"].split("&")
    assert "piece_length" not in args
    assert "5ecre7" not in repr(terms)


def test_what_stands_in_the_way_of_a_job() -> None:
    def why(url: str = URL, secret: bytes = b"", **headers: str) -> str:
        made = task(ReadRequest(url, headers, 1e9), STORE, VERSION, TaskOptions(secret=secret))
        return obstacle(made, keyed=bool(secret))

    assert why() == ""
    assert "--versioned" in why("https://b.example/k")
    assert "--versioned" in why("https://b.example/k?versionId=null")
    assert "p2p_secret_file" in why(secret=b"s" * 32)
    assert "bearer token" in why(Authorization="Bearer x")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        {"state": 1},
        {"state": "SUCCESS", "result": [1]},
        {"state": "SUCCESS", "result": {"job_states": {}}},
        {"state": "SUCCESS", "result": {"job_states": [1]}},
        {"state": "SUCCESS", "result": {"job_states": [{"results": [{"success_tasks": [{"url": 1}]}]}]}},
        {
            "state": "SUCCESS",
            "result": {"job_states": [{"results": [{"success_tasks": [{"url": "u", "ip": "x" * 9999}]}]}]},
        },
    ],
)
def test_an_outcome_that_is_none(answer: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_outcome(answer)


def test_an_outcome_that_says_nothing() -> None:
    outcome = read_outcome({"state": "FAILURE", "result": None})
    assert outcome.has_ended
    assert "FAILURE and no more" in outcome.failure_of("u")
    pending = {"state": "PENDING", "result": {"job_states": [{"results": None, "state": "PENDING", "error": ""}]}}
    assert not read_outcome(pending).has_ended
    with pytest.raises(ValueError, match="number"):
        read_number({"id": -1})


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("GET https://b/k?versionId=1&sig=5ecre7: 403\nnext", "GET https://b/k… 403 next"),
        ("Authorization: Bearer 5ecre7 is\x1b[2J", "… is?[2J"),
        ('headers {"authorization": "Bearer 5ecre7"}', 'headers {"…'),
        ("authorization=5ecre7 bearer 5ecre7", "… …"),
    ],
)
def test_what_can_be_shown(said: str, shown: str) -> None:
    assert showable(said) == shown


def test_what_can_be_shown_is_bounded() -> None:
    assert showable(None) == "no reason is given"
    assert len(showable("x" * 100_000)) < 400
