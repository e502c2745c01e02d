from __future__ import annotations

import random

import pytest

from d7yfs.fs.density import DENSE_BLOCKS, DENSE_FRACTION, HEADER_BLOCKS, Density
from d7yfs.objects import BLOCK_BYTES

GIB = 1 << 30


def block(index: int) -> tuple[int, int]:
    """A read of four bytes in a block."""
    return index * BLOCK_BYTES + 5, 4


@pytest.mark.parametrize("name", ["m/1/model.safetensors", "llama.GGUF", "1/model.onnx", "weights.bin", "model.plan"])
def test_a_model_is_dense_once_it_is_read_beyond_its_header(name: str) -> None:
    density = Density(name, GIB)
    assert not any(density.touch(*block(index)) for index in (*range(HEADER_BLOCKS - 1), 1023))
    assert density.touch(*block(500))
    assert not density.touch(*block(501)), "told once"


def test_ten_reads_of_a_huge_file_are_not_dense() -> None:
    density = Density("table.parquet", 100 * GIB)
    rng = random.Random(1)
    assert not any(density.touch(*block(rng.randrange(102_400))) for _ in range(6000))


def test_random_faults_all_over_a_file_are_dense_soon() -> None:
    density = Density("data", GIB)
    rng = random.Random(1)
    touched = set()
    for _ in range(4096):
        index = rng.randrange(1024)
        touched.add(index)
        if density.touch(*block(index)):
            break
    assert len(touched) == max(DENSE_BLOCKS, 1024 // DENSE_FRACTION)


def test_a_read_across_blocks_touches_each() -> None:
    assert Density("model.pt", GIB).touch(0, 5 * BLOCK_BYTES)
    assert not Density("model.pt", GIB).touch(0, 4 * BLOCK_BYTES)


def test_the_same_blocks_again_are_nothing_new() -> None:
    density = Density("model.pt", GIB)
    assert not any(density.touch(*block(index % 4)) for index in range(1000))


@pytest.mark.parametrize("size_bytes", [0, 1, BLOCK_BYTES])
def test_what_one_request_brings_is_never_filled(size_bytes: int) -> None:
    assert not Density("model.pt", size_bytes).touch(0, size_bytes)
