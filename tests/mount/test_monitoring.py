"""What a running mount tells Prometheus, probes and systemd."""

from __future__ import annotations

import json
import re
import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

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


def test_a_scrape_shows_what_readers_were_given_and_whence(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(f"models={bucket.url('library')}", *ANY_PORT, env=bucket.env)
    mounted.read("models/twenty.bin")
    mounted.read_anew("models/twenty.bin")
    mounted.read("models/model/1/weights.bin")
    found = scraped(mounted)
    assert found['d7yfs_read_bytes_total{repository="models"}'] == 43 * MIB
    assert found['d7yfs_source_bytes_total{repository="models",source="origin"}'] == 23 * MIB
    assert found['d7yfs_source_bytes_total{repository="models",source="cache"}'] >= 20 * MIB
    assert found['d7yfs_model_read_bytes_total{model="model",repository="models"}'] == 3 * MIB
    assert found['d7yfs_model_opens_total{model=".",repository="models"}'] == 2
    assert found['d7yfs_repository_up{repository="models"}'] == 1
    assert found['d7yfs_fuse_request_duration_seconds_count{operation="read"}'] > 20
    assert found["d7yfs_fuse_requests_in_flight"] == 0
    assert found["d7yfs_cache_bytes"] >= 23 * MIB
    assert 20 * MIB < found["process_resident_memory_bytes"] < 150 * MIB
    text = ask(mounted, "/metrics")[1]
    assert not any(secret in text for secret in bucket.env.values())


def test_models_beyond_the_limit_share_their_metrics(mounter: Mounter, bucket: Bucket) -> None:
    for name in "abc":
        bucket.put(f"many/{name}/weights.bin", b"x" * 1000)
    mounted = mounter.mount(bucket.url("many"), *ANY_PORT, "--metrics-per-model", "1", env=bucket.env)
    for name in "abc":
        mounted.read(f"{name}/weights.bin")
    shown = mounted.status()["repositories"][0]["models"]
    assert {name: model["read_bytes"] for name, model in shown.items()} == {"a": 1000, "other": 2000}


def test_a_port_that_is_taken_costs_the_metrics_and_not_the_mount(mounter: Mounter, bucket: Bucket) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        mounted = mounter.mount(bucket.url("library"), "--metrics-listen", address, env=bucket.env)
        assert mounted.read("one.bin") == bucket.files["one.bin"]
        until(lambda: bool(mounted.status()["metrics"]["error"]), "the word about it")
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
    assert ask(mounted, "/healthz") == (200, '{"alive": true}\n')
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


def documented() -> dict[str, set[str]]:
    """The fields that docs/status.md names in the first column, by section."""
    found: dict[str, set[str]] = {}
    section = ""
    for line in (Path(__file__).parent.parent.parent / "docs" / "status.md").read_text().splitlines():
        if line.startswith("## "):
            section = line[3:]
        elif line.startswith("| `"):
            found.setdefault(section, set()).update(re.findall(r"`(\w+)`", line.split("|")[1]))
    return found


def test_every_field_of_status_is_documented(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(f"models={bucket.url('library')}", *ANY_PORT, env=bucket.env)
    mounted.read("models/one.bin")
    status, known = mounted.status(), documented()
    assert status.keys() == known["A mount"]
    assert status["repositories"][0].keys() == known["repositories"]
    for section in ("cache", "tree", "fuse"):
        assert status[section].keys() == known[section]
    (shown,) = json.loads(run("status", "--json", mounted.point).stdout)
    assert shown.keys() == status.keys()
