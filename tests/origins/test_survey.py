"""survey and list_all over an origin in memory."""

from __future__ import annotations

import math

import pytest

from d7yfs.errors import AccessDenied, NotFound
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.origins.origin import Checksums, Origin, ReadRequest
from d7yfs.origins.survey import Directory, Empty, SingleObject, list_all, survey


class MemoryOrigin:
    """The protocol over a set of keys; listings below other prefixes than `allowed` are denied."""

    url = "mem://bucket"
    identity = "mem bucket"

    def __init__(self, *keys: str, allowed: str = "") -> None:
        self.keys = sorted(keys, key=str.encode)
        self.allowed = allowed
        self.calls = 0

    async def list(self, prefix: str, *, delimiter: str = "/", token: str = "", page_size: int = 1000) -> ListingPage:
        self.calls += 1
        if not prefix.startswith(self.allowed):
            raise AccessDenied(prefix)
        entries: dict[str, bool] = {}
        for key in self.keys:
            if key.startswith(prefix):
                head, found, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
                entries[prefix + head + found if found else key] = bool(found)
        rest = [name for name in entries if name.encode() > token.encode()]
        shown = rest[:page_size]
        return ListingPage(
            objects=tuple(ObjectVersion(name, 1, '"e"', 0) for name in shown if not entries[name]),
            prefixes=tuple(name for name in shown if entries[name]),
            next_token=shown[-1] if len(rest) > page_size else "",
            date_ns=0,
        )

    async def stat(self, key: str) -> ObjectVersion:
        self.calls += 1
        if key not in self.keys:
            raise NotFound(key)
        return ObjectVersion(key, 1, '"e"', 0)

    async def read_request(self, version: ObjectVersion, *, presigned: bool, fresh: bool = False) -> ReadRequest:
        raise NotImplementedError

    async def checksums(self, version: ObjectVersion) -> Checksums:
        raise NotImplementedError

    @property
    def credentials_expire_at(self) -> float:
        return math.inf

    def describe(self) -> dict[str, str]:
        return {"endpoint": "memory"}

    async def aclose(self) -> None: ...


KEYS = ("triton/resnet/1/model.onnx", "triton/resnet/config.pbtxt", "triton/bert/config.pbtxt", "vision/a", "readme")


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("", Directory("")),
        ("triton", Directory("triton/")),
        ("/triton/resnet/", Directory("triton/resnet/")),
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
    assert await survey(MemoryOrigin("a", "a/b"), "a") == Directory("a/")


async def test_marker_alone_is_empty() -> None:
    assert await survey(MemoryOrigin("a/", "b/c"), "a") == Empty(("b",))


async def test_marker_and_one_more_is_a_directory() -> None:
    assert await survey(MemoryOrigin("a/", "a/b"), "a") == Directory("a/")


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
