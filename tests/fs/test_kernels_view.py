"""The age of a reader's view, with the kernel's cache in between: never above the metadata TTL.

The kernel is a model, which no notice of a change reaches here. All else is real: the file system,
its tree, the lister and the refresher. Each way of listing is tested.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from d7yfs.fs.filesystem import Filesystem
from d7yfs.tree.source import ListingMode
from tests.fs.kernel import Kernel
from tests.fs.test_filesystem import TTL_S, Store, mounted

HOURS_S = 3600.0
SLACK_S = 0.01


class History:
    """The newest versions of one object, each with its time."""

    def __init__(self) -> None:
        self._changes: list[tuple[float, str]] = []

    def note(self, validator: str) -> None:
        self._changes.append((trio.current_time(), validator))

    def newest_since(self, at: float) -> set[str]:
        """The versions that were the newest at any moment from `at` on."""
        before = [validator for changed_at, validator in self._changes if changed_at <= at]
        return {*before[-1:], *(validator for changed_at, validator in self._changes if changed_at > at)}


@pytest.mark.parametrize("refreshing", [True, False])
@pytest.mark.parametrize("mode", [ListingMode.WHOLE, ListingMode.DIRECTORY, ListingMode.EXACT])
async def test_nothing_is_seen_that_is_older_than_the_time_to_live(
    tmp_path: Path, autojump_clock: MockClock, mode: ListingMode, refreshing: bool
) -> None:
    choose = random.Random(f"{mode} {refreshing}")
    store = Store(other=b"x", model__1__weights=b"x", model__config=b"0")
    store.delays_s = {"scan": 0.3, "list": 0.2, "stat": 0.1, "holds": 0.1}
    key, history = "model/config", History()

    async with (
        mounted(tmp_path, store) as made,
        trio.open_nursery() as nursery,
    ):
        filesystem = Filesystem(made.tree, {"": replace(store.source, listing=mode)}, made._cache, nursery)
        if refreshing:
            nursery.start_soon(filesystem.refreshers[""].run)
        kernel = Kernel()
        kernel.filesystem = filesystem
        history.note(store.versions[key].validator)

        async def change() -> None:
            for number in range(10_000):
                await trio.sleep(choose.expovariate(1 / 90))
                if choose.random() < 0.3:
                    store.versions.pop(key, None)
                    history.note("")
                else:
                    store.put(key, b"%d" % number)
                    history.note(store.versions[key].validator)

        nursery.start_soon(change)
        looks = 0
        while trio.current_time() < 10 * HOURS_S:
            began_at = trio.current_time()
            seen = await kernel.version(key)
            assert seen in history.newest_since(began_at - TTL_S - SLACK_S), f"at {began_at}: {seen!r}"
            looks += 1
            await trio.sleep(choose.choice([1, 5, 20, 100]))
        nursery.cancel_scope.cancel()
    assert kernel.answered_alone > looks, "the kernel's cache has a part in it"
