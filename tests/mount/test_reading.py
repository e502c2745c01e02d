"""Every byte through a real mount: `ls`, read(2), pread(2) and mmap(2) show the store's content."""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from tests.mount.conftest import MIB, Bucket, both_engines, bytes_of
from tests.mount.mounted import Mounted, Mounter, in_background, run, until, within

pytestmark = [pytest.mark.mount, pytest.mark.store, both_engines]

_MMAP = """
import hashlib, mmap, sys
with open(sys.argv[1], "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
    tail = mapped[-4097:]
    print(hashlib.sha256(mapped).hexdigest(), tail == mapped[len(mapped) - 4097 :])
"""


@pytest.fixture(scope="module")
def module_mounter(tmp_path_factory: pytest.TempPathFactory, fuse_engine: str) -> Iterator[Mounter]:
    with Mounter(tmp_path_factory.mktemp("reading")) as made:
        yield made


@pytest.fixture(scope="module")
def library(module_mounter: Mounter, bucket: Bucket, fuse_engine: str) -> Mounted:
    """The bucket's library, mounted once for all tests here that only read."""
    return module_mounter.mount(bucket.url("library"), env=bucket.env)


def test_the_tree_is_the_stores(library: Mounted, bucket: Bucket) -> None:
    def walk() -> dict[str, int]:
        return {
            str(path.relative_to(library.point)): path.stat().st_size
            for path in library.point.rglob("*")
            if path.is_file()
        }

    assert within(20, walk) == {name: len(body) for name, body in bucket.files.items()}
    assert {entry.name for entry in within(20, lambda: list(os.scandir(library.point / "model")))} == {
        "1",
        "config.pbtxt",
    }


def test_ls_la_shows_dot_and_dot_dot_and_the_stores_dates(library: Mounted, bucket: Bucket) -> None:
    listing = subprocess.run(
        ["ls", "-la", "--time-style=+%s", library.point], capture_output=True, text=True, timeout=20, check=True
    )
    rows = {row.split()[-1]: row.split() for row in listing.stdout.splitlines()[1:]}
    assert rows.keys() == {".", "..", "model", *(name for name in bucket.files if "/" not in name)}
    head = bucket.client.head_object(Bucket=bucket.name, Key="library/twenty.bin")
    mode, _links, _owner, _group, size, modified, _name = rows["twenty.bin"]
    assert (mode, int(size), int(modified)) == ("-r--r--r--", 20 * MIB, int(head["LastModified"].timestamp()))
    assert rows["."][0] == "dr-xr-xr-x"


def test_every_byte_of_files_of_every_size(library: Mounted, bucket: Bucket) -> None:
    for name, body in bucket.files.items():
        assert library.read(name) == body, name


def test_a_second_read_asks_the_store_for_nothing(library: Mounted, bucket: Bucket) -> None:
    assert library.read("twenty.bin") == bucket.files["twenty.bin"]
    until(lambda: not library.status()["fuse"]["open_files"], "the end of the first handle")
    requests, before = library.data_requests(), library.status()
    assert library.read_anew("twenty.bin") == bucket.files["twenty.bin"]
    assert library.data_requests() == requests
    after = library.status()
    by_itself = after["fuse"]["passthrough_opens"] > before["fuse"]["passthrough_opens"]
    assert by_itself is after["fuse"]["passthrough"], "the kernel has read the cache's file"
    assert by_itself or after["cache"]["hits"] > before["cache"]["hits"], "or the daemon, not only the page cache"


def test_preads_at_random_offsets_by_eight_threads(module_mounter: Mounter, bucket: Bucket) -> None:
    mounted, body = module_mounter.mount(bucket.url("library"), env=bucket.env), bucket.files["twenty.bin"]
    fd = within(20, lambda: os.open(mounted.point / "twenty.bin", os.O_RDONLY))

    def reader(seed: int) -> list[int]:
        choose = random.Random(seed)
        wrong = []
        for _ in range(60):
            size = choose.choice([1, 4095, 4096, 70_000, MIB + 1])
            offset = choose.randrange(len(body) + 4096)
            if os.pread(fd, size, offset) != body[offset : offset + size]:
                wrong.append(offset)
        return wrong

    readers: list[Future[list[int]]] = [in_background(partial(reader, seed)) for seed in range(8)]
    try:
        assert [each.result(60) for each in readers] == [[]] * 8
    finally:
        os.close(fd)
    fetched = mounted.fetched()
    assert fetched["direct_bytes"] <= len(body), "no byte is fetched twice, however many readers there are"


def test_mmap(library: Mounted, bucket: Bucket) -> None:
    # An error under mmap is SIGBUS, so this runs in a separate process.
    done = subprocess.run(
        [sys.executable, "-c", _MMAP, library.point / "model/1/weights.bin"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [hashlib.sha256(bucket.files["model/1/weights.bin"]).hexdigest(), "True"]


def test_a_remount_reads_from_the_cache_alone(mounter: Mounter, bucket: Bucket) -> None:
    first = mounter.mount(bucket.url("library"), env=bucket.env)
    assert first.read("twenty.bin") == bucket.files["twenty.bin"]
    first.kill(signal.SIGTERM)
    first.wait_ended()
    second = mounter.mount(bucket.url("library"), env=bucket.env, cache_dir=first.cache_dir)
    assert second.stat("twenty.bin")["cached_bytes"] == 20 * MIB
    assert second.read("twenty.bin") == bucket.files["twenty.bin"]
    assert second.data_requests() == 0


def test_several_repositories_are_top_level_directories(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(f"llm={bucket.url('library/model')}", f"all={bucket.url('library')}", env=bucket.env)
    assert mounted.names() == ["all", "llm"]
    assert mounted.read("llm/config.pbtxt") == mounted.read("all/model/config.pbtxt")
    assert mounted.read("llm/config.pbtxt") == bucket.files["model/config.pbtxt"]
    assert mounted.fetched("llm")["direct_bytes"] > 0
    with pytest.raises(FileNotFoundError):
        mounted.read("other/config.pbtxt")


def test_a_url_of_one_object_mounts_a_directory_with_that_file(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library/over.bin"), env=bucket.env)
    assert mounted.names() == ["over.bin"]
    assert mounted.read("over.bin") == bucket.files["over.bin"]


@pytest.mark.parametrize("spelling", ["s3://http://{}/mounted/library/", "s3://{}/mounted/library/"])
def test_spellings_of_the_url_mean_the_same(mounter: Mounter, bucket: Bucket, library: Mounted, spelling: str) -> None:
    mounted = mounter.mount(spelling.format(f"127.0.0.1:{bucket.server.port}"), env=bucket.env)
    assert mounted.status()["repositories"][0]["url"] == library.status()["repositories"][0]["url"]
    assert mounted.read("model/config.pbtxt") == bucket.files["model/config.pbtxt"]


def test_a_bucket_without_prefix_at_an_endpoint_given_apart(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(f"s3://{bucket.name}", "--endpoint-url", bucket.server.endpoint_url, env=bucket.env)
    assert "library" in mounted.names()
    assert mounted.read("library/one.bin") == bucket.files["one.bin"]


def test_memory_stays_bounded_after_300_mib(mounter: Mounter, bucket: Bucket) -> None:
    part = bytes_of(7, 60 * MIB)
    for number in range(5):
        bucket.put(f"memory/{number}.bin", part)
    mounted = mounter.mount(bucket.url("memory"), env=bucket.env, log_level="info")
    for number in range(5):
        assert mounted.read(f"{number}.bin", timeout_s=60) == part
    status = mounted.status()
    assert status["fuse"]["read_bytes"] >= 300 * MIB
    assert status["rss_bytes"] < 150 * MIB


def test_the_kernels_limits_are_raised(library: Mounted) -> None:
    device = library.point.stat().st_dev
    read_ahead = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
    assert read_ahead.read_text().strip() == "1024"
    connection = Path(f"/sys/fs/fuse/connections/{os.minor(device)}")
    assert int((connection / "max_background").read_text()) >= 1024
    assert int((connection / "congestion_threshold").read_text()) >= 1024


def test_d7yfs_stat_and_status_of_a_live_mount(library: Mounted, bucket: Bucket) -> None:
    library.read("over.bin")
    told = run("stat", library.point / "over.bin")
    assert told.returncode == 0, told.stderr
    rows = {name: text.strip() for name, text in (line.split(":", 1) for line in told.stdout.splitlines())}
    etag = bucket.client.head_object(Bucket=bucket.name, Key="library/over.bin")["ETag"]
    assert (rows["size"], rows["cached"]) == (f"1 MiB ({MIB + 1} bytes)", f"1 MiB ({MIB + 1} bytes), 100%")
    assert rows["etag"] == etag
    facts = json.loads(run("stat", "--json", library.point / "over.bin").stdout)
    assert (facts["size_bytes"], facts["cached_bytes"], facts["etag"]) == (MIB + 1, MIB + 1, etag)
    assert run("stat", library.point / "absent").returncode == 1

    (whole,) = json.loads(run("status", "--json", library.point).stdout)
    assert whole["pid"] == library.pid
    shown = run("status", library.point).stdout
    for said in (str(library.point), bucket.url("library").removeprefix("s3://"), f"pid {library.pid}", "direct"):
        assert said in shown
    assert str(library.point) in run("status").stdout, "status without a path must find the mount"


def test_status_names_the_source_of_each_setting(library: Mounted) -> None:
    settings = library.status()["settings"]
    assert settings["cache_dir"] == {"value": str(library.cache_dir), "from": "--cache-dir"}
    assert settings["url"]["from"] == "the command line"
    assert settings["proxy"] == {"value": "no proxy, reads go directly to the store", "from": "default"}
