"""A repository's keys as they are shown, over an origin in memory: its requests and answers."""

from __future__ import annotations

import errno
from contextlib import aclosing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from d7yfs.config.globs import Globs
from d7yfs.config.markers import Markers
from d7yfs.errors import AccessDenied, BadReply, BucketNotFound, D7yfsError, NotFound, OriginUnavailable
from d7yfs.objects import WITHOUT_AGENT
from d7yfs.repository.latecomer import Latecomer
from d7yfs.repository.visible import VisibleListings
from d7yfs.stats.failures import FailuresStatus
from d7yfs.tree.listing import DirectoryListing, NoObject, Unordered
from d7yfs.tree.source import ListingSource, ask
from d7yfs.tree.visibility import EXCLUDED, UNPUBLISHED, Visibility
from tests.origins.memory import MemoryOrigin

_: type[ListingSource] = VisibleListings

KEYS = ("a/READY", "a/x", "b/y", "c.tmp", "d")


def shown(
    origin: MemoryOrigin, *, include: str = "", exclude: str = "", marker: str = "", prefix: str = ""
) -> VisibleListings:
    return VisibleListings(
        origin,
        Visibility(prefix, include=Globs.parse(include), exclude=Globs.parse(exclude), markers=Markers.parse(marker)),
    )


async def listed(of: VisibleListings, prefix: str = "") -> DirectoryListing:
    listing = DirectoryListing(prefix)
    async with aclosing(of.pages(prefix)) as pages:
        async for page in pages:
            listing.add(page)
    return listing


async def flat(of: VisibleListings, prefix: str = "") -> list[str]:
    async with aclosing(of.pages(prefix, delimiter="")) as pages:
        return [each.key async for page in pages for each in page.objects]


async def test_without_rules_all_is_shown_and_nothing_else_asked() -> None:
    origin = MemoryOrigin(*KEYS)
    assert list((await listed(shown(origin))).entries) == ["c.tmp", "d", "a", "b"]
    assert await flat(shown(origin)) == list(KEYS)
    assert origin.calls == 2


async def test_a_page_that_is_no_answer_is_asked_for_again(autojump_clock: MockClock) -> None:
    """For a moment a gateway's page comes in place of the store's answer."""
    origin = MemoryOrigin(*KEYS)
    page = BadReply("what answers is no store")
    for question in (
        lambda: listed(shown(origin)),
        lambda: flat(shown(origin)),
        lambda: shown(origin).page("", ""),
        lambda: shown(origin).stat("d"),
        lambda: shown(origin).holds("a/"),
    ):
        origin.troubles = [page, page]
        assert await question()
        origin.troubles = [page, page, page]
        with pytest.raises(BadReply):
            await question()
    origin.troubles = [BadReply("for good", lasting=True)]
    with pytest.raises(BadReply, match="for good"):
        await shown(origin).stat("d")


async def test_an_absent_bucket_says_nothing_of_a_name() -> None:
    origin = MemoryOrigin(*KEYS)
    origin.troubles = [BucketNotFound("gone")]
    with pytest.raises(BucketNotFound) as caught:
        await shown(origin).stat("d")
    assert caught.value.errno == errno.EIO


async def test_each_directory_that_needs_a_marker_costs_one_look() -> None:
    origin = MemoryOrigin(*KEYS, "tmp/x")
    listing = await listed(shown(origin, marker="READY", exclude="*.tmp,tmp"))
    assert list(listing.entries) == ["d", "a"]
    assert dict(listing.withheld) == {EXCLUDED: 2, UNPUBLISHED: 1}
    assert sorted(origin.stats) == ["a/READY", "b/READY"]
    assert (await shown(origin, exclude="*/").page("", "c.tmp")).objects == ((await origin.stat("d")),)
    origin.stats.clear()
    assert await flat(shown(origin, marker="READY", exclude="*.tmp,tmp")) == ["a/READY", "a/x", "d"]
    assert origin.stats == [], "a flat listing knows"


async def test_a_directory_that_is_listed_is_not_asked_for_its_own_marker() -> None:
    origin = MemoryOrigin(*KEYS)
    assert list((await listed(shown(origin, marker="READY"), "b/")).entries) == ["y"]
    assert origin.stats == []


async def test_looks_are_made_at_once_and_not_all_at_once() -> None:
    origin = MemoryOrigin(*(f"{number}/{name}" for number in range(100) for name in ("READY", "x")))
    origin.stat_gate = trio.Event()
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(listed, shown_once := shown(origin, marker="READY"))
            nursery.start_soon(listed, shown_once)
        await trio.testing.wait_all_tasks_blocked()
        assert origin.stats_under_way == 2 * 16, "two repositories, two listings each"
        origin.stat_gate.set()
    assert origin.most_stats_under_way == 2 * 16
    assert len(origin.stats) == 400


async def test_a_look_that_fails_fails_the_listing() -> None:
    origin = MemoryOrigin("a/READY", "b/READY", "c/x")
    origin.stat_errors["b/READY"] = OriginUnavailable("away")
    with pytest.raises(OriginUnavailable, match="away"):
        await listed(shown(origin, marker="READY"))
    with pytest.raises(OriginUnavailable, match="away"):
        await shown(origin, marker="READY").holds("b/")


async def test_who_gives_up_leaves_nothing_behind() -> None:
    origin = MemoryOrigin("a/READY")
    origin.stat_gate = trio.Event()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(listed, shown(origin, marker="READY"))
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert origin.stats_under_way == 0


async def test_names_one_by_one() -> None:
    origin = MemoryOrigin(*KEYS, "e/", "tmp/x")
    of = shown(origin, marker="READY", exclude="*.tmp,tmp")
    assert (await of.stat("d")).key == "d"
    assert (await of.stat("a/x")).key == "a/x"
    asked = origin.calls
    for hidden in ("c.tmp", "tmp/x", "b/c.tmp"):
        with pytest.raises(NotFound):
            await of.stat(hidden)
    assert not await of.holds("tmp/")
    assert not await of.holds("a/tmp/x/")
    assert origin.calls == asked, "no request for what is hidden by its name"
    assert [await of.holds(each) for each in ("a/", "b/", "e/", "nothing/")] == [True, False, False, False]
    plain = shown(origin)
    assert [await plain.holds(each) for each in ("a/", "b/", "e/", "tmp/", "nothing/")] == [True] * 4 + [False]


async def test_who_may_not_list_is_shown_no_directory_without_its_marker() -> None:
    origin = MemoryOrigin("a/READY", "b/x", allowed="nowhere")
    origin.stat_errors = {key: AccessDenied(key) for key in ("a", "b", "b/READY")}
    of = shown(origin, marker="READY")
    assert await ask(of, "a", trusting=True) is NoObject.DIRECTORY
    with pytest.raises(AccessDenied):
        await ask(of, "b", trusting=True)


async def test_a_lone_object() -> None:
    origin = MemoryOrigin("lib/model.bin", "lib/model.bin.old")
    assert list((await listed(shown(origin, prefix="lib/model.bin"), "lib/model.bin")).entries) == ["model.bin"]
    hidden = await listed(shown(origin, prefix="lib/model.bin", exclude="*.bin"), "lib/model.bin")
    assert (hidden.entries, hidden.withheld[EXCLUDED]) == ({}, 1)
    assert (await listed(shown(origin), "lib/gone")).entries == {}


async def test_what_the_origin_says_of_itself_is_passed_on() -> None:
    origin = MemoryOrigin("x/a", allowed="y/")
    with pytest.raises(AccessDenied):
        await listed(shown(origin, exclude="b"))
    disorderly = MemoryOrigin()
    disorderly.keys = ["b", "a"]
    with pytest.raises(Unordered):
        await flat(shown(disorderly, exclude="c"))


@pytest.mark.parametrize("exclude", ["", "*.tmp"])
async def test_every_way_to_ask_tells_of_configurations_without_the_agent(exclude: str) -> None:
    origin = MemoryOrigin("m/config.pbtxt", "m/x", "x.tmp")
    hiding = VisibleListings(origin, Visibility(exclude=Globs.parse(exclude)), hides_agents=True)
    config = replace(await origin.stat("m/config.pbtxt"), edit=WITHOUT_AGENT)
    async with aclosing(hiding.pages("", delimiter="")) as pages:
        flat = {each.key: each for page in [each async for each in pages] for each in page.objects}
    assert flat["m/config.pbtxt"] == config
    assert flat["m/x"] == await origin.stat("m/x")
    assert (await listed(hiding, "m/")).entries["config.pbtxt"] == config
    assert config in (await hiding.page("m/", "")).objects
    assert config == await hiding.stat("m/config.pbtxt")
    assert (await listed(hiding, "m/config.pbtxt")).entries == {"config.pbtxt": config}


async def test_while_the_store_is_away_nothing_is_shown_and_nothing_asked() -> None:
    origin = MemoryOrigin(*KEYS)
    away = shown(origin)
    away.away = OriginUnavailable("the store is away")
    assert not (await listed(away)).entries
    assert not await flat(away)
    assert not await away.holds("a/")
    with pytest.raises(NotFound, match="the store is away"):
        await away.stat("d")
    assert not origin.calls
    away.away = None
    assert await flat(away) == list(KEYS)


async def test_what_an_earlier_mount_knew_is_asked_for_in_vain_at_once() -> None:
    origin = MemoryOrigin(*KEYS)
    away = shown(origin)
    away.away, away.offline_since = OriginUnavailable("the store is away", hint="wait"), 1.0
    for question in (listed(away), flat(away), away.page("a/", ""), away.stat("d"), away.holds("a/")):
        with pytest.raises(OriginUnavailable, match="the store is away"):
            await question
    assert not origin.calls


async def test_a_latecomer_that_is_known_is_refused_by_the_stores_own_word_alone(autojump_clock: MockClock) -> None:
    answers: list[D7yfsError | str] = [OriginUnavailable("no route"), AccessDenied("no"), "a/"]

    async def locate(*, allow_empty: bool) -> str:
        answer = answers.pop(0)
        if isinstance(answer, D7yfsError):
            raise answer
        return answer

    config, fetcher = SimpleNamespace(url="mem://b", name="b"), SimpleNamespace(failures=FailuresStatus())
    repository = SimpleNamespace(shown=shown(MemoryOrigin(*KEYS)), locate=locate, config=config, fetcher=fetcher)
    late = Latecomer(cast(Any, repository), OriginUnavailable("no such host"), allow_empty=False, is_known=True)
    assert late.is_known
    refused: list[int] = []
    arrived: list[str] = []
    await late.wait(arrived.append, lambda: refused.append(len(answers)))
    assert refused == [1]
    assert arrived == ["a/"]
    assert not late.is_known
    assert await flat(repository.shown) == list(KEYS)


async def test_a_latecomer_arrives_when_its_store_answers(autojump_clock: MockClock) -> None:
    answers: list[D7yfsError | str] = [OriginUnavailable("no route"), OriginUnavailable("no route"), "a/"]

    async def locate(*, allow_empty: bool) -> str:
        answer = answers.pop(0)
        if isinstance(answer, D7yfsError):
            raise answer
        return answer

    config, fetcher = SimpleNamespace(url="mem://b", name="b"), SimpleNamespace(failures=FailuresStatus())
    repository = SimpleNamespace(shown=shown(MemoryOrigin(*KEYS)), locate=locate, config=config, fetcher=fetcher)
    late = Latecomer(cast(Any, repository), OriginUnavailable("no such host"), allow_empty=False)
    assert not await flat(repository.shown)
    arrived: list[str] = []
    await late.wait(arrived.append)
    assert arrived == ["a/"]
    assert late.failure is None
    assert fetcher.failures.names.count == 0
    assert await flat(repository.shown) == list(KEYS)
