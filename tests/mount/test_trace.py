"""`d7yfs trace` and the debug log of a mount: each request, what it led to, and no secret."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.mount.conftest import MIB, Bucket, both_engines, bytes_of
from tests.mount.mounted import D7YFS, Mounted, Mounter, run, within

pytestmark = [pytest.mark.mount, pytest.mark.store, both_engines]

SECRET = re.compile(r"Signature|X-Amz-Cred|AWS4-HMAC|[?&]X-", re.IGNORECASE)


@contextmanager
def tracing(mounted: Mounted, *arguments: str, end: str = "end") -> Iterator[list[dict[str, Any]]]:
    """The lines that `d7yfs trace` prints meanwhile, whole after the block: up to a look at `end`."""
    lines: list[dict[str, Any]] = []
    process = subprocess.Popen(
        [*D7YFS, "trace", str(mounted.point), "--json", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        assert process.stderr.readline() == f"following {mounted.point}; Ctrl-C ends\n"
        yield lines
        assert not within(20, lambda: (mounted.point / end).exists())
        for said in process.stdout:
            lines.append(json.loads(said))
            if lines[-1].get("path") == end:
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert process.stderr.read() == ""
    finally:
        watchdog.cancel()
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_a_read_and_what_it_led_to_have_one_number(mounter: Mounter, bucket: Bucket) -> None:
    bucket.put("trace/m/w.bin", bytes_of(91, 3 * MIB))
    mounted = mounter.mount(bucket.url("trace"), env=bucket.env)
    with tracing(mounted) as lines:
        assert mounted.read("m/w.bin") == bytes_of(91, 3 * MIB)
        assert not within(20, lambda: (mounted.point / "m/none").exists())
    reads = [line for line in lines if line["kind"] == "kernel" and line["operation"] == "read"]
    assert sum(line["bytes"] for line in reads) >= 3 * MIB
    assert {line["path"] for line in reads} == {"m/w.bin"}
    gets = [line for line in lines if line["kind"] == "store" and line.get("start") is not None]
    assert gets
    assert all(line["status"] == 206 and line["object"].endswith("/trace/m/w.bin") for line in gets)
    decisions = [line for line in lines if line["kind"] == "fetch"]
    assert {line["request"] for line in gets} == {line["request"] for line in decisions}
    assert {line["request"] for line in decisions} <= {line["request"] for line in reads}
    absent = [line["outcome"] for line in lines if line.get("path") == "m/none"]
    assert absent == ["ENOENT"]
    assert any(line["kind"] == "store" and "names" in line["way"] for line in lines)
    assert not SECRET.search(json.dumps(lines))


def test_only_requests_of_some_files(mounter: Mounter, bucket: Bucket) -> None:
    bucket.put("trace/m/w.bin", bytes_of(91, 3 * MIB))
    bucket.put("trace/other/w.bin", b"other")
    mounted = mounter.mount(bucket.url("trace"), env=bucket.env)
    with tracing(mounted, "--path", "other/*", end="other/end") as lines:
        assert mounted.read("m/w.bin")
        assert mounted.read("other/w.bin") == b"other"
    assert {line["path"] for line in lines if "path" in line} == {"other/w.bin", "other/end"}
    assert all(line["object"].endswith("/trace/other/w.bin") for line in lines if "object" in line)


def test_the_debug_log_has_the_same_lines(mounter: Mounter, bucket: Bucket) -> None:
    bucket.put("trace/m/w.bin", bytes_of(91, 3 * MIB))
    mounted = mounter.mount(bucket.url("trace"), "--log-level", "debug", env=bucket.env)
    assert mounted.read("m/w.bin") == bytes_of(91, 3 * MIB)
    log = mounted.log()
    assert re.search(r"DEBUG +open m/w\.bin: ok, [0-9.]+ ms \[request \d+\]", log)
    assert re.search(r"GET s3://\S+/trace/m/w\.bin \[0, \d+\): 206, \d+ bytes, [0-9.]+ ms, to the store", log)
    assert re.search(r"fetch s3://\S+ \[0, \d+\): \d+ bytes are asked for, for a reader", log)
    assert not SECRET.search(log)


def test_lines_for_a_follower_are_not_for_the_log(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), env=bucket.env)
    assert run("log-level", "info", mounted.point).returncode == 0
    before = mounted.log().count(" DEBUG ")
    with tracing(mounted) as lines:
        assert mounted.read("twenty.bin") == bucket.files["twenty.bin"]
    assert lines
    assert mounted.log().count(" DEBUG ") == before
