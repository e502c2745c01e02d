"""Which modules each process imports: a mount, and a command about one, wait for no library that they do not use."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SDKS = {"botocore", "google", "azure", "alibabacloud_credentials", "requests"}
HEAVY = SDKS | {"trio", "httpx", "awscrt", "_awscrt", "grpc", "prometheus_client", "pyfuse3"}
FOR_PEOPLE = {"rich", "pygments"}


def imports_of(program: str, tmp_path: Path, *arguments: str) -> set[str]:
    """The modules, and the packages above all, after `program` in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}\nprint(*sys.modules)", *arguments],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "D7YFS_RUNTIME_DIR": str(tmp_path / "run")},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    modules = done.stdout.splitlines()[-1].split()
    return {*modules, *(name.partition(".")[0] for name in modules)}


RUN = "from d7yfs.cli import main\ntry: main(sys.argv[1:], standalone_mode=False)\nexcept SystemExit: pass"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["status"], ["health"], ["umount", "/nowhere"], ["mount", "--help"], ["mount", "s3://b"]]
)
def test_a_command_about_mounts_imports_no_library_of_theirs(tmp_path: Path, arguments: list[str]) -> None:
    assert not imports_of(RUN, tmp_path, *arguments) & HEAVY


@pytest.mark.parametrize("arguments", [["--help"], ["health"], ["umount", "/nowhere"], ["mount", "s3://b"]])
def test_a_command_without_a_table_imports_no_rich(tmp_path: Path, arguments: list[str]) -> None:
    assert not imports_of(RUN, tmp_path, *arguments) & FOR_PEOPLE


def test_a_mover_imports_a_library_for_checksums_and_no_other(tmp_path: Path) -> None:
    found = imports_of("import d7yfs.movers.mover\nd7yfs.checksum.load()", tmp_path)
    assert found & (HEAVY | {"asyncio", "h11", "ssl", "d7yfs.config", "d7yfs.errors"}) == {"awscrt", "_awscrt"}


OPEN = """
from pathlib import Path
import d7yfs.cli.mount, d7yfs.supervisor.start, d7yfs.daemon
from d7yfs.config.sources import load_settings
from d7yfs.repository.repository import open_repositories
flags = {"anonymous": True, "region": None if sys.argv[1].startswith("as:") else "x-1"}
settings = load_settings(flags, [sys.argv[1]], None, {}, None)
async def work(): open_repositories(settings)
d7yfs.daemon.trio.run(work)
"""


@pytest.mark.parametrize(
    ("url", "sdks"),
    [
        ("s3://b", {"botocore"}),
        ("s3://http://127.0.0.1:1/b", {"botocore"}),
        ("gs://b", {"google", "requests"}),
        ("as://account/container", {"azure", "requests"}),
        ("oss://b", {"alibabacloud_credentials", "requests"}),
        ("obs://b", set()),
    ],
)
def test_a_worker_imports_the_sdk_of_its_store_alone(tmp_path: Path, url: str, sdks: set[str]) -> None:
    imported = imports_of(OPEN, tmp_path, url)
    assert imported & SDKS <= sdks
    assert not imported & (FOR_PEOPLE | {"_awscrt", "grpc", "prometheus_client", "pyfuse3"})


def test_botocore_reads_its_description_of_s3_for_awss_own_endpoints_alone(tmp_path: Path) -> None:
    tell = "\nfrom d7yfs.origins.s3.sdk import _SERVICE_MODELS as held\nsys.modules['seen' if held._cache else 'none'] = sys"
    assert "none" in imports_of(OPEN + tell, tmp_path, "s3://http://127.0.0.1:1/b")
    assert "seen" in imports_of(OPEN + tell, tmp_path, "s3://b")
