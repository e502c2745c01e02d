"""Fills in the log, and which way is remembered."""

from __future__ import annotations

import json
import logging
from contextlib import suppress

import pytest
import trio
from trio.testing import MockClock

from d7yfs.fetch.journal import Journal
from d7yfs.logs import JsonFormatter
from d7yfs.objects import ObjectVersion
from d7yfs.stats.repository_status import FillStatus

VERSION = ObjectVersion("m/w.bin", 100, '"e"', 1)


async def test_a_fill_is_two_lines_with_the_facts_in_fields(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    journal = Journal()
    with caplog.at_level(logging.INFO):
        with journal.fill("s3://b/m/w.bin", VERSION, route="proxy", task_id="abc") as fill:
            await trio.sleep(2)
            fill.fetched_bytes = 60
            fill.outcome = "done"
        began, ended = (json.loads(JsonFormatter().format(record)) for record in caplog.records)
    assert began["message"] == "s3://b/m/w.bin: filling 100 bytes by proxy as task abc"
    assert began["level"] == "info"
    facts = {"object": "s3://b/m/w.bin", "route": "proxy", "size_bytes": 100, "task_id": "abc"}
    assert facts.items() <= began.items()
    assert ended["message"] == "s3://b/m/w.bin: fill done: 60 bytes by proxy in 2.00 s as task abc"
    assert (facts | {"fetched_bytes": 60, "seconds": 2.0, "outcome": "done"}).items() <= ended.items()


async def test_the_way_that_brought_something_is_remembered() -> None:
    journal = Journal()
    with journal.fill("s3://b/m/w.bin", VERSION, route="proxy", task_id="abc"):
        assert journal.route_of(VERSION) is None
    assert journal.route_of(VERSION) is None, "it has brought nothing"
    for route, task in (("proxy", "abc"), ("origin", "")):
        with suppress(ZeroDivisionError), journal.fill("n", VERSION, route=route, task_id=task) as fill:
            fill.fetched_bytes = 1
            raise ZeroDivisionError
        assert journal.route_of(VERSION) == route
    assert journal.route_of(ObjectVersion("m/w.bin", 100, '"f"', 1)) is None


async def test_the_latest_fills_are_shown() -> None:
    journal = Journal()
    for number in range(30):
        with journal.fill(f"n{number}", VERSION, route="proxy", task_id=str(number)) as fill:
            fill.outcome = "done"
    with journal.fill("never begun", VERSION, route="proxy"):
        pass
    with (
        journal.fill("last", VERSION, route="socket", task_id="abc") as fill,
        journal.fill("not begun", VERSION, route="proxy"),
    ):
        fill.fetched_bytes = 60
        *before, shown = journal.describe()
    assert shown == FillStatus(
        object="last", route="socket", task_id="abc", size_bytes=100, fetched_bytes=60, outcome="under way"
    )
    assert [each.object for each in before] == [f"n{number}" for number in range(10, 30)]
    assert {each.outcome for each in before} == {"done"}
    assert journal.describe()[-1].outcome == "stopped"


async def test_without_a_task_none_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), Journal().fill("n", VERSION, route="origin", task_id=""):
        pass
    assert "task" not in caplog.text
    assert caplog.messages[-1] == "n: fill stopped: 0 bytes by origin in 0.00 s"


async def test_what_never_began_is_not_told_and_what_begins_twice_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO):
        with Journal().fill("n", VERSION, route="proxy"):
            pass
        assert caplog.messages == []
        with Journal().fill("n", VERSION, route="proxy") as fill:
            fill.begin("abc")
            fill.begin("abc")
    assert len(caplog.messages) == 2
    assert all(message.endswith("as task abc") for message in caplog.messages)
