"""The image beside a reader in another container, as in a pod: who starts when, what is seen where, who ends first."""

from __future__ import annotations

import hashlib
import re
import urllib.request
from pathlib import Path

import pytest
import yaml

from d7yfs import mounts
from tests.container.conftest import Containers
from tests.mount.conftest import Bucket
from tests.mount.mounted import READ_TIMEOUT_S, free_port, until, within

pytestmark = [pytest.mark.mount, pytest.mark.store]

KUBERNETES = Path(__file__).parent.parent.parent / "deploy" / "kubernetes"


def answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=15):
            return True
    except OSError:
        return False


def is_mounted(point: Path) -> bool:
    mount = mounts.mounted_at(point)
    return mount is not None and mount.fstype == mounts.FSTYPE


def settings(bucket: Bucket, port: int) -> dict[str, str]:
    return bucket.env | {
        "D7YFS_SOURCE": bucket.url("library"),
        "D7YFS_MOUNTPOINT": "/mnt/d7yfs/models",
        "D7YFS_CACHE_DIR": "/var/cache/d7yfs",
        "D7YFS_METRICS_LISTEN": f"0.0.0.0:{port}",
        "D7YFS_SHUTDOWN_TIMEOUT": "5s",
    }


def gate() -> list[str]:
    """The command by which a model server waits for a plain sidecar, out of the manifest."""
    patch = yaml.safe_load((KUBERNETES / "components" / "sidecar-plain" / "sidecar.yaml").read_text())
    (server,) = (each for each in patch["spec"]["template"]["spec"]["containers"] if each["name"] == "server")
    command: list[str] = server["command"]
    return command


def test_a_privileged_sidecar_and_a_reader_that_waits_for_it(
    containers: Containers, ground: Path, bucket: Bucket
) -> None:
    point, port = ground / "volume" / "models", free_port()
    # The server first, as a pod's containers may start: the gate holds it.
    script = "sha256sum /mnt/d7yfs/models/twenty.bin; touch /run/shared/read; sleep 600"
    containers.start(
        "server",
        (
            f"--volume={point.parent}:/mnt/d7yfs:rslave,ro",
            f"--volume={ground / 'run'}:/run/shared",
            "--entrypoint",
            gate()[0],
        ),
        [*gate()[1:], "/bin/sh", "-c", script],
    )
    assert not (ground / "run" / "read").exists()
    sidecar = (
        *("--privileged", f"--volume={point.parent}:/mnt/d7yfs:rshared"),
        f"--volume={ground / 'cache'}:/var/cache/d7yfs",
    )
    containers.start("d7yfs", sidecar, ["mount"], settings(bucket, port))
    until(lambda: answers(port, "/readyz"), "the sidecar's startup probe", timeout_s=60)
    assert answers(port, "/healthz")
    assert is_mounted(point), "seen outside"
    assert within(READ_TIMEOUT_S, (point / "over.bin").read_bytes) == bucket.files["over.bin"]
    until(lambda: (ground / "run" / "read").exists(), "the other container's reader", timeout_s=60)
    assert hashlib.sha256(bucket.files["twenty.bin"]).hexdigest() in containers.log("server")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        read = re.search(rb"^d7yfs_read_bytes_total\{.*\} (\S+)$", reply.read(), re.MULTILINE)
    assert read is not None
    assert float(read[1]) >= len(bucket.files["twenty.bin"])
    containers.kill("d7yfs")
    containers.start("anew", sidecar, ["mount"], settings(bucket, port))
    until(lambda: answers(port, "/readyz"), "the sidecar that comes after it", timeout_s=60)
    healed = containers.execute("server", "sha256sum", "/mnt/d7yfs/models/block.bin")
    assert hashlib.sha256(bucket.files["block.bin"]).hexdigest() in healed, "a server that goes on sees the new mount"
    containers.stop("anew")
    assert containers.state("anew") == ("exited", 0)
    assert not is_mounted(point), "nothing stays behind"


def test_dockers_health_check(containers: Containers, ground: Path, bucket: Bucket) -> None:
    env = settings(bucket, 7717)
    containers.start(
        "d7yfs",
        ("--privileged", f"--volume={ground / 'volume'}:/mnt/d7yfs:rshared", "--tmpfs=/var/cache/d7yfs"),
        ["mount"],
        env,
    )
    until(lambda: answers(7717, "/readyz"), "the mount", timeout_s=60)
    containers.healthcheck("d7yfs")


def test_a_sidecar_without_privilege(containers: Containers, ground: Path, bucket: Bucket) -> None:
    point, port = ground / "volume" / "models", free_port()
    (ground / "cache").chmod(0o777)
    containers.start(
        "helper",
        (
            "--privileged",
            "--read-only",
            f"--volume={point.parent}:/mnt/d7yfs:rshared",
            f"--volume={ground / 'run'}:/run/fuse-helper",
        ),
        ["fuse-helper", "/mnt/d7yfs/models", "/run/fuse-helper/socket"],
    )
    until(lambda: (ground / "run" / "socket").exists(), "the helper's socket")
    unprivileged = (
        *("--user", "65532:65532", "--cap-drop=all", "--security-opt=no-new-privileges", "--read-only", "--tmpfs=/tmp"),
        *(f"--volume={point.parent}:/mnt/d7yfs:rslave", f"--volume={ground / 'run'}:/run/fuse-helper"),
        f"--volume={ground / 'cache'}:/var/cache/d7yfs",
    )
    env = settings(bucket, port) | {
        "D7YFS_FUSE_HELPER": "/run/fuse-helper/socket",
        "D7YFS_CACHE_DIR": "/var/cache/d7yfs/own",
        "XDG_RUNTIME_DIR": "/tmp",
        "HOME": "/tmp",
    }
    containers.start("d7yfs", unprivileged, ["mount"], env)
    until(lambda: answers(port, "/readyz"), "the mount", timeout_s=60)
    capabilities = containers.execute("d7yfs", "grep", "CapEff", "/proc/1/status").split()
    assert capabilities == ["CapEff:", "0000000000000000"]
    assert within(READ_TIMEOUT_S, (point / "over.bin").read_bytes) == bucket.files["over.bin"]
    containers.kill("d7yfs")
    until(lambda: not is_mounted(point), "the helper to take the dead mount away")
    containers.start("again", unprivileged, ["mount"], env)
    until(lambda: answers(port, "/readyz"), "another daemon's mount", timeout_s=60)
    assert within(READ_TIMEOUT_S, (point / "one.bin").read_bytes) == bucket.files["one.bin"]
    containers.stop("again")
    until(lambda: not is_mounted(point), "the end")
