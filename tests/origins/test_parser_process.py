"""Listings that are parsed in a process beside: real processes, and programs in their place that
misbehave."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.objects import ObjectVersion
from d7yfs.origins import parser, parser_process
from d7yfs.origins.listing_columns import decode, encode
from d7yfs.origins.parser_process import FEW_PAGES, ListingParser
from d7yfs.origins.xml_listing import XmlListing, parse_listing
from tests.origins.test_xml_listing import document, entry

_ARCHIVED = "<StorageClass>GLACIER</StorageClass>"
PAGE = document(
    *(entry(f"d/f{number:03}") for number in range(50)),
    entry("archived", extra=_ARCHIVED),
    entry("faulty", replacing=("<Size>7<", "<Size>-7<")),
    "<CommonPrefixes><Prefix>é/</Prefix></CommonPrefixes><NextContinuationToken>t</NextContinuationToken>",
    "<IsTruncated>true</IsTruncated>",
)
EXPECTED = parse_listing(PAGE, archives=["GLACIER"])
_BEGIN = """
import socket, sys, time
from d7yfs.origins.parser import READY, receive, send
channel = socket.socket(fileno=int(sys.argv[1]))
"""

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8)
SIZES = st.integers(0, 200 << 40)
VERSIONS = st.builds(ObjectVersion, TEXTS, SIZES, TEXTS, SIZES, archived=st.sampled_from(["", "GLACIER"]), fault=TEXTS)
LISTINGS = st.builds(
    XmlListing, st.booleans(), TEXTS, TEXTS, st.lists(VERSIONS, max_size=5).map(tuple), st.lists(TEXTS).map(tuple)
)


def until(happens: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < deadline
        time.sleep(0.01)  # nothing tells of it


def parsed(opened: ListingParser) -> bool:
    """True if the page is read as it should be."""
    return opened.parse(PAGE) == EXPECTED


def read_few(opened: ListingParser) -> None:
    for _ in range(FEW_PAGES):
        assert opened.pid is None
        assert parsed(opened)


def opening(program: Sequence[str] = parser_process.PROGRAM) -> closing[ListingParser]:
    return closing(ListingParser(["GLACIER"], program=program))


def misbehaving(code: str) -> tuple[str, ...]:
    return sys.executable, "-c", _BEGIN + code


@pytest.fixture(autouse=True)
def two_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_process, "processors", lambda: 2)


# --- columns ---


@given(LISTINGS)
def test_columns_bring_back_the_listing(listing: XmlListing) -> None:
    assert decode(encode(listing)) == listing


@pytest.mark.parametrize("cut", [0, 1, 11, 12, 40, -1])
def test_other_bytes_are_no_columns(cut: int) -> None:
    with pytest.raises(ValueError, match=r"columns|Expecting"):
        decode(encode(EXPECTED)[:cut])


@given(st.data())
def test_damaged_columns_are_refused_or_read(data: st.DataObject) -> None:
    columns = bytearray(encode(EXPECTED))
    columns[data.draw(st.integers(0, len(columns) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ValueError):
        decode(bytes(columns))


def test_a_name_that_columns_cannot_hold_is_left_to_the_engine() -> None:
    with pytest.raises(ValueError, match="NUL"):
        encode(parse_listing(document(entry("a%00b"), "<EncodingType>url</EncodingType>")))


# --- the process ---


def test_the_pages_of_a_large_listing_are_parsed_beside() -> None:
    with opening() as opened:
        read_few(opened)
        assert opened.pid is not None
        until(lambda: parsed(opened) and opened.pages_beside == 3)
        with pytest.raises(ValueError, match="is not XML"):
            opened.parse(b"<a>")
        assert opened.pages_beside == 3, "the engine has the words"
        assert parsed(opened)
        assert opened.pages_beside == 4
        pid = opened.pid
    until(lambda: not os.path.exists(f"/proc/{pid}"))  # noqa: PTH110 - it leaves no zombie either


def test_it_has_no_descriptor_and_no_variable_that_it_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    with opening() as opened, socket.socket() as other:
        other.set_inheritable(True)
        read_few(opened)
        until(lambda: parsed(opened) and opened.pages_beside)
        own = Path(f"/proc/{opened.pid}")
        targets = [str(each.readlink()) for each in own.joinpath("fd").iterdir()]
        assert sum(target.startswith("socket:") for target in targets) == 1
        assert len(targets) == 4, targets
        assert b"secret" not in own.joinpath("environ").read_bytes()


def test_pages_far_apart_are_parsed_here() -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 2.0
        return now

    with closing(ListingParser(["GLACIER"], clock=clock)) as opened:
        for _ in range(3 * FEW_PAGES):
            assert parsed(opened)
        assert opened.pid is None


def test_one_processor_has_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_process, "processors", lambda: 1)
    with opening() as opened:
        for _ in range(2 * FEW_PAGES):
            assert parsed(opened)
        assert opened.pid is None


@pytest.mark.parametrize(
    ("code", "trouble"),
    [
        ("sys.exit(3)", "has ended"),
        ("channel.send(READY); receive(channel); sys.exit(3)", "has ended"),
        ("channel.send(b'2'); receive(channel)", "talks nonsense"),
        ("channel.send(READY); receive(channel); send(channel, b'other')", "talks nonsense"),
        ("channel.send(READY); receive(channel); channel.send(bytes([255] * 4))", "has ended"),
        ("channel.send(READY); time.sleep(60)", "does not answer"),
    ],
)
def test_whatever_the_process_does_the_page_is_parsed(
    code: str, trouble: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(parser_process, "PATIENCE_S", 0.2)
    with opening(misbehaving(code)) as opened:
        read_few(opened)
        pid = opened.pid
        until(lambda: parsed(opened) and opened.pid is None)
        assert trouble in caplog.text
        assert f"pid {pid}" in caplog.text
        for _ in range(2 * FEW_PAGES):
            assert parsed(opened)
        assert opened.pid is None, "for a while there is no other"
        assert opened.pages_beside == 0
    until(lambda: not os.path.exists(f"/proc/{pid}"))  # noqa: PTH110


def test_a_program_that_cannot_be_started(caplog: pytest.LogCaptureFixture) -> None:
    with opening(["/does/not/exist"]) as opened:
        for _ in range(2 * FEW_PAGES):
            assert parsed(opened)
    assert caplog.text.count("could be started to parse") == 1


def test_an_idle_process_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    with closing(ListingParser(["GLACIER"], clock=lambda: now)) as opened:
        read_few(opened)
        pid = opened.pid
        until(lambda: parsed(opened) and opened.pages_beside)
        now = parser.IDLE_S
        assert parsed(opened)
        assert opened.pid is None
        until(lambda: not os.path.exists(f"/proc/{pid}"))  # noqa: PTH110


def test_a_process_without_pages_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser, "IDLE_S", 0.01)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(TimeoutError):
        parser.serve(theirs, "ETag", ())


def test_the_program_imports_nothing_large() -> None:
    code = "import sys, d7yfs.origins.parser; print({'trio', 'httpx', 'botocore', 'ssl', 'd7yfs.config'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"
