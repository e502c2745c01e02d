"""The numbers of a status in its scrape."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from d7yfs.fuse.request_guard import OPERATIONS
from d7yfs.monitor import metrics
from d7yfs.stats.kernel import BOUNDS_S
from d7yfs.stats.repository_status import SOURCES
from d7yfs.stats.status import MountStatus, parse
from tests.monitor.status_numbers import LEFT_OUT, left_out, unshown

SNAPSHOT: dict[str, Any] = json.loads((Path(__file__).parents[1] / "control" / "snapshot.json").read_text())
LLM = SNAPSHOT["repositories"][0]
REPOSITORY: dict[str, Any] = LLM | {
    "name": "",
    "url": "s3://b/llm",
    "state": "reachable",
    "unlisted_s": 0.0,
    "credentials_expire_at": 1234.5,
    "listing": LLM["listing"]
    | {
        "mode": "auto",
        "in_use": "directory",
        "limit": 20_000,
        "last_scan": {"objects": 11, "directories": 12, "pages": 13, "took_s": 1.5},
        "answered_s": 2.5,
        "scans": 1,
        "scan_pages": 3,
        "listings": 4,
        "listing_pages": 5,
        "exact_lookups": 6,
        "streamed_pages": 7,
    },
    "freshness": {"refreshes": 8, "refreshes_failed": 1, "refreshed_directories": 9, "refresh_s": 0.5},
    "hidden": {"name": 1, "excluded": 2, "unpublished": 3},
    "proxy_trips": 3,
    "proxies": [{"url": "http://h:4001", "breaker": "open", "trips": 3, "binds_content_ids": True}],
    "handover": LLM["handover"] | {"state": "in use", "handovers": 2},
    "fetched": LLM["fetched"]
    | {
        "direct_requests": 8,
        "proxy_requests": 9,
        "direct_bytes_by_reason": {"fallback": 2},
        "retries": {"BadReply": 1},
    },
    "load": {
        "transfers": 1,
        "transfers_limit": 32,
        "transfers_queued": 2,
        "prefetches": 1,
        "prefetches_limit": 24,
        "prefetches_queued": 0,
    },
    "failures": LLM["failures"] | {"reads": LLM["failures"]["reads"] | {"count": 2, "since": 1.0, "last_at": 2.0}},
    "read_bytes": 7,
    "traffic": {
        "cache_bytes": 1,
        "proxy_bytes": 2,
        "local_peer_bytes": 3,
        "remote_peer_bytes": 4,
        "back_to_source_bytes": 5,
        "direct_bytes": 6,
        "direct_bytes_by_reason": {"small file": 4, "fallback": 2},
    },
    "models": {
        'odd "name"\n': LLM["models"]["a"]
        | {"opens": 2, "read_bytes": 3, "direct_bytes": 6, "fills": 1, "fill_s": 2.5}
        | {"files": 2, "size_bytes": 20, "cached_bytes": 15, "loads": 1, "load_s": 12.5}
        | {"open_bytes": 10, "open_cached_bytes": 5}
    },
}
STATUS: dict[str, Any] = SNAPSHOT | {
    "pid": 42,
    "started_at": 1_700_000_000.0,
    "uptime_s": 12.0,
    "rss_bytes": 1 << 26,
    "version": "1.2.3",
    "mountpoint": "/mnt/models",
    "repositories": [REPOSITORY],
    "cache": SNAPSHOT["cache"] | {"evicted_files": 5},
    "tree": SNAPSHOT["tree"] | {"inodes": 1},
    "kernel_notices": {"notices": 3, "known": 2, "overflow": 1},
    "fuse": {
        "calls": {"read": 4},
        "errors": dict.fromkeys(OPERATIONS, 0) | {"read": 2},
        "in_flight": 1,
        "waiting_reads": {"1000": 1},
        "oldest_request_s": 7.5,
        "oldest_requests": [{"operation": "read", "path": "llm/weights", "waited_s": 7.5}],
        "open_files": 4,
        "open_files_limit": 65_536,
        "open_directories": 3,
        "open_directories_limit": 16_384,
        "read_bytes": 7,
        "engine": "kernel",
        "passthrough": True,
        "passthrough_opens": 6,
        "latency_bounds_s": list(BOUNDS_S),
        "latency": {"read": {"counts": [1, 0, 2, *[0] * (len(BOUNDS_S) - 3), 1], "sum_s": 70.5}},
    },
    "warm_ups": [
        SNAPSHOT["warm_ups"][0]
        | {"state": "running", "files": 3, "missing_bytes": 10, "fetched_bytes": 4, "files_failed": 1, "eta_s": 1.5}
    ],
    "last_reload": SNAPSHOT["last_reload"] | {"at": 1_700_000_001.0},
}


def scraped(status: dict[str, Any]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of a scrape, by name and labels; a repeated one would be lost by Prometheus."""
    found = {}
    for family in text_string_to_metric_families(metrics.render(parse(MountStatus, status)).decode()):
        assert family.documentation
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found
            found[key] = sample.value
    return found


def value(name: str, of: dict[str, Any] | None = None, /, **labels: str) -> float:
    return scraped(of or STATUS)[(name, tuple(sorted(labels.items())))]


def test_requests_by_duration() -> None:
    name = "d7yfs_fuse_request_duration_seconds"
    assert value(f"{name}_bucket", operation="read", le="0.0001") == 1
    assert value(f"{name}_bucket", operation="read", le="0.001") == 3
    assert value(f"{name}_bucket", operation="read", le="60.0") == 3
    assert value(f"{name}_bucket", operation="read", le="+Inf") == 4
    assert value(f"{name}_count", operation="read") == 4
    assert value(f"{name}_sum", operation="read") == 70.5
    assert value("d7yfs_fuse_oldest_request_age_seconds") == 7.5


def test_errors_are_shown_of_every_operation_before_there_are_any() -> None:
    assert value("d7yfs_fuse_errors_total", operation="read") == 2
    for operation in ("lookup", "getattr", "opendir", "readdir", "open", "release", "statfs", "getxattr"):
        assert value("d7yfs_fuse_errors_total", operation=operation) == 0


def test_no_number_of_a_status_is_missing_but_for_a_reason() -> None:
    found = unshown(STATUS)
    assert found - left_out(found) == set()
    for pattern in LEFT_OUT:
        assert any(re.fullmatch(pattern, path) for path in found), f"{pattern}: shown, or not there any more"


def test_how_names_are_learnt() -> None:
    repository = "s3://b/llm"
    kinds = ("whole", "directory", "stream", "name")
    asked = {kind: value("d7yfs_listing_requests_total", repository=repository, kind=kind) for kind in kinds}
    assert asked == {"whole": 3, "directory": 5, "stream": 7, "name": 6}
    modes = {mode: value("d7yfs_listing_mode", repository=repository, mode=mode) for mode in ("whole", "directory")}
    assert modes == {"whole": 0, "directory": 1}
    assert value("d7yfs_last_scan_seconds", repository=repository) == 1.5
    assert value("d7yfs_refreshes_failed_total", repository=repository) == 1
    assert value("d7yfs_hidden_entries", repository=repository, reason="unpublished") == 3
    never = copy.deepcopy(STATUS)
    never["repositories"][0]["listing"]["answered_s"] = None
    with pytest.raises(KeyError):
        value("d7yfs_listing_age_seconds", never, repository=repository)


def test_bytes_by_source() -> None:
    repository = "s3://b/llm"
    found = {source: value("d7yfs_source_bytes_total", repository=repository, source=source) for source in SOURCES}
    assert found == {
        "cache": 1,
        "proxy": 2,
        "local_peer": 3,
        "remote_peer": 4,
        "back_to_source": 5,
        "origin": 6,
    }
    assert value("d7yfs_direct_bytes_total", repository=repository, reason="fallback") == 2
    assert value("d7yfs_read_bytes_total", repository=repository) == 7
    assert value("d7yfs_retries_total", repository=repository, reason="BadReply") == 1


def test_a_models_name_is_anything() -> None:
    labels = {"repository": "s3://b/llm", "model": 'odd "name"\n'}
    assert value("d7yfs_model_source_bytes_total", **labels, source="origin") == 6
    assert value("d7yfs_model_open_cached_bytes", **labels) == 5
    assert value("d7yfs_model_fill_seconds_total", **labels) == 2.5
    assert value("d7yfs_model_bytes", **labels) == 20
    assert value("d7yfs_model_cached_bytes", **labels) == 15
    assert value("d7yfs_model_load_seconds", **labels) == 12.5


def test_breakers_and_credentials() -> None:
    labels = {"repository": "s3://b/llm", "proxy": "http://h:4001"}
    states = {state: value("d7yfs_proxy_breaker", **labels, state=state) for state in ("closed", "open", "probing")}
    assert states == {"closed": 0, "open": 1, "probing": 0}
    assert value("d7yfs_credentials_expire_timestamp_seconds", repository="s3://b/llm") == 1234.5
    lasting = copy.deepcopy(STATUS)
    lasting["repositories"][0]["credentials_expire_at"] = None
    with pytest.raises(KeyError):
        value("d7yfs_credentials_expire_timestamp_seconds", lasting, repository="s3://b/llm")


def test_a_repository_that_does_not_answer() -> None:
    status = copy.deepcopy(STATUS)
    status["repositories"][0] |= {"name": "llm", "state": "stale", "unlisted_s": 12.5}
    assert value("d7yfs_repository_up", status, repository="llm") == 0
    assert value("d7yfs_repository_stale_seconds", status, repository="llm") == 12.5
    assert value("d7yfs_repository_up", repository="s3://b/llm") == 1


def test_the_mount_and_its_process() -> None:
    assert value("d7yfs_info", version="1.2.3", mountpoint="/mnt/models") == 1
    assert value("d7yfs_cache_evicted_files_total") == 5
    assert value("d7yfs_warm_up_rest_bytes") == 6
    assert value("d7yfs_kernel_notices_overflow_total") == 1
    assert value("d7yfs_tree_inodes") == 1
    assert (value("d7yfs_open_directories"), value("d7yfs_open_directories_limit")) == (3, 16_384)
    assert (value("d7yfs_open_files"), value("d7yfs_open_files_limit")) == (4, 65_536)
    assert value("d7yfs_config_last_reload_successful") == 1
    assert value("process_resident_memory_bytes") > 1 << 20
    assert value("process_open_fds") > 0
