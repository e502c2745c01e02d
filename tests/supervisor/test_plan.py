"""The plan of a supervisor, and the command that starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from d7yfs.host.fuse_device import MountFlags
from d7yfs.host.kernel import takeover_obstacle
from d7yfs.host.privileges import WorkerUser
from d7yfs.supervisor.plan import Plan, Split, supervisor_command

PLAN = Plan(Path("/mnt/a b"), MountFlags("s3://b", 7, allow_other=True), ("mount", "s3://b"), "/here", True)


def test_a_plan_comes_through_a_file_in_memory() -> None:
    split = Split(WorkerUser(7, 8, (8, 9), "w", "/home/w"), 5, "/run/d7yfs/x.sock", 42)
    for plan in (PLAN, PLAN._replace(split=split)):
        assert Plan.read(plan.write()) == plan


def test_no_argument_of_a_supervisor_names_the_mount() -> None:
    assert not [word for word in supervisor_command(5) if "s3://" in word or "/mnt" in word]


def test_a_supervisor_imports_no_package_and_listens_to_no_variable(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('a stranger')")
    listing = "import d7yfs.supervisor.supervisor; print(*sys.modules)"
    command = supervisor_command(5)
    command[4] = command[4].partition("from d7yfs")[0] + listing
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stderr == ""
    tops = {name.partition(".")[0] for name in done.stdout.split()}
    assert tops - {"d7yfs", "__main__"} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("engine", "is_handed", "release", "timeout_s", "said"),
    [
        ("auto", False, "6.9.0", 0, ""),
        ("kernel", False, "7.0-rc1", 0, ""),
        ("auto", False, "6.8.12", 0, "that needs Linux 6.9, this is 6.8.12"),
        ("pyfuse3", False, "6.18.1", 0, "the engine pyfuse3 cannot go on with the connection of another process"),
        ("auto", True, "6.18.1", 0, "another program makes the mount"),
        (
            "auto",
            False,
            "6.18.1",
            30,
            "the kernel ends a mount after 30 s without an answer (sysctl fs.fuse.*_request_timeout)",
        ),
    ],
)
def test_where_nobody_can_take_over(
    tmp_path: Path, engine: str, is_handed: bool, release: str, timeout_s: int, said: str
) -> None:
    (tmp_path / "default_request_timeout").write_text(f"{timeout_s}\n")
    assert takeover_obstacle(engine, is_handed=is_handed, release=release, settings=tmp_path) == said
