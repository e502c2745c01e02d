"""A worker is killed, and the next one takes over its connection: no reader sees an error."""

from __future__ import annotations

import errno
import hashlib
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from io import FileIO
from pathlib import Path

import pytest

from d7yfs.host.handed_session import HandedSession
from tests.mount.conftest import MIB, bytes_of, faulty_url
from tests.mount.dying import DEATH_VARIABLE
from tests.mount.mounted import D7YFS, READ_TIMEOUT_S, ended, in_background, is_mounted, run, until, within
from tests.mount.readers import Readers, from_the_worker, mapped, run_program
from tests.mount.supervised import Supervised
from tests.servers.faults import Hang
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = pytest.mark.mount

Store = InThread[S3Faults]
BIG = bytes_of(7, 20 * MIB)
SMALL = {f"{number:04}-{'n' * 40}": bytes_of(number, 300) for number in range(400)}
KEYS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}


@pytest.fixture(scope="module")
def store() -> Iterator[Store]:
    with InThread(S3Faults()) as running:
        for name, body in SMALL.items():
            running.do(running.server.put, f"b/many/{name}", body)
        running.do(running.server.put, "b/big.bin", BIG)
        yield running


@pytest.fixture
def kept(tmp_path: Path, store: Store) -> Iterator[Supervised]:
    """A mount with its first worker."""
    with Supervised(tmp_path, faulty_url(store), env=KEYS) as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory, store: Store) -> Iterator[Supervised]:
    """A mount whose workers die of a request; they ask the store for each name."""
    place = tmp_path_factory.mktemp("mortal")
    program = (sys.executable, "-m", "tests.mount.dying")
    env = {**KEYS, DEATH_VARIABLE: str(place / "death")}
    with Supervised(place, "--xattr", "--metadata-ttl", "0", faulty_url(store), env=env, program=program) as made:
        made.start()
        yield made


def listed(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


def opened(path: Path) -> FileIO:
    return within(READ_TIMEOUT_S, lambda: path.open("rb", buffering=0))


def read_whole(path: Path) -> bytes:
    """The bytes of a file, which the kernel has to ask for."""
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        return file.read()


BODY = b"the bytes of a file"
MANY = sorted(SMALL)
REQUESTS: dict[str, tuple[Callable[[Path, Path], object], object]] = {
    "LOOKUP": (lambda _top, file: read_whole(file), BODY),
    "GETATTR": (lambda top, _file: (top / "many").stat().st_mode, 0o40555),
    "OPEN": (lambda _top, file: read_whole(file), BODY),
    "READ": (lambda _top, file: read_whole(file), BODY),
    "RELEASE": (lambda _top, file: read_whole(file) + read_whole(file), BODY * 2),
    "OPENDIR": (lambda top, _file: listed(top / "many"), MANY),
    "READDIR": (lambda top, _file: listed(top / "many"), MANY),
    "READDIRPLUS": (lambda top, _file: listed(top / "many"), MANY),
    "RELEASEDIR": (lambda top, _file: listed(top / "many") + listed(top / "many"), MANY * 2),
    "STATFS": (lambda top, _file: os.statvfs(top).f_namemax, 255),
    "GETXATTR": (lambda _top, file: os.getxattr(file, "user.d7yfs.size"), b"%d" % len(BODY)),
    "LISTXATTR": (lambda _top, file: "user.d7yfs.size" in os.listxattr(file), True),
}
"""The doings of a reader with the top of the mount and a file of its own, by the request that they
take; and what it gets."""


@pytest.mark.parametrize("moment", ["read", "answered", "sent"])
@pytest.mark.parametrize("opcode", REQUESTS)
def test_killed_with_a_request_in_its_hands(mortal: Supervised, store: Store, opcode: str, moment: str) -> None:
    store.do(store.server.put, f"b/own/{opcode}-{moment}", BODY)
    file, death = mortal.point / "own" / f"{opcode}-{moment}", mortal.point.parent / "death"
    ask, expected = REQUESTS[opcode]
    death.write_text(f"{opcode} {moment}")
    reader = in_background(lambda: ask(mortal.point, file))
    until(lambda: ended(mortal.worker), f"the worker's death of {opcode}")
    mortal.start()
    assert reader.result(READ_TIMEOUT_S) == expected
    assert within(READ_TIMEOUT_S, lambda: read_whole(file)) == BODY


@pytest.mark.parametrize("moment", ["read", "answered", "sent"])
def test_killed_in_the_handshake(tmp_path: Path, store: Store, moment: str) -> None:
    program, death = (sys.executable, "-m", "tests.mount.dying"), tmp_path / "death"
    env = {**KEYS, DEATH_VARIABLE: str(death)}
    with Supervised(tmp_path, faulty_url(store), env=env, program=program) as kept:
        death.write_text(f"INIT {moment}")
        kept.start(ready=False)
        until(lambda: ended(kept.worker), "the first worker's death")
        kept.start()
        assert within(READ_TIMEOUT_S, (kept.point / "big.bin").read_bytes) == BIG
        kept.replace()
        assert within(READ_TIMEOUT_S, (kept.point / "many" / MANY[0]).read_bytes) == SMALL[MANY[0]]


def test_a_worker_of_a_mount_that_is_gone(kept: Supervised) -> None:
    kept.kill()
    subprocess.run(["umount", "--lazy", kept.point], check=True, timeout=READ_TIMEOUT_S)
    kept.start(ready=False)
    until(lambda: ended(kept.worker), "the end of the worker")
    assert " ERROR " not in kept.log()


def test_killed_while_the_kernel_holds_one_of_its_threads(mortal: Supervised, store: Store) -> None:
    """Its process cannot end before the request is answered on which the thread waits."""
    store.do(store.server.put, "b/own/held", BODY)
    (mortal.point.parent / "death").write_text("READ telling")
    killed = mortal.worker
    reader = in_background(lambda: read_whole(mortal.point / "own" / "held"))
    until(lambda: ended(mortal.worker), "the worker's death")
    assert "D" in states_of_threads(killed)
    mortal.start()
    assert reader.result(READ_TIMEOUT_S) == BODY
    until(lambda: "D" not in states_of_threads(killed), "the end of the thread")


def states_of_threads(pid: int) -> str:
    stats = [task.joinpath("stat").read_text() for task in Path(f"/proc/{pid}/task").glob("*")]
    return "".join(stat.rpartition(")")[2].split()[0] for stat in stats)


def test_killed_while_it_waits_for_the_store(kept: Supervised, store: Store) -> None:
    """Several readers wait for the same bytes."""
    hang = Hang()
    with opened(kept.point / "big.bin") as file:
        store.do(lambda: store.server.script(hang, key="b/big.bin"))
        readers = [in_background(lambda: os.pread(file.fileno(), MIB, 3 * MIB)) for _ in range(3)]
        store.wait(hang.reached)
        kept.replace()
        for reader in readers:
            assert reader.result(READ_TIMEOUT_S) == BIG[3 * MIB : 4 * MIB]


def test_twenty_kills_in_a_row(kept: Supervised) -> None:
    """Programs that walk, read and map never see an error, nor a wrong byte."""
    big, many, name = kept.point / "big.bin", kept.point / "many", MANY[0]
    find, cat = ("find", str(many), "-type", "f", "-ls"), ("sh", "-c", f"cat {many}/*")
    readers = Readers()
    for command in (find, cat):
        readers.start(partial(run_program, *command), within(READ_TIMEOUT_S, partial(run_program, *command)))
    readers.start(partial(mapped, big), hashlib.sha256(BIG).digest())
    readers.start(partial(from_the_worker, big), hashlib.sha256(BIG).digest())
    readers.start((many / name).read_bytes, SMALL[name])
    readers.start(lambda: listed(many), MANY)
    for _ in range(20):
        readers.go_on()
        kept.replace()
    readers.go_on()
    readers.stop()
    print(f"{readers.rounds} rounds, the longest took {readers.longest_s:.2f} s")
    assert "Traceback" not in kept.log()
    assert " ERROR " not in kept.log()


def test_files_that_the_kernel_reads_by_itself(kept: Supervised) -> None:
    """No worker is needed to go on reading, and the next one opens them as the last one did."""
    path = kept.point / "big.bin"
    assert within(READ_TIMEOUT_S, path.read_bytes) == BIG
    until(lambda: kept.mounted.stat("big.bin")["cached_bytes"] == len(BIG), "the whole file in the cache")
    until(lambda: kept.mounted.status()["fuse"]["open_files"] == 0, "the end of the handle that the worker served")
    with opened(path) as file:
        assert kept.mounted.status()["fuse"]["passthrough_opens"] == 1
        kept.kill()
        assert within(READ_TIMEOUT_S, lambda: os.pread(file.fileno(), MIB, 5 * MIB)) == BIG[5 * MIB : 6 * MIB]
        kept.start()
        for _ in range(2):
            assert within(READ_TIMEOUT_S, path.read_bytes) == BIG, "under the same backing id"
        assert kept.mounted.status()["fuse"]["passthrough_opens"] == 2
        assert within(READ_TIMEOUT_S, file.read) == BIG
    kept.replace()
    assert within(READ_TIMEOUT_S, path.read_bytes) == BIG, "under another one: all handles were closed"


def test_a_file_that_became_whole_while_it_was_open(kept: Supervised) -> None:
    """One node of it is read by way of the workers, the other one by the kernel itself."""
    path = kept.point / "big.bin"
    with opened(path) as old, mmap.mmap(old.fileno(), 0, prot=mmap.PROT_READ) as old_map:
        assert within(READ_TIMEOUT_S, lambda: os.pread(old.fileno(), 10, 0)) == BIG[:10]
        kept.replace()  # the next worker learns by itself when the file is whole
        assert run("warm", path).returncode == 0
        until(lambda: within(READ_TIMEOUT_S, lambda: _opens_by_itself(kept)), "an open that the kernel serves")
        with opened(path) as new, mmap.mmap(new.fileno(), 0, prot=mmap.PROT_READ) as new_map:
            for place in (3 * MIB, 12 * MIB):
                kept.replace()
                os.posix_fadvise(old.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                for file in (old, new):
                    assert within(READ_TIMEOUT_S, lambda: os.pread(file.fileno(), MIB, place)) == BIG[place:][:MIB]  # noqa: B023
                    assert within(READ_TIMEOUT_S, lambda: os.fstat(file.fileno())).st_ino == path.stat().st_ino  # noqa: B023
                assert within(READ_TIMEOUT_S, path.read_bytes) == BIG
            for each in (old_map, new_map):
                assert within(READ_TIMEOUT_S, lambda: each[:]) == BIG  # noqa: B023
            assert kept.mounted.status()["fuse"]["passthrough_opens"] == 1, "of the last worker, that of `path` alone"
    until(lambda: kept.mounted.status()["fuse"]["open_files"] == 0, "the files to be closed")
    assert within(READ_TIMEOUT_S, path.read_bytes) == BIG
    assert " ERROR " not in kept.log()


def test_a_file_that_was_whole_when_the_worker_was_killed(kept: Supervised) -> None:
    """The next worker changes it over."""
    path = kept.point / "big.bin"
    with opened(path) as old:
        assert within(READ_TIMEOUT_S, lambda: os.pread(old.fileno(), 10, 0)) == BIG[:10]
        assert run("warm", path).returncode == 0
        kept.replace()
        until(lambda: within(READ_TIMEOUT_S, lambda: _opens_by_itself(kept)), "an open that the kernel serves")
        assert within(READ_TIMEOUT_S, old.read) == BIG


def _opens_by_itself(kept: Supervised) -> bool:
    before = kept.mounted.status()["fuse"]["passthrough_opens"]
    with opened(kept.point / "big.bin"):
        return bool(kept.mounted.status()["fuse"]["passthrough_opens"] > before)


def test_files_stay_open(kept: Supervised) -> None:
    """The next worker keeps them in the cache, also those that nobody reads now."""
    paths = [kept.point / "many" / name for name in MANY[:20]]
    with ExitStack() as stack:
        files = [stack.enter_context(opened(path)) for path in paths]
        assert within(READ_TIMEOUT_S, files[3].read) == SMALL[MANY[3]]
        kept.replace()
        until(lambda: kept.mounted.status()["fuse"]["open_files"] == 20, "the files to be open again")
        for file, name in list(zip(files, MANY, strict=False))[10:]:
            assert within(READ_TIMEOUT_S, file.read) == SMALL[name]
    until(lambda: kept.mounted.status()["fuse"]["open_files"] == 0, "the files to be closed")


def test_the_reader_of_a_directory_that_changes(kept: Supervised, store: Store) -> None:
    """It gets each name that stayed once, from a listing that has others before and behind."""
    names = [f"{number:04}-{'d' * 60}" for number in range(2000)]
    for name in names:
        store.do(store.server.put, f"b/changing/{name}", b"x")
    with within(READ_TIMEOUT_S, lambda: os.scandir(kept.point / "changing")) as entries:
        first = within(READ_TIMEOUT_S, lambda: [next(entries).name for _ in range(10)])
        kept.kill()
        for name in (*names[:5], *names[1500:1510]):
            store.do(store.server.delete, f"b/changing/{name}")
        for name in ("0000-new", "0003-new", "9999-new"):
            store.do(store.server.put, f"b/changing/{name}", b"x")
        kept.start()
        rest = within(READ_TIMEOUT_S, lambda: [entry.name for entry in entries])
    assert len({*first, *rest}) == len(first) + len(rest), "no name comes twice"
    assert {*first, *rest} >= set(names[5:1500] + names[1510:]), "none that stayed is missing"
    assert "9999-new" in rest
    expected = sorted({*names[5:1500], *names[1510:], "0000-new", "0003-new", "9999-new"})
    assert within(READ_TIMEOUT_S, lambda: listed(kept.point / "changing")) == expected


def test_a_working_directory_in_the_mount(kept: Supervised) -> None:
    name = next(iter(SMALL))
    command = ["sh", "-c", 'while read -r name; do cat "$name" | sha256sum; done']
    with subprocess.Popen(
        command, cwd=kept.point / "many", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        for path in (name, f"../many/{name}"):
            kept.replace()
            shell.stdin.write(f"{path}\n")
            shell.stdin.flush()
            said = within(READ_TIMEOUT_S, shell.stdout.readline)
            assert said.split()[0] == hashlib.sha256(SMALL[name]).hexdigest()
        shell.stdin.close()
        assert shell.wait(READ_TIMEOUT_S) == 0


def test_numbers_and_times_stay(kept: Supervised) -> None:
    """A program that watches mtimes, as Triton in poll mode, sees no change."""
    top = kept.point

    def shown() -> dict[str, tuple[int, int]]:
        paths = [top, top / "big.bin", top / "many", *(top / "many").iterdir()]
        return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}

    before = within(READ_TIMEOUT_S, shown)
    for _ in range(2):
        kept.replace()
        assert within(READ_TIMEOUT_S, shown) == before
    assert len({number for number, _ in before.values()}) == len(before)


def test_the_store_is_away_at_the_takeover(tmp_path: Path) -> None:
    with InThread(S3Faults({"b/file": BODY, "b/d/other": BODY})) as running, ExitStack() as stack:
        kept = stack.enter_context(Supervised(tmp_path, "--read-timeout", "5", faulty_url(running), env=KEYS))
        kept.start()
        with opened(kept.point / "file") as file:
            assert within(READ_TIMEOUT_S, file.read) == BODY
            running.do(running.server.kill)
            kept.replace()
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert within(READ_TIMEOUT_S, lambda: os.pread(file.fileno(), 100, 0)) == BODY


def test_a_lost_journal(kept: Supervised) -> None:
    """Files that are open fail with ESTALE. All that is opened again is there."""
    path = kept.point / "big.bin"
    with opened(path) as file:
        assert within(READ_TIMEOUT_S, lambda: os.pread(file.fileno(), 10, 0)) == BIG[:10]
        within(READ_TIMEOUT_S, lambda: listed(kept.point / "many"))
        kept.kill()
        kept.lose_journal()
        kept.start()
        with pytest.raises(OSError, match="Stale") as caught:
            within(READ_TIMEOUT_S, lambda: os.pread(file.fileno(), 10, 15 * MIB))
        assert caught.value.errno == errno.ESTALE
        assert within(READ_TIMEOUT_S, path.read_bytes) == BIG
        assert within(READ_TIMEOUT_S, lambda: listed(kept.point / "many")) == MANY
        assert within(READ_TIMEOUT_S, (kept.point / "many" / MANY[5]).read_bytes) == SMALL[MANY[5]]
    assert "the journal is empty" in kept.log()


def test_a_worker_that_is_told_to_end(kept: Supervised) -> None:
    """It leaves the mount and its readers to the next one."""
    path = kept.point / "big.bin"
    with opened(path) as file:
        kept.kill(signal.SIGTERM)
        assert is_mounted(kept.point)
        reader = in_background(lambda: os.pread(file.fileno(), MIB, 0))
        kept.start()
        assert reader.result(READ_TIMEOUT_S) == BIG[:MIB]
    subprocess.run(["umount", kept.point], check=True, timeout=READ_TIMEOUT_S)
    until(lambda: ended(kept.worker), "the end of the worker with the mount")


def test_a_worker_runs_in_the_foreground(tmp_path: Path, store: Store) -> None:
    with (tmp_path / "any").open("w") as file:
        handed = HandedSession(file.fileno(), file.fileno(), 1)
        command = [*D7YFS, "mount", faulty_url(store), str(tmp_path)]
        done = subprocess.run(
            command, env=os.environ | handed.variables, pass_fds=[file.fileno()], capture_output=True, timeout=60
        )
    assert done.returncode == 1
    assert b"a worker runs with --foreground" in done.stderr
    lost = run("mount", "--foreground", faulty_url(store), tmp_path, env=HandedSession(888, 889, 1).variables)
    assert lost.returncode == 1
    assert "no session is handed over by D7YFS_SESSION_FD=888" in lost.stderr


def test_only_our_own_engine_takes_over(tmp_path: Path, store: Store) -> None:
    with Supervised(tmp_path, "--fuse-engine", "pyfuse3", faulty_url(store), env=KEYS) as kept:
        kept.start(ready=False)
        until(lambda: ended(kept.worker), "the end of the worker")
        assert is_mounted(kept.point), "the supervisor decides"
