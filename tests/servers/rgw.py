"""Ceph's RADOS Gateway, for the contract suite of `make integration`: a monitor, an OSD in memory
and a gateway from Debian's packages.

It owns the three processes and their cluster, which has no internal authentication and listens on
loopback only. `writer` owns the buckets. `reader` may only read, and needs a policy for each bucket
(`let_read`).
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests.servers.seaweedfs import Identity, free_ports, new_client, wait_until_writable

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_CLUSTER_ID = str(uuid.uuid4())
_CONFIG = """
[global]
fsid = {cluster_id}
mon initial members = a
mon host = v2:127.0.0.1:{mon_port}
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
ms cluster mode = crc
ms service mode = crc
ms client mode = crc
# One copy, few placement groups, no manager that would complain.
osd pool default size = 1
osd pool default min size = 1
mon allow pool size one = true
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
mon max pg per osd = 1000
osd crush chooseleaf type = 0
osd objectstore = memstore
memstore device bytes = 2147483648
mon data avail crit = 1
mon data avail warn = 1
mon data = {directory}/mon
osd data = {directory}/osd
keyring = {directory}/keyring
admin socket = {directory}/$name.asok
log file = {directory}/$name.log
mon cluster log file = {directory}/cluster.log
run dir = {directory}
crash dir = {directory}
pid file =
# Without tcp_nodelay each small GET waits 43 ms.
rgw frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1
"""


class Rgw:
    """A cluster in `directory`; the caller must `start` it, and `stop` it even after a failure."""

    def __init__(self, directory: Path) -> None:
        self.writer = Identity("writer", ())
        self.reader = Identity("reader", ())
        port, self._mon_port = free_ports(2)
        self.endpoint_url = f"http://127.0.0.1:{port}"
        self.log = directory / "client.rgw.log"
        self._directory = directory
        self._config = directory / "ceph.conf"
        self._config.write_text(
            _CONFIG.format(cluster_id=_CLUSTER_ID, mon_port=self._mon_port, port=port, directory=directory)
        )
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Return when the gateway accepts writes. Raises RuntimeError with its log's tail."""
        keyring, map_file, disk = self._directory / "keyring", self._directory / "monmap", str(uuid.uuid4())
        _run("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        address = f"[v2:127.0.0.1:{self._mon_port}]"
        _run("monmaptool", "--create", "--fsid", _CLUSTER_ID, "--addv", "a", address, map_file)
        for name in ("mon", "osd"):
            (self._directory / name).mkdir()
        self._ceph("ceph-mon", "-i", "a", "--mkfs", "--monmap", map_file, "--keyring", keyring)
        self._serve("ceph-mon", "-i", "a")
        self._ceph("ceph", "osd", "new", disk, "0")
        self._ceph("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", disk)
        self._serve("ceph-osd", "-i", "0")
        for identity, mask in ((self.writer, "read,write,delete"), (self.reader, "read")):
            user = (f"--uid={identity.name}", f"--display-name={identity.name}", f"--op-mask={mask}")
            keys = (f"--access-key={identity.key_id}", f"--secret-key={identity.secret_key}")
            self._ceph("radosgw-admin", "user", "create", *user, *keys)
        self._serve("radosgw", "-n", "client.rgw")
        wait_until_writable(self, self._processes[-1], self.log)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()

    def client(self, identity: Identity | None = None) -> S3Client:
        """A plain boto3 client. The caller closes it."""
        return new_client(self.endpoint_url, identity or self.writer)

    def let_read(self, bucket: str) -> None:
        """Allow the reader the requests that d7yfs sends."""
        policy = {
            "Version": "2012-10-17",
            "Statement": {
                "Effect": "Allow",
                "Principal": {"AWS": f"arn:aws:iam:::user/{self.reader.name}"},
                "Action": ["s3:ListBucket", "s3:GetObject", "s3:GetObjectVersion"],
                "Resource": [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"],
            },
        }
        with contextlib.closing(self.client()) as client:
            client.put_bucket_policy(Bucket=bucket, Policy=json.dumps(policy))

    def _ceph(self, program: str, *arguments: str | Path) -> None:
        _run(program, "-c", self._config, *arguments)

    def _serve(self, program: str, *arguments: str) -> None:
        with (self._directory / f"{program}.out").open("wb") as log:
            command = [program, "-f", "-c", str(self._config), *arguments]
            self._processes.append(
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self._directory)
            )


@contextlib.contextmanager
def running(directory: Path) -> Iterator[Rgw]:
    """A ready gateway, stopped at the end."""
    server = Rgw(directory)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _run(program: str, *arguments: str | Path) -> None:
    try:
        subprocess.run([program, *map(str, arguments)], check=True, capture_output=True, timeout=120)
    except FileNotFoundError:
        raise RuntimeError(f"no `{program}`: scripts/integration.sh installs Ceph") from None
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{program} failed: {error.stderr.decode(errors='replace')[-2000:]}") from None
