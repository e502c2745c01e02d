"""d7yfs does without what a kernel does not offer, feature by feature: the same names and bytes, and
a takeover wherever requests can be sent again.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from d7yfs.fuse.session import _FEATURES
from d7yfs.fuse.wire import InitFlag
from d7yfs.host import kernel
from tests.mount.conftest import MIB, bytes_of, faulty_url
from tests.mount.mounted import READ_TIMEOUT_S, ended, until, within
from tests.mount.supervised import Supervised
from tests.mount.withheld import WITHHELD_VARIABLE
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = pytest.mark.mount

BIG = bytes_of(51, 4 * MIB + 5)
NAMES = [f"{number:03}-{'n' * 30}" for number in range(300)]
NEW = InitFlag.HAS_EXPIRE_ONLY | InitFlag.DIRECT_IO_ALLOW_MMAP | InitFlag.PASSTHROUGH | InitFlag.HAS_RESEND
"""The features that came after Linux 5.15."""
WITHHELD = {
    "nothing": InitFlag(0),
    **{str(flag.name): flag for flag in _FEATURES},
    "Linux 6.8": InitFlag.PASSTHROUGH | InitFlag.HAS_RESEND,
    "Linux 5.15": NEW | InitFlag.INIT_EXT,
    "all": _FEATURES,
}


@pytest.fixture(scope="module")
def store() -> Iterator[InThread[S3Faults]]:
    with InThread(S3Faults({"b/big.bin": BIG, **{f"b/many/{name}": name.encode() for name in NAMES}})) as running:
        yield running


def mapped(path: Path) -> bytes:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
        view.madvise(mmap.MADV_RANDOM)
        return view[MIB - 9 : MIB + 9] + view[-9:]


def use(kept: Supervised) -> None:
    """Look at all there is: list, stat, read in order, at places, and by maps."""
    top = kept.point
    assert within(READ_TIMEOUT_S, lambda: sorted(each.name for each in (top / "many").iterdir())) == NAMES
    for name in NAMES[:5]:
        assert within(READ_TIMEOUT_S, (top / "many" / name).read_text) == name
    assert within(READ_TIMEOUT_S, lambda: (top / "big.bin").stat().st_size) == len(BIG)
    with pytest.raises(FileNotFoundError):
        within(READ_TIMEOUT_S, (top / "many" / "absent").stat)
    found = within(READ_TIMEOUT_S, (top / "big.bin").read_bytes)
    assert hashlib.sha256(found).digest() == hashlib.sha256(BIG).digest()
    assert within(READ_TIMEOUT_S, lambda: mapped(top / "big.bin")) == BIG[MIB - 9 : MIB + 9] + BIG[-9:]


@pytest.mark.parametrize("withheld", WITHHELD.values(), ids=WITHHELD)
def test_a_kernel_without(withheld: InitFlag, tmp_path: Path, store: InThread[S3Faults]) -> None:
    env = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", WITHHELD_VARIABLE: str(int(withheld))}
    program = (sys.executable, "-m", "tests.mount.withheld")
    has_extension = not withheld & InitFlag.INIT_EXT
    with Supervised(tmp_path, faulty_url(store), env=env, program=program) as kept:
        kept.start()
        use(kept)
        until(lambda: kept.mounted.stat("big.bin")["cached_bytes"] == len(BIG), "the whole file in the cache")
        until(lambda: not kept.mounted.status()["fuse"]["open_files"], "the end of the handles that the daemon served")
        use(kept)
        by_itself = has_extension and not withheld & InitFlag.PASSTHROUGH and not kernel.passthrough_obstacle()
        fuse = kept.mounted.status()["fuse"]
        assert fuse["passthrough"] == by_itself
        assert bool(fuse["passthrough_opens"]) == by_itself
        with within(READ_TIMEOUT_S, lambda: (kept.point / "big.bin").open("rb", buffering=0)) as file:
            if has_extension and not withheld & InitFlag.HAS_RESEND:
                kept.replace()
                use(kept)
                assert within(READ_TIMEOUT_S, lambda: os.pread(file.fileno(), 99, MIB)) == BIG[MIB : MIB + 99]
                return
            assert within(READ_TIMEOUT_S, lambda: os.pread(file.fileno(), 99, MIB)) == BIG[MIB : MIB + 99]
        kept.kill()
        kept.start(ready=False)
        until(lambda: ended(kept.worker), "the end of the worker", timeout_s=60)
        assert "this kernel does not send requests again" in kept.log()
