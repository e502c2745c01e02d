"""One turn of a peer in a case: set up, read, count, verify, take down."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import dataset, reads
from bench.cases.case import Case, Download, Run
from bench.children import OutOfTime, ReadError, in_child
from bench.peers import CURL, PEERS, Mount, PeerError, Setting
from bench.processes import drop_page_cache
from bench.store import LOOPBACK, Profile, Store


@dataclass(frozen=True, slots=True)
class Sample:
    """The figures of one turn; the costs are those of the case's cold part."""

    figures: Mapping[str, float]
    payload_bytes: int
    """Bytes that the readers got; 0 if processor time per byte means nothing."""
    cpu_s: float
    peak_rss_bytes: int
    """Bytes; 0 if unknown."""
    gets: int
    lists: int
    heads: int
    bytes: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Bench:
    """The parts that all turns share."""

    store: Store
    sizes: dataset.Sizes
    scratch: Path
    limit_s: float

    def copy(self, bucket: str) -> Path:
        """A copy of the bucket on the disk of the caches, made by the first turn that needs it."""
        path = self.scratch / "copies" / bucket
        if not path.exists():
            shutil.copytree(self.store.buckets / bucket, path)
        return path


def turn(bench: Bench, case: Case, name: str, *, verify: bool) -> Sample | None:
    """Run the case once with the peer; None if the peer takes no part. Raises ReadError, PeerError,
    and OSError from the system.
    """
    if name == CURL:
        return _curl(bench, case, case.download, verify=verify) if case.download else None
    peer = PEERS[name]
    if (case.only and name not in case.only) or (peer.reads_copy and not case.references):
        return None
    store = bench.store
    with tempfile.TemporaryDirectory(prefix="d7yfs-bench-", dir=bench.scratch) as scratch:
        directory = Path(scratch).resolve()
        mountpoint, cache = directory / "mnt", directory / "cache"
        mountpoint.mkdir()
        cache.mkdir(mode=0o700)
        store.shape(case.profile)
        copy = bench.copy(case.bucket) if peer.reads_copy else None
        setting = Setting(store, case.profile, mountpoint, cache, case.bucket, copy)
        mount = Mount(peer, setting, directory / "log")
        try:
            mount.mount()
            mount.settle()
            drop_page_cache()
            run = Run(mountpoint, setting.source, bench.sizes, store, mount, bench.limit_s)
            counted, spent_s = store.counters(), mount.cpu_s()
            figures = dict(case.cold(run))
            spent_s = mount.cpu_s() - spent_s
            counted = store.counters() - counted
            figures |= case.then(run)
            note = _verify(bench, case, setting) if verify else ""
        except ReadError as error:
            error.add_note(mount.last_words())
            raise
        finally:
            mount.unmount()
            store.shape(LOOPBACK)
        return Sample(
            figures,
            run.payload_bytes,
            spent_s,
            mount.peak_rss_bytes(),
            counted.gets,
            counted.lists,
            counted.heads,
            counted.bytes,
            note,
        )


def _verify(bench: Bench, case: Case, setting: Setting) -> str:
    """Compare the files with the source. A wrong byte raises ReadError; a peer that is too slow for
    it gets a note.
    """
    pairs = [(setting.mountpoint / key, setting.source / key) for key in case.verified(bench.sizes)]
    try:
        in_child(bench.limit_s, reads.compare, pairs)
    except OutOfTime:
        return "not verified: too slow"
    return ""


def _curl(bench: Bench, case: Case, download: Download, *, verify: bool) -> Sample:
    keys = download.keys(bench.sizes)
    store = bench.store
    with tempfile.TemporaryDirectory(prefix="d7yfs-bench-", dir=bench.scratch) as scratch:
        directory = Path(scratch)
        command = [
            "curl",
            "--silent",
            "--no-progress-meter",
            "--fail",
            "--create-dirs",
            "--cacert",
            str(store.ca_file),
            "--config",
            "-",
        ]
        if download.parallel > 1:
            command += ["--parallel", "--parallel-immediate", "--parallel-max", str(download.parallel)]
        settings = _curl_settings(store, case.profile, directory, keys)
        store.shape(case.profile)
        drop_page_cache()
        counted = store.counters()
        start = time.perf_counter()
        process = subprocess.Popen(command, stdin=subprocess.PIPE)
        assert process.stdin
        process.stdin.write(settings)
        process.stdin.close()
        _, status, usage = os.wait4(process.pid, 0)
        elapsed_s = time.perf_counter() - start
        process.returncode = os.waitstatus_to_exitcode(status)
        counted = store.counters() - counted
        store.shape(LOOPBACK)
        if process.returncode != 0:
            raise PeerError(f"curl ended with status {process.returncode}")
        if verify:
            in_child(60, reads.compare, [(directory / key, store.data / key) for key in keys])
        # ru_maxrss counts the bench's own memory before exec too, so curl's is left out.
        return Sample(
            download.figure(bench.sizes, elapsed_s),
            sum((store.data / key).stat().st_size for key in keys),
            usage.ru_utime + usage.ru_stime,
            0,
            counted.gets,
            counted.lists,
            counted.heads,
            counted.bytes,
        )


def _curl_settings(store: Store, profile: Profile, directory: Path, keys: Sequence[str]) -> bytes:
    return "".join(f'url = "{store.url(profile, key)}"\noutput = "{directory / key}"\n' for key in keys).encode()
