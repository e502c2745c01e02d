"""The findings of `check` about FUSE: who mounts, by which engine, and what will be missing."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import cast

import pytest

from d7yfs.check.findings import Finding, Severity
from d7yfs.check.fuse import check_fuse
from d7yfs.config.schema import Config
from d7yfs.errors import MountError
from d7yfs.fs.filesystem import Filesystem
from d7yfs.fuse.engine import make_engine
from d7yfs.fuse.notices import Invalidator
from d7yfs.host import kernel
from tests.fuse.doubles import FakeFilesystem, tell_nobody


def config(**values: object) -> Config:
    return Config(repositories=(), **values)  # type: ignore[arg-type]


def findings(**values: object) -> dict[str, Finding]:
    return {finding.probe: finding for finding in check_fuse(config(**values))}


@pytest.mark.mount
def test_root_has_it_all() -> None:
    if not kernel.has_admin_capability():
        pytest.skip("needs root")
    found = findings()
    assert found["fuse"].said == "/dev/fuse can be opened, and this process may mount"
    assert found["engine"].said == "kernel (Linux 5.4 or later)"
    assert "limits" not in found
    for probe, obstacle in (
        ("passthrough", kernel.passthrough_obstacle()),
        ("takeover", kernel.takeover_obstacle("auto")),
    ):
        assert found[probe].verdict is (Severity.WARNING if obstacle else Severity.OK)
        assert obstacle in found[probe].said
    assert findings(passthrough=False)["passthrough"].said.endswith("as --no-passthrough says")
    assert findings(takeover="off")["takeover"].said.endswith("as --takeover says")


def test_a_helper_makes_the_mount(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    (alone,) = findings(fuse_helper=path).values()
    assert (alone.probe, alone.verdict) == ("fuse", Severity.FAILED)
    assert "start d7yfs fuse-helper first" in alone.hint
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        found = findings(fuse_helper=path)
        assert found["fuse"].verdict is Severity.OK
        assert found["takeover"].verdict is Severity.WARNING
        assert "another program makes the mount" in found["takeover"].said
        assert findings(fuse_helper=path, takeover="standby")["takeover"].verdict is Severity.FAILED


async def test_an_engine_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyfuse3", None)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "socket"))
        found = findings(fuse_helper=tmp_path / "socket", fuse_engine="pyfuse3")
    assert found["engine"].verdict is Severity.FAILED
    assert "PYFUSE3=yes make install" in found["engine"].hint
    assert "passthrough" not in found
    filesystem = cast(Filesystem, FakeFilesystem([], []))
    with pytest.raises(MountError, match="pyfuse3 is not installed"):
        make_engine(config(fuse_engine="pyfuse3"), filesystem, Invalidator(tell_nobody))


@pytest.mark.mount
def test_the_second_engine_lacks_both() -> None:
    if not kernel.has_admin_capability():
        pytest.skip("needs root")
    found = findings(fuse_engine="pyfuse3")
    assert found["passthrough"].verdict is Severity.WARNING
    assert found["takeover"].verdict is Severity.WARNING
