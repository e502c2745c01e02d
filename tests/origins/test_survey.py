"""survey and list_all over an origin in memory."""

from __future__ import annotations

import pytest

from d7yfs.errors import AccessDenied
from d7yfs.objects import ObjectVersion
from d7yfs.origins.origin import Origin
from d7yfs.origins.survey import Empty, FoundDirectory, SingleObject, list_all, survey
from tests.origins.memory import MemoryOrigin

KEYS = ("triton/resnet/1/model.onnx", "triton/resnet/config.pbtxt", "triton/bert/config.pbtxt", "vision/a", "readme")


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("", FoundDirectory("")),
        ("triton", FoundDirectory("triton/")),
        ("/triton/resnet/", FoundDirectory("triton/resnet/")),
        ("readme", SingleObject(ObjectVersion("readme", 1, '"e"', 0))),
        ("triton/resnet/config.pbtxt", SingleObject(ObjectVersion("triton/resnet/config.pbtxt", 1, '"e"', 0))),
        ("trit", Empty(("triton", "vision"))),
        ("triton/resnet50", Empty(("triton/resnet", "triton/bert"))),
        ("triton/BERT", Empty(("triton/bert", "triton/resnet"))),
        ("Vision/a/b", Empty(("vision", "triton"))),
        ("triton/resnet/1/2", Empty(("triton/resnet/1",))),
        ("triton/resnet/2", Empty(("triton/resnet/1",))),
    ],
)
async def test_survey(prefix: str, expected: object) -> None:
    assert await survey(MemoryOrigin(*KEYS), prefix) == expected


async def test_directory_wins_over_object_of_its_name() -> None:
    assert await survey(MemoryOrigin("a", "a/b"), "a") == FoundDirectory("a/")


async def test_marker_alone_is_empty() -> None:
    assert await survey(MemoryOrigin("a/", "b/c"), "a") == Empty(("b",))


async def test_marker_and_one_more_is_a_directory() -> None:
    assert await survey(MemoryOrigin("a/", "a/b"), "a") == FoundDirectory("a/")


async def test_empty_bucket() -> None:
    assert await survey(MemoryOrigin(), "") == Empty(())
    assert await survey(MemoryOrigin(), "a/b") == Empty(())


async def test_neighbours_that_may_not_be_listed() -> None:
    assert await survey(MemoryOrigin(*KEYS, allowed="triton/resnet9"), "triton/resnet9") == Empty(())


async def test_requests_are_bounded() -> None:
    origin = MemoryOrigin(*(f"{n:05}/x" for n in range(9000)))
    found = await survey(origin, "/".join("abcdefghijklmnopqrstuvwxyz"))
    assert isinstance(found, Empty)
    assert len(found.nearest) == 5
    assert origin.calls < 20


async def test_list_all_walks_every_page() -> None:
    origin: Origin = MemoryOrigin(*KEYS)
    keys = [v.key async for page in list_all(origin, "", delimiter="", page_size=2) for v in page.objects]
    assert keys == sorted(KEYS)


async def test_who_may_not_list_may_name_an_object() -> None:
    origin = MemoryOrigin(*KEYS, allowed="vision/")
    assert await survey(origin, "readme") == SingleObject(ObjectVersion("readme", 1, '"e"', 0))
    for prefix in ("triton", "absent", ""):
        with pytest.raises(AccessDenied):
            await survey(origin, prefix)
