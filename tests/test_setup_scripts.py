"""The installations of the scripts for tests and benches happen once, are complete or absent, and
never replace a running server's files.

A fake npm writes the files of the real one, and waits for the test in between. The scripts, their
lock and their renames are real.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.servers import azurite

ROOT = Path(__file__).parents[1]
AZURITE = ROOT / "scripts" / "azurite.sh"

# A fake npm: it writes its process id to a file at once, and a program after the test's signal.
_NPM = """#!/usr/bin/env bash
set -e
while [ "$1" != --prefix ]; do shift; done
touch "$2/begun-by-$$"
echo "npm $$" >>"$SAID"
read -r word <"$GO_ON"
[ "$word" = go ]
mkdir -p "$2/node_modules/.bin"
echo "made by $$" >"$2/node_modules/.bin/azurite-blob"
chmod +x "$2/node_modules/.bin/azurite-blob"
"""
# A wrapper of the real flock, which reports each attempt to lock.
_FLOCK = """#!/usr/bin/env bash
echo "flock $$" >>"$SAID"
exec {flock} "$@"
"""


class Scene:
    """An empty cache directory, and the environment of a script with an npm that waits."""

    def __init__(self, directory: Path) -> None:
        self.cache = directory / "cache"
        programs = directory / "programs"
        programs.mkdir()
        for name, text in (("npm", _NPM), ("flock", _FLOCK.format(flock=shutil.which("flock")))):
            (programs / name).write_text(text)
            (programs / name).chmod(0o755)
        fifos = [directory / "said", directory / "go-on"]
        for fifo in fifos:
            os.mkfifo(fifo)
        # Opened for both reading and writing, so that neither end waits for the other or sees its
        # end.
        self._said, self._go_on = (os.fdopen(os.open(fifo, os.O_RDWR), "r+b", buffering=0) for fifo in fifos)
        self._environment = {
            **os.environ,
            "PATH": f"{programs}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(self.cache),
            "SAID": str(fifos[0]),
            "GO_ON": str(fifos[1]),
        }
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [AZURITE, *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def said(self) -> tuple[str, int]:
        """The next report of npm or flock, of all runs together: the program and its process id."""
        assert select.select([self._said], [], [], 60)[0], "no run has reached npm or flock"
        word, pid = self._said.readline().decode().split()
        return word, int(pid)

    def wait_for(self, word: str) -> int:
        """The process id of the next report of that program."""
        return next(pid for said, pid in iter(self.said, None) if said == word)

    def go_on(self, word: str = "go") -> None:
        """Let one npm continue, or fail."""
        self._go_on.write(f"{word}\n".encode())

    def in_place(self) -> list[Path]:
        """Paths that a later run could take for an installation, or would have to remove. The lock
        is none.
        """
        return [path for path in (self.cache / "d7yfs").glob("*") if path.suffix != ".lock"]

    def close(self) -> None:
        for process in self.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
        self._said.close()
        self._go_on.close()


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    try:
        yield scene
    finally:
        scene.close()


def finished(process: subprocess.Popen[str]) -> Path:
    """The program whose path a run has printed."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return Path(out.strip())


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_of_two_at_a_time_one_installs_and_the_other_takes_what_it_made(scene: Scene) -> None:
    first = scene.start()
    scene.wait_for("npm")
    second = scene.start()
    scene.said()  # It found no installation, and goes on: to the lock, or to npm.
    scene.go_on()
    first_program = finished(first)
    with first_program.open("rb") as running:
        scene.go_on()
        assert finished(second) == first_program
        assert os.fstat(running.fileno()).st_nlink == 1, "the second run must not remove a running server's files"
        assert first_program.stat().st_ino == os.fstat(running.fileno()).st_ino
    (directory,) = scene.in_place()
    assert len(list(directory.glob("begun-by-*"))) == 1


def test_a_killed_run_leaves_nothing_that_counts_as_installed(scene: Scene) -> None:
    killed = scene.start()
    npm = scene.wait_for("npm")
    for pid in (killed.pid, parent(npm)):  # npm itself lives on.
        os.kill(pid, signal.SIGKILL)
    assert scene.start("--installed").wait(timeout=60) == 1

    second = scene.start()
    assert scene.said()[0] == "flock", "the second run must not wait for the killed one"
    scene.go_on()  # The first run's npm, which makes its directory look complete.
    scene.wait_for("npm")
    scene.go_on()
    program = finished(second)
    (directory,) = scene.in_place()
    assert program.is_relative_to(directory)
    assert len(list(directory.glob("begun-by-*"))) == 1, "the installation must hold no file of the killed run"
    assert finished(scene.start("--installed")) == program


def test_a_failed_run_leaves_nothing(scene: Scene) -> None:
    failing = scene.start()
    scene.wait_for("npm")
    scene.go_on("fail")
    assert failing.wait(timeout=60) != 0
    assert not scene.in_place()
    assert scene.start("--installed").wait(timeout=60) == 1


def test_tests_install_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(RuntimeError, match="make setup-tests"), azurite.running(tmp_path / "data"):
        pass
    assert not (tmp_path / "cache").exists()


def test_the_lock_of_npm_has_a_hash_for_every_package_and_names_no_host() -> None:
    text = (ROOT / "requirements" / "azurite" / "package-lock.json").read_text()
    assert "://" not in text
    packages = json.loads(text)["packages"]
    wanted = json.loads((ROOT / "requirements" / "azurite" / "package.json").read_text())["dependencies"]
    assert packages.pop("")["dependencies"] == wanted
    assert packages["node_modules/azurite"]["version"] == wanted["azurite"]
    assert not [name for name, package in packages.items() if not package.get("integrity", "").startswith("sha512-")]
    assert not [name for name, package in packages.items() if "resolved" in package]


_MAKE = """#!/usr/bin/env bash
echo "${@: -1} $XDG_CACHE_HOME $npm_config_cache $(ls -A "$XDG_CACHE_HOME" | wc -l)" >>"$CALLS"
mkdir "$XDG_CACHE_HOME/${@: -1}"
case ${@: -1} in check) exit "$CHECKED" ;; test) exit "$TESTED" ;; esac
"""


@pytest.mark.parametrize(("checked", "tested", "status"), [(0, 0, 0), (2, 0, 2), (0, 5, 5), (2, 5, 5)])
def test_ci_runs_with_caches_of_its_own(tmp_path: Path, checked: int, tested: int, status: int) -> None:
    (tmp_path / "make").write_text(_MAKE)
    (tmp_path / "make").chmod(0o755)
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CALLS": str(tmp_path / "calls"),
        "CHECKED": str(checked),
        "TESTED": str(tested),
        "XDG_CACHE_HOME": str(tmp_path / "of-the-machine"),
    }
    done = subprocess.run([ROOT / ".ci" / "run"], env=environment, capture_output=True, check=False)
    assert done.returncode == status
    (check, cache, npm_cache, entries), test = (line.split() for line in (tmp_path / "calls").read_text().splitlines())
    assert (check, entries) == ("check", "0")
    assert test == ["test", cache, npm_cache, "1"]
    assert Path(npm_cache).is_relative_to(cache)
    assert cache != str(tmp_path / "of-the-machine")
    assert not Path(cache).exists()
