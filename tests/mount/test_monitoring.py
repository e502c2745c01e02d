"""The answers of a running mount to Prometheus, probes and systemd."""

from __future__ import annotations

import json
import signal
import socket
import urllib.error
import urllib.request
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.monitor.status_numbers import left_out, unshown
from tests.mount.conftest import MIB, Bucket, faulty_url
from tests.mount.mounted import Mounted, Mounter, Notified, run, until
from tests.servers import faults
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, pytest.mark.store]

ANY_PORT = ("--metrics-listen", "127.0.0.1:0")


def ask(mounted: Mounted, path: str) -> tuple[int, str]:
    """Status and body of one of the mount's pages."""
    until(lambda: bool(mounted.status()["metrics"]["listens_on"]), "the listener")
    url = f"http://{mounted.status()['metrics']['listens_on']}{path}"
    try:
        with urllib.request.urlopen(url, timeout=30) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def scraped(mounted: Mounted) -> dict[str, float]:
    """Samples by name and labels, as Prometheus writes them."""
    status, text = ask(mounted, "/metrics")
    assert status == 200, text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_a_scrape_shows_the_bytes_that_readers_got_and_their_source(mounter: Mounter, bucket: Bucket) -> None:
    # What the kernel reads by itself is not counted.
    mounted = mounter.mount(f"models={bucket.url('library')}", "--no-passthrough", *ANY_PORT, env=bucket.env)
    mounted.read("models/twenty.bin")
    mounted.read_anew("models/twenty.bin")
    mounted.read("models/model/1/weights.bin")
    found = scraped(mounted)
    # Short of memory, the kernel drops pages that it read ahead, and asks for them again.
    assert 43 * MIB <= found['d7yfs_read_bytes_total{repository="models"}'] < 44 * MIB
    assert found['d7yfs_source_bytes_total{repository="models",source="origin"}'] == 23 * MIB
    assert found['d7yfs_source_bytes_total{repository="models",source="cache"}'] >= 20 * MIB
    assert 3 * MIB <= found['d7yfs_model_read_bytes_total{model="model",repository="models"}'] < 4 * MIB
    assert found['d7yfs_model_opens_total{model=".",repository="models"}'] == 2
    assert found['d7yfs_repository_up{repository="models"}'] == 1
    assert found['d7yfs_fuse_request_duration_seconds_count{operation="read"}'] > 20
    assert found["d7yfs_fuse_requests_in_flight"] == 0
    assert found["d7yfs_fuse_oldest_request_age_seconds"] == 0
    assert {found[f'd7yfs_fuse_errors_total{{operation="{each}"}}'] for each in ("read", "open", "readdir")} == {0}
    assert found["d7yfs_cache_bytes"] >= 23 * MIB
    assert 20 * MIB < found["process_resident_memory_bytes"] < 150 * MIB
    text = ask(mounted, "/metrics")[1]
    assert not any(secret in text for secret in bucket.env.values())


def test_the_status_page_is_for_people_and_says_no_secret(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(f"models={bucket.url('library')}", "--no-passthrough", *ANY_PORT, env=bucket.env)
    assert ask(mounted, "/")[0] == 200
    mounted.read("models/model/1/weights.bin")
    until(lambda: "models/model" in ask(mounted, "/")[1], "a page that is newer than the read")
    status, text = ask(mounted, "/?any")
    assert (status, text[:15]) == (200, "<!DOCTYPE html>")
    assert "Nothing is wrong now." in text
    assert "weights.bin" not in text
    assert not any(secret in text for secret in bucket.env.values())
    assert ask(mounted, "/index.html") == (404, '{"error": "known: /, /healthz, /metrics, /readyz"}\n')


def test_models_beyond_the_limit_share_their_metrics(mounter: Mounter, bucket: Bucket) -> None:
    for name in "abc":
        bucket.put(f"many/{name}/weights.bin", b"x" * 1000)
    mounted = mounter.mount(bucket.url("many"), *ANY_PORT, "--metrics-per-model", "1", env=bucket.env)
    for name in "abc":
        mounted.read(f"{name}/weights.bin")
    shown = mounted.status()["repositories"][0]["models"]
    assert {name: model["read_bytes"] for name, model in shown.items()} == {"a": 1000, "other": 2000}


def test_how_full_a_model_is_and_how_long_it_took(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), *ANY_PORT, env=bucket.env)

    def model(name: str) -> dict[str, Any]:
        found: dict[str, Any] = mounted.status()["repositories"][0]["models"][name]
        return found

    assert run("warm", mounted.point / "model").returncode == 0
    warmed = model("model")
    assert (warmed["files"], warmed["opens"]) == (2, 0)
    assert warmed["cached_bytes"] == warmed["size_bytes"] == 3 * MIB + len(bucket.files["model/config.pbtxt"])
    assert 0 < warmed["load_s"] < 60
    mounted.pread("twenty.bin", 0, 1000)
    until(lambda: model(".")["cached_bytes"] > 0, "a block on disk; the reader had its bytes before")
    assert model(".")["cached_bytes"] <= model(".")["size_bytes"] == 20 * MIB
    assert run("cache", "drop", mounted.point / "model").returncode == 0
    until(lambda: model("model")["cached_bytes"] == 0, "a new count of the cached bytes")
    assert model("model")["size_bytes"] == warmed["size_bytes"]


def test_every_number_of_a_status_is_in_its_scrape(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(f"models={bucket.url('library')}", *ANY_PORT, env=bucket.env)
    mounted.read("models/model/1/weights.bin")
    found = unshown(mounted.status())
    assert found - left_out(found) == set()


def test_a_port_that_is_taken_costs_the_metrics_and_not_the_mount(mounter: Mounter, bucket: Bucket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        mounted = mounter.mount(bucket.url("library"), "--metrics-listen", address, env=bucket.env)
        assert mounted.read("one.bin") == bucket.files["one.bin"]
        until(lambda: bool(mounted.status()["metrics"]["error"]), "the error in the status")
        assert mounted.status()["metrics"] == {
            "listens_on": "",
            "error": f"no metrics: {address} cannot be listened on: Address already in use",
        }
        assert "no metrics" in mounted.log()
        shown = run("status", mounted.point)
        assert "no metrics" in shown.stdout
    without = mounter.mount(bucket.url("library"), "--metrics-listen", "none", env=bucket.env)
    assert without.status()["metrics"] == {"listens_on": "", "error": ""}


def test_ready_while_what_was_listed_is_served_and_alive_in_any_case(
    mounter: Mounter, faulty: InThread[S3Faults]
) -> None:
    faulty.do(faulty.server.put, "b/file", b"bytes")
    mounted = mounter.mount(faulty_url(faulty), "--anonymous", "--metadata-ttl", "0.1s", *ANY_PORT)
    assert ask(mounted, "/healthz") == (200, '{"alive": true, "mount_answers": true}\n')
    assert mounted.names() == ["file"]
    faulty.do(lambda: faulty.server.script(faults.status(403), key="b", forever=True))

    def state() -> str:
        mounted.names()
        return str(mounted.status()["repositories"][0]["state"])

    until(lambda: state() == "stale", "a listing that fails")
    status, text = ask(mounted, "/readyz")
    assert (status, json.loads(text)["repositories"]) == (
        200,
        {faulty_url(faulty).replace("s3://", "s3://http://"): "stale"},
    )
    assert any(name.startswith("d7yfs_repository_stale") and value > 0 for name, value in scraped(mounted).items())
    faulty.do(lambda: faulty.server.script(key="b"))
    until(lambda: state() == "reachable", "a listing that succeeds")


def test_metrics_come_up_once_the_mount_before_has_ended(mounter: Mounter, bucket: Bucket) -> None:
    before = mounter.mount(bucket.url("library"), *ANY_PORT, env=bucket.env)
    until(lambda: bool(before.status()["metrics"]["listens_on"]), "the listener")
    address = before.status()["metrics"]["listens_on"]
    after = mounter.mount(bucket.url("library"), "--metrics-listen", address, env=bucket.env)
    until(lambda: bool(after.status()["metrics"]["error"]), "the error in the status")
    assert run("umount", before.point).returncode == 0
    before.wait_ended()
    after.kill(signal.SIGHUP)
    until(lambda: after.status()["metrics"] == {"listens_on": address, "error": ""}, "the listener")
    assert ask(after, "/readyz")[0] == 200


def test_health_needs_no_port(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), "--metrics-listen", "none", env=bucket.env)
    shown = run("health", mounted.point)
    assert (shown.returncode, shown.stdout) == (0, f"{mounted.point}: ready\n")
    (told,) = json.loads(run("health", "--json", mounted.point).stdout)
    assert (told["alive"], told["ready"], told["mount_answers"]) == (True, True, True)
    assert [*told["repositories"].values()] == ["reachable"]
    mounted.kill()
    mounted.wait_ended()
    assert run("health", mounted.point).returncode == 1


def test_a_failures_line_says_what_it_is_about(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    faulty.do(faulty.server.put, "b/llm/file", b"bytes" * 1000)
    mounted = mounter.mount(
        f"llm={faulty_url(faulty, 'llm')}", "--anonymous", "--log-format", "json", "--metrics-listen", "none"
    )
    refusal = faults.status(403, {"x-amz-request-id": "4BMREQUEST"})
    faulty.do(lambda: faulty.server.script(refusal, key="b/llm/file", forever=True))
    with pytest.raises(PermissionError):
        mounted.read("llm/file")
    said = [json.loads(line) for line in mounted.log().splitlines()]
    line, *_ = (each for each in said if each.get("operation") == "read")
    assert line["object"].endswith("/b/llm/file")
    assert {name: line[name] for name in ("level", "error", "errno", "repository", "store_request")} == {
        "level": "warning",
        "error": "AccessDenied",
        "errno": "EACCES",
        "repository": "llm",
        "store_request": "4BMREQUEST",
    }
    assert any(each.get("request") == line["request"] and each is not line for each in said), (
        "the transfer's line has the same request id"
    )


def test_systemds_watchdog_is_fed_and_told_how_the_mount_is(mounter: Mounter, bucket: Bucket) -> None:
    heard: list[str] = []

    def meanwhile(notified: Notified) -> None:
        heard.append(notified.receive())
        heard.append(notified.receive())

    env = bucket.env | {"WATCHDOG_USEC": "400000"}
    mounted = mounter.foreground(bucket.url("library"), *ANY_PORT, env=env, on_start=meanwhile)
    assert heard[0].startswith("READY=1")
    for fed in (heard[1], mounted.said):
        assert fed.startswith("WATCHDOG=1\nSTATUS=s3://")
        assert f"on {mounted.point}: 0 files open, 0.0 GiB read, cache 0.0 GiB of 50.0 GiB" in fed
