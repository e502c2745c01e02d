"""`python -m tests.fuzz --kind network --operations 1000000 --seed 1`: run one kind of fault, print
the counts, exit with 1 on a deviation.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections import Counter
from pathlib import Path

from tests.fuzz import lies
from tests.fuzz.campaign import KINDS, Options, Result, run

_FIRST = ("operations", "reads", "bytes", "opens", "wrong bytes")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--kind", choices=[*KINDS], required=True)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--seconds", type=float, default=600.0, help="stop after this time, even if operations are left"
    )
    parser.add_argument("--directory", type=Path, help="a new directory, which keeps the store's and the daemons' logs")
    parser.add_argument("--without", default="", help="lies that the store must not tell, separated by commas")
    parser.add_argument("--only", default="", help="the only lies that the store may tell, separated by commas")
    parser.add_argument(
        "--spare-listings", action="store_true", help="inject faults into data only, and check names with tight bounds"
    )
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--threads", type=int, default=3)
    parser.add_argument("--mappers", type=int, default=1)
    parser.add_argument("--log-level", default="info")
    parser.add_argument(
        "--mount-option",
        action="append",
        default=[],
        help="a further option of d7yfs mount: --mount-option=--read-timeout=9s",
    )
    said = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # Takes mounts and processes down.
    without = frozenset(filter(None, said.without.split(",")))
    if said.only:
        without = lies.names() - frozenset(said.only.split(","))
    result = run(
        Options(
            said.kind,
            said.operations,
            said.seed,
            said.seconds,
            said.directory,
            without,
            said.spare_listings,
            said.processes,
            said.threads,
            said.mappers,
            said.log_level,
            extra=tuple(said.mount_option),
        )
    )
    print(f"kind {said.kind}, seed {said.seed}")
    show(result)
    return 0 if result.is_clean else 1


def show(result: Result) -> None:
    """Print the table, then each kind of deviation with its first records."""
    counts = result.counts
    print(f"{'operations per second':44} {counts['operations'] / result.seconds:14,.0f}   ({result.seconds:.0f} s)")
    if result.disturbances:
        print(f"{'disturbances':44} {result.disturbances:14,}")
    for name in [*_FIRST, *sorted(counts.keys() - set(_FIRST))]:
        print(f"{name:44} {counts[name]:14,}")
    for name, seconds in sorted(result.slowest.items(), key=lambda each: -each[1]):
        print(f"{'slowest ' + name:44} {seconds:14.2f} s")
    for repository in (each for status in result.status for each in status.get("repositories", [])):
        fetched = repository.get("fetched", {})
        print("fetched", {name: value for name, value in fetched.items() if isinstance(value, int) and value})
    for failure in result.failures:
        print("FAILURE", failure)
    shown: Counter[str] = Counter()
    for record in result.deviations:
        shown[record["what"]] += 1
        if shown[record["what"]] <= 3:
            print(json.dumps(record))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
