"""The promises of every `Origin`'s list and stat."""

from __future__ import annotations

import time
from contextlib import aclosing

import pytest

from d7yfs.errors import AccessDenied, BucketNotFound, D7yfsError, NotFound, OriginUnavailable
from d7yfs.objects import ListingPage
from d7yfs.origins.origin import Origin
from d7yfs.origins.survey import list_all
from tests.contract.reading import get
from tests.contract.stores import Store
from tests.plugins.contract_table import note_inability

pytestmark = pytest.mark.store

ODD_NAMES = (
    "a b",
    " lead",
    "trail ",
    "50%",
    "p%20q",
    "plus+plus",
    "am&p",
    "eq=x",
    "semi;colon",
    "q?x",
    "h#x",
    "quo'te",
    'quo"te',
    "<tag>",
    "back\\slash",
    "star*",
    "col:on",
    "til~de",
    "ünï",
    "日本語",
    "em😀",
    "cafe\u0301",
    "tab\tx",
    "new\nline",
    "ctl\x01x",
    "x" * 255,
)


async def _pages(origin: Origin, prefix: str, *, delimiter: str, page_size: int) -> list[ListingPage]:
    async with aclosing(list_all(origin, prefix, delimiter=delimiter, page_size=page_size)) as pages:
        return [page async for page in pages]


def storable_names(store: Store, request: pytest.FixtureRequest) -> list[str]:
    """The names of ODD_NAMES that the store takes; the table notes the others."""
    for name in sorted(store.unstorable):
        shown = ascii(name) if len(name) < 40 else f"{len(name)} times {name[:1]!r}"
        note_inability(request.node.user_properties, f"cannot store {shown}")
    return [name for name in ODD_NAMES if name not in store.unstorable]


async def test_delimiter_groups_deeper_keys(store: Store, origin: Origin) -> None:
    for name in ("a", "dir/x", "dir/deep/y", "dir2/z"):
        store.put(name, b"1")
    page = await origin.list(store.prefix)
    assert [version.key for version in page.objects] == [f"{store.prefix}a"]
    assert page.prefixes == (f"{store.prefix}dir/", f"{store.prefix}dir2/")
    assert page.next_token == ""


async def test_flat_listing_has_every_key(store: Store, origin: Origin) -> None:
    names = ("a", "b/x", "b/y/z")
    keys = {store.put(name, b"1") for name in names}
    page = await origin.list(store.prefix, delimiter="")
    assert {version.key for version in page.objects} == keys
    assert page.prefixes == ()


@pytest.mark.parametrize("page_size", [1, 2, 3])
async def test_paging_yields_each_entry_once_and_in_order(store: Store, origin: Origin, page_size: int) -> None:
    files = sorted(store.put(f"file{n}", b"1") for n in range(4))
    for n in range(3):
        store.put(f"dir{n}/a", b"1")
        store.put(f"dir{n}/b", b"1")
    pages = await _pages(origin, store.prefix, delimiter="/", page_size=page_size)
    assert all(len(page.objects) + len(page.prefixes) <= page_size for page in pages)
    assert [version.key for page in pages for version in page.objects] == files
    assert [each for page in pages for each in page.prefixes] == [f"{store.prefix}dir{n}/" for n in range(3)]


async def test_odd_names_list_and_stat(store: Store, origin: Origin, request: pytest.FixtureRequest) -> None:
    names = storable_names(store, request)
    files = {store.put(name, name.encode()) for name in names}
    directories = {store.put(f"{name}.d/inside", b"1").removesuffix("inside") for name in names}
    page = await origin.list(store.prefix)
    assert {version.key for version in page.objects} == files
    assert set(page.prefixes) == directories
    for version in page.objects:
        assert await origin.stat(version.key) == version
    for name in store.unstorable:
        with pytest.raises(NotFound):
            await origin.stat(store.prefix + name)


@pytest.mark.parametrize("body", [b"", b"1", b"x" * 100_000])
async def test_list_and_stat_agree(store: Store, origin: Origin, body: bytes) -> None:
    before = time.time()
    key = store.put("object", body)
    page = await origin.list(store.prefix)
    (listed,) = page.objects
    assert listed == await origin.stat(key)
    assert listed.size_bytes == len(body)
    assert listed.validator
    assert before - 2 <= listed.mtime_ns / 1e9 <= time.time() + 2
    assert before - 2 <= page.date_ns / 1e9 <= time.time() + 2
    assert not listed.archived


async def test_another_body_is_another_version(store: Store, origin: Origin) -> None:
    key = store.put("object", b"one")
    before = await origin.stat(key)
    store.put("object", b"two")
    assert (await origin.stat(key)).identity != before.identity


async def test_directory_marker_is_an_object(store: Store, origin: Origin) -> None:
    marker = store.put("dir/", b"")
    store.put("dir/in", b"1")
    assert (await origin.list(store.prefix)).prefixes == (marker,)
    page = await origin.list(marker)
    assert [version.key for version in page.objects] == [marker, f"{marker}in"]


async def test_key_and_prefix_of_one_name(store: Store, origin: Origin) -> None:
    store.put("a/b", b"1")
    key = store.put("a", b"22")
    page = await origin.list(store.prefix)
    assert [version.key for version in page.objects] == [key]
    assert page.prefixes == (f"{key}/",)
    assert (await origin.stat(key)).size_bytes == 2


async def test_empty_segments(store: Store, origin: Origin) -> None:
    keys = sorted(store.put(name, b"1") for name in ("a/b", "a//b", "/c"))
    page = await origin.list(store.prefix, delimiter="")
    assert [version.key for version in page.objects] == keys
    assert (await origin.list(store.prefix)).prefixes == (f"{store.prefix}/", f"{store.prefix}a/")
    assert (await origin.list(f"{store.prefix}a/")).prefixes == (f"{store.prefix}a//",)
    for key in keys:
        assert (await get(await origin.read_request(await origin.stat(key), presigned=False))).content == b"1"


@pytest.mark.parametrize("name", ["y" * 256, "日" * 86, "z" * 900], ids=["256", "unicode", "900"])
async def test_long_components(store: Store, origin: Origin, name: str) -> None:
    key = store.put(name, b"1")
    (listed,) = (await origin.list(store.prefix)).objects
    assert listed == await origin.stat(key)
    assert (await get(await origin.read_request(listed, presigned=False))).content == b"1"


async def test_listing_that_changes_between_pages(store: Store, origin: Origin) -> None:
    stay = [store.put(f"{n:02}-stays", b"1") for n in range(8)]
    for n in range(8):
        store.put(f"{n:02}-goes", b"1")
    seen: list[str] = []
    async with aclosing(list_all(origin, store.prefix, page_size=3)) as pages:
        async for page in pages:
            seen += [version.key for version in page.objects]
            if len(seen) == 3:
                for n in range(8):
                    store.delete(f"{n:02}-goes")
                    store.put(f"{n:02}-a-comes", b"1")
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen)
    assert set(stay) <= set(seen)


async def test_absent_prefix_is_an_empty_page(store: Store, origin: Origin) -> None:
    page = await origin.list(f"{store.prefix}absent/")
    assert (page.objects, page.prefixes, page.next_token) == ((), (), "")


async def test_absent_key(store: Store, origin: Origin) -> None:
    with pytest.raises(NotFound, match="absent"):
        await origin.stat(f"{store.prefix}absent")


async def test_deleted_key(store: Store, origin: Origin) -> None:
    key = store.put("object", b"1")
    await origin.stat(key)
    store.delete("object")
    with pytest.raises(NotFound):
        await origin.stat(key)


async def test_no_such_bucket(store: Store) -> None:
    async with aclosing(store.no_such_bucket()) as origin:
        with pytest.raises(BucketNotFound, match=r"no-such-bucket.*no such (bucket|container)"):
            await origin.list("")
        with pytest.raises(NotFound):
            await origin.stat("key")


async def test_wrong_secret(store: Store) -> None:
    key = store.put("object", b"1")
    async with aclosing(store.denied()) as origin:
        for call in (lambda: origin.list(""), lambda: origin.stat(key)):
            with pytest.raises(AccessDenied) as caught:
                await call()
            assert caught.value.hint


@pytest.mark.parametrize("shift_s", [-3600, 3600])
async def test_clock_that_is_wrong(store: Store, origin: Origin, shift_s: float) -> None:
    with store.signing_at(shift_s), pytest.raises(AccessDenied, match="clock"):
        await origin.list("")
    await origin.list("")


async def test_unreachable(store: Store) -> None:
    async with aclosing(store.unreachable()) as origin:
        with pytest.raises(OriginUnavailable, match="refused") as caught:
            await origin.list("")
    assert caught.value.transient


async def test_one_store_has_one_identity(store: Store, origin: Origin) -> None:
    async with aclosing(store.origin()) as twin, aclosing(store.no_such_bucket()) as other:
        assert origin.identity == twin.identity
        assert origin.identity != other.identity


async def test_a_failure_leaves_the_origin_usable(store: Store, origin: Origin) -> None:
    key = store.put("object", b"1")
    with pytest.raises(D7yfsError):
        await origin.stat(f"{key}-absent")
    assert (await origin.stat(key)).size_bytes == 1
