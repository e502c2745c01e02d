"""Hosts that were set up for TorchServe's earlier plugins: d7yfs takes source and keys from their
unchanged files.
"""

from __future__ import annotations

import json
import secrets
from contextlib import closing
from pathlib import Path

import pytest

from tests.mount.conftest import Bucket, bytes_of
from tests.mount.mounted import Mounter, run
from tests.servers.azurite import Azurite
from tests.servers.bucket_server import Identity
from tests.servers.fake_torchserve import closed_port
from tests.servers.gcs import GcsServer
from tests.servers.in_thread import InThread
from tests.servers.oss import OssServer

pytestmark = [pytest.mark.mount, pytest.mark.store]

WEIGHTS = bytes_of(5, 300_000)


def test_the_s3_plugins_file_mounts(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> None:
    reader = bucket.server.reader
    file = tmp_path / "s3.json"
    file.write_text(f"""{{
      // as published: with comments, and a surplus comma
      "accessKeyId": "{reader.key_id}", "secretAccessKey": "{reader.secret_key}", "region": "us-east-1",
      "bucketName": "{bucket.name}", "key": "library/model",
      "load_model": "all", "minWorker": "1",
    }}""")
    mounted = mounter.mount("--torchserve-config", str(file), "--endpoint-url", bucket.server.endpoint_url)
    assert mounted.names() == ["1", "config.pbtxt"]
    assert mounted.read("1/weights.bin") == bucket.files["model/1/weights.bin"]
    assert reader.secret_key not in mounted.log() + mounted.said + json.dumps(mounted.status())


def test_the_endpoint_plugins_file_mounts_by_its_variable_alone(
    mounter: Mounter, bucket: Bucket, tmp_path: Path
) -> None:
    reader = bucket.server.reader
    storage = {"type": "s3", "bucket_name": bucket.name, "region": "us-east-1", "endpoint": bucket.server.endpoint_url}
    storage |= {"access_key": reader.key_id, "secret_key": reader.secret_key}
    file = tmp_path / "config.json"
    # Its dfdaemon is down, so reads go to the store.
    file.write_text(json.dumps({"addr": f"http://127.0.0.1:{closed_port()}", "object_storage": storage}))
    env = {"DRAGONFLY_ENDPOINT_CONFIG": str(file)}
    mounted = mounter.mount(env=env)
    assert mounted.read("library/block.bin") == bucket.files["block.bin"]
    assert mounted.read("library/twenty.bin") == bucket.files["twenty.bin"]
    shown = run("check", "--settings", "--json", mounted.point, env=env)
    assert {"probe", "verdict", "schema"} <= json.loads(shown.stdout)[0].keys(), (
        "the first object must be a finding, not the settings"
    )
    assert "(from " in shown.stderr
    assert reader.secret_key not in mounted.log() + mounted.said + shown.stdout + shown.stderr
    done = run("ls", f"s3://{bucket.name}/library", env=env)
    assert done.returncode == 0, done.stderr
    assert "twenty.bin" in done.stdout


def mounts_weights(mounter: Mounter, tmp_path: Path, storage: dict[str, str]) -> None:
    """Mount with the endpoint plugin's file alone, and read the file at its bucket's root."""
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"addr": f"http://127.0.0.1:{closed_port()}", "object_storage": storage}))
    mounted = mounter.mount(env={"DRAGONFLY_ENDPOINT_CONFIG": str(file)})
    assert mounted.read("plugin/weights.bin") == WEIGHTS
    assert "unknown key" not in mounted.log() + mounted.said


def test_the_endpoint_plugins_file_for_google(mounter: Mounter, gcs: GcsServer, tmp_path: Path) -> None:
    gcs.put("models", "plugin/weights.bin", WEIGHTS)
    account = tmp_path / "account.json"
    account.write_text(json.dumps(gcs.account()))
    storage = {"type": "gcs", "bucket_name": "models", "project_id": "p", "endpoint": gcs.url}
    mounts_weights(mounter, tmp_path, storage | {"service_account_path": str(account)})


def test_the_endpoint_plugins_file_for_azure(mounter: Mounter, azurite: Azurite, tmp_path: Path) -> None:
    container = f"c{secrets.token_hex(4)}"
    with closing(azurite.client()) as client:
        client.create_container(container)
        client.get_blob_client(container, "plugin/weights.bin").upload_blob(WEIGHTS)
    storage = {"type": "abs", "container_name": container, "endpoint": azurite.endpoint_url}
    mounts_weights(mounter, tmp_path, storage | {"account_name": azurite.account, "account_key": azurite.key})


def test_the_endpoint_plugins_file_for_oss(mounter: Mounter, tmp_path: Path) -> None:
    """A custom endpoint names no region, and without a region nothing can be signed."""
    with InThread(OssServer(Identity("reader", "secret-of-the-reader"), bucket="models")) as thread:
        thread.server.put("plugin/weights.bin", WEIGHTS)
        storage = {"type": "oss", "bucket_name": "models", "endpoint": thread.server.url, "region": OssServer.region}
        keys = {"access_key_id": "reader", "access_key_secret": "secret-of-the-reader"}
        mounts_weights(mounter, tmp_path, storage | keys)


def test_a_file_for_another_bucket_is_refused(mounter: Mounter, tmp_path: Path) -> None:
    file = tmp_path / "s3.json"
    file.write_text('{"bucketName": "theirs", "key": "x"}')
    done = mounter.refused("s3://ours", "--torchserve-config", str(file))
    assert f"{file} is for s3://theirs/x, not for s3://ours" in done.stderr
