"""Draws docs/monitoring.png: two minutes of a mount in use, and in trouble for a while.

It is collected only if D7YFS_TEST_MONITORING_PLOT names a file. Its pauses shape the picture; they
prove nothing.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.monitoring.conftest import PLOT
from tests.monitoring.plot import plot
from tests.monitoring.prometheus import scraping
from tests.monitoring.readers import repeating
from tests.mount.conftest import MIB, Bucket, bytes_of, faulty_url
from tests.mount.mounted import Mounted, Mounter, free_port, in_background, run, until
from tests.servers import faults
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, pytest.mark.store]


def read(mounted: Mounted, turn: int) -> None:
    """A model, and directories."""
    with suppress(OSError):
        mounted.read_anew(f"models/{('resnet', 'bert', 'llm')[turn % 3]}/1/weights.safetensors")
    for path in ("models", "models/llm", "lab"):
        with suppress(OSError):
            mounted.names(path)


def test_picture(mounter: Mounter, bucket: Bucket, faulty: InThread[S3Faults], tmp_path: Path) -> None:
    for number, name in enumerate(("resnet", "bert", "llm", "late")):
        bucket.put(f"monitored/{name}/1/weights.safetensors", bytes_of(number, 24 * MIB))
    for number in range(6):
        faulty.do(faulty.server.put, f"b/{number}", bytes_of(number, 9 * MIB))
    with ExitStack() as stack:
        dfdaemon = stack.enter_context(ExitStack())
        proxy = dfdaemon.enter_context(InThread(FakeDfdaemon()))
        config = tmp_path / "config.toml"
        config.write_text(
            f"""
            metadata_ttl = "3s"
            read_timeout = "40s"
            metrics_listen = "127.0.0.1:{free_port()}"
            [repositories.models]
            url = "{bucket.url("monitored")}"
            proxy = "{proxy.server.url}"
            [repositories.lab]
            url = "{faulty_url(faulty)}"
            anonymous = true
            """
        )
        mounted = mounter.mount("--config", str(config), env=bucket.env)
        until(lambda: bool(mounted.status()["metrics"]["listens_on"]), "the listener")
        prometheus = stack.enter_context(scraping([mounted.status()["metrics"]["listens_on"]], tmp_path))
        began = time.monotonic()
        time.sleep(5)
        for name in ("resnet", "bert", "llm"):
            mounted.read(f"models/{name}/1/weights.safetensors")
            time.sleep(3)
        stack.enter_context(repeating(partial(read, mounted), 1.0))
        time.sleep(10)
        slow = faults.Hang()
        for key in ("b/0", "b/1"):
            faulty.do(partial(faulty.server.script, slow, key=key, forever=True))
        reader = in_background(partial(mounted.read, "lab/0", timeout_s=60))
        warm = in_background(partial(run, "warm", mounted.point / "lab" / "1", mounted.point / "lab" / "2"))
        time.sleep(15)
        faulty.do(slow.resume.set)
        reader.result(60)
        assert warm.result(60).returncode == 0
        time.sleep(5)
        dfdaemon.close()  # The proxy is gone.
        mounted.read("models/late/1/weights.safetensors")
        time.sleep(10)
        bucket.put("monitored/new/config.pbtxt", b"")
        faulty.do(partial(faulty.server.script, faults.status(503), key="b/3", forever=True))
        faulty.do(partial(faulty.server.script, faults.status(403), key="b/4", forever=True))
        faulty.do(partial(faulty.server.script, faults.status(403), key="b", forever=True))
        reader = in_background(partial(mounted.read, "lab/3", timeout_s=60))
        with pytest.raises(PermissionError):
            mounted.read("lab/4")
        time.sleep(12)
        for key in ("b", "b/3", "b/4"):
            faulty.do(partial(faulty.server.script, key=key))
        reader.result(60)
        time.sleep(15)
        plot(prometheus, Path(PLOT), seconds=time.monotonic() - began)
