"""Each library's own loader, by its defaults: from a cold mount it gives the same model as from a
local directory.

Same means the same logits, the same tokens with their probabilities, or the same bytes of every
tensor.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.mount.conftest import Bucket
from tests.mount.mounted import Mounter, run
from tests.servers.model_loaders import ModelLoaders

pytestmark = pytest.mark.store

LOADERS = {
    "transformers": "llama",
    "vllm": "llama",
    "vllm runai_streamer": "llama",
    "vllm weights": "llama",
    "vllm prefetch": "llama",
    "sglang weights": "llama",
    "runai streamer": "llama",
    "fastsafetensors": "llama",
    "plan file": "llama",
    "torch": "torch",
    "llama.cpp": "gguf",
    "peft": "adapters",
    "peft scan": "adapters",
    "plain scan": "adapters",
}
"""The kind of model that each loader takes; tests/servers/loader_program.py has both."""
CACHED = ("transformers", "vllm weights", "sglang weights", "llama.cpp", "torch", "runai streamer", "fastsafetensors")
"""Loaders that map the file, and two that read it with O_DIRECT: the kernel may serve both from the
cache's file."""


class Local:
    """The answers of the local directory's models; each loader loads once."""

    def __init__(self, loaders: ModelLoaders, directory: Path) -> None:
        self.answer = cache(lambda loader: loaders.load(loader, directory / LOADERS[loader]).answer)


@pytest.fixture(scope="module")
def expected(loaders: ModelLoaders, local: Path) -> Local:
    return Local(loaders, local)


@pytest.fixture
def mounter(ground: Path) -> Iterator[Mounter]:
    """Mounts with a cache of the test's own, so that the first load is cold."""
    with tempfile.TemporaryDirectory(dir=ground) as name, Mounter(Path(name)) as made:
        yield made


def _says_something(answer: Any) -> bool:
    return bool(answer) and all(part not in (None, "", 0, []) for part in answer)


@pytest.mark.parametrize("loader", LOADERS)
def test_a_cold_mount_gives_the_model_of_the_local_directory(
    loader: str, loaders: ModelLoaders, expected: Local, bucket: Bucket, mounter: Mounter
) -> None:
    mounted = mounter.mount(bucket.url("loading"), env=bucket.env)
    found = loaders.load(loader, mounted.point / LOADERS[loader]).answer
    assert mounted.data_requests() > 0
    assert _says_something(found)
    assert found == expected.answer(loader)


@pytest.mark.parametrize("loader", CACHED)
def test_a_mount_gives_the_same_again_from_its_cache(
    loader: str, loaders: ModelLoaders, expected: Local, bucket: Bucket, mounter: Mounter
) -> None:
    kind = LOADERS[loader]
    mounted = mounter.mount(bucket.url(f"loading/{kind}"), env=bucket.env)
    for path in mounted.point.iterdir():
        mounted.read(path.name)
    done = run("umount", mounted.point)
    assert done.returncode == 0, done.stderr
    again = mounter.mount(bucket.url(f"loading/{kind}"), env=bucket.env, cache_dir=mounted.cache_dir)
    assert loaders.load(loader, again.point).answer == expected.answer(loader)
    assert again.data_requests() == 0
