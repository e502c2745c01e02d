"""The cache directory: pairs that are whole or made anew, locks between processes, eviction, and
directories that cannot be used.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.pair import HEADER_BYTES, VersionFiles
from d7yfs.cache.table import ENTRY_BYTES
from d7yfs.errors import CacheUnusable
from d7yfs.objects import ObjectVersion, StoreIdentity
from tests.cache.conftest import MountTmpfs
from tests.cache.doubles import BOOT, MIB, ORIGIN, backing, data_of, directory, fill, version

FILE = version(2 * MIB + 5)


@contextmanager
def opened(within: CacheDirectory, of: ObjectVersion = FILE, origin: StoreIdentity = ORIGIN) -> Iterator[VersionFiles]:
    files = within.open(origin, of)
    try:
        yield files
    finally:
        files.close()


def the_only(path: Path, suffix: str) -> Path:
    (found,) = path.rglob(f"*{suffix}")
    return found


def store(within: CacheDirectory, of: ObjectVersion) -> None:
    with backing(of, within) as file:
        fill(file)


def age(path: Path, seconds: int) -> None:
    """Make every version under `path` look unused for so long."""
    for each in path.rglob("*.map"):
        os.utime(each, (0, each.stat().st_mtime - seconds))


# --- pairs ---


def test_a_new_pair_is_empty_and_as_long_as_the_object(tmp_path: Path) -> None:
    with opened(directory(tmp_path)) as files:
        assert list(files.entries) == [0, 0, 0]
        assert os.fstat(files.data_fd).st_size == FILE.size_bytes
        assert os.fstat(files.data_fd).st_blocks == 0
    for path in (the_only(tmp_path, ".data"), the_only(tmp_path, ".map")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_was_written_is_found_again(tmp_path: Path) -> None:
    cache = directory(tmp_path)
    with backing(FILE, cache) as file:
        fill(file, 0, 2)
    with opened(cache) as files:
        assert [entry & 0xFFFFFFFF for entry in files.entries] == [BOOT, 0, BOOT]
        assert os.pread(files.data_fd, MIB, 0) == data_of(FILE)[:MIB]
    assert cache.cached_bytes(ORIGIN, FILE) == MIB + 5


def test_nothing_is_made_by_asking_how_much_is_cached(tmp_path: Path) -> None:
    assert directory(tmp_path).cached_bytes(ORIGIN, FILE) == 0
    assert not list(tmp_path.rglob("*.map"))


@pytest.mark.parametrize(
    ("origin", "other"),
    [
        (replace(ORIGIN, endpoint="https://127.0.0.1:9"), FILE),
        (replace(ORIGIN, scheme="oss"), FILE),
        (replace(ORIGIN, bucket="others"), FILE),
        (ORIGIN, version(FILE.size_bytes, "another key")),
        (ORIGIN, ObjectVersion(FILE.key, FILE.size_bytes, '"another etag"', 1)),
        (ORIGIN, ObjectVersion(FILE.key, FILE.size_bytes - 1, FILE.validator, 1)),
    ],
)
def test_another_identity_is_another_pair(tmp_path: Path, origin: StoreIdentity, other: ObjectVersion) -> None:
    cache = directory(tmp_path)
    store(cache, FILE)
    with opened(cache, other, origin) as files:
        assert not any(files.entries)


def test_the_version_id_is_no_part_of_the_identity(tmp_path: Path) -> None:
    cache = directory(tmp_path)
    store(cache, FILE)
    with opened(cache, ObjectVersion(FILE.key, FILE.size_bytes, FILE.validator, 9, version_id="v9")) as files:
        assert all(files.entries)


def _cut(path: Path, size_bytes: int) -> None:
    os.truncate(path, size_bytes)


def _overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def _replace(path: Path) -> None:
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "map empty": lambda path: _cut(the_only(path, ".map"), 0),
    "map cut in the header": lambda path: _cut(the_only(path, ".map"), 100),
    "map cut in the entries": lambda path: _cut(the_only(path, ".map"), HEADER_BYTES + ENTRY_BYTES),
    "map too long": lambda path: _cut(the_only(path, ".map"), HEADER_BYTES + 4 * ENTRY_BYTES),
    "map without header": lambda path: _overwrite(the_only(path, ".map"), 0, bytes(HEADER_BYTES)),
    "map of garbage": lambda path: the_only(path, ".map").write_bytes(os.urandom(HEADER_BYTES + 3 * ENTRY_BYTES)),
    "identity garbled": lambda path: _overwrite(the_only(path, ".map"), 60, b"?"),
    "data removed": lambda path: the_only(path, ".data").unlink(),
    "data cut": lambda path: _cut(the_only(path, ".data"), MIB),
    "data longer": lambda path: _cut(the_only(path, ".data"), 3 * MIB),
    "data replaced by a copy": lambda path: _replace(the_only(path, ".data")),
    "map removed, data orphaned": lambda path: the_only(path, ".map").unlink(),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_pair_that_does_not_fit_is_made_anew(tmp_path: Path, damage: Callable[[Path], object]) -> None:
    cache = directory(tmp_path)
    store(cache, FILE)
    damage(tmp_path)
    with opened(cache) as files:
        assert not any(files.entries)
        assert os.pread(files.data_fd, FILE.size_bytes + 1, 0) == bytes(FILE.size_bytes)
        assert os.path.samestat(os.fstat(files.data_fd), the_only(tmp_path, ".data").stat())
        assert os.path.samestat(os.fstat(files.map_fd), the_only(tmp_path, ".map").stat())
    store(cache, FILE)
    assert cache.cached_bytes(ORIGIN, FILE) == FILE.size_bytes


def test_a_pair_that_is_damaged_under_its_user_is_left_to_him(tmp_path: Path) -> None:
    cache = directory(tmp_path)
    with opened(cache):
        the_only(tmp_path, ".data").unlink()
        with pytest.raises(OSError, match="another process"):
            directory(tmp_path).open(ORIGIN, FILE)
    store(cache, FILE)
    assert cache.cached_bytes(ORIGIN, FILE) == FILE.size_bytes


def test_a_directory_emptied_under_us_is_made_again(tmp_path: Path) -> None:
    cache = directory(tmp_path / "cache")
    store(cache, FILE)
    subprocess.run(["rm", "-r", cache.path], check=True)
    store(cache, FILE)
    assert cache.cached_bytes(ORIGIN, FILE) == FILE.size_bytes
    assert stat.S_IMODE((cache.path / "v2").stat().st_mode) == 0o700


def test_a_key_too_long_for_the_map_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="too long"):
        directory(tmp_path).open(ORIGIN, version(5, "k" * 5000))
    assert not [each for each in tmp_path.rglob("*") if each.is_file()]


def test_a_disk_without_room_for_a_map_leaves_nothing(mount_tmpfs: MountTmpfs) -> None:
    path = mount_tmpfs(MIB // 4)
    cache = directory(path)
    with pytest.raises(OSError, match="No space left"):
        cache.open(ORIGIN, version(60 << 30))
    assert not [each for each in path.rglob("*") if each.is_file()]


# --- several processes ---

_OPENER = """
import os, sys
from pathlib import Path
from d7yfs.cache.directory import CacheDirectory
from tests.cache.doubles import ORIGIN, version
cache = CacheDirectory(Path(sys.argv[1]), size_limit_bytes=1 << 40, min_free_bytes=0)
cache.prepare()
sys.stdin.readline()
for round in range(int(sys.argv[2])):
    files = cache.open(ORIGIN, version(5))
    for fd in (files.map_fd, files.data_fd):
        assert os.fstat(fd).st_nlink == 1, (round, "in use, yet unlinked")
    files.close()
    if round % 7 == 0:
        cache.evict(0)
print("well")
"""


def _start(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_processes_that_open_and_evict_at_once_never_lose_a_pair_in_use(tmp_path: Path) -> None:
    processes = [_start(_OPENER, str(tmp_path), "300") for _ in range(3)]
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert outputs == ["well\n"] * 3


_HOLDER = """
import sys
from pathlib import Path
from d7yfs.cache.directory import CacheDirectory
from tests.cache.doubles import ORIGIN, version
cache = CacheDirectory(Path(sys.argv[1]), size_limit_bytes=1 << 40, min_free_bytes=0)
files = cache.open(ORIGIN, version(1 << 20, "held"))
print("open", flush=True)
sys.stdin.readline()
"""


def test_eviction_passes_over_what_another_process_has_open(tmp_path: Path) -> None:
    cache = directory(tmp_path)
    held, free = version(MIB, "held"), version(MIB, "free")
    store(cache, held)
    age(tmp_path, 100)
    store(cache, free)
    holder = _start(_HOLDER, str(tmp_path))
    assert holder.stdin
    assert holder.stdout
    assert holder.stdout.readline() == "open\n"
    cache.evict(0)
    assert (cache.cached_bytes(ORIGIN, held), cache.cached_bytes(ORIGIN, free)) == (MIB, 0)
    holder.communicate("\n", timeout=30)
    cache.evict(0)
    assert cache.cached_bytes(ORIGIN, held) == 0
    assert cache.used_bytes == 0


# --- eviction and accounting ---


def test_the_least_recently_used_go_first_and_no_more_than_needed(tmp_path: Path) -> None:
    cache = directory(tmp_path)
    files = [version(MIB, f"file {number}") for number in range(4)]
    for file in files:
        age(tmp_path, 10)
        store(cache, file)
    age(tmp_path, 10)
    with opened(cache, files[0]):
        pass
    each = MIB + 2 * 4096
    freed = cache.evict(2 * each)
    assert freed == 2 * each
    assert cache.evicted_files == 2
    assert [cache.cached_bytes(ORIGIN, file) for file in files] == [MIB, 0, 0, MIB]


def test_a_version_counts_as_used_when_it_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = directory(tmp_path)
    monkeypatch.setattr("d7yfs.cache.pair._TOUCH_S", 0.0)  # it is open for longer
    with opened(cache, version(MIB, "long")):
        long = the_only(tmp_path, ".map")
        with opened(cache, version(MIB, "a moment")):
            pass
        age(tmp_path, 100)
    assert cache.evict(8192) == 8192
    assert the_only(tmp_path, ".map") == long


def test_a_short_use_is_marked_once(tmp_path: Path) -> None:
    cache = directory(tmp_path)
    with opened(cache, version(MIB, "made")):
        age(tmp_path, 100)
    made_at = the_only(tmp_path, ".map").stat().st_mtime
    with opened(cache, version(MIB, "made")) as files:
        files.touch()
        opened_at = the_only(tmp_path, ".map").stat().st_mtime
        age(tmp_path, 100)
    assert opened_at > made_at + 50
    assert the_only(tmp_path, ".map").stat().st_mtime < opened_at - 50


def test_used_bytes_count_our_own_share_at_once_and_the_truth_after_a_scan(tmp_path: Path) -> None:
    cache = directory(tmp_path, size_limit_bytes=10 * MIB)
    with opened(cache) as files:
        cache.take(files.made_bytes)
        assert cache.used_bytes == 8192
        cache.take(MIB)
        cache.take(1)
        assert cache.used_bytes == 8192 + MIB + 4096
        os.pwrite(files.data_fd, bytes(MIB), 0)
        cache.evict(1 << 40)
        assert cache.used_bytes == 8192 + MIB
        assert cache.has_room(9 * MIB - 8192)
        assert not cache.has_room(9 * MIB - 8191)


def test_what_is_taken_during_a_scan_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = directory(tmp_path)
    store(cache, FILE)
    cache.evict(1 << 40)
    before = cache.used_bytes
    real = Path.glob

    def glob(self: Path, pattern: str) -> Iterator[Path]:
        cache.take(MIB)
        return real(self, pattern)

    monkeypatch.setattr(Path, "glob", glob)
    cache.evict(1 << 40)
    assert cache.used_bytes >= before + MIB


def test_data_without_a_map_is_removed(tmp_path: Path) -> None:
    cache = directory(tmp_path)
    store(cache, FILE)
    the_only(tmp_path, ".map").unlink()
    cache.evict(1 << 40)
    assert not list(tmp_path.rglob("*.data"))
    assert not list(tmp_path.rglob("*.map"))


def test_the_disk_keeps_its_free_space(mount_tmpfs: MountTmpfs) -> None:
    cache = directory(mount_tmpfs(8 * MIB), min_free_bytes=3 * MIB)
    assert cache.has_room(5 * MIB)
    assert not cache.has_room(5 * MIB + 1)
    assert cache.shortfall_before(0) == 0
    assert cache.shortfall_before(6 * MIB) == MIB


# --- directories that cannot be used ---


def test_a_new_directory_is_for_its_owner_alone(tmp_path: Path) -> None:
    directory(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


def test_an_open_directory_of_ours_is_closed_to_others(tmp_path: Path) -> None:
    path = tmp_path / "cache"
    directory(path)
    for each in (path, path / "v2"):
        each.chmod(0o755)
    directory(path)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (path, path / "v2")] == [0o700, 0o700]


def test_a_directory_that_others_read_is_not_closed_but_our_part_of_it_is(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(0o755)
    (path / "somebody's file").touch()
    directory(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert stat.S_IMODE((path / "v2").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o1777, 0o777, 0o770, 0o702])
def test_a_directory_that_others_write_is_refused_and_left_alone(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "shared"
    path.mkdir()
    path.chmod(mode)
    (path / "somebody's file").touch()
    with pytest.raises(CacheUnusable, match=rf"can be written by other users \(mode {mode:o}\).*--cache-dir"):
        directory(path)
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert [each.name for each in path.iterdir()] == ["somebody's file"]


@pytest.mark.parametrize("part", ["", "v2"])
def test_an_empty_directory_that_others_could_write_is_closed(tmp_path: Path, part: str) -> None:
    """The kubelet makes an emptyDir so."""
    path = tmp_path / "volume"
    (path / part).mkdir(parents=True)
    (path / part).chmod(0o2777)
    directory(path)
    assert stat.S_IMODE((path / part).stat().st_mode) == 0o700


@pytest.mark.parametrize("planted", ["v2", "v2/a"])
def test_what_another_user_has_planted_in_an_open_directory_is_refused(tmp_path: Path, planted: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    path = tmp_path / "volume"
    (path / planted).mkdir(parents=True)
    (path / planted).parent.chmod(0o777)
    os.chown(path / planted, 12345, 12345)
    with pytest.raises(CacheUnusable, match=r"holds what another user has made.*--cache-dir"):
        directory(path)


@pytest.mark.parametrize(("mode", "uid"), [(0o1777, 0), (0o775, 0), (0o755, 12345)])
def test_a_link_that_another_user_can_replace_is_not_followed(tmp_path: Path, mode: int, uid: int) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    target, above = tmp_path / "target", tmp_path / "above"
    target.mkdir()
    above.mkdir()
    (above / "cache").symlink_to(target)
    above.chmod(mode)
    os.chown(above, uid, uid)
    with pytest.raises(
        CacheUnusable,
        match=r"is a link that is not followed: \S*above (can be written|belongs to another).*--cache-dir",
    ):
        directory(above / "cache")
    assert not [*target.iterdir()]


def test_a_link_in_a_directory_of_our_own_is_followed(tmp_path: Path) -> None:
    (tmp_path / "target").mkdir()
    (tmp_path / "cache").symlink_to(tmp_path / "target")
    directory(tmp_path / "cache")
    assert (tmp_path / "target" / "v2").is_dir()


@pytest.mark.parametrize("part", ["", "v2"])
def test_a_directory_of_another_user_is_refused(tmp_path: Path, part: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    directory(tmp_path / "cache")
    os.chown(tmp_path / "cache" / part, 12345, 12345)
    with pytest.raises(CacheUnusable, match=r"belongs to another user \(uid 12345\).*--cache-dir"):
        directory(tmp_path / "cache")


def test_a_read_only_directory_is_refused(mount_tmpfs: MountTmpfs) -> None:
    path = mount_tmpfs(MIB)
    subprocess.run(["mount", "-o", "remount,ro", path], check=True)
    with pytest.raises(CacheUnusable, match=r"Read-only file system.*--cache-dir"):
        directory(path)


def test_a_file_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CacheUnusable, match="cannot be used"):
            directory(path)


def test_another_format_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "v0" / "ab" / "abc.data"
    other.parent.mkdir(parents=True)
    other.touch()
    directory(tmp_path).evict(0)
    assert other.exists()
