"""The fields of a config.pbtxt of Triton with their lines; the repository agents that it asks for, and
the lines to remove. Pure.

Owns a parser of protobuf's text format. The schema is Triton's alone: `d7yfs.check.model_config` has
it. Sources: the Text Format Language Specification of Protocol Buffers; ModelRepositoryAgents in
Triton's model_config.proto.

Called by `check`, on the repository's files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from d7yfs.errors import ConfigError

AGENTS = ("dragonfly", "d7y")
"""The names of Dragonfly's agent: the released one, and the one of its first design."""

BLOCK = "model_repository_agents"

_DEPTH = 100
"""Deepest nesting of messages, as in protobuf's own parsers."""
_TOKEN = re.compile(
    r"""(?P<blank>\s+|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<mark>[{}<>\[\]:;,])
      | (?P<word>[^\s{}<>\[\]:;,\#"']+)
      | (?P<endless>["'])
      | (?P<end>\Z)""",
    re.VERBOSE | re.ASCII,
)
_CLOSING = {"{": "}", "<": ">"}
_ESCAPE = re.compile(
    r"""\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})
      |U(0010[0-9a-fA-F]{4}|000[0-9a-fA-F]{5})|(.))""",
    re.VERBOSE,
)
_ESCAPED = dict(zip("abfnrtv", "\a\b\f\n\r\t\v", strict=True))
"""The escapes of a letter; any other character stands for itself."""
_REST_OF_LINE = re.compile(r"[,;\s]*(?:\#.*)?$", re.MULTILINE)
"""The text that may follow a part on its last line and be removed with it."""


@dataclass(frozen=True, slots=True)
class Lines:
    """A span of lines, counted from 1, both ends included."""

    first: int
    last: int
    shared: bool
    """True if something else is on the first or the last line."""

    def __str__(self) -> str:
        return f"line {self.first}" if self.first == self.last else f"lines {self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class Agent:
    """One entry of `agents` in a model's configuration."""

    name: str
    lines: Lines


@dataclass(frozen=True, slots=True)
class AgentsBlock:
    """One `model_repository_agents` block of a model's configuration."""

    agents: tuple[Agent, ...]
    lines: Lines


def agents_blocks(text: str) -> tuple[AgentsBlock, ...]:
    """Each `model_repository_agents` of a config.pbtxt. Raises ConfigError with the line."""
    return tuple(
        AgentsBlock(
            tuple(_agent(text, each) for each in block.fields if each.name == "agents"), _lines(text, block.field_span)
        )
        for block in parse_fields(text)
        if block.name == BLOCK
    )


def parse_fields(text: str) -> tuple[Value, ...]:
    """The values of all fields, in their order. Raises ConfigError with the line."""
    return _Parser(text).parse_message()


def removals(blocks: Sequence[AgentsBlock]) -> list[str]:
    """The parts to remove so that no agent of Dragonfly is asked for; empty for none."""
    advice = []
    for block in blocks:
        ours = [agent for agent in block.agents if agent.name in AGENTS]
        if ours and len(ours) == len(block.agents):
            advice.append(_all_of(block.lines))
        else:
            advice += [_one_of(agent) for agent in ours]
    return advice


def _all_of(lines: Lines) -> str:
    if lines.shared:
        return f"from {lines} only the part from model_repository_agents to its closing bracket"
    return f"{lines}, model_repository_agents with all in it"


def _one_of(agent: Agent) -> str:
    what = f"the entry of agent {agent.name} with its comma"
    return f"from {agent.lines} only {what}" if agent.lines.shared else f"{agent.lines}, {what}"


class Form(Enum):
    """The form in which a value is written."""

    WORD = "a number or a word"
    STRING = "a string in quotes"
    MESSAGE = "a message in brackets"


_Unnamed: TypeAlias = tuple[str, Form, tuple["Value", ...], slice]
"""A value without its field: text, form, fields and place."""


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a field, with its place in the text."""

    name: str
    """Name of its field, which is `name: value`, `name { … }` or `name [ value, … ]`."""
    text: str
    """A scalar as written, of a string what it stands for; empty for a message."""
    form: Form
    has_colon: bool
    """True if a colon follows the name, as a scalar's must."""
    fields: tuple[Value, ...]
    """The values in a message."""
    span: slice
    """Its own part of the text, that of the field if it is the only value."""
    field_span: slice

    def line_in(self, text: str) -> int:
        """Its line in the text that it was parsed from, counted from 1."""
        return _line(text, self.span.start)


def _lines(text: str, span: slice) -> Lines:
    before = text[: span.start].rpartition("\n")[2]
    shared = bool(before.strip()) or not _REST_OF_LINE.match(text, span.stop)
    return Lines(_line(text, span.start), _line(text, span.stop), shared)


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def _agent(text: str, entry: Value) -> Agent:
    return Agent(agent_name(entry), _lines(text, entry.span))


def agent_name(entry: Value) -> str:
    """The name of an agent; empty without one."""
    # The last value counts, as in protobuf.
    return next((value.text for value in reversed(entry.fields) if value.name == "name"), "")


def _unquoted(literal: str) -> str:
    """The text that a string stands for."""
    return _ESCAPE.sub(_unescaped, literal[1:-1]) if "\\" in literal else literal[1:-1]


def _unescaped(found: re.Match[str]) -> str:
    octal, *hexadecimals, other = found.groups()
    if other is not None:
        return _ESCAPED.get(other, other)
    return chr(int(octal, 8) if octal is not None else int(next(filter(None, hexadecimals)), 16))


class _Parser:
    """A parser that makes one pass over the text, one token ahead."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = (each for each in _TOKEN.finditer(text) if each.lastgroup != "blank")
        self._next = self._last = next(self._tokens)
        self._depth = 0

    def parse_message(self, closing: str = "") -> tuple[Value, ...]:
        """Parse fields up to and with `closing`, or to the end."""
        self._depth += 1
        if self._depth > _DEPTH:
            raise self._error(f"nested more than {_DEPTH} deep")
        values: list[Value] = []
        while not self._take(closing):
            if self._next.lastgroup == "end":
                if not closing:
                    break
                raise self._error(f"{closing} is missing")
            values += self._parse_field()
        self._depth -= 1
        return tuple(values)

    def _parse_field(self) -> list[Value]:
        begin = self._next.start()
        name = self._parse_name()
        colon = self._take(":")
        if self._take("["):
            values = self._parse_list()
        elif colon or self._next[0] in _CLOSING:
            values = [self._parse_value()]
        else:
            raise self._error(f"a colon or a message must follow {name}")
        whole = slice(begin, self._last.end())
        if not self._take(","):
            self._take(";")
        return [
            Value(name, text, form, colon, fields, whole if len(values) == 1 else span, whole)
            for text, form, fields, span in values
        ]

    def _parse_name(self) -> str:
        """Parse the name of a field, or of an extension in brackets."""
        if self._take("["):
            name = ""
            while not self._take("]"):
                name += self._expect("word")
            return f"[{name}]"
        return self._expect("word")

    def _parse_list(self) -> list[_Unnamed]:
        values: list[_Unnamed] = []
        while not self._take("]"):
            if values and not self._take(","):
                raise self._error("a comma or ] is missing")
            values.append(self._parse_value())
        return values

    def _parse_value(self) -> _Unnamed:
        """Parse a scalar or a message."""
        begin, text, form = self._next.start(), "", Form.WORD
        fields: tuple[Value, ...] = ()
        if closing := _CLOSING.get(self._next[0]):
            self._advance()
            form, fields = Form.MESSAGE, self.parse_message(closing)
        elif self._next.lastgroup == "string":
            form = Form.STRING
            while self._next.lastgroup == "string":  # adjacent ones are one
                text += _unquoted(self._advance())
        else:
            text = self._expect("word")
            if text == "-":
                text += self._expect("word")
        return text, form, fields, slice(begin, self._last.end())

    def _take(self, mark: str) -> bool:
        """True if the next token was this mark, which is then taken."""
        taken = self._next.lastgroup == "mark" and self._next[0] == mark
        if taken:
            self._advance()
        return taken

    def _expect(self, kind: str) -> str:
        if self._next.lastgroup != kind:
            raise self._error(f"unexpected {self._next[0]!r}" if self._next[0] else "unexpected end")
        return self._advance()

    def _advance(self) -> str:
        self._last, self._next = self._next, next(self._tokens)
        return self._last[0]

    def _error(self, what: str) -> ConfigError:
        if self._next.lastgroup == "endless":
            what = "a string does not end"
        return ConfigError(f"line {_line(self._text, self._next.start())}: not protobuf's text format: {what}")
