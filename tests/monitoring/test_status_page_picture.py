"""Draws docs/status-page.png: the status page of a mount in use, and in trouble at the end.

It is collected only if D7YFS_TEST_STATUS_PAGE names a file. Its pauses shape the picture; they prove
nothing.
"""

from __future__ import annotations

import time
import urllib.request
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from tests.monitoring.chromium import Chromium
from tests.monitoring.conftest import STATUS_PAGE
from tests.monitoring.readers import repeating
from tests.monitoring.test_status_page import page
from tests.mount.conftest import MIB, bytes_of, faulty_url
from tests.mount.mounted import Mounted, Mounter, free_port, in_background, until
from tests.servers import faults
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, pytest.mark.store]

_COLORS = 64
"""Colors of the picture: enough for lines and letters, and the file is a third as large."""


def read(mounted: Mounted, turn: int) -> None:
    """A warm model, and now and then a cold one."""
    with suppress(OSError):
        mounted.read_anew(f"models/{('resnet', 'bert', 'llm')[turn % 3]}/1/weights.safetensors")
    if turn % 20 == 5:
        with suppress(OSError):
            mounted.read(f"models/late/{turn // 20}.safetensors")


def test_picture(mounter: Mounter, faulty: InThread[S3Faults], tmp_path: Path) -> None:
    for number, name in enumerate(("resnet", "bert", "llm")):
        faulty.do(partial(faulty.server.put, f"b/{name}/1/weights.safetensors", bytes_of(number, 24 * MIB)))
    for number in range(10):
        faulty.do(partial(faulty.server.put, f"b/late/{number}.safetensors", bytes_of(number, 40 * MIB)))
        faulty.do(partial(faulty.server.put, f"b/lab/{number}", bytes_of(number, 9 * MIB)))
    with InThread(FakeDfdaemon()) as dfdaemon:
        listens = ("--metrics-listen", f"127.0.0.1:{free_port()}", "--no-passthrough")
        url = faulty_url(faulty)
        mounted = mounter.mount(
            *(f"models={url}", "--proxy", dfdaemon.server.url, "--anonymous", "--read-timeout", "120s"),
            *(*listens, "--cache-size", "512MiB"),
        )
        with repeating(partial(read, mounted), 0.5):
            time.sleep(80)
            slow = faults.Hang()
            faulty.do(partial(faulty.server.script, slow, key="b/lab/0", forever=True))
            faulty.do(partial(faulty.server.script, faults.status(403), key="b", forever=True))
            reader = in_background(partial(mounted.read, "models/lab/0", timeout_s=120))
            time.sleep(20)
            with suppress(OSError):
                mounted.names("models")
            until(lambda: bool(mounted.status()["problems"]), "a problem", timeout_s=90)
            with urllib.request.urlopen(page(mounted), timeout=30) as reply:
                shown = reply.read().decode().replace(str(mounted.point), "/mnt/models")
            copy = tmp_path / "page.html"
            copy.write_text(shown)
            drawn = Chromium(tmp_path / "profile").picture(copy.as_uri(), height=1570)
            drawn.quantize(_COLORS, method=Image.Quantize.FASTOCTREE).save(STATUS_PAGE, optimize=True)
            faulty.do(slow.resume.set)
            reader.result(60)
