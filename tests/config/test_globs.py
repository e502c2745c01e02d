"""The options that are lists of globs; which file a glob is about is in `test_p2p`, whose rules are the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.config import kinds
from d7yfs.config.globs import Globs


@pytest.mark.parametrize(
    ("text", "shown"),
    [("", ""), (" , ", ""), ("*.pbtxt", "*.pbtxt"), (" config.pbtxt , ,*/1/* ", "config.pbtxt,*/1/*")],
)
def test_it_is_shown_in_its_normal_form(text: str, shown: str) -> None:
    assert kinds.GLOBS.show(kinds.GLOBS.parse(text)) == shown
    assert bool(Globs.parse(text)) == bool(shown)


@pytest.mark.parametrize("value", [1, True, None, ["*.json"]])
def test_what_it_is_not(value: object) -> None:
    with pytest.raises(ValueError, match="allowed: "):
        kinds.GLOBS.parse(value)


def test_one_that_matches_is_enough() -> None:
    globs = Globs.parse("config.pbtxt,llm/*/weights.bin,/top")
    assert globs.match("llm/config.pbtxt")
    assert globs.match("llm/1/weights.bin")
    assert globs.match("top")
    assert not globs.match("llm/top")
    assert not globs.match("config.pbtxt/1")
    assert not Globs().match("anything")


@given(st.lists(st.text("ab*?=[]/ .", min_size=1).map(str.strip).filter(bool), max_size=4))
def test_it_reads_back_what_it_shows(texts: list[str]) -> None:
    globs = Globs(tuple(texts))
    assert Globs.parse(str(globs)) == globs
