"""The status page of a real mount in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.monitoring.chromium import Chromium
from tests.mount.conftest import MIB, bytes_of, faulty_url
from tests.mount.mounted import Mounted, Mounter, free_port, until
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, pytest.mark.store]

EVIL = """<img src=x onerror="document.title='owned'"><script>document.title='owned'</script>"""


def page(mounted: Mounted) -> str:
    until(lambda: bool(mounted.status()["metrics"]["listens_on"]), "the listener")
    return f"http://{mounted.status()['metrics']['listens_on']}/"


@pytest.fixture
def mounted(mounter: Mounter, faulty: InThread[S3Faults]) -> Mounted:
    """A mount of a model with a hostile name, which is read."""
    name = EVIL.replace("/", "")
    faulty.do(lambda: faulty.server.put(f"b/{name}/w.bin", bytes_of(1, 3 * MIB)))
    listens = ("--metrics-listen", f"127.0.0.1:{free_port()}")
    mounted = mounter.mount(faulty_url(faulty), "--anonymous", "--no-passthrough", *listens)
    until(lambda: bool(mounted.status()["metrics"]["listens_on"]), "the listener")
    mounted.read(f"{name}/w.bin")
    return mounted


def test_a_browser_shows_it_as_it_is_meant(mounted: Mounted, tmp_path: Path) -> None:
    light, dark = (Chromium(tmp_path / f"profile{is_dark}", dark=is_dark) for is_dark in (False, True))
    dom, complaints = light.dom(page(mounted))
    assert complaints == "", "its style is allowed by its own policy"
    assert "Models with most bytes lately" in dom
    assert "&lt;img src=x onerror=" in dom
    assert "<img" not in dom
    assert "<script" not in dom
    assert "owned" not in dom.partition("</title>")[0]
    backgrounds = [each.picture(page(mounted)).getpixel((3, 3)) for each in (light, dark)]
    assert backgrounds == [(255, 255, 255), (20, 23, 26)]
