"""The files of kept names: whose they are, and how many there may be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from d7yfs.cache import kept_names
from d7yfs.cache.directory import CacheDirectory
from d7yfs.cache.kept_names import KeptNames

MOST = 1 << 20


def file_of(kept: KeptNames) -> Path:
    (path,) = kept.root.iterdir()
    return path


def test_what_is_written_is_read_and_replaced(tmp_path: Path) -> None:
    kept = KeptNames(tmp_path / "names")
    assert kept.read("b") is None
    assert kept.write("b", [b"one", b"two"], MOST) == 6
    assert kept.read("b") == b"onetwo"
    assert kept.read("c") is None
    assert file_of(kept).stat().st_mode & 0o777 == 0o600
    assert kept.write("b", [b"three"], MOST) == 5
    assert kept.read("b") == b"three"
    kept.clear()
    assert kept.read("b") is None


def test_what_is_too_large_or_fails_leaves_what_was_there(tmp_path: Path) -> None:
    kept = KeptNames(tmp_path / "names")
    kept.write("b", [b"one"], MOST)
    assert kept.write("b", [b"x" * 10], 5) == 0

    def failing() -> list[bytes]:
        raise ValueError("a text with a NUL")

    with pytest.raises(ValueError, match="NUL"):
        kept.write("b", (part for _ in (1,) for part in failing()), MOST)
    assert kept.read("b") == b"one"
    assert file_of(kept)


@pytest.mark.parametrize("fault", ["mode", "owner", "link", "pipe", "directory", "size"])
def test_what_another_user_may_have_made_is_not_read(
    tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = KeptNames(tmp_path / "names")
    kept.write("b", [b"names"], MOST)
    path = file_of(kept)
    if fault == "mode":
        path.chmod(0o620)
    elif fault == "owner":
        if os.geteuid():
            pytest.skip("only root gives files away")
        os.chown(path, 12345, -1)
    elif fault == "size":
        monkeypatch.setattr(kept_names, "MAX_BYTES", 4)
    else:
        path.rename(tmp_path / "away")
        if fault == "link":
            path.symlink_to(tmp_path / "away")
        elif fault == "pipe":
            os.mkfifo(path, 0o600)
        else:
            path.mkdir(0o700)
    assert kept.read("b") is None
    assert len(caplog.records) == 1


def test_the_oldest_go_first_and_the_unused_in_any_case(tmp_path: Path) -> None:
    kept = KeptNames(tmp_path / "names")
    assert kept.tidy(MOST) == 0
    for age_days, about in ((40, "forgotten"), (3, "old"), (0, "new")):
        before = {*kept.root.glob("*")}
        kept.write(about, [bytes(10_000)], MOST)
        (path,) = {*kept.root.glob("*")} - before
        os.utime(path, (path.stat().st_mtime - age_days * 86400,) * 2)
    left = kept.root / ".0.names-0"
    left.touch()
    os.utime(left, (1, 1))
    assert kept.tidy(MOST) == 2 * 12288
    assert not left.exists()
    assert kept.read("forgotten") is None
    assert kept.tidy(20_000) == 12288
    assert (kept.read("old"), kept.read("new")) == (None, bytes(10_000))


def test_they_count_as_the_caches(tmp_path: Path) -> None:
    directory = CacheDirectory(tmp_path, size_limit_bytes=1 << 30, min_free_bytes=0)
    directory.prepare()
    directory.names.write("b", [bytes(10_000)], directory.names_limit_bytes)
    directory.evict(1 << 30)
    assert directory.used_bytes == 12288


def test_what_is_read_is_in_use(tmp_path: Path) -> None:
    kept = KeptNames(tmp_path)
    kept.write("b", [b"names"], MOST)
    os.utime(file_of(kept), (1, 1))
    assert kept.read("b") == b"names"
    kept.tidy(MOST)
    assert kept.read("b") == b"names"
