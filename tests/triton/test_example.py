"""The example in examples/triton, run as its README says."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import numpy
import pytest

from tests.mount.mounted import Mounter, is_mounted, until
from tests.servers.seaweedfs import free_ports
from tests.triton.conftest import PROGRAM
from tests.triton.models import Models

pytestmark = [pytest.mark.mount, pytest.mark.store]

EXAMPLE = Path(__file__).parents[2] / "examples" / "triton"


def test_the_example_serves_and_leaves_nothing_behind(mounter: Mounter, models: Models, ground: Path) -> None:
    files = EXAMPLE / "models"
    for each in sorted(files.rglob("*")):
        if each.is_file():
            models.put(str(each.relative_to(files)), each.read_bytes())
    d7yfs = ground / "d7yfs"
    d7yfs.write_text(f'#!/bin/sh\nexec {sys.executable} -m d7yfs "$@"\n')
    d7yfs.chmod(0o755)
    (port,) = free_ports(1)
    point = mounter.point()
    options = ("--http-address=127.0.0.1", f"--http-port={port}", "--allow-grpc=false", "--allow-metrics=false")
    environment = (
        os.environ
        | dict(models.bucket.env)
        | {
            "D7YFS": str(d7yfs),
            "D7YFS_CACHE_DIR": str(ground / "cache"),
            "TRITONSERVER": str(PROGRAM),
        }
    )
    with (
        (ground / "example.log").open("w+") as log,
        subprocess.Popen(
            [EXAMPLE / "run.sh", models.url, point, *options], env=environment, stdout=log, stderr=log
        ) as script,
        httpx.Client(base_url=f"http://127.0.0.1:{port}/v2/models/embedding", trust_env=False) as client,
    ):

        def is_ready() -> bool:
            assert script.poll() is None, (ground / "example.log").read_text()
            with contextlib.suppress(httpx.TransportError):
                return client.get("/ready").status_code == httpx.codes.OK
            return False

        try:
            until(is_ready, "the model is ready", timeout_s=60)
            inputs = [{"name": "IDS", "datatype": "INT64", "shape": [2], "data": [0, 31]}]
            (output,) = client.post("/infer", json={"inputs": inputs}).raise_for_status().json()["outputs"]
            assert is_mounted(point)
        finally:
            script.send_signal(signal.SIGTERM)
            assert script.wait(60) == 128 + signal.SIGTERM, (ground / "example.log").read_text()
    table = numpy.load(files / "embedding" / "1" / "table.npy")
    assert output["data"] == [*table[0].tolist(), *table[31].tolist()]
    assert not is_mounted(point)
