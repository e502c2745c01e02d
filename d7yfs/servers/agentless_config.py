"""A config.pbtxt as it is shown to a Triton that must not see Dragonfly's repository agent. Pure.

The agents are overwritten by spaces. So size, lines and the offsets of all else stay, and protobuf's
text format passes over them. Other agents stay, and a block without any is overwritten whole.

Called by a repository's listings, which mark such files, and by their filler.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from d7yfs.errors import ConfigError
from d7yfs.servers.triton_config import AGENTS, BLOCK, Value, agent_name, parse_fields

MOST_BYTES = 1 << 20
"""Bytes of the largest configuration that is parsed."""

_CONFIG = re.compile(r"(?:.*/)?(?:config\.pbtxt|configs/[^/]+\.pbtxt)", re.DOTALL)
"""The keys of model configurations; those in `configs` are for `--model-config-name`."""
_SEPARATOR = re.compile(r"(?:\s+|#[^\n]*+)*+([,;])", re.ASCII)
"""The mark behind a field or a value, with what may stand before it."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def may_name_agents(key: str, size_bytes: int) -> bool:
    """True if an object is a model configuration, and small enough to be parsed for `without_agent`."""
    return key.endswith(".pbtxt") and size_bytes <= MOST_BYTES and _CONFIG.fullmatch(key) is not None


def without_agent(data: bytes) -> bytes:
    """A config.pbtxt with spaces in the place of Dragonfly's agents, and of a block that has no others.

    Total, and its size and lines stay. What is not protobuf's text format stays as it is.
    """
    if BLOCK.encode() not in data:
        return data
    # One character for each byte: so offsets are those of the file, whatever is in its strings.
    text = data.decode("latin-1")
    if data.startswith(_BYTE_ORDER_MARK):
        text = text.replace(_BYTE_ORDER_MARK.decode("latin-1"), " " * len(_BYTE_ORDER_MARK), 1)
    try:
        blocks = [each for each in parse_fields(text) if each.name == BLOCK]
    except ConfigError:
        return data
    parts: list[slice] = []
    emptied: list[Value] = []
    for block in blocks:
        agents = [each for each in block.fields if each.name == "agents"]
        ours = [each for each in agents if agent_name(each) in AGENTS]
        if ours and len(ours) == len(agents):
            emptied.append(block)
        else:
            parts += _parts_of(text, agents, ours)
    parts += _parts_of(text, blocks, emptied)
    blanked = bytearray(data)
    for part in parts:
        blanked[part] = re.sub(rb"[^\r\n]", b" ", data[part])
    return bytes(blanked)


def _parts_of(text: str, values: Sequence[Value], gone: Sequence[Value]) -> Iterator[slice]:
    """The parts of the text to blank so that of `values`, which have one name, those of `gone` are no more."""
    for _, group in groupby(values, key=lambda each: each.field_span.start):
        listed = [*group]
        if all(each in gone for each in listed):
            yield listed[0].field_span
            yield from _separator(text, listed[0].field_span.stop)
            continue
        begins = True
        for index, each in enumerate(listed):
            if each in gone:
                yield each.span
                # Each takes one comma along: the one behind it as long as none stays before it.
                yield from _separator(text, (each if begins else listed[index - 1]).span.stop)
            else:
                begins = False


def _separator(text: str, offset: int) -> Iterator[slice]:
    if found := _SEPARATOR.match(text, offset):
        yield slice(*found.span(1))
