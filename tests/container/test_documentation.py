"""The commands of docs/operations.md, "In a container", run as written.

Only the reader's own values are replaced: the repository, and directories of the host.
"""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.container.conftest import Containers
from tests.container.test_image import is_mounted
from tests.mount.conftest import Bucket
from tests.mount.mounted import READ_TIMEOUT_S, until, within

pytestmark = [pytest.mark.mount, pytest.mark.store]

OPERATIONS = Path(__file__).parent.parent.parent / "docs" / "operations.md"


def commands() -> list[str]:
    """The blocks of code in the section."""
    section = re.search(r"^### In a container\n(.*?)^### ", OPERATIONS.read_text(), re.MULTILINE | re.DOTALL)
    assert section is not None
    return [textwrap.dedent(each) for each in re.findall(r"(?:^    .*\n)+", section[1], re.MULTILINE)]


def of_ours(script: str, ground: Path, bucket: Bucket) -> str:
    """The script with the test's repository and directories."""
    script = script.replace("s3://models/triton", bucket.url("library"))
    for theirs, ours in (
        ("/mnt/d7yfs", "volume"),
        ("/var/cache/d7yfs(-unprivileged)?", "cache"),
        ("/run/d7yfs-helper", "run"),
    ):
        # The host's side of a volume, and operands of the shell's own commands.
        script = re.sub(rf"(?<=-v ){theirs}(?=:)", str(ground / ours), script)
        script = "".join(
            re.sub(rf"(?<= ){theirs}(?=[/ \];\n])", str(ground / ours), line)
            if line.startswith(("mkdir ", "chown ", "until "))
            else line
            for line in script.splitlines(keepends=True)
        )
    return script


def test_nothing_of_the_host_is_left(ground: Path, bucket: Bucket) -> None:
    """No command of the tests below may touch a directory of the host."""
    assert len(commands()) == 2
    for script in commands():
        ours = of_ours(script, ground, bucket)
        assert not re.findall(r"-v /(?!var/tmp/)", ours)
        assert not re.findall(r"^(?:mkdir|chown|until).* /(?!var/tmp/)", ours, re.MULTILINE)


def test_privileged(containers: Containers, ground: Path, bucket: Bucket) -> None:
    point = ground / "volume" / "models"
    said = containers.run_script(of_ours(commands()[0], ground, bucket), bucket.env)
    assert {"over.bin", "model"} <= set(said.split()), "the other container must list the mount"
    assert within(READ_TIMEOUT_S, (point / "over.bin").read_bytes) == bucket.files["over.bin"]
    containers.healthcheck("d7yfs")
    containers.stop("d7yfs")
    assert containers.state("d7yfs") == ("exited", 0)
    assert not is_mounted(point)


def test_without_privilege(containers: Containers, ground: Path, bucket: Bucket) -> None:
    point = ground / "volume" / "models"
    containers.run_script(of_ours(commands()[1], ground, bucket), bucket.env)
    until(lambda: is_mounted(point), "the helper's mount", timeout_s=60)
    assert within(READ_TIMEOUT_S, (point / "over.bin").read_bytes) == bucket.files["over.bin"]
    status = containers.execute("d7yfs-unprivileged", "grep", "-E", "^(CapEff|NoNewPrivs|Uid)", "/proc/1/status")
    assert {"CapEff:\t0000000000000000", "NoNewPrivs:\t1"} <= set(status.splitlines())
    assert "Uid:\t65532" in status
    containers.healthcheck("d7yfs-unprivileged")
    with pytest.raises(AssertionError, match="no defined healthcheck"):
        containers.healthcheck("d7yfs-helper")
    containers.stop("d7yfs-unprivileged")
    assert containers.state("d7yfs-unprivileged") == ("exited", 0)
    until(lambda: not is_mounted(point), "the helper to unmount")
    containers.stop("d7yfs-helper")
    assert containers.state("d7yfs-helper") == ("exited", 0)
