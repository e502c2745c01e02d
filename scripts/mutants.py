"""Breaks important lines, one at a time, and checks that a test fails.

`python scripts/mutants.py [-k WORD]` runs the mutants. Each is a textual replacement in one folder
or module of `d7yfs/`, with the tests that must notice it. The program works on a copy in a
temporary directory. A mutant that no test notices has "survived", and makes the exit status 1:
write the missing test.

Code changes, so texts become stale. If a text is not found exactly once, or a test does not exist,
the program ends with status 2 before it runs a test. `--check` does only that.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SLACK_S = 60.0
"""Seconds. Tests that take five times as long as without a mutant, and this in addition, hang: they
have noticed it.
"""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A line that is made wrong, and the tests that must fail then."""

    name: str
    room: str
    """A folder or module of `d7yfs/`."""
    text: str
    """A part of the source that occurs once in the room."""
    replacement: str
    tests: str
    """Paths below `tests/`, separated by spaces."""


MUTANTS = (
    # --- the binding ---
    Mutant(
        "an exception escapes a handler of the kernel's requests",
        "fuse",
        "            except Exception as error:\n",
        "            except ZeroDivisionError as error:\n",
        "fuse/test_errors.py",
    ),
    Mutant(
        "a request has no deadline",
        "fuse",
        "with trio.fail_after(self.deadline_s) as scope:",
        "with trio.fail_after(1e9) as scope:",
        "fuse/test_deadlines.py",
    ),
    # --- what is said of a mount ---
    Mutant(
        "a bug report has the value of a variable that is named like a secret",
        "control/bug_report.py",
        "text = text.replace(value, _MASK)",
        "pass",
        "control/test_bug_report.py",
    ),
    # --- who may read the cache ---
    Mutant(
        "a record is believed of credentials that the store has not accepted",
        "fs",
        "self._accepted = False",
        "self._accepted = True",
        "fs/test_rights.py",
    ),
    Mutant(
        "a refusal leaves the grant's record",
        "fs",
        "cached.grants.strike(grantee)",
        "pass",
        "fs/test_rights.py",
    ),
    # --- what is shown ---
    Mutant(
        "a name is markup in the status page",
        "monitor/status_page.py",
        "return html.escape(printable(str(said)))",
        "return printable(str(said))",
        "monitor/test_status_page.py",
    ),
    Mutant(
        "the status page names the file that a request waits for",
        "monitor/status_page.py",
        "_text(_model_of(each.path, account))",
        "_text(each.path)",
        "monitor/test_status_page.py",
    ),
    Mutant(
        "the counters of two daemons make a rate",
        "stats",
        "return span_s if self.started_at == before.started_at and span_s > 0 else math.inf",
        "return span_s",
        "stats/test_activity.py",
    ),
    # --- processes that receive bodies ---
    Mutant(
        "the word of a mover is believed whatever it says",
        "movers",
        "if not moving.job.may_hear(word, moving.position):",
        "if False:",
        "movers/test_pool.py",
    ),
    Mutant(
        "a mover that may still write counts as dead",
        "movers",
        "moving.end(Ending.LOST if is_dead else Ending.STUCK)",
        "moving.end(Ending.LOST)",
        "fetch/test_receiver.py",
    ),
    Mutant(
        "a mover that hangs is not killed",
        "movers",
        "            if mover.jobs or trouble:\n",
        "            if False:\n",
        "movers/test_pool.py",
    ),
    Mutant(
        "blocks that a mover may still write are read from the disk",
        "fetch",
        "elif last.ending is Ending.STUCK:",
        "elif False:",
        "fetch/test_receiver.py",
    ),
    Mutant(
        "a mover's job loses the bytes that the engine has left in the pair",
        "movers",
        "                return self._pair.recv_into(buffer[:limit_bytes], 0, socket.MSG_DONTWAIT)",
        "                raise BlockingIOError",
        "movers/test_tunnel.py",
    ),
    Mutant(
        "TLS that a mover ends, and that is cut off, is believed to have ended",
        "fetch",
        "if word.state is not TunnelState.CLOSED:",
        "if False:",
        "fetch/test_transport.py",
    ),
    # --- a range by HTTP ---
    Mutant(
        "a reply with another version's ETag is used",
        "fetch",
        "if sent and _opaque_tag(sent) != _opaque_tag(validator):",
        "if False:",
        "fetch/test_reply.py",
    ),
    Mutant(
        "a reply without an ETag is used",
        "fetch",
        "    if not sent:\n        raise OriginUnavailable(",
        "    if False:\n        raise OriginUnavailable(",
        "fetch/test_reply.py",
    ),
    Mutant(
        "a weak ETag proves a version",
        "fetch",
        'if sent.startswith("W/"):',
        "if False:",
        "fetch/test_reply.py",
    ),
    Mutant(
        "a reply's total size is not compared with the listing's",
        "fetch",
        "if total != version.size_bytes:",
        "if False:",
        "fetch/test_reply.py",
    ),
    Mutant(
        "a reply may be another range than was asked for",
        "fetch",
        "if (first, last + 1) != (wanted.start, wanted.stop):",
        "if False:",
        "fetch/test_reply.py",
    ),
    Mutant(
        "the last bytes before a cut are not compared",
        "fetch",
        'return bytes(self._tail) if self.position > self._proved_to else b""',
        'return b""',
        "fetch/test_fetcher.py",
    ),
    Mutant(
        "a version is gone although the store shows it as current",
        "fetch",
        "if isinstance(error, VersionGone) and (proxy is None or required):",
        "if False:",
        "fetch/test_fetcher.py",
    ),
    Mutant(
        "a refusal is not signed anew",
        "fetch",
        "not isinstance(error, ObjectArchived) and not resigned",
        "not isinstance(error, ObjectArchived) and False",
        "fetch/test_fetcher.py",
    ),
    Mutant(
        "a reply about another task of dfdaemon's is used",
        "fetch",
        "elif not task.is_proved_by(said := headers.get(dragonfly_task.TASK_ID_HEADER)):",
        "elif (said := headers.get(dragonfly_task.TASK_ID_HEADER)) and False:",
        "fetch/test_fetcher.py",
    ),
    Mutant(
        "a file that did not arrive at a seed counts as preheated",
        "fetch",
        "            if not part.arrived.get(url):",
        "            if part.error and not part.arrived.get(url):",
        "control/test_preheat.py",
    ),
    # --- names ---
    Mutant(
        "a listing never expires",
        "tree",
        "return self.children is not None and (asked_at < self.expires_at or asked_at <= self.asked_at)",
        "return self.children is not None",
        "tree/test_tree.py",
    ),
    Mutant(
        "a name that was asked for alone never expires",
        "tree",
        "return asked_at < self.expires_at or asked_at <= self.asked_at\n\n    def remaining_s",
        "return True\n\n    def remaining_s",
        "tree/test_tree.py",
    ),
    Mutant(
        "an absent name is believed as long as a listing",
        "tree",
        "Absent(min(self._negative_ttl_s, remaining_s))",
        "Absent(remaining_s)",
        "tree/test_tree.py",
    ),
    Mutant(
        "another version keeps its inode",
        "tree",
        "if not isinstance(node, File) or node.version.identity != version.identity:",
        "if not isinstance(node, File):",
        "tree/test_tree.py",
    ),
    Mutant(
        "the kernel forgets one lookup too few",
        "tree",
        "node.lookups = max(node.lookups - count, 0)",
        "node.lookups = max(node.lookups - count, 1)",
        "tree/test_tree.py",
    ),
    Mutant(
        "a node that the kernel remembers is removed from the table",
        "tree",
        "            if node.lookups:\n                self.unlinked[node.identity] = node\n",
        "            if False:\n                self.unlinked[node.identity] = node\n",
        "tree/test_tree.py",
    ),
    Mutant(
        "keys out of order are not noticed",
        "tree",
        "if not self.reached.ordered:",
        "if False:",
        "tree/test_lister.py",
    ),
    # --- names that outlive a mount ---
    Mutant(
        "a snapshot that was altered counts",
        "tree",
        "data[-_CRC.size :] != _CRC.pack(zlib.crc32(body))",
        "False",
        "tree/test_snapshot.py",
    ),
    Mutant(
        "another secret is proof without the store",
        "repository",
        'seal != "" and seal == self.snapshot.head.seal',
        "True",
        "repository/test_tree_keeper.py",
    ),
    Mutant(
        "credentials that no store has accepted recall names",
        "repository",
        "if snapshot is None or self._is_empty or (follows",
        "if snapshot is None or (follows",
        "repository/test_tree_keeper.py",
    ),
    # --- open files ---
    Mutant(
        "a version that was gone comes back within a handle",
        "fs",
        "                opened.is_gone = True",
        "                opened.is_gone = False",
        "fs/test_filesystem.py",
    ),
    Mutant(
        "a read is not cut off at the end of the file",
        "fs",
        ".clip(opened.node.size_bytes)",
        "",
        "fs/test_filesystem.py",
    ),
    # --- the cache ---
    Mutant(
        "a map of another object or file is believed",
        "cache",
        "if data.st_size != size_bytes or not header.startswith(map_header(data, identity, size_bytes)[:TIMES_OFFSET]):",
        "if False:",
        "cache/test_directory.py",
    ),
    Mutant(
        "a block of another boot is believed without its checksum",
        "cache",
        "else Block.UNVERIFIED",
        "else Block.DISK",
        "cache/test_backing.py",
    ),
    Mutant(
        "a block is believed although its checksum differs",
        "cache",
        "return len(data) == block.size and crc32c(data) == self._files.entries[index] >> 32",
        "return len(data) == block.size",
        "cache/test_backing.py",
    ),
    Mutant(
        "an unknown record of a proof counts as one",
        "cache",
        "_PROOFS.get(bytes(stored), Proof.PENDING)",
        "_PROOFS.get(bytes(stored), Proof.PROVED)",
        "cache/test_proof.py",
    ),
    Mutant(
        "what no daemon has compared is served as it is",
        "fill",
        "if proof is Proof.PENDING or not (proof in _COMPARED or self._is_counted(target)):",
        "if False:",
        "fill/test_recorded_proof.py",
    ),
    Mutant(
        "a file in use is evicted",
        "cache",
        "        fcntl.flock(map_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)\n        if same_file(map_path, map_fd):\n",
        "        if same_file(map_path, map_fd):\n",
        "cache/test_directory.py",
    ),
    Mutant(
        "eviction does not stop at its target",
        "cache",
        "if used + self.earlier_bytes - freed <= target_bytes:",
        "if False:",
        "cache/test_directory.py",
    ),
    Mutant(
        "a lease is not released",
        "cache",
        "_set_lock(self._files.map_fd, fcntl.F_UNLCK, *extent_of_entries(wanted))",
        "extent_of_entries(wanted)",
        "cache/test_leases.py",
    ),
    Mutant(
        "a stream's lease is not released",
        "cache",
        "_set_lock(self._files.map_fd, fcntl.F_UNLCK, 0, 1)",
        "pass",
        "cache/test_leases.py",
    ),
    Mutant(
        "a block that arrives counts as there",
        "cache",
        "readable_to += arriving.landed_bytes",
        "readable_to += BLOCK_BYTES",
        "cache/test_presence.py",
    ),
    # --- the choice of a route ---
    Mutant(
        "the budget past dfdaemon is not spent",
        "fill",
        "self._left[version.identity] = self._left_of(version) - size_bytes",
        "self._left[version.identity] = self._left_of(version)",
        "fill/test_route.py",
    ),
    Mutant(
        "with --no-fallback the store stands in",
        "fill",
        "        if required:\n            return 0\n",
        "",
        "fill/test_route.py",
    ),
)


def sources(root: Path, room: str) -> list[Path]:
    """The Python files of a room."""
    place = root / "d7yfs" / room
    return sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]


def located(mutant: Mutant, root: Path) -> Path | None:
    """The one file that has the mutant's text exactly once, or None."""
    found = [(path, path.read_text().count(mutant.text)) for path in sources(root, mutant.room) if path.is_file()]
    holders = [(path, count) for path, count in found if count]
    return holders[0][0] if len(holders) == 1 and holders[0][1] == 1 else None


def stale(mutants: tuple[Mutant, ...]) -> list[str]:
    """The faults of these mutants that do not fit the tree."""
    found = []
    for mutant in mutants:
        if located(mutant, ROOT) is None:
            found.append(f"{mutant.name}: not found exactly once in d7yfs/{mutant.room}: {mutant.text!r}")
        found += [
            f"{mutant.name}: tests/{test} does not exist"
            for test in mutant.tests.split()
            if not (ROOT / "tests" / test).exists()
        ]
    return found


def failing(root: Path, tests: str, limit_s: float | None = None) -> bool:
    """True if these tests fail in the copy at `root`, or take longer than `limit_s`."""
    paths = [f"tests/{test}" for test in tests.split()]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", *paths]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        try:
            said, _ = run.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            run.kill()
            return True
    if run.returncode not in (0, 1):
        # Status 1 is a failed test. Any other status says nothing about the mutant.
        raise SystemExit(f"pytest ended with {run.returncode}:\n{said[-3000:]}")
    return run.returncode == 1


def main() -> int:
    """Run the chosen mutants. Returns 1 if one survives, 2 if one does not fit the tree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("-k", metavar="WORD", default="", help="only mutants with WORD in their name or room")
    parser.add_argument("--check", action="store_true", help="only check that every text and test exists")
    given = parser.parse_args()
    wrong = stale(MUTANTS)
    if wrong:
        print(*wrong, sep="\n", file=sys.stderr)
        return 2
    if given.check:
        return 0
    chosen = [each for each in MUTANTS if given.k in f"{each.room} {each.name}"]
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="d7yfs-mutants-") as name:
        copy = Path(name)
        unwanted = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", ".hypothesis", "build", "dist")
        shutil.copytree(ROOT, copy, ignore=unwanted, symlinks=True, dirs_exist_ok=True)
        limits: dict[str, float] = {}
        for tests in {each.tests: None for each in chosen}:
            began_at = time.monotonic()
            if failing(copy, tests):
                print(f"without any mutant these fail: {tests}", file=sys.stderr)
                return 2
            limits[tests] = SLACK_S + 5 * (time.monotonic() - began_at)
        for mutant in chosen:
            path = located(mutant, copy)
            assert path is not None
            text = path.read_text()
            began_at = time.monotonic()
            path.write_text(text.replace(mutant.text, mutant.replacement))
            killed = failing(copy, mutant.tests, limits[mutant.tests])
            path.write_text(text)
            survivors += not killed
            verdict = "killed" if killed else "SURVIVED"
            print(f"{verdict:8} {time.monotonic() - began_at:5.1f} s  {mutant.room}: {mutant.name}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
