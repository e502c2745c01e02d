"""The option `p2p`: its grammar, its normal form, and which rule counts for which file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.config import kinds
from d7yfs.config.p2p import Mode, P2p

MIXED = P2p.parse("*.json=never,*.safetensors=always,auto")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", "auto"),
        ("auto", "auto"),
        (" Always ", "always"),
        ("never", "never"),
        ("*.json=never", "*.json=never,auto"),
        ("never,*.bin=ALWAYS", "*.bin=always,never"),
        (" *.json = never , ,a/b=auto, ", "*.json=never,a/b=auto,auto"),
        ("a=b=never", "a=b=never,auto"),
        ("[!a-c]?=always", "[!a-c]?=always,auto"),
    ],
)
def test_it_is_shown_in_its_normal_form(text: str, shown: str) -> None:
    assert kinds.P2P.show(kinds.P2P.parse(text)) == shown


@pytest.mark.parametrize(
    "value",
    ["yes", "*.json", "*.json=", "=never", " = never", "*.json=maybe", "auto,never", "auto,auto", 1, True, None],
)
def test_what_it_is_not(value: object) -> None:
    with pytest.raises(ValueError, match="allowed: ") as caught:
        kinds.P2P.parse(value)
    assert "maybe" not in str(caught.value)


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        ("config.json", Mode.NEVER),
        ("llm/1/config.json", Mode.NEVER),
        ("llm/config.json/weights", Mode.AUTO),
        ("llm/model.safetensors", Mode.ALWAYS),
        ("llm/model.SAFETENSORS", Mode.AUTO),
        ("llm/model.bin", Mode.AUTO),
    ],
)
def test_a_glob_without_a_slash_is_held_against_the_name(path: str, mode: Mode) -> None:
    assert MIXED.mode_of(path) is mode


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("llm/*", "llm/config.json", True),
        ("llm/*", "llm/1/model.bin", True),
        ("llm/*", "other/llm/config.json", False),
        ("*/llm/*", "other/llm/config.json", True),
        ("llm/*/model.bin", "llm/1/model.bin", True),
        ("/config.json", "config.json", True),
        ("/config.json", "llm/config.json", False),
        ("llm", "llm/config.json", False),
        ("llm", "other/llm", True),
    ],
)
def test_a_glob_with_a_slash_is_held_against_the_path(glob: str, path: str, matches: bool) -> None:
    assert (P2p.parse(f"{glob}=never").mode_of(path) is Mode.NEVER) == matches


def test_the_first_match_counts() -> None:
    assert P2p.parse("a*=never,ab=always").mode_of("ab") is Mode.NEVER
    assert P2p.parse("ab=always,a*=never").mode_of("ab") is Mode.ALWAYS


@given(
    st.lists(
        st.tuples(st.text("ab*?=[]/ .", min_size=1).map(str.strip).filter(bool), st.sampled_from(Mode)), max_size=4
    ),
    st.sampled_from(Mode),
)
def test_it_reads_back_what_it_shows(rules: list[tuple[str, Mode]], default: Mode) -> None:
    p2p = P2p(tuple(rules), default)
    assert P2p.parse(str(p2p)) == p2p
