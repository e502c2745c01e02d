"""A published tree with a million names: its size, the time that it takes, and the memory of a mount."""

from __future__ import annotations

import gc
import hashlib
import random
import resource
import time
import zlib
from functools import partial
from itertools import pairwise

from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.tree.listing import Scan
from d7yfs.tree.published import Pointer, PublishedTree, encode_listings
from tests.mount.mounted import Mounter, run
from tests.mount.test_published import Published
from tests.mount.test_trust import OWNER
from tests.mount.test_trust import keys as keys_of
from tests.servers.in_thread import InThread

COUNT = 1_000_000
PER_DIRECTORY = 50
MIB = 1 << 20


def keys() -> list[ObjectVersion]:
    """A million objects of 20,000 directories, with ETags like MD5s."""
    chance = random.Random(1)
    return [
        ObjectVersion(
            f"triton/team-{at // 20_000:03}/model-{at // PER_DIRECTORY:06}/1/part-{at % PER_DIRECTORY:05}-of-00050.bin",
            chance.randrange(1 << 33),
            f'"{chance.randbytes(16).hex()}"',
            1_700_000_000_000_000_000 + chance.randrange(10**7) * 10**9,
        )
        for at in range(COUNT)
    ]


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:  # noqa: PTH123
        return int(file.read().split()[1]) * resource.getpagesize()


def test_a_million_names_in_a_snapshot() -> None:
    scan = Scan("triton/")
    scan.add(ListingPage(tuple(keys()), (), "", 0))
    began_at = time.perf_counter()
    data, entries, directories, files = encode_listings("triton/", scan.listings(), zlib.Z_DEFAULT_COMPRESSION)
    encode_s = time.perf_counter() - began_at
    del scan
    gc.collect()
    sha256 = hashlib.sha256(data).hexdigest()
    pointer = Pointer(
        sha256=sha256, size_bytes=len(data), entries=entries, directories=directories, files=files, published_at=1.0
    )
    before_bytes = rss_bytes()
    began_at = time.perf_counter()
    tree = PublishedTree.open(data, pointer, "triton/", 2.0)
    open_s = time.perf_counter() - began_at
    began_at = time.perf_counter()
    assert tree.find("triton/team-025/model-010000/1/part-00007-of-00050.bin") is not None
    first_s = time.perf_counter() - began_at
    began_at = time.perf_counter()
    found = 0
    waiting = ["triton/"]
    while waiting:
        for page in tree.pages(waiting.pop()):
            found += len(page.objects)
            waiting += reversed(page.prefixes)
    walk_s = time.perf_counter() - began_at
    assert (found, files) == (COUNT, COUNT)
    grown_bytes = rss_bytes() - before_bytes
    assert grown_bytes < 64 * MIB
    print(
        f"{files} files in {directories} directories: {len(data) / MIB:.1f} MiB ({len(data) / files:.1f} bytes a file), "
        f"encoded in {encode_s:.1f} s, opened in {open_s:.2f} s, first lookup {first_s * 1000:.1f} ms, "
        f"all listed in {walk_s:.1f} s, {grown_bytes / MIB:.1f} MiB more than the snapshot"
    )


def test_a_mount_of_a_million_names(mounter: Mounter) -> None:
    scan = Scan("")
    scan.add(ListingPage(tuple(keys()), (), "", 0))
    data, entries, directories, files = encode_listings("", scan.listings(), zlib.Z_BEST_SPEED)
    sha256 = hashlib.sha256(data).hexdigest()
    pointer = Pointer(
        sha256=sha256, size_bytes=len(data), entries=entries, directories=directories, files=files, published_at=1.0
    )
    with InThread(Published()) as store:
        store.do(partial(store.server.put, f"b/{pointer.snapshot}", data))
        store.do(partial(store.server.put, "b/.d7yfs/published", pointer.encode()))
        url = f"s3://127.0.0.1:{store.server.port}/b"
        began_at = time.monotonic()
        mounted = mounter.mount(url, "--listing", "published", env=keys_of(OWNER))
        first_s = time.monotonic() - began_at
        assert len(mounted.names("triton", timeout_s=60)) == 50
        rss_bytes = mounted.status()["rss_bytes"]
        assert run("umount", mounted.point).returncode == 0
        mounted.wait_ended()
        began_at = time.monotonic()
        again = mounter.mount(url, "--listing", "published", env=keys_of(OWNER), cache_dir=mounted.cache_dir)
        again_s = time.monotonic() - began_at
        assert again.status()["repositories"][0]["publication"]["snapshots_fetched"] == 0
        print(
            f"mounted in {first_s:.1f} s, again in {again_s:.1f} s, {rss_bytes / MIB:.0f} MiB resident, "
            f"asked: {store.server.about_names()}"
        )


def test_pages_of_a_huge_directory_go_on_where_they_were() -> None:
    """Tokens of one snapshot go on in another, without a name twice or left out."""
    names = [f"huge/{at:07}" for at in range(30_000)]

    def tree_of(extra: str) -> PublishedTree:
        scan = Scan("")
        objects = tuple(ObjectVersion(key, 1, '"e"', 1) for key in sorted([*names, extra]))
        scan.add(ListingPage(objects, (), "", 0))
        data, entries, directories, files = encode_listings("", scan.listings(), zlib.Z_DEFAULT_COMPRESSION)
        sha256 = hashlib.sha256(data).hexdigest()
        return PublishedTree.open(
            data,
            Pointer(
                sha256=sha256,
                size_bytes=len(data),
                entries=entries,
                directories=directories,
                files=files,
                published_at=1.0,
            ),
            "",
            2.0,
        )

    trees = (tree_of("huge/0000000-a"), tree_of("huge/0020000-b"))
    seen: list[str] = []
    token, at = "", 0
    while True:
        page = trees[at % 2].page("huge/", token)
        seen += [each.key for each in page.objects]
        if not (token := page.next_token):
            break
        at += 1
    assert at > 10
    assert all(one < other for one, other in pairwise(seen))
    assert set(names) <= set(seen)
