"""Kept names are what they were, or nothing."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from d7yfs.objects import ObjectVersion
from d7yfs.stats.repository_status import LastScanStatus
from d7yfs.tree.nodes import Directory, File, Node
from d7yfs.tree.snapshot import KnownDirectory, RecalledListing, SnapshotHead, decode, encode

SCAN = LastScanStatus(objects=3, directories=2, pages=1, took_s=0.5)
MOST = 1_000_000

texts = st.text(st.characters(exclude_characters="\0"), max_size=8)
names = st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1, max_size=20)
entry = st.one_of(
    st.none(), st.tuples(st.integers(0, 200 << 40), texts, st.integers(0, 2**63 - 1), texts, texts, texts)
)
directories = st.dictionaries(
    st.lists(names, max_size=3).map(lambda path: "".join(f"{name}/" for name in path)),
    st.tuples(st.dictionaries(names, entry, max_size=12), st.floats(0, 2e9), st.booleans(), st.integers(0, 9)),
    min_size=1,
    max_size=6,
)


def node(prefix: str, name: str, version: tuple[int, str, int, str, str, str] | None) -> Node:
    if version is None:
        return Directory(1, "", f"{prefix}{name}/", 1)
    size_bytes, validator, mtime_ns, *more = version
    folder = prefix[: prefix.rfind("/") + 1]
    return File(1, "", ObjectVersion(folder + name, size_bytes, validator, mtime_ns, *more), 1)


def known(prefix: str, children: Mapping[str, Node], listed_at: float = 5.0) -> KnownDirectory:
    subdirectories = sum(each.is_directory for each in children.values())
    return KnownDirectory(prefix, listed_at, True, children, subdirectories, 2, {"excluded": 1})


def head_of(*kept: KnownDirectory) -> SnapshotHead:
    entries = sum(len(each.children) for each in kept)
    return SnapshotHead(
        about="s3 b",
        seal="f00",
        prefix="",
        listed_at=min(each.listed_at for each in kept),
        directories=len(kept),
        entries=entries,
        files=entries - sum(each.subdirectories for each in kept),
        last_scan=SCAN,
    )


def written(*kept: KnownDirectory) -> bytes:
    return b"".join(encode(head_of(*kept), kept))


def shown(recalled: RecalledListing) -> dict[str, ObjectVersion | None]:
    return recalled.listing.entries


def expected(kept: KnownDirectory) -> dict[str, ObjectVersion | None]:
    return {name: each.version if isinstance(each, File) else None for name, each in kept.children.items()}


A_FEW = (
    known("", {"a": node("", "a", None), "f": node("", "f", (1, '"e"', 2, "", "", ""))}),
    known("a/", {"b": node("a/", "b", (3, '"x"', 4, "v1", "GLACIER", "gzip"))}),
)


@given(directories)
def test_what_is_read_is_what_was_kept(
    found: dict[str, tuple[dict[str, tuple[int, str, int, str, str, str] | None], float, bool, int]],
) -> None:
    kept = [
        KnownDirectory(
            prefix,
            listed_at,
            is_believed,
            {name: node(prefix, name, version) for name, version in entries.items()},
            sum(version is None for version in entries.values()),
            hidden_count,
            {"name": hidden_count},
        )
        for prefix, (entries, listed_at, is_believed, hidden_count) in found.items()
    ]
    snapshot = decode(written(*kept), "s3 b", MOST)
    assert snapshot is not None
    assert snapshot.head == head_of(*kept)
    assert [each.listing.prefix for each in snapshot.listings] == sorted(found), "parents first"
    by_prefix = {each.listing.prefix: each for each in snapshot.listings}
    for each in kept:
        recalled = by_prefix[each.prefix]
        assert list(shown(recalled).items()) == list(expected(each).items()), "in their order"
        assert (recalled.listed_at, recalled.is_believed) == (each.listed_at, each.is_believed)
        assert recalled.listing.hidden_count == each.hidden_count
        assert recalled.listing.withheld == Counter(each.withheld)


def test_a_large_directory_and_many_small_ones() -> None:
    large = known("", {f"{number}": node("", f"{number}", (number, '"e"', 1, "", "", "")) for number in range(7001)})
    small = [known(f"{number:05}/", {"f": node(f"{number:05}/", "f", None)}) for number in range(5000)]
    snapshot = decode(written(large, *small), "s3 b", MOST)
    assert snapshot is not None
    assert [shown(each) for each in snapshot.listings] == [expected(each) for each in (large, *small)]


def test_one_object_that_is_the_whole_repository() -> None:
    lone = known("a/weights", {"weights": node("a/weights", "weights", (1, '"e"', 2, "", "", ""))})
    snapshot = decode(written(lone), "s3 b", MOST)
    assert snapshot is not None
    assert shown(snapshot.listings[0]) == expected(lone)


def test_whatever_bit_is_flipped_and_wherever_it_is_cut_it_is_none() -> None:
    content = written(*A_FEW)
    assert decode(content, "s3 b", MOST) is not None
    for at in range(len(content)):
        assert decode(content[:at], "s3 b", MOST) is None
        for bit in range(8):
            spoilt = bytearray(content)
            spoilt[at] ^= 1 << bit
            assert decode(bytes(spoilt), "s3 b", MOST) is None


@settings(max_examples=300)
@given(st.data())
def test_whatever_has_a_right_sum_it_is_read_or_it_is_none(data: st.DataObject) -> None:
    body = bytearray(written(*A_FEW)[:-4])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(8, len(body) - 1))] = data.draw(st.integers(0, 255))
    decode(bytes(body) + struct.pack("=I", zlib.crc32(body)), "s3 b", MOST)


@settings(max_examples=300)
@given(st.integers(0, 1), st.binary(min_size=1, max_size=3), st.integers(0, 400))
def test_whatever_a_frame_holds_it_is_read_or_it_is_none(which: int, bytes_in: bytes, at: int) -> None:
    frames, body = [], written(*A_FEW)[8:-4]
    while body:
        packed_bytes, _ = struct.unpack_from("=II", body)
        frames.append(bytearray(zlib.decompress(body[8 : 8 + packed_bytes])))
        body = body[8 + packed_bytes :]
    frame = frames[min(which, len(frames) - 1)]
    at %= len(frame)
    frame[at : at + len(bytes_in)] = bytes_in
    packed = [(zlib.compress(each), len(each)) for each in frames]
    made = b"d7yfstr1" + b"".join(struct.pack("=II", len(each), size) + each for each, size in packed)
    decode(made + struct.pack("=I", zlib.crc32(made)), "s3 b", MOST)


def test_what_is_about_something_else_or_too_much_is_none() -> None:
    content = written(*A_FEW)
    assert decode(content, "s3 c", MOST) is None
    assert decode(content, "s3 b", 4) is None
    assert decode(content, "s3 b", 5) is not None
    more = b"".join(encode(replace(head_of(*A_FEW), entries=4), A_FEW))
    assert decode(more, "s3 b", MOST) is None


def test_a_frame_that_unpacks_to_more_than_it_says_is_not_unpacked() -> None:
    packed = zlib.compress(bytes(100 << 20), 9)
    for size_bytes in (10, 100 << 20):
        made = b"d7yfstr1" + struct.pack("=II", len(packed), size_bytes) + packed
        assert decode(made + struct.pack("=I", zlib.crc32(made)), "s3 b", MOST) is None


def test_a_text_with_a_separator_is_not_kept() -> None:
    odd = known("", {"f": node("", "f", (1, "e\0e", 2, "", "", "")), "g": node("", "g", (1, "", 2, "", "", ""))})
    with pytest.raises(ValueError, match="NUL"):
        written(odd)
