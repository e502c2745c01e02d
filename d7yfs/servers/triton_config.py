"""Which of Triton's repository agents a config.pbtxt asks for, and what to remove to be rid of one. Pure.

Owns the reading of as much of protobuf's text format as it takes to find fields and the lines that they stand on; the schema is Triton's
alone. Sources: the Text Format Language Specification of Protocol Buffers; ModelRepositoryAgents in Triton's model_config.proto.

Called by `check_triton`, on the repository's files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from d7yfs.errors import ConfigError

AGENTS = ("dragonfly", "d7y")
"""The names of Dragonfly's agent: the released one, and the one of its first design."""

_DEPTH = 100
"""Of messages in messages: what protobuf's own parsers allow."""
_TOKEN = re.compile(
    r"""(?P<blank>\s+|\#[^\n]*)
      | (?P<string>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      | (?P<mark>[{}<>\[\]:;,])
      | (?P<word>[^\s{}<>\[\]:;,\#"']+)""",
    re.VERBOSE,
)
_CLOSING = {"{": "}", "<": ">"}
_REST_OF_LINE = re.compile(r"[,;\s]*(?:\#.*)?$", re.MULTILINE)
"""What may follow a part on its last line and go with it."""


@dataclass(frozen=True, slots=True)
class Lines:
    """Counted from 1, both included."""

    first: int
    last: int
    shared: bool
    """Whether something else stands on the first or the last of them."""

    def __str__(self) -> str:
        return f"line {self.first}" if self.first == self.last else f"lines {self.first} to {self.last}"


@dataclass(frozen=True, slots=True)
class Agent:
    """One entry of `agents`."""

    name: str
    parameters: Mapping[str, str]
    lines: Lines


@dataclass(frozen=True, slots=True)
class AgentsBlock:
    """One `model_repository_agents`."""

    agents: tuple[Agent, ...]
    lines: Lines


def agents_blocks(text: str) -> tuple[AgentsBlock, ...]:
    """Each `model_repository_agents` of a config.pbtxt. Raises ConfigError, with the line, for what is no text format."""
    top = _Parser(text).message()
    return tuple(
        AgentsBlock(tuple(_agent(text, each) for each in _values(block.fields, "agents")), _lines(text, block.span))
        for block in _values(top, "model_repository_agents", whole_field=True)
    )


def removals(blocks: Sequence[AgentsBlock]) -> list[str]:
    """What to remove so that no agent of Dragonfly is asked for, and everything else stays; empty when none is."""
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


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    """`string`, `mark`, `word`, or `end`."""
    text: str
    line: int
    offset: int
    """Where in the text it begins."""


@dataclass(frozen=True, slots=True)
class _Span:
    """From one token to another, both included."""

    first: _Token
    last: _Token


@dataclass(frozen=True, slots=True)
class _Value:
    """A scalar, as it is written but for quotes, or a message."""

    text: str
    fields: tuple[_Field, ...]
    span: _Span


@dataclass(frozen=True, slots=True)
class _Field:
    """`name: value`, `name { … }` or `name [ value, … ]`."""

    name: str
    values: tuple[_Value, ...]
    span: _Span


def _lines(text: str, span: _Span) -> Lines:
    begin, end = span.first.offset, span.last.offset + len(span.last.text)
    before = text[text.rfind("\n", 0, begin) + 1 : begin]
    shared = bool(before.strip()) or not _REST_OF_LINE.match(text, end)
    return Lines(span.first.line, span.last.line, shared)


def _agent(text: str, entry: _Value) -> Agent:
    parameters = {
        _text(parameter.fields, "key"): _text(parameter.fields, "value")
        for parameter in _values(entry.fields, "parameters")
    }
    return Agent(_text(entry.fields, "name"), parameters, _lines(text, entry.span))


def _values(fields: Sequence[_Field], name: str, *, whole_field: bool = False) -> Iterator[_Value]:
    """All values of the fields of that name; with `whole_field` each with the span from the field's name on."""
    for field in fields:
        if field.name == name:
            for value in field.values:
                alone = whole_field or len(field.values) == 1
                yield _Value(value.text, value.fields, field.span if alone else value.span)


def _text(fields: Sequence[_Field], name: str) -> str:
    """The last value counts, as in protobuf."""
    return next((value.text for value in reversed(list(_values(fields, name)))), "")


class _Parser:
    """One pass over the text, one token ahead."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens)
        self._last = self._next
        self._depth = 0

    def message(self, closing: str = "") -> tuple[_Field, ...]:
        """Fields up to `closing`, which is taken too, or to the end."""
        self._depth += 1
        if self._depth > _DEPTH:
            raise self._error(f"nested more than {_DEPTH} deep")
        fields = []
        while not self._take(closing):
            if self._next.kind == "end":
                raise self._error(f"{closing} is missing")
            fields.append(self._field())
        self._depth -= 1
        return tuple(fields)

    def _field(self) -> _Field:
        first = self._next
        name = self._name()
        colon = self._take(":")
        if self._take("["):
            values = self._list()
        elif colon or self._next.text in _CLOSING:
            values = (self._value(),)
        else:
            raise self._error(f"a colon or a message must follow {name}")
        field = _Field(name, values, _Span(first, self._last))
        if not self._take(","):
            self._take(";")
        return field

    def _name(self) -> str:
        """A field's, or that of an extension in brackets."""
        if self._take("["):
            name = ""
            while not self._take("]"):
                name += self._expect("word").text
            return f"[{name}]"
        return self._expect("word").text

    def _list(self) -> tuple[_Value, ...]:
        values: list[_Value] = []
        while not self._take("]"):
            if values and not self._take(","):
                raise self._error("a comma or ] is missing")
            values.append(self._value())
        return tuple(values)

    def _value(self) -> _Value:
        first = self._next
        if self._next.text in _CLOSING and self._next.kind == "mark":
            fields = self.message(_CLOSING[self._advance().text])
            return _Value("", fields, _Span(first, self._last))
        if self._next.kind == "string":
            text = ""
            while self._next.kind == "string":  # adjacent ones are one
                text += self._advance().text[1:-1]
        else:
            text = self._expect("word").text
            if text == "-":
                text += self._expect("word").text
        return _Value(text, (), _Span(first, self._last))

    def _take(self, mark: str) -> bool:
        """Whether the next token was this mark, or, for "", the end."""
        kind = "mark" if mark else "end"
        if (self._next.kind, self._next.text) != (kind, mark):
            return False
        if mark:
            self._advance()
        return True

    def _expect(self, kind: str) -> _Token:
        if self._next.kind != kind:
            raise self._error(f"unexpected {self._next.text!r}" if self._next.text else "unexpected end")
        return self._advance()

    def _advance(self) -> _Token:
        token, self._next = self._next, next(self._tokens)
        self._last = token
        return token

    def _error(self, what: str) -> ConfigError:
        return _error(self._next.line, what)


def _tokens(text: str) -> Iterator[_Token]:
    """Without blanks and comments; endless `end` after the last."""
    position, line = 0, 1
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None:
            raise _error(line, "a string does not end")
        kind = found.lastgroup
        assert kind is not None
        if kind != "blank":
            yield _Token(kind, found.group(), line, position)
        line += found.group().count("\n")
        position = found.end()
    while True:
        yield _Token("end", "", line, position)


def _error(line: int, what: str) -> ConfigError:
    return ConfigError(f"line {line}: not protobuf's text format: {what}")
