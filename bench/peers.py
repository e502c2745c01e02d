"""The programs that are compared: how each is started with its strongest settings, and what one run of it measures.

Every mount runs in the foreground as our child, so that its processor time and memory can be read from /proc. A peer is
one entry in `PEERS`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bench.stores import BUCKET, KEY, REGION, Store

_BIN = Path(sys.executable).parent
_READ_BYTES = 1 << 20
_CLOCK_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class PeerError(Exception):
    """A peer did not start, read or stop as it should."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: a cold read and a second one of the whole object."""

    cold_s: float
    second_s: float
    cpu_s: float
    """Processor time of the peer's processes during the cold read."""
    peak_rss_bytes: int
    """0 where it is not known."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A peer that mounts the bucket; `command(store, mountpoint, cache)` stays in the foreground."""

    name: str
    command: Callable[[Store, Path, Path], list[str]]
    environment: Callable[[Store], Mapping[str, str]] = lambda store: store.environment

    def sample(self, store: Store, scratch: Path, *, verify: bool) -> Sample:
        """Mount afresh, read twice, unmount. Raises PeerError; with `verify` also when a byte is wrong."""
        with self._mounted(store, scratch) as (mountpoint, pid):
            path = mountpoint / KEY
            before_s = cpu_s(pid)
            cold_s = read_s(path, store.size_bytes)
            after_s = cpu_s(pid)
            second_s = read_s(path, store.size_bytes)
            if verify:
                check(path, store)
            return Sample(cold_s, second_s, after_s - before_s, peak_rss_bytes(pid))

    @contextlib.contextmanager
    def _mounted(self, store: Store, scratch: Path) -> Iterator[tuple[Path, int]]:
        mountpoint, cache, log = scratch / "mnt", scratch / "cache", scratch / "log"
        mountpoint.mkdir()
        cache.mkdir(mode=0o700)
        with log.open("wb") as out:
            process = subprocess.Popen(
                self.command(store, mountpoint, cache),
                env=os.environ | self.environment(store),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        try:
            deadline = time.monotonic() + 30
            while not is_mounted(mountpoint):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise PeerError(f"does not mount: {log.read_text(errors='replace')[-2000:].strip()}")
                time.sleep(0.01)
            yield mountpoint, process.pid
        finally:
            if is_mounted(mountpoint):
                subprocess.run(["umount", "--lazy", mountpoint], check=False, timeout=30)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@dataclass(frozen=True, slots=True)
class Curl:
    """`curl -o file` of the same object. Its second read is that of the local file: what a mount can reach at best."""

    name: str = "curl"

    def sample(self, store: Store, scratch: Path, *, verify: bool) -> Sample:
        path = scratch / KEY
        settings = f'url = "{store.presigned_url()}"\noutput = "{path}"\n'
        start = time.perf_counter()
        # On stdin, for a signed URL does not belong into the process list.
        process = subprocess.Popen(["curl", "--silent", "--fail", "--config", "-"], stdin=subprocess.PIPE)
        assert process.stdin
        process.stdin.write(settings.encode())
        process.stdin.close()
        _, status, usage = os.wait4(process.pid, 0)
        cold_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise PeerError(f"curl ended with status {process.returncode}")
        second_s = read_s(path, store.size_bytes)
        if verify:
            check(path, store)
        # ru_maxrss counts our own memory from before exec too, so curl's is left out.
        return Sample(cold_s, second_s, usage.ru_utime + usage.ru_stime, peak_rss_bytes=0)


Peer = Mount | Curl


def _d7yfs(store: Store, mountpoint: Path, cache: Path) -> list[str]:
    return [
        str(_BIN / "d7yfs"),
        "mount",
        "--foreground",
        f"s3://{BUCKET}",
        str(mountpoint),
        f"--endpoint-url={store.endpoint_url}",
        f"--cache-dir={cache}",
    ]


def _s3fs(store: Store, mountpoint: Path, cache: Path) -> list[str]:
    options = [
        f"url={store.endpoint_url}",
        f"endpoint={REGION}",
        "use_path_request_style",
        "sigv4",
        "ro",
        f"use_cache={cache}",
        "parallel_count=8",
        "multipart_size=32",
        "multireq_max=100",
    ]
    return ["s3fs", BUCKET, str(mountpoint), "-f", "-o", ",".join(options)]


def _rclone(_: Store, mountpoint: Path, cache: Path) -> list[str]:
    return [
        str(_BIN / "rclone"),
        "mount",
        f"bench:{BUCKET}",
        str(mountpoint),
        "--config=",
        "--read-only",
        "--vfs-cache-mode=full",
        f"--cache-dir={cache}",
        "--vfs-read-chunk-size=16M",
        "--vfs-read-chunk-streams=2",
        "--buffer-size=16M",
        "--max-read-ahead=1M",
        "--dir-cache-time=1h",
        "--attr-timeout=1h",
    ]


def _rclone_environment(store: Store) -> Mapping[str, str]:
    return {
        "RCLONE_CONFIG_BENCH_TYPE": "s3",
        "RCLONE_CONFIG_BENCH_PROVIDER": "Other",
        "RCLONE_CONFIG_BENCH_ENDPOINT": store.endpoint_url,
        "RCLONE_CONFIG_BENCH_ACCESS_KEY_ID": store.key_id,
        "RCLONE_CONFIG_BENCH_SECRET_ACCESS_KEY": store.secret_key,
        "RCLONE_CONFIG_BENCH_REGION": REGION,
    }


PEERS: Mapping[str, Peer] = {
    peer.name: peer
    for peer in (Mount("d7yfs", _d7yfs), Mount("s3fs", _s3fs), Mount("rclone", _rclone, _rclone_environment), Curl())
}


def read_s(path: Path, size_bytes: int) -> float:
    """Seconds to open the file and read it from start to end. Raises PeerError when it is shorter or longer."""
    buffer = bytearray(_READ_BYTES)
    total = 0
    start = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            total += count
    elapsed_s = time.perf_counter() - start
    if total != size_bytes:
        raise PeerError(f"read {total} bytes of {size_bytes}")
    return elapsed_s


def check(path: Path, store: Store) -> None:
    """Raise PeerError unless the file's bytes are the store's."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != store.sha256:
        raise PeerError(f"wrong bytes: SHA-256 is {found}, not {store.sha256}")


def is_mounted(mountpoint: Path) -> bool:
    """Whether something is mounted there, without asking its file system."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4] == str(mountpoint) for line in lines)


def cpu_s(pid: int) -> float:
    """User and system time of the process and its descendants so far, in seconds (proc(5), /proc/PID/stat)."""
    ticks = 0
    for each in _tree(pid):
        # The second field is the program's name in parentheses, which may hold spaces.
        fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
        ticks += sum(map(int, fields[11:15]))
    return ticks * _CLOCK_TICK_S


def peak_rss_bytes(pid: int) -> int:
    """Largest resident memory so far of the process and its descendants, summed (VmHWM in /proc/PID/status)."""
    total = 0
    for each in _tree(pid):
        for line in Path(f"/proc/{each}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                total += int(line.split()[1]) << 10
    return total


def _tree(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(descendant for child in children for descendant in _tree(int(child)))]
