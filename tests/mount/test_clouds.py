"""Every cloud in one mount, each with its own credentials. Every byte is checked, and no log at
debug level holds a secret.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.contract import obs_store, oss_store
from tests.contract.bucket_store import BUCKET
from tests.mount.conftest import MIB, Bucket, bytes_of, environment
from tests.mount.mounted import Mounter, run
from tests.servers.azurite import Azurite
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.gcs import GcsServer
from tests.servers.in_thread import InThread
from tests.servers.obs import ObsServer
from tests.servers.oss import OssServer

pytestmark = [pytest.mark.mount, pytest.mark.store]

FILES = {
    "config.pbtxt": b'name: "model"\n',
    "1/weights.bin": bytes_of(1, 9 * MIB + 12_345),
    "1/empty": b"",
    "odd/ü %41+ &.txt": bytes_of(2, 3000),
}
NEVER = ("Signature=", "sig=", "Bearer ", "Credential=", "PRIVATE KEY", "AccountKey")


@dataclass
class Clouds:
    """A bucket with FILES below `prefix` in each cloud."""

    env: dict[str, str]
    toml: str
    urls: dict[str, str]
    """The URL for `d7yfs ls`, by the repository's name in the mount."""
    secrets: tuple[str, ...]
    delete: Callable[[str], None]
    """A function that deletes one file in every cloud."""


@pytest.fixture
def clouds(bucket: Bucket, gcs: GcsServer, azurite: Azurite, oss: OssServer, obs: ObsServer, tmp_path: Path) -> Clouds:
    prefix = f"clouds-{secrets.token_hex(4)}"
    account = tmp_path / "account.json"
    account.write_text(json.dumps(gcs.account()))
    container = f"c{secrets.token_hex(4)}"
    with closing(azurite.client()) as client:
        client.create_container(container)
        for name, body in FILES.items():
            client.get_blob_client(container, f"{prefix}/{name}").upload_blob(body)
    for name, body in FILES.items():
        bucket.put(f"{prefix}/{name}", body)
        gcs.put("models", f"{prefix}/{name}", body)
        oss.put(f"{prefix}/{name}", body)
        obs.put(f"{prefix}/{name}", body)
    toml = f"""
        [repositories.aws]
        url = "{bucket.url(prefix)}"
        [repositories.google]
        url = "gs://models/{prefix}"
        endpoint_url = "{gcs.url}"
        credentials_file = "{account}"
        [repositories.azure]
        url = "as://{azurite.account}/{container}/{prefix}"
        [repositories.alibaba]
        url = "oss://{BUCKET}/{prefix}"
        endpoint_url = "{oss.url}"
        region = "{oss.region}"
        [repositories.huawei]
        url = "obs://{BUCKET}/{prefix}"
        endpoint_url = "{obs.url}"
    """
    urls = {
        "aws": bucket.url(prefix),
        "google": f"gs://{gcs.url}/models/{prefix}",
        "azure": f"as://{azurite.account}/{container}/{prefix}",
        "alibaba": f"oss://{oss.url}/{BUCKET}/{prefix}",
        "huawei": f"obs://{obs.url}/{BUCKET}/{prefix}",
    }
    env = bucket.env | {
        "D7YFS_CREDENTIALS_FILE": str(account),
        "D7YFS_REGION": oss.region,
        "AZURE_STORAGE_CONNECTION_STRING": (
            f"AccountName={azurite.account};AccountKey={azurite.key};BlobEndpoint={azurite.endpoint_url}/{azurite.account}"
        ),
        "OSS_ACCESS_KEY_ID": oss_store.IDENTITY.key_id,
        "OSS_ACCESS_KEY_SECRET": oss_store.IDENTITY.secret,
        "OSS_SESSION_TOKEN": oss_store.IDENTITY.token,
        "OBS_ACCESS_KEY_ID": obs_store.IDENTITY.key_id,
        "OBS_SECRET_ACCESS_KEY": obs_store.IDENTITY.secret,
        "OBS_SECURITY_TOKEN": obs_store.IDENTITY.token,
    }
    key_lines = (line for line in json.loads(account.read_text())["private_key"].split("\n") if len(line) > 32)
    secret = (
        bucket.server.reader.secret_key,
        azurite.key,
        oss_store.IDENTITY.secret,
        oss_store.IDENTITY.token,
        obs_store.IDENTITY.secret,
        obs_store.IDENTITY.token,
        *key_lines,
    )

    def delete(name: str) -> None:
        bucket.delete(f"{prefix}/{name}")
        gcs.delete("models", f"{prefix}/{name}")
        oss.delete(f"{prefix}/{name}")
        obs.delete(f"{prefix}/{name}")
        with closing(azurite.client()) as client:
            client.get_blob_client(container, f"{prefix}/{name}").delete_blob()

    return Clouds(env, toml, urls, secret, delete)


NAMES = ("alibaba", "aws", "azure", "google", "huawei")


@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "proxied"])
def test_every_cloud_in_one_mount(mounter: Mounter, clouds: Clouds, tmp_path: Path, proxied: bool) -> None:
    config = tmp_path / "config.toml"
    with InThread(FakeDfdaemon()) as dfdaemon:
        config.write_text((f'proxy = "{dfdaemon.server.url}"\n' if proxied else "") + clouds.toml)
        mounted = mounter.mount("--config", str(config), "--require-all", "--metadata-ttl", "0", env=clouds.env)
        assert mounted.names() == list(NAMES)
        for name in NAMES:
            for path, body in FILES.items():
                assert mounted.read(f"{name}/{path}") == body, f"{name}/{path}"
            fetched = mounted.fetched(name)
            assert bool(fetched["proxy_bytes"]) is proxied, name
            assert not any(fetched["retries"].values()), name
        clouds.delete("config.pbtxt")
        for name in NAMES:
            assert "config.pbtxt" not in mounted.names(name)
        said = [mounted.log(), mounted.said]
        for arguments in (
            ("status", "--json"),
            ("status", "--settings"),
            ("check", "--config", config, "--cache-dir", tmp_path / "cache", "--settings", "--log-level", "debug"),
        ):
            done = run(*arguments, env=clouds.env)
            assert done.returncode == 0, done.stdout + done.stderr
            said += [done.stdout, done.stderr]
    for text in said:
        assert not [secret for secret in (*clouds.secrets, *NEVER) if secret in text]


@pytest.mark.parametrize("name", NAMES)
def test_ls(clouds: Clouds, name: str) -> None:
    done = run("ls", clouds.urls[name], "--json", env=clouds.env)
    assert done.returncode == 0, done.stderr
    assert {each["name"]: each["size_bytes"] for each in json.loads(done.stdout)} == {
        "1/": None,
        "odd/": None,
        "config.pbtxt": len(FILES["config.pbtxt"]),
    }


def test_every_cloud_is_published_and_followed(
    mounter: Mounter, bucket: Bucket, clouds: Clouds, tmp_path: Path
) -> None:
    """`publish` writes to each store what mounts then show, and says no secret."""
    env = clouds.env | environment(bucket.server.writer)
    said = []

    def publish(name: str) -> dict[str, object]:
        done = run("publish", clouds.urls[name], "--json", env=env)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout + done.stderr)
        answer: dict[str, object] = json.loads(done.stdout)
        return answer

    first = {name: publish(name) for name in NAMES}
    config = tmp_path / "config.toml"
    config.write_text(f'listing = "published"\nmetadata_ttl = "forever"\n{clouds.toml}')
    mounted = mounter.mount("--config", str(config), "--require-all", env=clouds.env)
    for name in NAMES:
        assert first[name]["files"] == len(FILES), name
        assert mounted.read(f"{name}/config.pbtxt") == FILES["config.pbtxt"], name
        assert mounted.names(f"{name}/1") == ["empty", "weights.bin"], name
    clouds.delete("1/empty")
    assert run("refresh", mounted.point).returncode == 0
    for name in NAMES:
        assert mounted.names(f"{name}/1") == ["empty", "weights.bin"], name
        assert publish(name)["files"] == len(FILES) - 1, name
    assert run("refresh", mounted.point).returncode == 0
    for name in NAMES:
        assert mounted.names(f"{name}/1") == ["weights.bin"], name
    assert not [each for each in (*clouds.secrets, bucket.server.writer.secret_key, *NEVER) if each in "".join(said)]
