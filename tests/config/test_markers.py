"""The option `publish_marker`: its grammar, its normal form, and which directories it is about."""

from __future__ import annotations

import pytest

from d7yfs.config import kinds
from d7yfs.config.markers import Markers


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        (" , ", ""),
        ("READY", "*/READY"),
        ("*/READY", "*/READY"),
        ("/llm/READY", "llm/READY"),
        (" READY , */*/_SUCCESS ", "*/READY,*/*/_SUCCESS"),
        ("llm-[!x]?/1/done.txt", "llm-[!x]?/1/done.txt"),
    ],
)
def test_it_is_shown_in_its_normal_form(text: str, shown: str) -> None:
    parsed = Markers.parse(text)
    assert kinds.MARKERS.show(kinds.MARKERS.parse(text)) == shown
    assert Markers.parse(str(parsed)) == parsed
    assert bool(parsed) == bool(shown)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("READY/", "ends in a slash"),
        ("/", "ends in a slash|own directory"),
        ("/READY", "own directory"),
        ("*/READY*", "not the name of one object"),
        ("[R]EADY", "not the name of one object"),
        ("..", "not the name of one object"),
        ("a//READY", "two slashes"),
        ("**/READY", r"has \*\*"),
        (True, "wrong type"),
        (None, "wrong type"),
    ],
)
def test_what_it_is_not(value: object, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        kinds.MARKERS.parse(value)
    assert "allowed: " in str(caught.value)
    assert "READY*" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "path", "name"),
    [
        ("READY", "resnet", "READY"),
        ("READY", "resnet/1", ""),
        ("*/*/READY", "resnet", ""),
        ("*/*/READY", "resnet/1", "READY"),
        ("*/*/READY", "resnet/1/variables", ""),
        ("llm-*/READY", "llm-7b", "READY"),
        ("llm-*/READY", "resnet", ""),
        ("llm/A,*/B", "llm", "A"),
        ("llm/A,*/B", "resnet", "B"),
    ],
)
def test_the_first_that_is_about_a_directory_counts(text: str, path: str, name: str) -> None:
    assert Markers.parse(text).name_for(path) == name
