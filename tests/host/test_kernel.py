"""Which engine and features a kernel can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from d7yfs.host.kernel import choose_engine, passthrough_obstacle

_ALL_CAPABILITIES = "Name:\tx\nCapEff:\t000001ffffffffff\n"
_NO_ADMIN = "Name:\tx\nCapEff:\t000001ffffdfffff\n"
_FIRST_NAMESPACE = "         0          0 4294967295\n"


@pytest.mark.parametrize(
    ("release", "engine"),
    [
        ("6.18.44", "kernel"),
        ("5.4.0-150-generic", "kernel"),
        ("10.0", "kernel"),
        ("5.3.18", "pyfuse3"),
        ("?", "pyfuse3"),
    ],
)
def test_auto_takes_our_own_engine_where_the_kernel_speaks_its_protocol(release: str, engine: str) -> None:
    assert choose_engine("auto", release)[0] == engine
    assert choose_engine("pyfuse3", release)[0] == "pyfuse3"
    assert choose_engine("kernel", release)[0] == "kernel"


@pytest.mark.parametrize(
    ("release", "status", "uid_map", "said"),
    [
        ("6.9.0", _ALL_CAPABILITIES, _FIRST_NAMESPACE, ""),
        ("6.8.12", _ALL_CAPABILITIES, _FIRST_NAMESPACE, "Linux 6.9"),
        ("6.9.0", _NO_ADMIN, _FIRST_NAMESPACE, "CAP_SYS_ADMIN"),
        ("6.9.0", _ALL_CAPABILITIES, "0 1000 1\n", "user namespace"),
    ],
)
def test_why_there_is_no_passthrough(tmp_path: Path, release: str, status: str, uid_map: str, said: str) -> None:
    (tmp_path / "status").write_text(status)
    (tmp_path / "uid_map").write_text(uid_map)
    found = passthrough_obstacle(release, tmp_path / "status", tmp_path / "uid_map")
    assert said in found
    assert bool(found) == bool(said)
