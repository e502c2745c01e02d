"""The wheel, installed where no compiler is: each supported Python mounts a store and reads from it."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from d7yfs.host import mount_table
from tests.install.conftest import System
from tests.mount.conftest import bytes_of, faulty_url
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = pytest.mark.mount

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "runtime.txt"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
BODY = bytes_of(31, 5 << 20)

_USE = r"""
python=$1 url=$2
if command -v gcc g++ cc clang pkg-config; then echo "a compiler is here" >&2; [ "$3" != bare ]; fi
"$python" -m venv venv
venv/bin/pip --quiet --disable-pip-version-check install --require-hashes -r runtime.txt
venv/bin/pip --quiet --disable-pip-version-check install --no-index --no-deps d7yfs-*.whl
venv/bin/pip --disable-pip-version-check check
mkdir mnt
set -- --anonymous --cache-dir "$PWD/cache" "$url" "$PWD/mnt"
venv/bin/d7yfs check "$@"
if venv/bin/d7yfs mount --fuse-engine pyfuse3 "$@" 2>said; then exit 1; fi
grep "PYFUSE3=yes make install" said
venv/bin/d7yfs mount --log-file "$PWD/log" --metrics-listen none "$@"
trap 'venv/bin/d7yfs umount --force "$PWD/mnt"; cat log' EXIT
ls mnt
worker() {
    venv/bin/d7yfs status --json "$PWD/mnt" >status
    venv/bin/python -c 'import json; found, = json.load(open("status")); print(found["takeover"]["worker_pid"])'
}
for _ in first cached; do sha256sum mnt/model/weights.bin; done
kill -9 "$(worker)"
sha256sum mnt/model/weights.bin
"""


@pytest.fixture
def store() -> Iterator[InThread[S3Faults]]:
    with InThread(S3Faults({"b/model/weights.bin": BODY, "b/model/config.pbtxt": b'name: "m"'})) as running:
        yield running


@pytest.fixture
def place(tmp_path: Path, packages: Path) -> Iterator[Path]:
    """A directory with all that is needed. What is installed there takes 0.2 GB, and does not stay."""
    (wheel,) = packages.glob("*.whl")
    shutil.copy(wheel, tmp_path)
    shutil.copy(LOCK, tmp_path)
    yield tmp_path
    assert not [each for each in mount_table.mount_table() if each.point.is_relative_to(tmp_path)]
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
def test_each_python_mounts_and_reads(
    systems: dict[str, System], version: str, place: Path, store: InThread[S3Faults]
) -> None:
    if version not in systems:
        pytest.fail(f"no Python {version} here: put python{version} into PATH, or a Debian that has it into the script")
    system = systems[version]
    done = system.run(_USE, place, faulty_url(store), "bare" if system.root else "this machine")
    assert done.returncode == 0, done.stdout
    assert done.stdout.count(hashlib.sha256(BODY).hexdigest()) == 3, done.stdout
    assert "Traceback" not in done.stdout


def test_the_sdist_has_the_sources_and_no_packages(packages: Path) -> None:
    (sdist,) = packages.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    git = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    tracked = git.stdout.splitlines()
    assert names - set(tracked) == {"PKG-INFO"}
    assert {name for name in tracked if name.startswith("d7yfs/")} <= names


def test_the_wheel_has_the_package_and_its_manual_alone(packages: Path) -> None:
    (wheel,) = packages.glob("*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    release = wheel.name.removesuffix("-py3-none-any.whl")
    assert {name.partition("/")[0] for name in names} == {"d7yfs", f"{release}.dist-info", f"{release}.data"}
    pages = {"man1/d7yfs.1", "man8/mount.d7yfs.8"}
    assert {name for name in names if ".data/" in name} == {f"{release}.data/data/share/man/{page}" for page in pages}


_PURE = ("alibabacloud-tea",)
"""Has no wheel, and nothing to compile."""
_SYSTEMS = {
    "Alpine": ("musllinux_1_2", "musllinux_1_1"),
    "RHEL 8": ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_5", "manylinux1"),
}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("system", _SYSTEMS)
@pytest.mark.parametrize("version", VERSIONS)
def test_each_dependency_has_a_wheel(system: str, machine: str, version: str, tmp_path: Path) -> None:
    locked = re.split(r"\n(?=[a-z])", LOCK.read_text())
    (tmp_path / "lock").write_text("\n".join(each for each in locked if not each.startswith(_PURE)))
    platforms = [argument for tag in _SYSTEMS[system] for argument in ("--platform", f"{tag}_{machine}")]
    command = [
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--dry-run", "--no-deps"),
        *("--require-hashes", "--only-binary=:all:", "--python-version", version, "--implementation", "cp"),
        *(*platforms, "--target", str(tmp_path / "none"), "-r", str(tmp_path / "lock")),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
