"""The image with a reader in another container, as in a pod: start order, visibility of the mount,
end order.
"""

from __future__ import annotations

import hashlib
import os
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from d7yfs.host import mount_table
from tests.container.conftest import Containers
from tests.mount.conftest import Bucket
from tests.mount.mounted import READ_TIMEOUT_S, free_port, in_background, until, within

pytestmark = [pytest.mark.mount, pytest.mark.store]

KUBERNETES = Path(__file__).parent.parent.parent / "deploy" / "kubernetes"


def answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=15):
            return True
    except OSError:
        return False


def is_mounted(point: Path) -> bool:
    mount = mount_table.mounted_at(point)
    return mount is not None and mount.fstype == mount_table.FSTYPE


def settings(bucket: Bucket, port: int) -> dict[str, str]:
    return bucket.env | {
        "D7YFS_SOURCE": bucket.url("library"),
        "D7YFS_MOUNTPOINT": "/mnt/d7yfs/models",
        "D7YFS_CACHE_DIR": "/var/cache/d7yfs",
        "D7YFS_METRICS_LISTEN": f"0.0.0.0:{port}",
        "D7YFS_SHUTDOWN_TIMEOUT": "5s",
    }


def plain(name: str) -> dict[str, Any]:
    """A container of the plain sidecar's manifest."""
    patch = yaml.safe_load((KUBERNETES / "components" / "sidecar-plain" / "sidecar.yaml").read_text())
    (found,) = (each for each in patch["spec"]["template"]["spec"]["containers"] if each["name"] == name)
    assert isinstance(found, dict)
    return found


def start_server(containers: Containers, ground: Path, script: str) -> None:
    """Start a model server behind the gate, as in the plain sidecar's manifest."""
    gate: list[str] = plain("server")["command"]
    volumes = (f"--volume={ground / 'volume'}:/mnt/d7yfs:rslave,ro", f"--volume={ground / 'run'}:/run/shared")
    containers.start("server", (*volumes, "--entrypoint", gate[0]), [*gate[1:], "/bin/sh", "-c", script])


def privileged(ground: Path) -> tuple[str, ...]:
    """Options of a sidecar that mounts without a helper."""
    return (
        *("--privileged", f"--volume={ground / 'volume'}:/mnt/d7yfs:rshared"),
        f"--volume={ground / 'cache'}:/var/cache/d7yfs",
    )


def test_a_privileged_sidecar_and_a_reader_that_waits_for_it(
    containers: Containers, ground: Path, bucket: Bucket
) -> None:
    point, port = ground / "volume" / "models", free_port()
    # A pod's containers may start in this order: the gate holds the server.
    start_server(containers, ground, "sha256sum /mnt/d7yfs/models/twenty.bin; touch /run/shared/read; sleep 600")
    assert not (ground / "run" / "read").exists()
    containers.start("d7yfs", privileged(ground), ["mount"], settings(bucket, port))
    until(lambda: answers(port, "/readyz"), "the sidecar's startup probe", timeout_s=60)
    assert answers(port, "/healthz")
    assert is_mounted(point), "the mount must be visible outside the container"
    assert within(READ_TIMEOUT_S, (point / "over.bin").read_bytes) == bucket.files["over.bin"]
    until(lambda: (ground / "run" / "read").exists(), "the other container's reader", timeout_s=60)
    assert hashlib.sha256(bucket.files["twenty.bin"]).hexdigest() in containers.log("server")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        read = re.search(rb"^d7yfs_read_bytes_total\{.*\} (\S+)$", reply.read(), re.MULTILINE)
    assert read is not None
    assert float(read[1]) >= len(bucket.files["twenty.bin"])
    containers.kill("d7yfs")
    containers.start("anew", privileged(ground), ["mount"], settings(bucket, port))
    until(lambda: answers(port, "/readyz"), "the new sidecar", timeout_s=60)
    healed = containers.execute("server", "sha256sum", "/mnt/d7yfs/models/block.bin")
    assert hashlib.sha256(bucket.files["block.bin"]).hexdigest() in healed, "a running server must see the new mount"
    containers.stop("anew")
    assert containers.state("anew") == ("exited", 0)
    assert not is_mounted(point), "no mount may stay behind"


_DRAINING_SERVER = """
set -e
trap stopping=yes TERM
exec 3</mnt/d7yfs/models/twenty.bin
head -c 1 <&3 >/dev/null
touch /run/shared/holding
until [ "${stopping:-}" ]; do sleep 0.1; done
sha256sum <&3 >/run/shared/held
exec 3<&-
sleep 3
sha256sum </mnt/d7yfs/models/over.bin >/run/shared/opened
"""
"""A server that, after SIGTERM, reads the rest of its open file, and opens another after a pause.
Fails if it cannot.
"""


def test_the_end_of_a_pod(containers: Containers, ground: Path, bucket: Bucket) -> None:
    """The kubelet sends SIGTERM to the server and runs d7yfs's preStop at once; d7yfs's own SIGTERM
    follows.
    """
    point, port, shared = ground / "volume" / "models", free_port(), ground / "run"
    start_server(containers, ground, _DRAINING_SERVER)
    containers.start("d7yfs", privileged(ground), ["mount"], settings(bucket, port))
    until(lambda: (shared / "holding").exists(), "the server's file", timeout_s=60)

    def end_d7yfs() -> None:
        containers.execute("d7yfs", *plain("d7yfs")["lifecycle"]["preStop"]["exec"]["command"])
        containers.stop("d7yfs")

    ending = in_background(end_d7yfs)
    containers.kill("server", "TERM")
    ending.result(120)
    until(lambda: containers.state("server")[0] == "exited", "the server's end", timeout_s=60)
    assert containers.state("server") == ("exited", 0), "every read of the server must succeed"
    rest = bucket.files["twenty.bin"][1:]
    for name, read in (("held", rest), ("opened", bucket.files["over.bin"])):
        assert (shared / name).read_text().split()[0] == hashlib.sha256(read).hexdigest()
    assert containers.state("d7yfs") == ("exited", 0)
    assert not is_mounted(point), "no mount may stay behind"


def test_dockers_health_check(containers: Containers, ground: Path, bucket: Bucket) -> None:
    options = ("--privileged", f"--volume={ground / 'volume'}:/mnt/d7yfs:rshared", "--tmpfs=/var/cache/d7yfs")
    # The health check asks this container's daemon, and no port.
    containers.start("d7yfs", options, ["mount"], settings(bucket, 0) | {"D7YFS_METRICS_LISTEN": "none"})
    until(lambda: is_mounted(ground / "volume" / "models"), "the mount", timeout_s=60)
    containers.healthcheck("d7yfs")
    containers.start("other", options, ["fuse-helper", "--uid", "65532", "/mnt/d7yfs/other", "/run/own/helper"])
    with pytest.raises(AssertionError, match="healthcheck"):
        containers.healthcheck("other")


def test_a_sidecar_without_privilege(containers: Containers, ground: Path, bucket: Bucket) -> None:
    point, port = ground / "volume" / "models", free_port()
    # The owner and mode that the kubelet gives an emptyDir with an fsGroup.
    os.chown(ground / "cache", 0, 65532)
    (ground / "cache").chmod(0o2777)
    containers.start(
        "helper",
        (
            "--privileged",
            "--read-only",
            f"--volume={point.parent}:/mnt/d7yfs:rshared",
            f"--volume={ground / 'run'}:/run/fuse-helper",
        ),
        ["fuse-helper", "--uid", "65532", "--allow-other", "/mnt/d7yfs/models", "/run/fuse-helper/own/socket"],
    )
    until(lambda: (ground / "run" / "own" / "socket").exists(), "the helper's socket")
    unprivileged = (
        *("--user", "65532:65532", "--cap-drop=all", "--security-opt=no-new-privileges", "--read-only", "--tmpfs=/tmp"),
        *(f"--volume={point.parent}:/mnt/d7yfs:rslave", f"--volume={ground / 'run'}:/run/fuse-helper"),
        f"--volume={ground / 'cache'}:/var/cache/d7yfs",
    )
    env = settings(bucket, port) | {
        "D7YFS_FUSE_HELPER": "/run/fuse-helper/own/socket",
        "D7YFS_CACHE_DIR": "/var/cache/d7yfs/own",
        "XDG_RUNTIME_DIR": "/tmp",
        "HOME": "/nonexistent",
    }
    containers.start("d7yfs", unprivileged, ["mount"], env)
    until(lambda: answers(port, "/readyz"), "the mount", timeout_s=60)
    capabilities = containers.execute("d7yfs", "grep", "CapEff", "/proc/1/status").split()
    assert capabilities == ["CapEff:", "0000000000000000"]
    assert within(READ_TIMEOUT_S, (point / "over.bin").read_bytes) == bucket.files["over.bin"]
    containers.kill("d7yfs")
    until(lambda: not is_mounted(point), "the helper to remove the dead mount")
    containers.start("again", unprivileged, ["mount"], env)
    until(lambda: answers(port, "/readyz"), "another daemon's mount", timeout_s=60)
    assert within(READ_TIMEOUT_S, (point / "one.bin").read_bytes) == bucket.files["one.bin"]
    containers.stop("again")
    until(lambda: not is_mounted(point), "the end of the mount")
