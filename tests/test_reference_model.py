"""All of d7yfs without FUSE against a dict of bytes: random programs of readers, faults,
replacements, evictions and deaths.

An answer to a lookup or listing was true at some moment within the metadata TTL. A read returns
exactly the bytes of the version that its handle pinned, all of the range. Otherwise it is an error
for which the origin has given reason.

`tests/reference/` holds the language of the programs and the world that runs them.

A failing program is printed, shrunk. Add it here as `@example` when its bug is fixed. For a long
run:

    REFERENCE_MODEL_EXAMPLES=5000 python -m pytest tests/test_reference_model.py
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from d7yfs.tree.source import ListingMode
from tests.reference import world
from tests.reference.program import (
    Delete,
    List,
    Look,
    Open,
    Pass,
    Program,
    Put,
    Read,
    Refresh,
    Release,
    Setup,
    Spoil,
    name_programs,
    programs,
)

_LONG = int(os.environ.get("REFERENCE_MODEL_EXAMPLES", "0"))


_SETTINGS = settings(
    max_examples=_LONG or 80,
    derandomize=not _LONG,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    report_multiple_bugs=False,
)


@settings(_SETTINGS)
@given(program=programs(max_stories=12), seed=st.integers(0, 2**16))
@example(
    # The other daemon brought the end of a range between two checks of this daemon's leases.
    program=Program(
        setup=Setup(daemons=2),
        steps=(
            Spoil("model.safetensors", ("slow",), forever=True),
            Open(2, 1, "model.safetensors"),
            Read(2, 0, 1, wait=False),
            Pass(0.0),
            Release(2),
            Read(2, 0, 1, wait=False),
        ),
    ),
    seed=0,
)
def test_a_reader_gets_the_bytes_of_his_version_or_an_error_with_a_reason(
    tmp_path: Path, program: Program, seed: int
) -> None:
    _run(tmp_path, program, seed)


@settings(_SETTINGS, max_examples=_LONG or 60)
@given(program=name_programs(max_stories=16), seed=st.integers(0, 2**16))
@example(
    # The directory had been evicted, so no listing of it told the kernel of the change.
    program=Program(
        setup=Setup(listing=ListingMode.DIRECTORY, max_inodes=4),
        steps=(
            Look(0, "m/config"),
            List(0, "a"),
            List(0, "a/b"),
            List(0, ""),
            Put("m/config", 2),
            Refresh(0, "m"),
            Look(0, "m/config"),
        ),
    ),
    seed=0,
)
@example(
    # The file's directory vanished during the request for the file.
    program=Program(
        setup=Setup(page_s=0.01, revalidates=True),
        steps=(
            Read(0, 0, 4096, wait=False),
            Delete("m/2/x"),
            Refresh(0, "m/2", wait=False),
            Open(0, 0, "m/2/x"),
        ),
    ),
    seed=0,
)
def test_a_name_means_what_the_store_had_within_the_time_to_live(tmp_path: Path, program: Program, seed: int) -> None:
    _run(tmp_path, program, seed)


def _run(tmp_path: Path, program: Program, seed: int) -> None:
    random.seed(seed)
    path = Path(tempfile.mkdtemp(dir=tmp_path))
    try:
        world.run(program, path)
    finally:
        shutil.rmtree(path)
