"""A mount under the unit's confinement of the service, without systemd."""

from __future__ import annotations

import configparser
import re
import sys
from pathlib import Path

import pytest

from tests.mount.conftest import Bucket
from tests.mount.mounted import Mounter, run

pytestmark = [pytest.mark.mount, pytest.mark.store]

ROOT = Path(__file__).parent.parent.parent


def test_a_mount_works_under_the_units_system_call_filter(mounter: Mounter, bucket: Bucket) -> None:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "systemd" / "d7yfs@.service")
    service = parser["Service"]
    assert service["SystemCallErrorNumber"] == "EPERM"
    under = [sys.executable, str(ROOT / "tests" / "syscall_filter.py"), *service["SystemCallFilter"].split(), "--"]
    mounted = mounter.mount(bucket.url("library"), env=bucket.env, under=under)
    filtered = Path(f"/proc/{mounted.pid}/status").read_text()
    assert re.search(r"^Seccomp:\s+2$", filtered, re.MULTILINE), "the filter must be active"
    assert mounted.read("twenty.bin") == bucket.files["twenty.bin"]
    assert mounted.read("model/1/weights.bin") == bucket.files["model/1/weights.bin"]
    assert run("warm", mounted.point).returncode == 0
    assert run("health", mounted.point, under=under).returncode == 0
    done = run("umount", mounted.point, under=under)
    assert done.returncode == 0, done.stderr
    mounted.wait_ended()
    assert "failed unexpectedly" not in mounted.log()
