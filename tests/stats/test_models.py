"""Counters by model."""

from __future__ import annotations

from functools import partial

import pytest

from d7yfs.stats.models import OTHER, TOP, Models
from d7yfs.stats.repository_status import ModelStatus
from d7yfs.stats.status import blank

counted = partial(blank, ModelStatus)


@pytest.mark.parametrize(
    ("prefix", "key", "name"),
    [
        ("", "resnet/1/model.onnx", "resnet"),
        ("models/triton", "models/triton/resnet/1/model.onnx", "resnet"),
        ("models/triton", "models/triton/README", TOP),
        ("models/one.onnx", "models/one.onnx", TOP),
        ("", "/odd", TOP),
        ("", "other/1/model.onnx", "other"),
    ],
)
def test_a_model_is_a_top_level_directory(prefix: str, key: str, name: str) -> None:
    models = Models(prefix, limit=9)
    assert models.holds(key)
    assert models.name_of(key) == name
    models.of(key).opens += 1
    assert models.all() == {name: counted(opens=1)}
    assert models.label_of(key) == name


def test_a_prefix_ends_at_a_slash() -> None:
    assert not Models("models").holds("models-private/resnet/1")


def test_beyond_the_limit_all_share_one() -> None:
    models = Models(limit=2)
    for key in ("a/1", "b/1", "c/1", "a/2", "d/1"):
        models.of(key).opens += 1
    assert models.all() == {"a": counted(opens=2), "b": counted(opens=1), OTHER: counted(opens=2)}
    assert models.label_of("d/9") == OTHER
    assert models.total == counted(opens=5)
    assert Models(limit=0).of("a/1") is not None


def test_a_model_that_is_called_other() -> None:
    models = Models(limit=1)
    models.of("other/1").read_bytes += 3
    models.of("b/1").read_bytes += 4
    assert models.all() == {OTHER: counted(read_bytes=7)}


@pytest.mark.parametrize(
    ("traffic", "field"),
    [("source", "back_to_source_bytes"), ("remote_peer", "remote_peer_bytes"), ("local_peer", "local_peer_bytes")],
)
def test_what_dfdaemon_hands_over(traffic: str, field: str) -> None:
    model = counted()
    model.count_piece(7, traffic)
    assert getattr(model, field) == 7
