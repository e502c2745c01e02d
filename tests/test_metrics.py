"""What a scrape shows of a status."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from d7yfs import metrics
from d7yfs.latency import BOUNDS_S

TRAFFIC = {
    "cache_bytes": 1,
    "proxy_bytes": 2,
    "local_peer_bytes": 3,
    "remote_peer_bytes": 4,
    "back_to_source_bytes": 5,
    "direct_bytes": 6,
}
REPOSITORY: dict[str, Any] = {
    "name": "",
    "url": "s3://b/llm",
    "state": "reachable",
    "unlisted_s": 0.0,
    "credentials_expire_at": 1234.5,
    "read_bytes": 7,
    "traffic": TRAFFIC | {"direct_bytes_by_reason": {"small file": 4, "fallback": 2}},
    "fetched": {"direct_requests": 8, "proxy_requests": 9, "retries": {"BadReply": 1}},
    "load": {"transfers": 1, "transfers_limit": 32, "transfers_queued": 2, "prefetches": 1, "prefetches_queued": 0},
    "proxies": [{"url": "http://h:4001", "breaker": "open", "trips": 3}],
    "handover": None,
    "models": {
        'odd "name"\n': TRAFFIC
        | {"opens": 2, "read_bytes": 3, "fills": 1, "fill_s": 2.5, "open_bytes": 10, "open_cached_bytes": 5}
    },
}
STATUS: dict[str, Any] = {
    "version": "1.2.3",
    "mountpoint": "/mnt/models",
    "repositories": [REPOSITORY],
    "cache": {
        "used_bytes": 1,
        "limit_bytes": 2,
        "memory_bytes": 0,
        "memory_limit_bytes": 4,
        "open_versions": 1,
        **dict.fromkeys(metrics._CACHE_COUNTERS, 0),
        "evicted_files": 5,
    },
    "tree": {"inodes": 3, "inodes_limit": 9, **dict.fromkeys(metrics._TREE_COUNTERS, 0)},
    "fuse": {
        "errors": {"read": 2},
        "in_flight": 1,
        "open_files": 4,
        "latency_bounds_s": list(BOUNDS_S),
        "latency": {"read": {"counts": [1, 0, 2, *[0] * (len(BOUNDS_S) - 3), 1], "sum_s": 70.5}},
    },
    "warm_ups": [{"missing_bytes": 10, "fetched_bytes": 4}],
}


def scraped(status: dict[str, Any]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample of a scrape, by name and labels; a repeated one would be lost by Prometheus."""
    found = {}
    for family in text_string_to_metric_families(metrics.render(status).decode()):
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
    assert value("d7yfs_fuse_errors_total", operation="read") == 2


def test_bytes_by_source() -> None:
    repository = "s3://b/llm"
    found = {
        source: value("d7yfs_source_bytes_total", repository=repository, source=source) for source in metrics._SOURCES
    }
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
    assert value("process_resident_memory_bytes") > 1 << 20
    assert value("process_open_fds") > 0
