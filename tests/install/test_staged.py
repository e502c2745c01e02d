"""`make install DESTDIR=…`: the staged tree runs in its place, and knows nothing of the stage."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.conftest import bytes_of, faulty_url
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = pytest.mark.mount

ROOT = Path(__file__).resolve().parents[2]
BODY = bytes_of(37, 3 << 20)

# The tree lies over this machine's in a mount namespace, and the stage is hidden.
_IN_PLACE = r"""
stage=$1 url=$2 point=$3 cache=$4
for each in /etc /sbin /usr/local; do
    mount -t overlay overlay -o "ro,lowerdir=$stage$each:$(readlink -f $each)" "$(readlink -f $each)"
done
mount -t tmpfs tmpfs "$stage"
command -v d7yfs
d7yfs --version
d7yfs check --anonymous --cache-dir "$cache" "$url" "$point"
mount -t d7yfs -o "anonymous,cache_dir=$cache,log_file=$cache.log,metrics_listen=none" "$url" "$point"
trap 'd7yfs umount --force "$point"; cat "$cache.log"' EXIT
sha256sum "$point/model/weights.bin"
test -x "$(sed -n 's/^ExecStart=\([^ ]*\) .*/\1/p' '/etc/systemd/system/d7yfs@.service')"
for page in man1/d7yfs.1 man8/mount.d7yfs.8; do test -s "/usr/local/share/man/$page"; done
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("staged") / "stage"
    done = subprocess.run(
        ["make", "install", f"DESTDIR={made}/"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return made


@pytest.fixture
def store() -> Iterator[InThread[S3Faults]]:
    with InThread(S3Faults({"b/model/weights.bin": BODY, "b/model/config.pbtxt": b'name: "m"'})) as running:
        yield running


def test_no_file_names_the_stage(stage: Path) -> None:
    said = os.fsencode(stage)
    files = [each for each in stage.rglob("*") if not each.is_symlink() and each.is_file()]
    assert len(files) > 1000
    assert [each for each in files if said in each.read_bytes()] == []
    links = [each for each in stage.rglob("*") if each.is_symlink()]
    assert [each for each in links if str(stage) in str(each.readlink())] == []


def test_the_tree_runs_in_its_place(stage: Path, store: InThread[S3Faults], tmp_path: Path) -> None:
    (tmp_path / "mnt").mkdir()
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-euc", _IN_PLACE, "sh"]
    done = subprocess.run(
        [*command, str(stage), faulty_url(store), str(tmp_path / "mnt"), str(tmp_path / "cache")],
        env={
            "PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(tmp_path),
            "D7YFS_RUNTIME_DIR": str(tmp_path / "run"),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("/usr/local/bin/d7yfs\n")
    assert hashlib.sha256(BODY).hexdigest() in done.stdout
    assert "Traceback" not in done.stdout
