"""Data through dfdaemon's proxy: a fake with the measured behaviour of the real one, and a real
store.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.conftest import MIB, Bucket, bytes_of, faulty_url
from tests.mount.mounted import Mounted, Mounter, in_background
from tests.servers import faults
from tests.servers.dfdaemon import FakeDfdaemon, error
from tests.servers.http11 import Request
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, pytest.mark.store]

SIZE = 24 * MIB


@pytest.fixture
def dfdaemon() -> Iterator[InThread[FakeDfdaemon]]:
    with InThread(FakeDfdaemon()) as running:
        yield running


@pytest.fixture(scope="module")
def weights(bucket: Bucket) -> bytes:
    body = bytes_of(77, SIZE)
    bucket.put("proxied/weights.bin", body)
    bucket.put("proxied/other.bin", body[::-1])
    bucket.put("proxied/small.bin", body[:100])
    return body


def _through(mounter: Mounter, bucket: Bucket, dfdaemon: InThread[FakeDfdaemon], *options: str) -> Mounted:
    return mounter.mount(bucket.url("proxied"), "--proxy", dfdaemon.server.url, *options, env=bucket.env)


def _for(dfdaemon: InThread[FakeDfdaemon], name: str) -> list[Request]:
    return dfdaemon.server.requests_for(f"mounted/proxied/{name}")


def test_a_file_is_one_get_through_the_proxy(
    mounter: Mounter, bucket: Bucket, dfdaemon: InThread[FakeDfdaemon], weights: bytes
) -> None:
    mounted = _through(mounter, bucket, dfdaemon)
    assert mounted.read("weights.bin") == weights
    (request,) = _for(dfdaemon, "weights.bin")
    assert request.absolute
    assert request.headers["x-dragonfly-use-p2p"] == "true"
    assert "range" not in request.headers
    fetched = mounted.fetched()
    assert (fetched["proxy_requests"], fetched["proxy_bytes"]) == (1, SIZE)
    assert fetched["direct_bytes"] < SIZE, "only reads before the stream's first byte go direct"

    requests = mounted.data_requests()
    assert mounted.read_anew("weights.bin") == weights
    assert mounted.data_requests() == requests

    assert mounted.read("small.bin") == weights[:100]
    assert _for(dfdaemon, "small.bin") == [], "a small file goes direct"
    assert all(
        request.method == "GET" and request.key.startswith("mounted/proxied/") for request in dfdaemon.server.requests
    )


def test_two_versions_of_a_file_are_two_tasks(
    mounter: Mounter, bucket: Bucket, dfdaemon: InThread[FakeDfdaemon], weights: bytes
) -> None:
    bucket.put("proxied/versioned.bin", weights)
    mounted = _through(mounter, bucket, dfdaemon, "--metadata-ttl", "0")
    assert mounted.read("versioned.bin") == weights
    bucket.put("proxied/versioned.bin", weights[::-1])
    assert mounted.read("versioned.bin") == weights[::-1], "dfdaemon never revalidates its pieces"
    assert len(dfdaemon.server.tasks) == 2


def test_a_proxy_that_dies_in_the_middle_is_replaced_by_the_store(
    mounter: Mounter, bucket: Bucket, dfdaemon: InThread[FakeDfdaemon], weights: bytes
) -> None:
    mounted = _through(mounter, bucket, dfdaemon)
    dfdaemon.do(lambda: dfdaemon.server.script(faults.cut_after(9 * MIB), faults.drop, forever=True))
    assert mounted.read("weights.bin") == weights
    fetched = mounted.fetched()
    assert 9 * MIB <= fetched["proxy_bytes"] < SIZE
    assert fetched["direct_bytes"] > 0
    status = mounted.status()["repositories"][0]
    assert (status["proxy_usable"], status["proxy_trips"]) == (False, 1)
    assert "reading on from the origin" in mounted.log()


def test_a_dead_proxy_costs_little(
    mounter: Mounter, bucket: Bucket, dfdaemon: InThread[FakeDfdaemon], weights: bytes
) -> None:
    mounted = _through(mounter, bucket, dfdaemon)
    dfdaemon.do(dfdaemon.server.kill)
    assert mounted.read("weights.bin", timeout_s=15) == weights
    assert mounted.read("other.bin", timeout_s=15) == weights[::-1]
    assert mounted.fetched()["proxy_bytes"] == 0


def test_a_silent_proxy_is_not_waited_for(
    mounter: Mounter, bucket: Bucket, dfdaemon: InThread[FakeDfdaemon], weights: bytes
) -> None:
    mounted = _through(mounter, bucket, dfdaemon)
    dfdaemon.do(lambda: dfdaemon.server.script(faults.Hang(), forever=True))
    assert mounted.read("weights.bin", timeout_s=15) == weights


@pytest.mark.parametrize("kind", ["dfdaemon", "backend"])
def test_errors_of_the_proxy_and_of_its_backend(
    mounter: Mounter, bucket: Bucket, dfdaemon: InThread[FakeDfdaemon], weights: bytes, kind: str
) -> None:
    mounted = _through(mounter, bucket, dfdaemon)
    dfdaemon.do(lambda: dfdaemon.server.script(error(500, kind), forever=True))
    assert mounted.read("weights.bin", timeout_s=20) == weights


def test_a_required_proxy_that_is_dead_is_eio(
    mounter: Mounter, bucket: Bucket, dfdaemon: InThread[FakeDfdaemon], weights: bytes
) -> None:
    mounted = _through(mounter, bucket, dfdaemon, "--no-fallback", "--read-timeout", "2s")
    assert mounted.read("weights.bin") == weights
    dfdaemon.do(dfdaemon.server.kill)
    assert mounted.read_anew("weights.bin") == weights, "cached bytes need no proxy"
    with pytest.raises(OSError) as caught:  # noqa: PT011  # the test checks the errno
        mounted.read("other.bin", timeout_s=20)
    assert caught.value.errno == errno.EIO
    assert "proxy" in mounted.log()


def test_the_drop_in_files_of_a_triton_host(
    mounter: Mounter, bucket: Bucket, dfdaemon: InThread[FakeDfdaemon], weights: bytes, tmp_path: Path
) -> None:
    reader = bucket.server.reader
    credentials, dragonfly = tmp_path / "cloud_credential.json", tmp_path / "dragonfly_config.json"
    credentials.write_text(
        json.dumps({"s3": {"": {"key_id": reader.key_id, "secret_key": reader.secret_key, "region": "us-east-1"}}})
    )
    dragonfly.write_text(
        json.dumps(
            {
                "proxy": {"addr": dfdaemon.server.url},
                "header": {"X-Tenant": "blue-tenant", "Host": "abc"},
                "filter": ["X-Amz-Credential&X-Amz-Date"],
            }
        )
    )
    mounted = mounter.mount(
        bucket.url("proxied"),
        env={"TRITON_CLOUD_CREDENTIAL_PATH": str(credentials), "TRITON_DRAGONFLY_CONFIG_PATH": str(dragonfly)},
    )
    assert "Host" in mounted.said, "a warning must name the header that is not sent"
    assert mounted.read("weights.bin") == weights
    (request,) = _for(dfdaemon, "weights.bin")
    assert request.headers["x-tenant"] == "blue-tenant"
    assert request.headers["host"] != "abc"
    assert "blue-tenant" not in mounted.log() + json.dumps(mounted.status())
    assert str(credentials) in mounted.status()["settings"]["credentials"]["from"]
    assert mounted.status()["settings"]["proxy"]["from"] == str(dragonfly)


def test_without_configuration_nothing_goes_through_a_proxy(
    mounter: Mounter, bucket: Bucket, dfdaemon: InThread[FakeDfdaemon], weights: bytes
) -> None:
    variables = dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY"), dfdaemon.server.url)
    mounted = mounter.mount(bucket.url("proxied"), env=bucket.env | variables)
    assert mounted.read("weights.bin") == weights
    assert dfdaemon.server.requests == []
    assert mounted.fetched()["proxy_requests"] == 0


def test_eight_readers_are_one_get(
    mounter: Mounter, bucket: Bucket, dfdaemon: InThread[FakeDfdaemon], weights: bytes
) -> None:

    mounted = _through(mounter, bucket, dfdaemon)
    readers = [in_background(lambda: (mounted.point / "weights.bin").read_bytes()) for _ in range(8)]
    assert all(each.result(30) == weights for each in readers)
    assert len(_for(dfdaemon, "weights.bin")) == 1


# --- the policy ---

FILES = {
    "llm/model.safetensors": bytes_of(78, SIZE),
    "llm/config.json": bytes_of(79, 2000),
    "llm/tokenizer.json": bytes_of(80, 6 * MIB),
    "data/table.parquet": bytes_of(81, 2 * SIZE),
}


@pytest.fixture
def models(faulty: InThread[S3Faults]) -> InThread[S3Faults]:
    """A store that records the requests of each client."""
    for path, body in FILES.items():
        faulty.do(faulty.server.put, f"b/models/{path}", body)
    return faulty


def _read_all(mounted: Mounted) -> None:
    for path, body in FILES.items():
        assert mounted.read(path) == body


def _past_dfdaemon(models: InThread[S3Faults], path: str) -> list[Request]:
    return [
        each for each in models.server.data_requests(f"b/models/{path}") if "x-dragonfly-use-p2p" not in each.headers
    ]


@pytest.mark.parametrize("mode", ["always", "never"])
def test_always_and_never(
    mounter: Mounter, models: InThread[S3Faults], dfdaemon: InThread[FakeDfdaemon], mode: str
) -> None:
    mounted = mounter.mount(faulty_url(models, "models"), "--anonymous", "--proxy", dfdaemon.server.url, "--p2p", mode)
    _read_all(mounted)
    fetched = mounted.fetched()
    if mode == "always":
        assert all(not _past_dfdaemon(models, path) for path in FILES), "only dfdaemon may send a GET to the store"
        assert (fetched["direct_requests"], fetched["direct_bytes"]) == (0, 0)
        assert len(dfdaemon.server.tasks) == len(FILES)
    else:
        assert dfdaemon.server.requests == []
        assert all(_past_dfdaemon(models, path) for path in FILES)
        assert fetched["direct_bytes_by_reason"] == {"never": sum(map(len, FILES.values()))}
    assert mounted.status()["settings"]["p2p"]["value"] == mode


def test_always_reads_from_the_store_when_the_proxy_is_dead(
    mounter: Mounter, models: InThread[S3Faults], dfdaemon: InThread[FakeDfdaemon]
) -> None:
    mounted = mounter.mount(
        faulty_url(models, "models"), "--anonymous", "--proxy", dfdaemon.server.url, "--p2p", "always"
    )
    dfdaemon.do(dfdaemon.server.kill)
    _read_all(mounted)


def test_the_mode_goes_by_the_path(
    mounter: Mounter, models: InThread[S3Faults], dfdaemon: InThread[FakeDfdaemon]
) -> None:
    p2p = "/llm/config.json=always, *.json=never,*.parquet=never,always"
    mounted = mounter.mount(faulty_url(models, "models"), "--anonymous", "--proxy", dfdaemon.server.url, "--p2p", p2p)
    _read_all(mounted)
    through = {path for path in FILES if dfdaemon.server.requests_for(f"b/models/{path}")}
    past = {path for path in FILES if _past_dfdaemon(models, path)}
    assert through == {"llm/model.safetensors", "llm/config.json"}
    assert past == {"llm/tokenizer.json", "data/table.parquet"}
    assert mounted.status()["settings"]["p2p"]["value"] == p2p.replace(" ", "")


def test_sparse_reads_of_what_is_no_model_are_no_stream(
    mounter: Mounter, models: InThread[S3Faults], dfdaemon: InThread[FakeDfdaemon]
) -> None:
    mounted = mounter.mount(faulty_url(models, "models"), "--anonymous", "--proxy", dfdaemon.server.url)
    body = FILES["data/table.parquet"]
    with (mounted.point / "data/table.parquet").open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for at in range(5 * MIB, 45 * MIB, 5 * MIB):
            assert os.pread(file.fileno(), 4096, at) == body[at : at + 4096]
    assert mounted.fetched()["direct_bytes"] <= 4 * MIB, "each host may take this much from the store"
    asked = dfdaemon.server.requests_for("b/models/data/table.parquet")
    assert asked
    assert all("range" in each.headers for each in asked)
    assert mounted.read("data/table.parquet") == body, "a read from end to end is one stream"
    assert mounted.fetched()["direct_bytes"] <= 4 * MIB


def test_a_sequential_reader_of_what_is_no_model_gets_a_stream(
    mounter: Mounter, models: InThread[S3Faults], dfdaemon: InThread[FakeDfdaemon]
) -> None:
    mounted = mounter.mount(faulty_url(models, "models"), "--anonymous", "--proxy", dfdaemon.server.url)
    assert mounted.read("data/table.parquet") == FILES["data/table.parquet"]
    asked = dfdaemon.server.requests_for("b/models/data/table.parquet")
    assert [each for each in asked if each.headers.get("range", "-").endswith("-")]
    assert mounted.fetched()["direct_bytes"] <= 4 * MIB
