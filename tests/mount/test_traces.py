"""The traces of how bytes reached a mount: extended attributes, `stat`, `status`, the log."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator

import pytest

from d7yfs.stats.words import show_size_roughly
from tests.mount.conftest import MIB, Bucket, bytes_of
from tests.mount.mounted import Mounted, Mounter, run, until, within
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.in_thread import InThread

pytestmark = [pytest.mark.mount, pytest.mark.store]

SIZE = 24 * MIB


@pytest.fixture
def dfdaemon() -> Iterator[InThread[FakeDfdaemon]]:
    with InThread(FakeDfdaemon()) as running:
        yield running


@pytest.fixture(scope="module")
def weights(bucket: Bucket) -> bytes:
    body = bytes_of(78, SIZE)
    bucket.put("traced/weights.bin", body)
    bucket.put("traced/small.txt", b"small")
    return body


def _attribute(mounted: Mounted, path: str, name: str) -> str:
    return within(20, lambda: os.getxattr(mounted.point / path, f"user.d7yfs.{name}")).decode()


def _lines(mounted: Mounted, word: str) -> list[dict[str, object]]:
    return [line for line in map(json.loads, mounted.log().splitlines()) if word in line["message"]]


def test_a_file_and_its_task_are_found_from_each_other(
    mounter: Mounter, bucket: Bucket, dfdaemon: InThread[FakeDfdaemon], weights: bytes
) -> None:
    options = ("--proxy", dfdaemon.server.url, "--xattr", "--log-format", "json")
    mounted = mounter.mount(bucket.url("traced"), *options, env=bucket.env)
    assert _attribute(mounted, "weights.bin", "route") == "proxy", "before the read: the planned route"
    task_id = _attribute(mounted, "weights.bin", "task_id")
    assert mounted.read("weights.bin") == weights
    assert list(dfdaemon.server.tasks) == [task_id], "d7yfs must compute the same id as dfdaemon"
    assert _attribute(mounted, "weights.bin", "route") == "proxy"
    assert "user.d7yfs.task_id" in within(20, lambda: os.listxattr(mounted.point / "weights.bin"))

    described = mounted.stat("weights.bin")
    assert (described["task_id"], described["route"]) == (task_id, "proxy")
    assert f"task_id:      {task_id}" in run("stat", mounted.point / "weights.bin").stdout
    assert mounted.stat("small.txt")["route"] == "origin"

    until(lambda: bool(_lines(mounted, "fill complete")), "the end of the fill in the log")
    (began,), (ended,) = _lines(mounted, "filling"), _lines(mounted, "fill complete")
    assert began["task_id"] == ended["task_id"] == task_id
    assert (ended["route"], ended["fetched_bytes"], ended["size_bytes"]) == ("proxy", SIZE, SIZE)
    assert str(ended["object"]).endswith("/mounted/traced/weights.bin")
    (shown,) = mounted.status()["repositories"][0]["fills"]
    assert (shown["object"], shown["task_id"], shown["route"]) == (ended["object"], task_id, "proxy")


def test_without_dragonfly_there_is_no_task(mounter: Mounter, bucket: Bucket, weights: bytes) -> None:
    mounted = mounter.mount(bucket.url("traced"), "--xattr", env=bucket.env)
    assert _attribute(mounted, "weights.bin", "route") == "origin"
    with pytest.raises(OSError) as caught:  # noqa: PT011  # the test checks the errno
        _attribute(mounted, "weights.bin", "task_id")
    assert caught.value.errno == errno.ENODATA
    assert "user.d7yfs.task_id" not in within(20, lambda: os.listxattr(mounted.point / "weights.bin"))
    assert "task_id" not in mounted.stat("weights.bin")


def test_status_tells_where_bytes_came_from(
    mounter: Mounter, bucket: Bucket, dfdaemon: InThread[FakeDfdaemon], weights: bytes
) -> None:
    # What the kernel reads by itself is in no counter.
    options = ("--proxy", dfdaemon.server.url, "--no-passthrough")
    mounted = mounter.mount(bucket.url("traced"), *options, env=bucket.env)
    assert mounted.read("small.txt") == b"small"
    assert run("warm", mounted.point / "weights.bin").returncode == 0
    assert mounted.read("weights.bin") == weights
    (repository,) = mounted.status()["repositories"]
    assert (repository["way"], repository["breaker"], repository["warnings"]) == ("proxy", "closed", [])
    assert (repository["traffic"]["proxy_bytes"], repository["traffic"]["direct_bytes"]) == (SIZE, 5)
    assert sum(repository["traffic"]["direct_bytes_by_reason"].values()) == 5
    # Short of memory, the kernel drops pages that it read ahead, and asks for them again.
    from_cache = repository["traffic"]["cache_bytes"]
    assert SIZE <= from_cache < 1.1 * SIZE
    assert repository["read_bytes"] == from_cache + 5
    shown = run("status", mounted.point).stdout
    assert f"{show_size_roughly(from_cache)} from cache, 24 MiB by proxy, 5 B direct" in shown
    dfdaemon.do(dfdaemon.server.kill)
