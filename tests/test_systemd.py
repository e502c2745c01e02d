"""The unit: systemd finds no fault with it, and what it runs exists."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from d7yfs.cli import main
from d7yfs.config.schema import OPTIONS

UNIT = Path(__file__).parent.parent / "systemd" / "d7yfs@.service"

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
"""Settings that give a service a mount namespace (systemd.exec(5)): the host would not see the mount."""


@pytest.fixture
def service() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(UNIT)
    return parser["Service"]


def test_systemd_finds_no_fault(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        return  # nobody to ask: the other tests read the unit themselves
    unit = tmp_path / "d7yfs@models.service"
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/d7yfs", sys.executable))
    done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True, timeout=60)
    complaints = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, complaints) == (0, []), done.stderr


def test_it_has_no_mount_namespace_of_its_own(service: configparser.SectionProxy) -> None:
    assert not set(service) & set(OWN_NAMESPACE)


def test_what_it_runs_exists(service: configparser.SectionProxy) -> None:
    for name in ("ExecStart", "ExecStop"):
        command = service[name].split()[1:]
        flags = [word for word in command if word.startswith("--")]
        shown = CliRunner().invoke(main, [command[0], "--help"]).output
        assert flags
        assert all(flag in shown for flag in flags)


def test_it_is_given_more_time_to_stop_than_it_gives_readers(service: configparser.SectionProxy) -> None:
    shutdown_s = float(OPTIONS["shutdown_timeout"].default.removesuffix("s"))
    assert float(service["TimeoutStopSec"]) > shutdown_s + 10


def test_it_is_watched_and_told_to_read_its_settings_again(service: configparser.SectionProxy) -> None:
    assert service["Type"] == "notify"
    assert float(service["WatchdogSec"]) >= 60
    assert service["WatchdogSignal"] == "SIGKILL", "a daemon that hangs heeds nothing else"
    assert service["ExecReload"] == "/bin/kill -HUP $MAINPID"
    assert int(service["OOMScoreAdjust"]) < -500
