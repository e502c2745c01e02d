"""The messages of the FUSE protocol, byte for byte.

The golden bytes are what a C compiler makes of the structures in linux/fuse.h (7.38) when their
fields have the values here. Fields that are newer than that header have a test of their own. The
bytes are those of a little-endian machine.
"""

from __future__ import annotations

import contextlib
import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.fuse import wire
from d7yfs.fuse.wire import (
    WRITING,
    DirectoryReply,
    Greeting,
    InitFlag,
    MalformedRequest,
    NoticeCode,
    Opcode,
    OpenFlag,
    Terms,
    split_seconds,
)
from d7yfs.tree.nodes import FOREVER_S

pytestmark = pytest.mark.skipif(sys.byteorder != "little", reason="the golden bytes are little-endian")

_FH, _OFFSET = 0x0102030405060708, 0x1112131415161718
_ATTRIBUTES = (
    *(_FH, _OFFSET, 0x2122232425262728, 0x31, 0x32, 0x33, 0x41, 0x42, 0x43),
    *(0o100444, 0x51, 0x52, 0x53, 0x54, 0x1000, 0x55),
)
_ATTR = (
    "0807060504030201181716151413121128272625242322213100000000000000320000000000000033000000000000004100000042000000"
    "4300000024810000510000005200000053000000540000000010000055000000"
)
_ENTRY = "68676665646362617100000000000000720000000000000073000000000000007400000075000000" + _ATTR
_ENTRY_FIELDS = (0x6162636465666768, 0x71, 0x72, 0x73, 0x74, 0x75, *_ATTRIBUTES)
_DIRENT = "080706050403020118171615141312110500000008000000612e62696e000000"
_INIT_IN = (7, 38, 0x20000, 0x73FFFFFB)


@pytest.mark.parametrize(
    ("layout", "values", "golden"),
    [
        pytest.param(
            wire.IN_HEADER,
            (0x11121314, 0x21222324, 0x3132333435363738, 0x4142434445464748, 0x51525354),
            "14131211242322213837363534333231484746454443424154535251000000000000000000000000",
            id="in_header",
        ),
        pytest.param(
            wire.OUT_HEADER,
            (0x11121314, -13, 0x3132333435363738),
            "14131211f3ffffff3837363534333231",
            id="out_header",
        ),
        pytest.param(wire.ENTRY_OUT, _ENTRY_FIELDS, _ENTRY, id="entry_out"),
        pytest.param(
            wire.ATTR_OUT, (0x73, 0x75, 0, *_ATTRIBUTES), "73000000000000007500000000000000" + _ATTR, id="attr"
        ),
        pytest.param(wire.OPEN_OUT, (_FH, 0xA0, 0x11121314), "0807060504030201a000000014131211", id="open_out"),
        pytest.param(
            wire.READ_IN,
            (_FH, _OFFSET, 0x21222324),
            "08070605040302011817161514131211242322210000000000000000000000000000000000000000",
            id="read_in",
        ),
        pytest.param(wire.OPEN_IN, (0x8001, 1), "0180000001000000", id="open_in"),
        pytest.param(wire.FH, (_FH,), "0807060504030201", id="forget_in and interrupt_in"),
        pytest.param(wire.XATTR_IN, (0x11121314, 0), "1413121100000000", id="getxattr_in and getxattr_out"),
        pytest.param(wire.ACCESS_IN, (4, 0), "0400000000000000", id="access_in"),
        pytest.param(
            wire.STATFS_OUT,
            (1, 2, 3, 4, 5, 6, 7, 8),
            "01000000000000000200000000000000030000000000000004000000000000000500000000000000060000000700000008000000"
            + "00" * 28,
            id="statfs_out",
        ),
        pytest.param(wire.INIT_IN, _INIT_IN, "070000002600000000000200fbffff73", id="init_in"),
        pytest.param(
            wire.DIRENT, (_FH, _OFFSET, 5, 8), "080706050403020118171615141312110500000008000000", id="dirent"
        ),
    ],
)
def test_a_layout_is_that_of_linux_fuse_h(layout: struct.Struct, values: tuple[int, ...], golden: str) -> None:
    assert layout.pack(*values).hex() == golden
    assert layout.unpack(bytes.fromhex(golden)) == values


def test_the_handle_is_the_first_field_of_a_release() -> None:
    release_in = bytes.fromhex("080706050403020100800000010000004100000000000000")
    assert wire.FH.unpack_from(release_in) == (_FH,)


@pytest.mark.parametrize(
    ("ours", "header"),
    [
        (
            dict(Opcode.__members__),
            {
                "LOOKUP": 1,
                "FORGET": 2,
                "GETATTR": 3,
                "READLINK": 5,
                "OPEN": 14,
                "READ": 15,
                "STATFS": 17,
                "RELEASE": 18,
                "FSYNC": 20,
                "GETXATTR": 22,
                "LISTXATTR": 23,
                "FLUSH": 25,
                "INIT": 26,
                "OPENDIR": 27,
                "READDIR": 28,
                "RELEASEDIR": 29,
                "FSYNCDIR": 30,
                "ACCESS": 34,
                "INTERRUPT": 36,
                "DESTROY": 38,
                "NOTIFY_REPLY": 41,
                "BATCH_FORGET": 42,
                "READDIRPLUS": 44,
                "LSEEK": 46,
            },
        ),
        (
            dict(InitFlag.__members__),
            {
                "ASYNC_READ": 0x1,
                "READDIRPLUS": 0x2000,
                "READDIRPLUS_AUTO": 0x4000,
                "ASYNC_DIO": 0x8000,
                "PARALLEL_DIROPS": 0x40000,
                "ABORT_ERROR": 0x200000,
                "MAX_PAGES": 0x400000,
                "EXPLICIT_INVAL_DATA": 0x2000000,
                "INIT_EXT": 0x40000000,
                "HAS_EXPIRE_ONLY": 0x8_0000_0000,
                "DIRECT_IO_ALLOW_MMAP": 1 << 36,
                "PASSTHROUGH": 1 << 37,
                "HAS_RESEND": 1 << 39,
            },
        ),
        (
            dict(OpenFlag.__members__),
            {"DIRECT_IO": 1, "KEEP_CACHE": 2, "CACHE_DIR": 8, "NOFLUSH": 0x20, "PASSTHROUGH": 0x80},
        ),
        (dict(NoticeCode.__members__), {"INVAL_INODE": 2, "INVAL_ENTRY": 3, "RESEND": 7}),
    ],
    ids=["opcodes", "flags of INIT", "flags of OPEN", "notices"],
)
def test_numbers_are_those_of_linux_fuse_h(ours: dict[str, int], header: dict[str, int]) -> None:
    assert ours == header


def test_what_writes_is_no_request_that_is_served() -> None:
    setattr_to_link, write, create = {4, 6, 8, 9, 10, 11, 12, 13}, {16, 21, 24}, {35, 43, 45, 47, 51}
    assert setattr_to_link | write | create == WRITING
    assert not WRITING & set(Opcode)


# --- INIT ---


def init_in(flags: int = 0x73FFFFFB, flags2: int = 0x5FD) -> bytes:
    return wire.INIT_IN.pack(7, 38, 0x20000, flags) + struct.pack("=I44x", flags2)


def test_a_greeting() -> None:
    golden = bytes.fromhex("070000002600000000000200fbffff73fd050000" + "00" * 44)
    assert golden == init_in()
    assert Greeting.parse(memoryview(golden)) == Greeting(7, 38, 0x20000, InitFlag(0x5FD_73FF_FFFB))


def test_a_kernel_before_7_36_has_no_second_flags() -> None:
    short = memoryview(wire.INIT_IN.pack(7, 31, 0x20000, 0x3FFFFFFB))
    assert Greeting.parse(short) == Greeting(7, 31, 0x20000, InitFlag(0x3FFFFFFB))
    unset = memoryview(init_in(flags=0x3FFFFFFB, flags2=0xFFFFFFFF))
    assert Greeting.parse(unset).flags == 0x3FFFFFFB, "the second flags mean nothing without INIT_EXT"


@pytest.mark.parametrize("length", range(20))
def test_a_greeting_that_is_cut_off(length: int) -> None:
    with pytest.raises(MalformedRequest):
        Greeting.parse(memoryview(init_in()[:length]))


def test_the_terms_as_the_header_has_them() -> None:
    flags = InitFlag(0x38_4064_2001)
    golden = (
        "070000002d0000000000100001206440000400040010000001000000000100003800000000000000" + "00" * 24
    )  # the field at 36 was unused in 7.38
    assert Terms(0x100000, flags, 0x400).encode().hex() == golden


def test_the_stack_depth_follows_the_second_flags() -> None:
    """uint32 max_stack_depth at 36 (7.40), uint16 request_timeout at 40 (7.43)."""
    encoded = Terms(1, InitFlag.PASSTHROUGH, 1, max_stack_depth=1).encode()
    assert len(encoded) == 64
    assert encoded[32:44] == struct.pack("=IIHH", 1 << 5, 1, 0, 0)
    assert wire.INIT_OUT.unpack(encoded)[-2:] == (1, 0)


# --- replies and notices ---


def test_replies() -> None:
    assert wire.reply_header(0x3132333435363738, 24).hex() == "28000000000000003837363534333231"
    assert wire.refusal(0x3132333435363738, 13).hex() == "10000000f3ffffff3837363534333231"
    assert wire.refusal(wire.RESENT | 1, 5)[8:].hex() == "0100000000000080"


@pytest.mark.parametrize(
    ("ours", "golden"),
    [
        pytest.param(
            wire.inval_inode(_FH),
            "28000000020000000000000000000000080706050403020100000000000000000000000000000000",
            id="pages",
        ),
        pytest.param(
            wire.inval_inode(_FH, attributes_only=True),
            "280000000200000000000000000000000807060504030201ffffffffffffffff0000000000000000",
            id="attributes",
        ),
        pytest.param(
            wire.inval_entry(_FH, b"a.bin"),
            "2600000003000000000000000000000008070605040302010500000000000000612e62696e00",
            id="entry",
        ),
        pytest.param(
            wire.inval_entry(_FH, b"a.bin", expire_only=True),  # the last field was padding in 7.37
            "2600000003000000000000000000000008070605040302010500000001000000612e62696e00",
            id="expired entry",
        ),
        pytest.param(wire.notice(NoticeCode.RESEND), "10000000070000000000000000000000", id="resend"),
    ],
)
def test_a_notice(ours: bytes, golden: str) -> None:
    assert ours.hex() == golden


# --- names and forgets ---


def test_a_name_ends_at_its_nul() -> None:
    assert wire.name_of(memoryview(b"a.bin\0")) == b"a.bin"
    assert wire.name_of(memoryview(wire.XATTR_IN.pack(10, 0) + b"user.x\0"), wire.XATTR_IN.size) == b"user.x"
    assert wire.name_of(memoryview(b"a\0b\0")) == b"a", "behind a name may be what newer kernels add"
    assert wire.name_of(memoryview(b"\xff\n\0")) == b"\xff\n"


@pytest.mark.parametrize("body", [b"", b"a.bin"])
def test_a_name_without_an_end(body: bytes) -> None:
    with pytest.raises(MalformedRequest):
        wire.name_of(memoryview(body))


_FORGETS = bytes.fromhex(
    "02000000000000000807060504030201110000000000000021000000000000003837363534333231"
)  # two of fuse_forget_one behind fuse_batch_forget_in


def test_forgets() -> None:
    assert wire.parse_forgets(memoryview(_FORGETS)) == [(_FH, 0x11), (0x21, 0x3132333435363738)]
    assert wire.parse_forgets(memoryview(_FORGETS + b"more")) == wire.parse_forgets(memoryview(_FORGETS))
    assert wire.parse_forgets(memoryview(bytes(8))) == []


@pytest.mark.parametrize("length", range(len(_FORGETS)))
def test_forgets_that_are_cut_off(length: int) -> None:
    with pytest.raises(MalformedRequest):
        wire.parse_forgets(memoryview(_FORGETS[:length]))


@given(st.binary(max_size=200))
def test_whatever_comes_is_parsed_or_malformed(body: bytes) -> None:
    for parse in (Greeting.parse, wire.parse_forgets, wire.name_of):
        with contextlib.suppress(MalformedRequest):
            parse(memoryview(body))


# --- directories ---


def test_entries_of_a_directory() -> None:
    reply = DirectoryReply(4096)
    assert reply.add(b"a.bin", _FH, 8, _OFFSET)
    assert reply.data.hex() == _DIRENT
    plus = DirectoryReply(4096)
    assert plus.add(b"a.bin", _FH, 8, _OFFSET, wire.ENTRY_OUT.pack(*_ENTRY_FIELDS))
    assert plus.data.hex() == _ENTRY + _DIRENT


@pytest.mark.parametrize("entry", [b"", bytes(wire.ENTRY_OUT.size)], ids=["readdir", "readdirplus"])
@given(
    names=st.lists(st.binary(min_size=1, max_size=255).filter(lambda name: not {0, ord("/")} & set(name)), max_size=20),
    size=st.integers(0, 3000),
)
def test_entries_end_on_eight_bytes_and_within_the_room(entry: bytes, names: list[bytes], size: int) -> None:
    reply = DirectoryReply(size)
    shown = []
    for index, name in enumerate(names):
        before_bytes = len(reply.data)
        fits = reply.add(name, index + 1, 8, index + 3, entry)
        needed_bytes = len(entry) + -(-(24 + len(name)) // 8) * 8
        assert fits is (before_bytes + needed_bytes <= size)
        assert len(reply.data) == before_bytes + needed_bytes * fits
        if not fits:
            break
        shown.append(name)
    found: list[bytes] = []
    at = 0
    while at < len(reply.data):  # as fuse_dir_changed in fs/fuse/readdir.c steps through them
        ino, next_offset, length, kind = wire.DIRENT.unpack_from(reply.data, at + len(entry))
        start = at + len(entry) + wire.DIRENT.size
        assert (ino, next_offset, kind) == (len(found) + 1, len(found) + 3, 8)
        found.append(bytes(reply.data[start : start + length]))
        at = start + length + (-(wire.DIRENT.size + length) & 7)
    assert found == shown


# --- times ---


@pytest.mark.parametrize(
    ("seconds", "parts"),
    [(0.0, (0, 0)), (1.0, (1, 0)), (0.25, (0, 250_000_000)), (59.5, (59, 500_000_000)), (FOREVER_S, (31_536_000, 0))],
)
def test_seconds(seconds: float, parts: tuple[int, int]) -> None:
    assert split_seconds(seconds) == parts


@given(st.floats(0, FOREVER_S))
def test_seconds_fit_their_fields_and_are_never_more(seconds: float) -> None:
    whole, ns = split_seconds(seconds)
    assert 0 <= ns < 1_000_000_000, "the kernel takes more for a broken file system"
    assert seconds - 1e-6 <= whole + ns / 1e9 <= seconds + 1e-9
    assert struct.pack("=QI", whole, ns)
