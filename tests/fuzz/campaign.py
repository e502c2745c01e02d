"""One run of the fuzz: a store, its mounts, clients that read them, and disturbances, for a number
of operations.

Processes, mounts and loop devices are below one directory and end with the run.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from tests.fuzz import clients, mapping, store
from tests.fuzz.churn import KEPT
from tests.fuzz.disturbances import SILENCE_S, Disk, Killer, Operator, Spoiler, Stopper, Usurper
from tests.fuzz.oracle import Oracle, Rules
from tests.fuzz.phases import Phases
from tests.fuzz.shared import Shared
from tests.mount.mounted import Mounted, Mounter
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.in_thread import InThread

MIB = 1 << 20
_ALIKE = (*("--metadata-ttl", "1s", "--negative-ttl", "1s", "--metrics-listen", "none", "--shutdown-timeout", "1s"),)
_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "fuzz",
    "AWS_SECRET_ACCESS_KEY": "fuzz",
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
    "AWS_EC2_METADATA_DISABLED": "true",
}


@dataclass(frozen=True)
class Kind:
    """A kind of fault that a run injects."""

    churns: bool = True
    lie: float = 0.0
    network: float = 0.0
    kills: bool = False
    takeover: bool = False
    movers: bool = False
    disk: bool = False
    spoils: bool = False
    commands: bool = False
    mounts: int = 1
    proxy: bool = False
    options: tuple[str, ...] = ()

    @property
    def has_trouble(self) -> bool:
        return bool(self.lie or self.network)


KINDS = {
    "calm": Kind(churns=False),
    "churn": Kind(),
    "network": Kind(network=35),
    "asked": Kind(network=35, options=("--revalidate-on-open", "*")),
    "liar": Kind(lie=35),
    "kill": Kind(kills=True),
    "takeover": Kind(takeover=True, network=10),
    "movers": Kind(movers=True, network=10, options=("--movers", "6")),
    "disk": Kind(disk=True, options=("--cache-size", "64MiB", "--cache-min-free", "1MiB")),
    "tiny": Kind(options=("--cache-size", "4MiB", "--memory-buffer", "16MiB")),
    "two": Kind(mounts=2, kills=True),
    "commands": Kind(commands=True, network=10),
    "proxy": Kind(proxy=True, network=15),
    "spoil": Kind(spoils=True),
}
"""`asked` is `network` with a HEAD request at every open; `tiny` has a cache of 4 MiB. No document
promises that readers survive `spoil`; all other kinds must run without a deviation. In `kill` a death
excuses errors; in `takeover` nothing does.
"""


@dataclass
class Options:
    """The options of one run."""

    kind: str
    operations: int = 1_000_000
    seed: int = 1
    seconds: float = 600.0
    directory: Path | None = None
    without: frozenset[str] = frozenset()
    spares_listings: bool = False
    processes: int = 3
    threads: int = 3
    mappers: int = 1
    log_level: str = "info"
    calm_s: float = 6.0
    """Seconds in which the mounts start, before trouble and churn begin."""
    extra: tuple[str, ...] = ()


@dataclass
class Result:
    """The counts of one run."""

    counts: Counter[str]
    slowest: dict[str, float]
    seconds: float
    deviations: list[dict[str, Any]]
    failures: list[str]
    """Failures of the fuzz itself, or of a client that did not end."""
    status: list[dict[str, Any]] = field(default_factory=list)
    disturbances: int = 0

    @property
    def is_clean(self) -> bool:
        return not self.counts["deviations"] and not self.failures


def repository(rng: random.Random) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Keys and sizes: many small files, some of several blocks, a few large ones, one of 17.8 MB."""
    sizes: dict[str, int] = {}
    for directory in range(8):
        sizes[f"d{directory}{KEPT}"] = 3000
        for number in range(22):
            sizes[f"d{directory}/f{number}"] = rng.choice(
                [0, 1, 7, 4095, 4096, 4097, rng.randint(0, 2000), rng.randint(0, 70_000)]
            )
    edges = [MIB - 1, MIB, MIB + 1, 2 * MIB, 2 * MIB + 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1]
    for number, size in enumerate(edges + [rng.randint(MIB, 5 * MIB) for _ in range(8)]):
        sizes[f"models/m{number}/1/weights.bin"] = size
        sizes[f"models/m{number}/1/config.pbtxt"] = rng.randint(50, 500)
        sizes[f"models/m{number}/1{KEPT}"] = 100
    for number, size in enumerate([17_800_000, 12 * MIB + 5, 8 * MIB, rng.randint(6 * MIB, 16 * MIB)]):
        sizes[f"large/text{number}.txt"] = size
    sizes[f"large{KEPT}"] = 10
    return tuple(sizes), tuple(sizes.values())


def run(options: Options) -> Result:
    """Run all of it. Raises if the set-up fails."""
    kind = KINDS[options.kind]
    with ExitStack() as stack:
        if options.directory is None:
            directory = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="d7yfs-fuzz-", ignore_cleanup_errors=True))
            )
        else:
            directory = options.directory
            directory.mkdir(parents=True)
        stack.enter_context(_runtime(directory))
        return _Run(options, kind, directory, stack).run()


@contextmanager
def _runtime(directory: Path) -> Iterator[None]:
    before = os.environ.get("D7YFS_RUNTIME_DIR")
    (directory / "run").mkdir(mode=0o700)
    os.environ["D7YFS_RUNTIME_DIR"] = str(directory / "run")
    try:
        yield
    finally:
        if before is None:
            del os.environ["D7YFS_RUNTIME_DIR"]
        else:
            os.environ["D7YFS_RUNTIME_DIR"] = before


class _Run:
    def __init__(self, options: Options, kind: Kind, directory: Path, stack: ExitStack) -> None:
        self._options = options
        self._kind = kind
        self._directory = directory
        self._stack = stack
        self._rng = random.Random(options.seed)
        self._context = multiprocessing.get_context("spawn")
        self._events = stack.enter_context((directory / "events.log").open("a", buffering=1))
        self._shared = Shared(directory / "shared")
        self._mounts: list[Mounted] = []
        self._listings: list[tuple[float, float]] = []
        self._refused: list[str] = []
        self._disk: Disk | None = None
        self._proxy: InThread[FakeDfdaemon] | None = None

    def _log(self, line: str) -> None:
        self._events.write(f"{time.monotonic():.3f} {line}\n")

    def run(self) -> Result:
        options, kind = self._options, self._kind
        keys, sizes = repository(random.Random(options.seed))
        trouble_s, quiet_s = (14.0, 8.0) if kind.has_trouble else (0.0, 0.0)
        phases = Phases(time.monotonic() + options.calm_s, trouble_s, quiet_s)
        loose = kind.has_trouble and not options.spares_listings
        # Where listings meet trouble, a listing begins some seconds before its answer is known, and
        # the mount serves an older one for a while.
        bound_s = 20.0 if loose else 6.0
        self._port = self._start_store(
            store.Settings(
                self._directory,
                options.seed,
                keys,
                sizes,
                phases,
                kind.churns,
                kind.lie,
                options.without,
                kind.network,
                options.spares_listings,
                page_keys=1000 if loose else 90,
            )
        )
        self._mounter = self._stack.enter_context(Mounter(self._directory))
        if kind.disk:
            self._disk = Disk(self._directory, self._rng, self._log)
            self._disk.mount()
            self._stack.callback(self._disk.unmount)
            self._stack.enter_context(self._mounter)
        if kind.proxy:
            self._proxy = self._stack.enter_context(InThread(FakeDfdaemon()))
        for which in range(kind.mounts):
            self._mounts.append(self._mount(which))
        rules = Rules(
            self._directory,
            tuple(each.point for each in self._mounts),
            keys,
            phases,
            bound_s,
            0.5 if loose else math.inf,
            options.kind,
            options.seed,
        )
        return self._play(rules)

    def _start_store(self, settings: store.Settings) -> int:
        process = self._context.Process(target=store.serve, args=(settings,), daemon=True)
        process.start()
        self._stack.callback(_end, process)
        port = self._directory / "port"
        deadline = time.monotonic() + 60
        while not port.exists():
            if time.monotonic() > deadline or not process.is_alive():
                raise RuntimeError("the store did not start")
            time.sleep(0.02)
        return int(port.read_text())

    def _mount(self, which: int) -> Mounted:
        # Without a successor a killed daemon leaves a dead mount, which the next one cleans up.
        takeover = "standby" if self._kind.takeover else "off"
        arguments = [*_ALIKE, "--takeover", takeover, *self._kind.options, *self._options.extra]
        if self._proxy is not None:
            arguments += ["--proxy", f"http://127.0.0.1:{self._proxy.server.port}"]
        point = self._mounts[which].point if which < len(self._mounts) else None
        cache = self._disk.cache if self._disk else self._directory / "cache"
        url = f"s3://127.0.0.1:{self._port}/{store.BUCKET}"
        if self._kind.takeover:
            return self._mounter.impatient(
                *(url, *arguments),
                silence_s=SILENCE_S,
                env=_ENVIRONMENT,
                cache_dir=cache,
                log_level=self._options.log_level,
            )
        for attempt in range(20):
            try:
                return self._mounter.mount(
                    url, *arguments, env=_ENVIRONMENT, point=point, cache_dir=cache, log_level=self._options.log_level
                )
            except AssertionError as error:
                # In trouble, the daemon may refuse a mount with a message. Other tests check the
                # message.
                self._log(f"! mount refused: {str(error)[:2000]}")
                if attempt == 19 or not self._kind.has_trouble:
                    raise
                point = self._mounter._points[-1]
        raise AssertionError

    def _play(self, rules: Rules) -> Result:
        options = self._options
        deadline = time.monotonic() + options.seconds
        began = time.monotonic()
        # A mapping that ends with SIGBUS costs a process, so mappings get a tenth of the
        # operations.
        mapped = options.operations // 10 // max(options.mappers, 1) if options.mappers else 0
        each = (options.operations - mapped * options.mappers) // options.processes
        running: list[SpawnProcess] = []
        for number in range(options.processes + options.mappers):
            play, share = (clients.run, each) if number < options.processes else (mapping.run, mapped)
            process = self._context.Process(
                target=play, args=(rules, number, options.threads, share, deadline), daemon=True
            )
            process.start()
            running.append(process)
        disturbances = self._disturb(rules, running, deadline)
        self._shared.stop()
        failures: list[str] = []
        last = time.monotonic() + 100
        for number, process in enumerate(running):
            process.join(max(last - time.monotonic(), 0.1))
            if process.is_alive():
                failures.append(f"client {number} did not end")
            elif process.exitcode:
                failures.append(f"client {number} ended with {process.exitcode}")
        seconds = time.monotonic() - began
        status = []
        for mounted in self._mounts:
            try:
                status.append(mounted.status())
            except Exception as error:
                failures.append(f"no status of {mounted.point.name}: {error}")
        failures += [f"no mount in place of the dead one: {each}" for each in self._refused]
        result = self._collect(rules, seconds, failures, status)
        result.disturbances = disturbances
        for process in running:
            if process.is_alive():
                # A process that hangs in a mount ends when the mount is gone.
                subprocess.run(
                    ["umount", "--force", "--lazy", *(str(each.point) for each in self._mounts)], check=False
                )
                _end(process)
        return result

    def _watch(self) -> None:
        """Tell the clients how long listings took lately; the age limit of names grows with it."""
        for mounted in list(self._mounts):
            try:
                for repository in mounted.status()["repositories"]:
                    took_s = float((repository["listing"].get("last_scan") or {}).get("took_s") or 0)
                    self._listings.append((time.monotonic(), took_s))
            except Exception as error:
                self._log(f"no status: {error!r}"[:300])
        while self._listings and self._listings[0][0] < time.monotonic() - 60:
            self._listings.pop(0)
        self._shared.slowest_listing_s = max((took_s for _, took_s in self._listings), default=0.0)

    def _disturb(self, rules: Rules, running: list[SpawnProcess], deadline: float) -> int:
        killer = Killer(self._mounts, self._mount, self._shared, self._rng, self._log) if self._kind.kills else None
        usurper = Usurper(self._mounts, self._rng, self._log) if self._kind.takeover else None
        stopper = Stopper(self._mounts, self._rng, self._log) if self._kind.movers else None
        spoiler = Spoiler(self._directory / "cache", self._rng, self._log) if self._kind.spoils else None
        operator = None
        if self._kind.commands:
            oracle = Oracle(rules, 40)
            self._stack.callback(oracle.close)
            operator = Operator(self._mounts, oracle, self._rng, self._log)
        done = 0
        next_at = time.monotonic() + self._rng.uniform(0.5, 5)
        while any(process.is_alive() for process in running) and time.monotonic() < deadline:
            wait([process.sentinel for process in running if process.is_alive()], 0.3)
            self._watch()
            if time.monotonic() < next_at:
                continue
            if killer:
                killer.step()
                done += 1
            if usurper:
                usurper.step()
                done += 1
            if stopper:
                stopper.step()
                done += 1
            if operator:
                operator.step()
                done += 1
            if self._disk:
                self._disk.step()
                done += 1
            if spoiler:
                spoiler.step()
                done += 1
            if self._proxy and len(self._proxy.server.tasks) > 60:
                self._proxy.do(self._proxy.server.tasks.clear)
                self._proxy.do(self._proxy.server.requests.clear)
            next_at = time.monotonic() + self._rng.uniform(0.5, 25 if killer else 12 if usurper else 5)
        if killer:
            self._refused = killer.refused
        if usurper:
            usurper.wait()
        if operator:
            report = {"counts": operator.tally.counts, "slowest": {}, "failed": [], "waiting": []}
            (self._directory / "report-40").write_text(json.dumps(report))
        return done

    def _collect(self, rules: Rules, seconds: float, failures: list[str], status: list[dict[str, Any]]) -> Result:
        counts: Counter[str] = Counter()
        slowest: dict[str, float] = {}
        deviations: list[dict[str, Any]] = []
        for path in sorted(self._directory.glob("report-*")):
            if path.suffix == ".new":
                continue
            said = json.loads(path.read_text())
            counts.update(said["counts"])
            failures += said["failed"]
            failures += [f"{path.name}: {name} waits for {waited:.0f} s" for name, waited in said["waiting"]]
            for name, took in said["slowest"].items():
                slowest[name] = max(slowest.get(name, 0.0), took)
        for path in sorted(self._directory.glob("deviations-*")):
            deviations += [json.loads(line) for line in path.read_text().splitlines()]
        if (self._directory / "store-failed").exists():
            failures.append("the store failed: " + (self._directory / "store-failed").read_text())
        tracebacks = sum(mounted.log().count("Traceback (most recent call last)") for mounted in self._mounts[:2])
        if tracebacks:
            counts["tracebacks in the log"] = tracebacks
            failures.append(f"{tracebacks} tracebacks in the daemons' logs")
        if self._kind.lie == 0:
            for each in status:
                counts["checksum mismatches"] += int(each["cache"]["checksum_mismatches"])
            if counts["checksum mismatches"]:
                failures.append("the cache had other bytes than the store")
        return Result(counts, slowest, seconds, deviations, failures, status)


def _end(process: SpawnProcess) -> None:
    process.kill()
    process.join(10)
