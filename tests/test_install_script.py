"""`make install` and `make uninstall` in a root of a test's own.

A fake Python makes an environment without packages, in the place of venv and pip. The script is real.
`make integration-install` tests the wheel.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PREFIX = "/opt/models"
HOME = f"{PREFIX}/lib/d7yfs"

_PYTHON = """#!/bin/sh
case "$1 $2" in
"-c "*) echo "$0" ;;
"-m venv")
    for directory; do :; done
    directory=$(realpath -m "$directory")
    mkdir -p "$directory/bin" "$directory/share/man/man1" "$directory/share/man/man8"
    cp "$0" "$directory/bin/python"
    printf '#!%s/bin/python\\n' "$directory" >"$directory/bin/d7yfs"
    cp "$directory/bin/d7yfs" "$directory/bin/mount.d7yfs"
    echo "home = /usr/bin" >"$directory/pyvenv.cfg"
    touch "$directory/share/man/man1/d7yfs.1" "$directory/share/man/man8/mount.d7yfs.8"
    ;;
*wheel*) for argument; do [ "$last" != --wheel-dir ] || touch "$argument/d7yfs-0-py3-none-any.whl"; last=$argument; done ;;
esac
"""

Script = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    made = tmp_path / "stage"
    (made / "etc" / "systemd" / "system").mkdir(parents=True)
    return made


@pytest.fixture
def script(tmp_path: Path, stage: Path) -> Script:
    python = tmp_path / "python"
    python.write_text(_PYTHON)
    python.chmod(0o755)
    environment = os.environ | {"PYTHON": str(python), "PREFIX": PREFIX}

    def run(*arguments: str, destination: str = str(stage)) -> subprocess.CompletedProcess[str]:
        command = [str(ROOT / "scripts" / "install.sh"), *arguments]
        variables = environment | {"DESTDIR": destination}
        return subprocess.run(command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=60)

    return run


def files(stage: Path) -> set[str]:
    """The files and links of a stage, but those of the environment."""
    found = {f"/{path.relative_to(stage)}" for path in stage.rglob("*") if path.is_symlink() or not path.is_dir()}
    return {path for path in found if not path.startswith(HOME)}


def test_what_is_installed_is_all_that_is_removed(script: Script, stage: Path) -> None:
    foreign = stage / "etc" / "d7yfs" / "models.toml"
    foreign.parent.mkdir()
    foreign.write_text("source = 's3://models'\n")
    before = files(stage)
    for _ in ("anew", "over itself"):
        done = script()
        assert done.returncode == 0, done.stderr
    links = {f"{PREFIX}/bin/d7yfs", "/sbin/mount.d7yfs"}
    links |= {f"{PREFIX}/share/man/man1/d7yfs.1", f"{PREFIX}/share/man/man8/mount.d7yfs.8"}
    assert files(stage) - before == links | {"/etc/d7yfs/example.toml", "/etc/systemd/system/d7yfs@.service"}
    for link in links:
        led = Path(f"{stage}{Path(f'{stage}{link}').readlink()}")
        assert led.is_file()
        assert led.is_relative_to(f"{stage}{HOME}")
    assert (stage / "etc/d7yfs/example.toml").read_bytes() == (ROOT / "systemd" / "example.toml").read_bytes()
    assert f"ExecStart={PREFIX}/bin/d7yfs mount" in (stage / "etc/systemd/system/d7yfs@.service").read_text()
    assert Path(f"{stage}{HOME}/bin/d7yfs").read_text() == f"#!{HOME}/bin/python\n", "not the stage's path"

    done = script("--remove")
    assert done.returncode == 0, done.stderr
    assert files(stage) == before
    assert not Path(f"{stage}{HOME}").exists()
    again = script("--remove")
    assert again.returncode != 0
    assert "nothing is installed" in again.stderr


@pytest.mark.parametrize("destination", ["stage", "./stage/", "//{}//stage", "link"])
def test_the_stage_is_named_as_its_maker_likes(script: Script, stage: Path, destination: str) -> None:
    (stage.parent / "link").symlink_to(stage)
    done = script(destination=destination.format(stage.parent))
    assert done.returncode == 0, done.stderr
    for program in ("d7yfs", "mount.d7yfs"):
        assert Path(f"{stage}{HOME}/bin/{program}").read_text() == f"#!{HOME}/bin/python\n"
    assert (stage / "sbin" / "mount.d7yfs").readlink() == Path(f"{HOME}/bin/mount.d7yfs")


def test_what_others_have_made_or_changed_stays(script: Script, stage: Path) -> None:
    assert script().returncode == 0
    unit, helper = stage / "etc/systemd/system/d7yfs@.service", stage / "sbin/mount.d7yfs"
    unit.write_text(unit.read_text() + "MemoryMax=2G\n")
    helper.unlink()
    helper.symlink_to("/home/somebody/bin/mount.d7yfs")
    (stage / "etc/d7yfs/example.toml").unlink()
    done = script("--remove")
    assert done.returncode == 0, done.stderr
    assert f"kept, because it was changed: {unit}" in done.stderr
    assert "example.toml" not in done.stderr
    assert files(stage) == {"/etc/systemd/system/d7yfs@.service", "/sbin/mount.d7yfs"}
    assert not (stage / "etc/d7yfs").exists()
