"""The compared programs, each with its strongest settings; a peer is one entry in `PEERS`.

Every mount runs in the foreground as a child of the bench, so that /proc shows its processor time
and memory.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.catalog import BUCKET
from bench.processes import Memory, busy_s, cpu_s, is_mounted, memory, peak_rss_bytes, tree
from bench.store import REGION, Profile, Store
from bench.workers import has_standby

_BIN = Path(sys.executable).parent
_PATIENCE_S = 30.0
_POLL_S = 0.002


class PeerError(Exception):
    """A peer that did not start or stop as it should."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The arguments of a peer's start; `mountpoint` and `cache` are its own, and empty at first."""

    store: Store
    profile: Profile
    mountpoint: Path
    cache: Path
    bucket: str = BUCKET
    copy: Path | None = None
    """The bucket's content on the disk of the caches, for a peer that reads that."""

    @property
    def endpoint_url(self) -> str:
        return self.store.endpoint_url(self.profile)

    @property
    def source(self) -> Path:
        """The bucket's content as a local directory."""
        return self.store.buckets / self.bucket


@dataclass(frozen=True, slots=True)
class Peer:
    """A program that mounts a bucket; `command` stays in the foreground.

    `reference` marks a peer that is no competitor: goals about the best peer leave it out. One that
    reads a `copy` instead of the store takes no part in cases about the network.
    """

    name: str
    command: Callable[[Setting], list[str]]
    environment: Callable[[Setting], Mapping[str, str]] = lambda setting: setting.store.environment
    reference: bool = False
    reads_copy: bool = False
    is_optional: bool = False
    """True if it takes part only where it is installed."""
    is_settled: Callable[[Path], bool] = lambda _: True
    """True if all its processes run, for a mount that answers."""


class Mount:
    """The mount of one peer; `unmount` and `mount` again keep its cache. Raises PeerError."""

    def __init__(self, peer: Peer, setting: Setting, log: Path) -> None:
        self._peer = peer
        self._setting = setting
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._peak_rss_bytes = 0
        self.start_s = 0.0
        """Seconds from the last start until the mount answered."""

    def mount(self) -> None:
        mountpoint = self._setting.mountpoint
        start = time.monotonic()
        command = self._peer.command(self._setting)
        with self._log.open("wb") as out:
            try:
                process = subprocess.Popen(
                    command,
                    env=os.environ | self._peer.environment(self._setting),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                )
            except FileNotFoundError as error:
                raise PeerError(f"{command[0]} is not installed: `make bench` does that") from error
        self._process = process
        while not is_mounted(mountpoint):
            if process.poll() is not None or time.monotonic() > start + _PATIENCE_S:
                raise PeerError(f"does not mount: {self.last_words()}")
            time.sleep(_POLL_S)
        # Some peers appear in the mount table before they answer.
        mountpoint.stat()
        self.start_s = time.monotonic() - start

    def settle(self) -> None:
        """Wait until all its processes run, so that none starts in the middle of a measurement."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self._peer.is_settled(self._setting.mountpoint):
            if time.monotonic() > deadline:
                raise PeerError(f"does not settle: {self.last_words()}")
            time.sleep(0.05)

    def unmount(self) -> None:
        """Unmount; also works for a peer that never came up."""
        self._peak_rss_bytes = self.peak_rss_bytes()
        process, self._process = self._process, None
        if is_mounted(self._setting.mountpoint):
            subprocess.run(["umount", "--lazy", self._setting.mountpoint], check=False, timeout=30)
        if process is not None:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def cpu_s(self) -> float:
        """Seconds of processor time of the running processes."""
        return cpu_s(self._process.pid) if self._process else 0.0

    def busy_s(self) -> dict[int, float]:
        """Seconds of processor time of each running process, by pid."""
        return busy_s(self._process.pid) if self._process else {}

    def peak_rss_bytes(self) -> int:
        """The largest resident memory of all its mounts."""
        now = peak_rss_bytes(self._process.pid) if self._process else 0
        return max(now, self._peak_rss_bytes)

    def memory(self) -> list[Memory]:
        """The memory of each process now, parents first."""
        return [memory(pid) for pid in tree(self._process.pid)] if self._process else []

    def last_words(self) -> str:
        """The end of its log."""
        return " ".join(self._log.read_text(errors="replace")[-300:].split())


def _d7yfs(setting: Setting) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "d7yfs",
        "mount",
        "--foreground",
        f"s3://{setting.bucket}",
        str(setting.mountpoint),
    ]
    command += [f"--endpoint-url={setting.endpoint_url}", f"--cache-dir={setting.cache}"]
    if setting.profile.tls:
        command.append(f"--ca-bundle={setting.store.ca_file}")
    return command


def _d7yfs_pyfuse3(setting: Setting) -> list[str]:
    return [*_d7yfs(setting), "--fuse-engine=pyfuse3"]


def _s3fs(setting: Setting) -> list[str]:
    options = [
        f"url={setting.endpoint_url}",
        f"endpoint={REGION}",
        "use_path_request_style",
        "sigv4",
        "ro",
        f"use_cache={setting.cache}",
        "parallel_count=8",
        "multipart_size=32",
        "multireq_max=100",
        "listobjectsv2",
        "max_stat_cache_size=200000",
        "kernel_cache",  # Otherwise every open drops the cached pages.
    ]
    return ["s3fs", setting.bucket, str(setting.mountpoint), "-f", "-o", ",".join(options)]


def _s3fs_environment(setting: Setting) -> Mapping[str, str]:
    return {**setting.store.environment, "CURL_CA_BUNDLE": str(setting.store.ca_file)}


def _rclone(setting: Setting) -> list[str]:
    return [
        str(_BIN / "rclone"),
        "mount",
        f"bench:{setting.bucket}",
        str(setting.mountpoint),
        "--config=",
        "--read-only",
        "--vfs-cache-mode=full",
        f"--cache-dir={setting.cache}",
        "--vfs-read-chunk-size=16M",
        "--vfs-read-chunk-streams=2",
        "--buffer-size=16M",
        "--max-read-ahead=1M",
        "--use-server-modtime",  # Otherwise ls costs one HEAD per file.
        "--dir-cache-time=1h",
        "--attr-timeout=1h",
        *([f"--ca-cert={setting.store.ca_file}"] if setting.profile.tls else []),
    ]


def _rclone_environment(setting: Setting) -> Mapping[str, str]:
    return {
        "RCLONE_CONFIG_BENCH_TYPE": "s3",
        "RCLONE_CONFIG_BENCH_PROVIDER": "Other",
        "RCLONE_CONFIG_BENCH_ENDPOINT": setting.endpoint_url,
        "RCLONE_CONFIG_BENCH_ACCESS_KEY_ID": "bench",
        "RCLONE_CONFIG_BENCH_SECRET_ACCESS_KEY": "bench",
        "RCLONE_CONFIG_BENCH_REGION": REGION,
    }


def _geesefs(setting: Setting) -> list[str]:
    return [
        "geesefs",
        "-f",
        f"--endpoint={setting.endpoint_url}",
        f"--region={REGION}",
        f"--cache={setting.cache}",
        "--stat-cache-ttl=1h",
        "--entry-limit=1000000",
        setting.bucket,
        str(setting.mountpoint),
    ]


def _geesefs_environment(setting: Setting) -> Mapping[str, str]:
    return {**setting.store.environment, "SSL_CERT_FILE": str(setting.store.ca_file)}


def _local(setting: Setting) -> list[str]:
    """The same files on the disk of the caches, through a bind mount. It has no server, so a shell
    waits in a server's place.
    """
    script = 'mount --bind "$0" "$1" && while mountpoint --quiet "$1"; do sleep 0.2; done'
    return ["sh", "-c", script, str(setting.copy), str(setting.mountpoint)]


PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (
        Peer("d7yfs", _d7yfs, is_settled=has_standby),
        Peer("d7yfs-pyfuse3", _d7yfs_pyfuse3, reference=True),
        Peer("s3fs", _s3fs, _s3fs_environment),
        Peer("rclone", _rclone, _rclone_environment),
        Peer("geesefs", _geesefs, _geesefs_environment, is_optional=True),
        Peer("local", _local, reference=True, reads_copy=True),
    )
}
CURL = "curl"
"""A downloader of whole files to the disk, in the cases that read whole files; it is no mount."""
NAMES = (*PEERS, CURL)


def is_missing(name: str) -> bool:
    """True if an optional peer is not installed."""
    return name in PEERS and PEERS[name].is_optional and shutil.which(name) is None
