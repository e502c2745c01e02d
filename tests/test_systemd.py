"""The unit and the lines for fstab: systemd accepts them, and the commands that they run exist."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from d7yfs.cli import main
from d7yfs.config.schema import OPTIONS
from d7yfs.host.process import OOM_SCORE_ADJ

ROOT = Path(__file__).parent.parent
UNIT = ROOT / "systemd" / "d7yfs@.service"
GENERATOR = Path("/usr/lib/systemd/system-generators/systemd-fstab-generator")

OWN_NAMESPACE = (
    *("PrivateTmp", "PrivateDevices", "PrivateMounts", "ProtectSystem", "ProtectHome", "ProtectProc", "DynamicUser"),
    *("ProtectKernelTunables", "ProtectKernelModules", "ProtectKernelLogs", "ProtectControlGroups", "ProtectHostname"),
    *(
        "ReadOnlyPaths",
        "ReadWritePaths",
        "InaccessiblePaths",
        "BindPaths",
        "TemporaryFileSystem",
        "RootDirectory",
        "MountFlags",
    ),
)
"""Settings that give a service a mount namespace (systemd.exec(5)), which would hide the mount from
the host.
"""


@pytest.fixture
def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser["Service"]


def faults(*units: Path) -> list[str]:
    """The faults that systemd reports for these units."""
    assert shutil.which("systemd-analyze"), "install the package systemd, as make test does"
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", *units], capture_output=True, text=True, timeout=60)
    return [line for line in done.stderr.splitlines() if any(unit.name in line for unit in units)]


def test_systemd_finds_no_fault(tmp_path: Path) -> None:
    unit = tmp_path / "d7yfs@models.service"
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/d7yfs", sys.executable))
    assert faults(unit) == []
    unit.write_text(unit.read_text().replace("SystemCallFilter=@system-service", "SystemCallFilter=@sistem-service"))
    assert faults(unit), "systemd must reject an unknown set"


def documented() -> list[str]:
    """The lines for fstab in README and guides."""
    texts = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [line for each in texts for line in re.findall(r"\w+://\S+ +/\S+ +d7yfs +\S+ +0 +0", each.read_text())]


@pytest.mark.parametrize("line", documented())
def test_systemd_makes_mounts_of_the_lines_for_fstab(line: str, tmp_path: Path) -> None:
    source, point, kind, options, *_ = line.split()
    (tmp_path / "fstab").write_text(f"{line}\n")
    made = tmp_path / "generated"
    made.mkdir()
    subprocess.run(
        [GENERATOR, made, made, made],
        env=os.environ | {"SYSTEMD_FSTAB": str(tmp_path / "fstab")},
        check=True,
        timeout=60,
    )
    name = point.strip("/").replace("/", "-")
    (mount,) = made.glob("*.mount")
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.read(mount)
    assert mount.name == f"{name}.mount"
    assert dict(parser["Mount"]).items() >= {"what": source, "where": point, "type": kind, "options": options}.items()
    is_automount = "x-systemd.automount" in options
    wanted = f"{name}.{'automount' if is_automount else 'mount'}"
    assert (made / "remote-fs.target.requires" / wanted).is_symlink(), "the mount must start after the network"
    if is_automount:
        parser.read(made / wanted)
        assert parser["Automount"]["TimeoutIdleSec"] == "10min"
        assert parser["Mount"]["TimeoutSec"] == "1min 30s", "the timeout must exceed the time of a mount"
    assert faults(*made.glob("*mount")) == []


def test_guides_have_lines_for_fstab() -> None:
    assert len(documented()) >= 3


def test_it_has_no_mount_namespace_of_its_own(service: configparser.SectionProxy) -> None:
    assert not set(service) & set(OWN_NAMESPACE)


def test_its_exposure_is_low(tmp_path: Path) -> None:
    """The number is docs/security.md's; 5.0 and more is no longer "OK"."""
    unit = tmp_path / "d7yfs@models.service"
    unit.write_text(UNIT.read_text())
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold=49", unit],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_it_runs_exists(service: configparser.SectionProxy) -> None:
    for name in ("ExecStart", "ExecReload"):
        command = service[name].split()[1:]
        flags = [word for word in command if word.startswith("--")]
        shown = CliRunner().invoke(main, [command[0], "--help-all" if command[0] == "mount" else "--help"]).output
        assert flags
        assert all(flag in shown for flag in flags)


def test_it_is_given_more_time_to_stop_than_it_gives_readers(service: configparser.SectionProxy) -> None:
    shutdown_s = float(OPTIONS["shutdown_timeout"].default.removesuffix("s"))
    assert float(service["TimeoutStopSec"]) > shutdown_s + 10


def test_it_is_watched_and_told_to_reread_its_settings(service: configparser.SectionProxy) -> None:
    assert service["Type"] == "notify"
    assert float(service["WatchdogSec"]) >= 60
    assert service["WatchdogSignal"] == "SIGKILL", "a daemon that hangs reacts to no other signal"
    assert int(service["OOMScoreAdjust"]) == OOM_SCORE_ADJ
    assert service["LimitCORE"] == "0"


def test_a_supervisor_that_is_killed_is_followed_on_the_same_connection(service: configparser.SectionProxy) -> None:
    assert service["FileDescriptorStoreMax"] == "2", "the connection and its journal"
    assert "ExecStop" not in service, "systemd runs it after a kill, too, and it would unmount"
    assert service["Restart"] == "on-failure"


def test_a_dying_worker_is_not_the_end_of_the_unit(service: configparser.SectionProxy) -> None:
    assert service["NotifyAccess"] == "main", "the supervisor's"
    assert service["KillMode"] == "mixed", "SIGTERM must not reach the workers"
    assert service["OOMPolicy"] == "continue"
