"""Files of settings that an attacker made: at a default place they do not count, and no kind of
file stops the reader or fills its memory."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from d7yfs.config.settings_file import LIMIT_BYTES, distrust, exposure, judge_home_again, read_file, trusts_home
from d7yfs.config.sources import load_settings
from d7yfs.errors import ConfigError

OTHER_UID = 54321

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory of our own whose parents nobody else can write."""
    with tempfile.TemporaryDirectory(dir=Path.home()) as directory:
        yield Path(directory)


@pytest.fixture
def file(home: Path) -> Path:
    """A trusted file at a default place."""
    path = home / "credential.json"
    path.write_text("{}")
    path.chmod(0o600)
    return path


def test_own_file_counts(file: Path) -> None:
    assert distrust(file) == ""
    assert read_file(file) == b"{}"


def test_absent_file_is_no_fault(home: Path) -> None:
    assert distrust(home / "none.json") == ""
    assert distrust(home / "none" / "none.json") == ""


def test_file_in_a_sticky_directory_of_everybody_does_not_count(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "f").write_text("{}")
    assert "can be written by other users" in distrust(shared / "f")


def own_by_other(path: Path) -> None:
    os.chown(path, OTHER_UID, 0)


def own_directory_by_other(path: Path) -> None:
    os.chown(path.parent, OTHER_UID, 0)


def let_others_write(path: Path) -> None:
    path.chmod(0o602)


def let_others_write_the_directory(path: Path) -> None:
    path.parent.chmod(0o777)


def let_a_group_write(path: Path) -> None:
    os.chown(path, 0, OTHER_UID)
    path.chmod(0o660)


def put_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def put_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/shadow")


def put_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def put_link_for_the_directory(path: Path) -> None:
    path.parent.symlink_to(path.parent.rename(path.parent.with_name("elsewhere")))


@as_root
@pytest.mark.parametrize(
    ("attack", "said"),
    [
        (own_by_other, "belongs to another user"),
        (own_directory_by_other, "belongs to another user"),
        (let_others_write, "can be written by other users"),
        (let_others_write_the_directory, "can be written by other users"),
        (let_a_group_write, "can be written by other users"),
        (put_fifo, "is no regular file"),
        (put_link, "is no regular file"),
        (put_directory, "is no regular file"),
        (put_link_for_the_directory, "is a link"),
    ],
)
def test_file_that_others_could_have_made_does_not_count(home: Path, attack: Callable[[Path], None], said: str) -> None:
    path = home / "place" / "credential.json"
    path.parent.mkdir()
    path.write_text("{}")
    assert distrust(path) == ""
    attack(path)
    assert said in distrust(path)


def test_directory_above_that_others_can_write(home: Path) -> None:
    (home / "above" / "place").mkdir(parents=True)
    (home / "above").chmod(0o777)
    (home / "above" / "place" / "f").write_text("{}")
    assert f"{home / 'above'} can be written by other users" in distrust(home / "above" / "place" / "f")
    (home / "above").chmod(0o1777)
    assert distrust(home / "above" / "place" / "f") == ""


# --- reading ---


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_only_regular_files_are_read_and_none_is_waited_for(home: Path, make: Callable[[Path], object]) -> None:
    make(home / "f")
    with pytest.raises((ConfigError, IsADirectoryError)):
        read_file(home / "f")


def test_a_huge_file_is_refused_unread(home: Path) -> None:
    with (home / "f").open("wb") as huge:
        huge.truncate(1 << 40)
    with pytest.raises(ConfigError, match="is larger than 1 MiB"):
        read_file(home / "f")
    os.truncate(home / "f", LIMIT_BYTES)
    assert len(read_file(home / "f")) == LIMIT_BYTES


def test_a_named_file_may_be_a_link(home: Path, file: Path) -> None:
    (home / "link").symlink_to(file.name)
    assert read_file(home / "link") == b"{}"


def test_exposure(file: Path) -> None:
    assert exposure(file, secret=True) == ""
    file.chmod(stat.S_IRUSR | stat.S_IROTH)
    assert exposure(file, secret=False) == ""
    assert "can read" in exposure(file, secret=True)
    file.chmod(stat.S_IRUSR | stat.S_IWOTH)
    assert "can be written by every user" in exposure(file, secret=False)
    assert exposure(file.with_name("none"), secret=True) == ""


@as_root
def test_a_home_directory_that_sudo_kept_is_not_the_sdks(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A `credential_process` in his ~/.aws/config would run as root."""
    (home / ".aws").mkdir()
    (home / ".aws" / "config").write_text(f"[default]\ncredential_process = touch {home}/run-by-root\n")
    monkeypatch.setenv("HOME", str(home))
    assert trusts_home()
    os.chown(home, OTHER_UID, -1)
    judge_home_again()
    assert not trusts_home()
    assert f"{home} belongs to another user" in caplog.text


def test_a_home_directory_where_others_write_is_not_the_sdks(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HOME=/tmp, where everybody can make ~/.aws."""
    (home / "shared").mkdir()
    (home / "shared").chmod(0o1777)
    monkeypatch.setenv("HOME", str(home / "shared"))
    assert not trusts_home()


def test_the_home_directory_is_judged_once_and_again_after_a_reload(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = home / "place"
    monkeypatch.setenv("HOME", str(place))
    assert trusts_home(), "there is nothing to find"
    place.mkdir()
    place.chmod(0o777)
    assert not trusts_home(), "it was made since"
    place.chmod(0o700)
    assert not trusts_home()
    assert len(caplog.records) == 1
    load_settings({}, ["s3://b/m"], Path("/mnt/m"), {}, None)
    assert trusts_home()
