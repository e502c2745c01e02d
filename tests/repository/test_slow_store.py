"""The words about a store while somebody waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from d7yfs.config.sources import load_settings
from d7yfs.errors import AccessDenied
from d7yfs.repository.repository import Repository, open_repositories
from d7yfs.repository.slow_store import tell_while_slow


def repository(tmp_path: Path, **flags: object) -> Repository:
    flags = {"anonymous": True, "cache_dir": tmp_path, **flags}
    (found,) = open_repositories(load_settings(flags, ["s3://b/models"], None, {}, None))
    return found


async def test_a_store_that_keeps_silent_is_named_after_5_s(tmp_path: Path, autojump_clock: MockClock) -> None:
    said: list[tuple[float, str]] = []
    began_at = trio.current_time()
    silent = repository(tmp_path, endpoint_url="http://store:9000")

    async def work() -> str:
        await trio.sleep(30)
        return "done"

    assert (
        await tell_while_slow(work, silent, lambda text: said.append((trio.current_time() - began_at, text))) == "done"
    )
    assert [round(moment) for moment, _ in said] == [5, 20]
    words = "s3://b/models: no answer from http://store:9000 for 5 s (credentials: none (anonymous)); trying on"
    assert said[0][1] == words
    await silent.aclose()


async def test_one_that_answers_in_time_is_not(tmp_path: Path, autojump_clock: MockClock) -> None:
    said: list[str] = []
    prompt = repository(tmp_path)

    async def refused() -> None:
        await trio.sleep(4.9)
        raise AccessDenied("no")

    with pytest.raises(AccessDenied, match="no"):
        await tell_while_slow(refused, prompt, said.append)
    assert said == []
    await prompt.aclose()
