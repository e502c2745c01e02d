"""Thousands of directories of two small files, as LoRA adapters are: a reader that goes through them
waits for the first few alone.
"""

from __future__ import annotations

import pytest

from tests.mount.conftest import faulty_url
from tests.mount.mounted import Mounter, until
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount, pytest.mark.store]

NAMES = ("adapter_config.json", "adapter_model.safetensors")


def path_of(number: int, name: str) -> str:
    return f"adapters/a{number:04}/{name}"


def test_the_next_directories_are_fetched_ahead_of_their_reader(faulty: InThread[S3Faults], mounter: Mounter) -> None:
    bodies = {path_of(number, name): f"{number} {name}".encode() * 40 for number in range(64) for name in NAMES}
    for key, body in bodies.items():
        faulty.do(faulty.server.put, f"b/{key}", body)
    faulty.do(faulty.server.put, f"b/{path_of(5, 'weights.bin')}", bytes(2 << 20))
    mounted = mounter.mount(faulty_url(faulty), "--anonymous")
    assert len(mounted.names("adapters")) == 64

    def requests(number: int, name: str) -> int:
        return len(faulty.server.data_requests(f"b/{path_of(number, name)}"))

    for number in (0, 1):
        for name in NAMES:
            assert mounted.read(path_of(number, name)) == bodies[path_of(number, name)]
    assert not any(requests(number, name) for number in range(2, 64) for name in NAMES), "two are no walk"
    for name in NAMES:
        assert mounted.read(path_of(2, name)) == bodies[path_of(2, name)]
    until(lambda: all(requests(number, name) for number in range(3, 7) for name in NAMES), "those that come next")
    assert not requests(5, "weights.bin"), "a large file is fetched for its own reader alone"
    for key, body in bodies.items():
        assert mounted.read(key) == body
    assert all(requests(number, name) == 1 for number in range(64) for name in NAMES)
