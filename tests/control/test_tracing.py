"""`trace`: lines as they come, those that are asked for, and no more than a client takes."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import pytest
from trio.testing import MockClock

from d7yfs.control import tracing
from d7yfs.control.control_socket import Reply
from d7yfs.control.tracing import follow_trace
from d7yfs.errors import UsageError
from d7yfs.logs import TRACE


def _tell(path: str, ms: float = 1.0, key: str = "path") -> None:
    TRACE.tell(f"read {path}", **cast("dict[str, Any]", {key: path, "ms": ms}))


async def _lines(replies: AsyncGenerator[Reply, None]) -> list[str]:
    return [line["message"] for line in (await anext(replies))["lines"]]


async def test_lines_come_while_somebody_follows(autojump_clock: MockClock) -> None:
    assert not TRACE.is_on
    async with aclosing(follow_trace({})) as replies:
        assert await anext(replies) == {"lines": [], "left_out": 0}
        assert TRACE.is_on
        _tell("a")
        _tell("b")
        assert await _lines(replies) == ["read a", "read b"]
        assert await anext(replies) == {"lines": [], "left_out": 0}, "a sign of life"
    assert not TRACE.is_on


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"path": "llm/*"}, ["read llm/w.bin", "read s3://b/llm/w.bin"]),
        ({"slow_ms": 5}, ["read other", "read s3://b/llm/w.bin"]),
        ({"path": "llm/*", "slow_ms": 5.0}, ["read s3://b/llm/w.bin"]),
    ],
)
async def test_only_what_is_asked_for(autojump_clock: MockClock, asked: dict[str, object], expected: list[str]) -> None:
    async with aclosing(follow_trace(asked)) as replies:
        await anext(replies)
        _tell("llm/w.bin")
        _tell("other", 7.0)
        _tell("s3://b/llm/w.bin", 7.0, key="object")
        assert await _lines(replies) == expected


async def test_a_client_that_is_too_slow_costs_lines_and_no_memory(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracing, "_MOST_WAITING", 3)
    async with aclosing(follow_trace({})) as replies:
        await anext(replies)
        for number in range(5):
            _tell(str(number))
        reply = await anext(replies)
        assert [line["path"] for line in reply["lines"]] == ["0", "1", "2"]
        assert reply["left_out"] == 2


@pytest.mark.parametrize("asked", [{"path": 3}, {"slow_ms": "much"}])
async def test_what_cannot_be_asked(asked: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="a pattern of paths"):
        async with aclosing(follow_trace(asked)) as replies:
            await anext(replies)
