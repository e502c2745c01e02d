"""`d7yfs warm --cluster` as users run it: what it has brought, a mount reads without the store."""

from __future__ import annotations

import json
import secrets
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract import oss_store
from tests.contract.bucket_store import BUCKET
from tests.mount.conftest import MIB, Bucket, bytes_of
from tests.mount.mounted import Mounted, Mounter, run
from tests.servers import fake_manager
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.fake_manager import FakeManager
from tests.servers.in_thread import InThread
from tests.servers.oss import OssServer

pytestmark = pytest.mark.mount

BODY = bytes_of(31, 9 * MIB + 7)
ENV = {
    "OSS_ACCESS_KEY_ID": oss_store.IDENTITY.key_id,
    "OSS_ACCESS_KEY_SECRET": oss_store.IDENTITY.secret,
    "OSS_SESSION_TOKEN": oss_store.IDENTITY.token,
}


@pytest.fixture
def dfdaemon() -> Iterator[InThread[FakeDfdaemon]]:
    with InThread(FakeDfdaemon()) as served:
        yield served


@pytest.fixture
def manager(dfdaemon: InThread[FakeDfdaemon]) -> Iterator[FakeManager]:
    """A manager whose jobs are done by the one dfdaemon, as a seed does them."""

    def bring(url: str, args: dict[str, Any]) -> str:
        headers = {
            "X-Dragonfly-Use-P2P": "true",
            "X-Dragonfly-Filtered-Query-Params": args["filtered_query_params"].replace("&", ","),
            "X-Dragonfly-Tag": args["tag"],
            "X-Dragonfly-Application": args["application"],
        }
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({"http": dfdaemon.server.url}))
        with opener.open(urllib.request.Request(url, headers=args["headers"] | headers), timeout=20) as reply:
            reply.read()
        return "seed-1"

    with fake_manager.running(FakeManager(bring=bring)) as served:
        yield served


@pytest.fixture
def token(tmp_path: Path, manager: FakeManager) -> Path:
    file = tmp_path / "token"
    file.write_text(manager.token)
    file.chmod(0o600)
    return file


def _reports(*arguments: str | Path) -> tuple[int, list[dict[str, Any]], str]:
    done = run("warm", "--cluster", "--json", *arguments)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def _through(dfdaemon: InThread[FakeDfdaemon], manager: FakeManager, token: Path) -> list[str]:
    return [
        *("--proxy", dfdaemon.server.url, "--dragonfly-manager", manager.url),
        *("--dragonfly-manager-token-file", str(token), "--p2p-tag", "llm", "--log-level", "debug"),
    ]


@pytest.fixture
def versioned(
    mounter: Mounter, oss: OssServer, dfdaemon: InThread[FakeDfdaemon], manager: FakeManager, token: Path
) -> Mounted:
    """A mount of a bucket with versions: weights of a model, and a small file."""
    prefix = f"preheat-{secrets.token_hex(4)}"
    oss.put(f"{prefix}/llm/weights.bin", BODY)
    oss.put(f"{prefix}/llm/config.json", b"{}")
    url = f"oss://{BUCKET}/{prefix}"
    where = ["--endpoint-url", oss.url, "--region", oss.region, "--versioned"]
    return mounter.mount(url, *where, *_through(dfdaemon, manager, token), env=ENV)


def test_what_was_preheated_is_read_without_the_store(versioned: Mounted, manager: FakeManager, oss: OssServer) -> None:
    status, reports, _ = _reports(versioned.point / "llm")
    assert status == 0
    last = reports[-1]
    assert (last["files"], last["files_done"], last["files_direct"]) == (1, 1, 1)
    assert last["hosts"] == {"seed-1": 1}
    told = json.loads(run("stat", "--json", versioned.point / "llm/weights.bin").stdout)
    assert manager.tasks == [told["task_id"]]

    sent = sum(1 for each in oss.requests if each.method == "GET" and "weights.bin" in each.target)
    assert versioned.read("llm/weights.bin") == BODY
    fetched = versioned.fetched()
    assert fetched["proxy_bytes"] > 0
    after = sum(1 for each in oss.requests if each.method == "GET" and "weights.bin" in each.target)
    # What the reader could not wait for may come straight from the store; the task's bytes do not.
    assert after - sent <= fetched["direct_requests"]
    log = versioned.log()
    assert "Signature=" not in log
    assert manager.token not in log


def test_people_are_told_by_host(versioned: Mounted, manager: FakeManager) -> None:
    done = run("warm", "--cluster", "--scope", "all_seed_peers", versioned.point)
    assert done.returncode == 0, done.stderr
    assert "preheated: 1 file, 9 MiB in 0:00:0" in done.stdout
    assert "(seed-1: 1)" in done.stdout
    assert "1 file that mounts fetch from the store" in done.stdout
    assert manager.requests[0]["args"]["scope"] == "all_seed_peers"


def test_a_manager_that_refuses_is_a_clear_error(versioned: Mounted, manager: FakeManager) -> None:
    manager.token = "another"
    done = run("warm", "--cluster", versioned.point)
    assert done.returncode == 1
    assert "answers 401" in done.stderr
    assert "dragonfly_manager_token_file" in done.stderr


def test_options_that_do_not_go_together(versioned: Mounted) -> None:
    for options in (["--cluster", "--background"], ["--scope", "all_peers"]):
        assert run("warm", *options, versioned.point).returncode == 2


@pytest.mark.store
def test_files_without_versions_are_named_with_what_to_do(
    mounter: Mounter, bucket: Bucket, dfdaemon: InThread[FakeDfdaemon], manager: FakeManager, token: Path
) -> None:
    bucket.put("unversioned/weights.bin", BODY)
    mounted = mounter.mount(bucket.url("unversioned"), *_through(dfdaemon, manager, token), env=bucket.env)
    status, reports, said = _reports(mounted.point)
    assert status == 1
    assert reports[-1]["files"] == 0
    assert manager.requests == []
    assert "cannot be preheated: its URL names no version" in said
    assert str(mounted.point / "weights.bin") in said
    assert "--versioned" in said


@pytest.mark.store
def test_without_a_manager(mounter: Mounter, bucket: Bucket) -> None:
    mounted = mounter.mount(bucket.url("library"), env=bucket.env)
    done = run("warm", "--cluster", mounted.point)
    assert done.returncode == 1
    assert "no manager" in done.stderr
    assert "d7yfs warm on one host" in done.stderr
