"""The number of requests that a repository's listing costs, as the store counts them, and mounts
without the right to list.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount.conftest import Bucket, both_engines, faulty_url
from tests.mount.mounted import Mounted, Mounter, within
from tests.servers.http11 import Answer, Request
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults
from tests.servers.vast import BUCKET, Keys, VastStore

pytestmark = [pytest.mark.mount, both_engines]

MODELS, FILES = 100, 34
OBJECTS = MODELS * FILES
PAGES = 4
TIMEOUT_S = 60.0

Running = InThread[VastStore]


class LockedStore(VastStore):
    """A store that refuses listings, and answers a request for an absent object like one for a
    forbidden object.
    """

    async def answer(self, request: Request) -> Answer:
        answer = await super().answer(request)
        if "list-type" in request.target or answer.status == 404:
            return Answer(403, {"Content-Type": "application/xml"}, b"" if request.method == "HEAD" else _DENIED)
        return answer


_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


def key_of(number: int) -> str:
    model, file = divmod(number, FILES)
    return f"models/m{model:03}/{file % 2}/f{file:03}.bin"


def keys() -> Keys:
    return Keys(*((1, lambda _, key=key: key) for key in sorted(map(key_of, range(OBJECTS)))))


@pytest.fixture
def store() -> Iterator[Running]:
    with InThread(VastStore(keys())) as running:
        yield running


@pytest.fixture
def locked() -> Iterator[Running]:
    with InThread[VastStore](LockedStore(keys())) as running:
        yield running


def url(running: Running, prefix: str = "models") -> str:
    return f"s3://127.0.0.1:{running.server.port}/{BUCKET}/{prefix}"


def mount(mounter: Mounter, running: Running, *options: str) -> Mounted:
    mounted = mounter.mount(url(running), "--anonymous", *options)
    running.do(running.server.requests.clear)  # The request that checks whether the prefix has an object.
    return mounted


def find(path: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(path))


def shapes(running: Running) -> list[tuple[str, str]]:
    """Prefix and delimiter of all listings so far."""
    return [(query["prefix"], query.get("delimiter", "")) for query in running.server.listings()]


def of_status(mounted: Mounted) -> dict[str, object]:
    (found,) = mounted.status()["repositories"]
    assert isinstance(found["listing"], dict)
    return found["listing"]


def test_find_costs_one_request_per_thousand_objects_and_none_while_fresh(mounter: Mounter, store: Running) -> None:
    mounted = mount(mounter, store, "--metadata-ttl", "forever")
    for _ in range(2):
        assert within(TIMEOUT_S, lambda: find(mounted.point)) == OBJECTS
        assert sorted(shapes(store)) == [("models/", "")] * PAGES + [("models/", "/")]
    assert store.server.looked_up() == []
    listing = of_status(mounted)
    assert (listing["in_use"], listing["scans"], listing["listings"]) == ("whole", 1, 1)


@pytest.mark.parametrize("options", [("--listing-limit", "1500"), ("--listing", "directory")], ids="=".join)
def test_otherwise_find_costs_one_request_per_directory(
    mounter: Mounter, store: Running, options: tuple[str, ...]
) -> None:
    mounted = mount(mounter, store, "--metadata-ttl", "forever", *options)
    assert within(TIMEOUT_S, lambda: find(mounted.point)) == OBJECTS
    flat = [shape for shape in shapes(store) if not shape[1]]
    assert flat == ([("models/", "")] * 2 if "1500" in options else [])
    by_directory = [shape for shape in shapes(store) if shape[1]]
    assert len(by_directory) == len(set(by_directory))
    assert len(by_directory) <= 1 + MODELS + 2 * MODELS
    assert len(by_directory) >= 3 * (MODELS - (1500 // FILES if flat else 0)), "but what the pages had passed"
    listing = of_status(mounted)
    assert listing["in_use"] == "directory"
    assert listing["reason"] == ("it has more than 1500 objects" if "1500" in options else "set so")


def test_a_path_costs_nothing_once_its_directories_are_known(mounter: Mounter, store: Running) -> None:
    mounted = mount(mounter, store, "--metadata-ttl", "forever", "--listing", "directory")
    path = key_of(77).removeprefix("models/")
    assert mounted.read(path) == key_of(77).encode()
    assert shapes(store) == [("models/", "/"), ("models/m002/", "/"), ("models/m002/1/", "/")]
    asked = len(store.server.requests)
    with pytest.raises(FileNotFoundError):
        mounted.read(f"{path}.absent")
    assert len(store.server.requests) == asked


def refused(read: Callable[[], object]) -> int | None:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the test checks the errno
        within(TIMEOUT_S, read)
    return caught.value.errno


def test_a_refused_listing_hints_at_exact_names(mounter: Mounter, locked: Running) -> None:
    done = mounter.refused(url(locked), "--anonymous")
    assert "--listing exact mounts without the right to list" in done.stderr


def test_exact_names_need_no_right_to_list(mounter: Mounter, locked: Running) -> None:
    mounted = mount(mounter, locked, "--listing", "exact")
    path = key_of(77).removeprefix("models/")
    assert mounted.read(path) == key_of(77).encode()
    assert within(TIMEOUT_S, lambda: (mounted.point / path).stat().st_size) == len(key_of(77))
    asked = len(locked.server.requests)
    assert within(TIMEOUT_S, lambda: (mounted.point / path).parent.is_dir())
    assert len(locked.server.requests) == asked, "the mount keeps the names it has learnt"
    assert refused(lambda: list(mounted.point.iterdir())) == errno.EACCES
    assert of_status(mounted)["in_use"] == "exact"


def test_exact_names_of_a_store_that_may_be_listed(mounter: Mounter, store: Running) -> None:
    mounted = mount(mounter, store, "--listing", "exact", "--metadata-ttl", "forever")
    assert mounted.read("m002/1/f009.bin") == key_of(77).encode()
    assert refused((mounted.point / "m002/absent").stat) == errno.ENOENT
    asked = [f"models/{each}" for each in ("m002", "m002/1", "m002/1/f009.bin", "m002/absent")]
    assert shapes(store) == [(f"{each}/", "") for each in asked]
    assert set(store.server.looked_up()) <= set(asked)
    assert "f009.bin" in mounted.names("m002/1"), "a directory read gets a listing"


def test_directories_that_the_store_lists_in_an_order_of_its_own_are_all_there(
    mounter: Mounter, bucket: Bucket
) -> None:
    """SeaweedFS lists model/ before model-2/, against the order of keys. The daemon detects this
    while readers wait.
    """
    for name in ("model", "model-2", "other"):
        bucket.put(f"siblings/{name}/1/weights.bin", name.encode())
    for name in ("model-2", "other", "model"):
        mounted = mounter.mount(bucket.url("siblings"), "--metadata-ttl", "1h", env=bucket.env)
        assert mounted.read(f"{name}/1/weights.bin") == name.encode(), "the first lookup must succeed"
        assert mounted.names() == ["model", "model-2", "other"]
        assert mounted.status()["repositories"][0]["listing"]["reason"] == "its keys do not come in order"


@pytest.mark.parametrize("listing", ["whole", "directory"])
def test_a_directory_shows_its_names_in_the_order_of_keys(
    mounter: Mounter, faulty: InThread[S3Faults], listing: str
) -> None:
    """So a reader sees no difference when a daemon begins to list in another way. A directory's key ends in a slash."""
    names = ["a", "b-", "b", "b0", "c.d", "c", "d", "e"]
    for name in names:
        faulty.do(faulty.server.put, f"b/{name}/file" if name in ("b", "c.d", "c") else f"b/{name}", b"x")
    mounted = mounter.mount(faulty_url(faulty), "--anonymous", "--listing", listing)
    assert within(TIMEOUT_S, lambda: [entry.name for entry in os.scandir(mounted.point)]) == names
    assert of_status(mounted)["in_use"] == listing
