"""Several repositories in one mount: each is independent, and an unreachable one does not disturb
the others.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mount.conftest import Bucket, bytes_of, faulty_url
from tests.mount.mounted import Mounter, until
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, pytest.mark.store]

NOBODY = "s3://127.0.0.1:1/bucket/prefix"
"""An endpoint without a listener."""


def test_each_repository_has_its_own_settings(mounter: Mounter, bucket: Bucket, faulty: InThread[S3Faults]) -> None:
    faulty.do(faulty.server.objects.__setitem__, "b/m/f.bin", bytes_of(1, 100_000))
    toml = mounter.directory / "config.toml"
    toml.write_text(
        f"""
        metadata_ttl = "10s"
        [repositories.signed]
        url = "{bucket.url("library")}"
        [repositories.public]
        url = "{faulty_url(faulty, "m")}"
        anonymous = true
        """
    )
    mounted = mounter.mount("--config", str(toml), env=bucket.env)
    assert mounted.names() == ["public", "signed"]
    assert mounted.read("signed/twenty.bin") == bucket.files["twenty.bin"]
    assert mounted.read("public/f.bin") == bytes_of(1, 100_000)
    assert not [request for request in faulty.server.requests if "authorization" in request.headers]
    status = {each["name"]: each for each in mounted.status()["repositories"]}
    assert status["public"]["origin"]["credentials"] == "none (anonymous)"
    assert [each["error"] for each in status.values()] == ["", ""]


def test_one_that_is_not_there_is_empty_and_heals(mounter: Mounter, bucket: Bucket, faulty: InThread[S3Faults]) -> None:
    late = faulty_url(faulty, "m")
    mounted = mounter.mount(f"good={bucket.url('library')}", f"late={late}", "--negative-ttl", "0", env=bucket.env)
    assert "late is empty for now" in mounted.said
    assert mounted.names() == ["good", "late"]
    assert mounted.names("late") == []
    assert mounted.read("good/twenty.bin") == bucket.files["twenty.bin"]
    (error,) = (each["error"] for each in mounted.status()["repositories"] if each["name"] == "late")
    assert "no such bucket" in error

    faulty.do(faulty.server.objects.__setitem__, "b/m/f.bin", bytes_of(1, 100_000))
    until(lambda: mounted.names("late") == ["f.bin"], "the repository is there")
    assert mounted.read("late/f.bin") == bytes_of(1, 100_000)
    assert not any(each["error"] for each in mounted.status()["repositories"])


def test_one_that_turns_out_to_be_a_single_object(mounter: Mounter, bucket: Bucket, faulty: InThread[S3Faults]) -> None:
    mounted = mounter.mount(f"good={bucket.url('library')}", f"late={faulty_url(faulty, 'm/f.bin')}", env=bucket.env)
    assert mounted.names("late") == []
    faulty.do(faulty.server.objects.__setitem__, "b/m/f.bin", b"one")
    until(lambda: mounted.names("late") == ["f.bin"], "the object is there")
    assert mounted.read("late/f.bin") == b"one"


def test_require_all(mounter: Mounter, bucket: Bucket) -> None:
    done = mounter.refused("--require-all", f"good={bucket.url('library')}", f"bad={NOBODY}", env=bucket.env)
    assert "s3://bucket" in done.stderr
    assert "refused" in done.stderr


def test_none_that_can_be_reached(mounter: Mounter, bucket: Bucket) -> None:
    done = mounter.refused(f"one={NOBODY}", f"two={NOBODY}/two", env=bucket.env)
    assert "refused" in done.stderr


def test_a_wrong_setting_of_one_refuses_the_mount(mounter: Mounter, bucket: Bucket, tmp_path: Path) -> None:
    done = mounter.refused(
        f"good={bucket.url('library')}",
        "bad=s3://bucket/x",
        env=bucket.env | {"AWS_ENDPOINT_URL_S3": "ftp://nowhere", "HOME": str(tmp_path)},
    )
    assert "endpoint URL" in done.stderr
