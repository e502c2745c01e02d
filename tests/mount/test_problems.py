"""The problems of a real mount: in `status`, health, metrics and the log, while they last."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.mount.conftest import MIB, Bucket, bytes_of, faulty_url
from tests.mount.mounted import Mounted, Mounter, run, until
from tests.mount.test_monitoring import ANY_PORT, ask, scraped
from tests.servers import faults
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, pytest.mark.store]

OPTIONS = ("--anonymous", "--read-timeout", "1s", *ANY_PORT)
RECOVERY_S = 60.0
"""An idle mount tries every quarter of a minute what has failed."""


@pytest.fixture
def dfdaemon() -> Iterator[InThread[FakeDfdaemon]]:
    with InThread(FakeDfdaemon()) as running:
        yield running


def problems(mounted: Mounted) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = mounted.status()["problems"]
    return found


def codes(mounted: Mounted) -> list[str]:
    return [each["code"] for each in problems(mounted)]


def counted(mounted: Mounted, code: str) -> float:
    return scraped(mounted)[f'd7yfs_problem{{code="{code}"}}']


def fails(mounted: Mounted, path: str) -> int | None:
    """The error number of a read."""
    with pytest.raises(OSError) as caught:  # noqa: PT011  # the test checks the errno
        mounted.read(path)
    return caught.value.errno


def test_an_outage_is_said_everywhere_until_it_is_over(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    for name in ("cached", "other"):
        faulty.do(faulty.server.put, f"b/{name}", b"bytes")
    mounted = mounter.mount(faulty_url(faulty), *OPTIONS, "--metadata-ttl", "0.1s")
    assert mounted.read("cached") == b"bytes"
    assert codes(mounted) == []
    assert counted(mounted, "store-unreachable") == 0
    faulty.do(faulty.server.kill)
    assert fails(mounted, "other") == errno.EIO
    (problem,) = problems(mounted)
    assert problem["code"] == "store-unreachable"
    assert problem["text"].startswith("store unreachable for ")
    assert problem["text"].endswith("(connection refused)")
    assert problem["served"].startswith("cached files are served")
    assert re.search(r"; \d reads? failed$", problem["served"]), "the kernel may ask for a page again"
    assert "--endpoint-url" in problem["hint"]
    assert mounted.read("cached") == b"bytes"
    shown = run("status", mounted.point)
    assert shown.returncode == 0
    assert shown.stdout.startswith(f"{mounted.point}: store unreachable for "), "in one line, before all else"
    health = run("health", mounted.point)
    assert (health.returncode, health.stdout.splitlines()[0]) == (0, f"{mounted.point}: ready"), "others serve no more"
    assert "store unreachable" in health.stdout
    status, page = ask(mounted, "/readyz")
    assert (status, [each["code"] for each in json.loads(page)["problems"]]) == (200, ["store-unreachable"])
    until(lambda: counted(mounted, "store-unreachable") == 1, "the metric; a page is rendered once a second")
    faulty.revive()
    until(lambda: codes(mounted) == [], "the end of the problem, without a reader", timeout_s=RECOVERY_S)
    assert mounted.read("other") == b"bytes"
    log = mounted.log()
    assert log.count("store-unreachable: store unreachable") == 1
    assert log.count("store-unreachable of ") == log.count(" is over, after ") == 1


def test_a_failure_that_a_retry_repairs_is_no_problem(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    faulty.do(faulty.server.put, "b/file", b"bytes")
    mounted = mounter.mount(faulty_url(faulty), *OPTIONS)
    faulty.do(lambda: faulty.server.script(faults.status(503), faults.status(503), key="b/file"))
    assert mounted.read("file") == b"bytes"
    assert mounted.fetched()["retries"]
    assert codes(mounted) == []
    assert "unreachable" not in run("status", mounted.point).stdout


def test_refused_credentials(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    faulty.do(faulty.server.put, "b/file", b"bytes")
    mounted = mounter.mount(faulty_url(faulty), *OPTIONS)
    refusal = faults.status(403, body=b"<Error><Code>InvalidAccessKeyId</Code></Error>")
    faulty.do(lambda: faulty.server.script(refusal, key="b/file", forever=True))
    assert fails(mounted, "file") == errno.EACCES
    (problem,) = problems(mounted)
    assert problem["code"] == "credentials-refused"
    assert "(reading was refused (403 InvalidAccessKeyId" in problem["text"]
    assert "d7yfs reload" in problem["hint"]
    faulty.do(lambda: faulty.server.script(key="b/file"))
    assert mounted.read("file") == b"bytes"
    assert codes(mounted) == []


def test_a_file_that_cannot_be_brought_while_the_store_answers(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    faulty.do(faulty.server.put, "b/file", b"bytes")
    mounted = mounter.mount(faulty_url(faulty), *OPTIONS, "--metadata-ttl", "0")
    faulty.do(lambda: faulty.server.script(faults.status(503), key="b/file", forever=True))
    with (mounted.point / "file").open("rb") as file:
        with pytest.raises(OSError, match="Input/output"):
            os.read(file.fileno(), 5)
        mounted.names()
    (problem,) = problems(mounted)
    assert problem["code"] == "fill-gives-up"
    assert "/b/file: nothing has come for 1 s)" in problem["text"]
    assert problem["served"].startswith("other files can be read; ")


def test_a_file_that_changes_under_its_reader(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    faulty.do(faulty.server.put, "b/file", bytes_of(1, 20 * MIB))
    mounted = mounter.mount(faulty_url(faulty), *OPTIONS)
    with (mounted.point / "file").open("rb", buffering=0) as file:
        assert os.pread(file.fileno(), 10, 0) == bytes_of(1, 20 * MIB)[:10]
        faulty.do(faulty.server.put, "b/file", bytes_of(2, 20 * MIB))
        with pytest.raises(OSError, match="Stale"):
            os.pread(file.fileno(), 10, 15 * MIB)
    (problem,) = problems(mounted)
    assert problem["code"] == "version-changed"
    assert "/b/file" in problem["text"]


def _proxied(mounter: Mounter, bucket: Bucket, dfdaemon: InThread[FakeDfdaemon], *options: str) -> Mounted:
    """A mount whose dfdaemon has died since."""
    for name in ("one", "two"):
        bucket.put(f"problems/{name}.bin", bytes_of(3, 8 * MIB))
    mounted = mounter.mount(
        bucket.url("problems"),
        *("--proxy", dfdaemon.server.url, "--read-timeout", "2s", *options, *ANY_PORT),
        env=bucket.env,
    )
    dfdaemon.do(dfdaemon.server.kill)
    return mounted


def test_a_required_proxy_that_is_down_makes_the_mount_not_ready(
    mounter: Mounter, bucket: Bucket, dfdaemon: InThread[FakeDfdaemon]
) -> None:
    mounted = _proxied(mounter, bucket, dfdaemon, "--no-fallback")
    assert ask(mounted, "/readyz")[0] == 200
    assert fails(mounted, "one.bin") == errno.EIO
    (problem,) = problems(mounted)
    assert (problem["code"], problem["blocks_reads"]) == ("proxy-down", True)
    assert problem["served"].startswith("cached files are served, others fail; ")
    health = run("health", mounted.point)
    assert health.returncode == 1
    assert "alive, and not ready: " in health.stdout
    assert run("health", "--alive", mounted.point).returncode == 0
    assert ask(mounted, "/readyz")[0] == 503
    assert ask(mounted, "/healthz")[0] == 200, "to kill it would cost the readers of cached files"
    dfdaemon.revive()
    until(lambda: ask(mounted, "/readyz")[0] == 200, "readiness, without a reader", timeout_s=RECOVERY_S)
    assert codes(mounted) == []
    assert mounted.read("two.bin") == bytes_of(3, 8 * MIB)


def test_a_proxy_that_the_store_stands_in_for(
    mounter: Mounter, bucket: Bucket, dfdaemon: InThread[FakeDfdaemon]
) -> None:
    mounted = _proxied(mounter, bucket, dfdaemon)
    assert mounted.read("one.bin") == bytes_of(3, 8 * MIB)
    until(lambda: codes(mounted) == ["proxy-down"], "a problem that lasts")
    (problem,) = problems(mounted)
    assert problem["served"] == "files come straight from the store"
    assert not problem["blocks_reads"]
    assert run("health", mounted.point).returncode == 0


def test_a_disk_that_is_too_full_is_said_by_check_and_at_mount(mounter: Mounter, bucket: Bucket) -> None:
    cache = ("--cache-dir", mounter.directory / "not yet", "--cache-min-free", "100%")
    checked = run("check", bucket.url("library"), *cache, env=bucket.env)
    assert "too full to keep anything" in " ".join(checked.stdout.split())
    assert not cache[1].exists()
    mounted = mounter.mount(bucket.url("library"), *cache[2:], env=bucket.env)
    assert "no room to cache" in mounted.said
    assert "--cache-min-free" in mounted.said
    assert codes(mounted) == ["no-room-to-cache"]
    assert mounted.read("model/1/weights.bin") == mounted.read("model/1/weights.bin")


@pytest.mark.parametrize("by_url", [True, False])
def test_what_is_dropped_makes_room_at_once(mounter: Mounter, bucket: Bucket, by_url: bool) -> None:
    """Each file fits, and both together do not: a drop that is not counted leaves no room for the next."""
    url = bucket.url("library")
    mounted = mounter.mount(url, "--cache-size", "5MiB", env=bucket.env)
    place = (url, "--cache-dir", mounted.cache_dir) if by_url else (mounted.point,)
    for _ in range(4):
        warmed = run("warm", mounted.point / "model")
        assert warmed.returncode == 0, warmed.stdout + warmed.stderr
        used_bytes = mounted.status()["cache"]["used_bytes"]
        assert used_bytes >= 3 * MIB
        until(lambda: mounted.status()["fuse"]["open_files"] == 0, "the end of the readers")
        dropped = run("cache", "drop", *place)
        assert dropped.returncode == 0, dropped.stdout + dropped.stderr
        assert mounted.status()["cache"]["used_bytes"] < MIB
