"""A config.pbtxt in which Dragonfly's agent is blanked: protobuf's own parser finds the same
configuration, less that agent, and no byte has moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.servers.agentless_config import MOST_BYTES, may_name_agents, without_agent
from d7yfs.servers.triton_config import AGENTS

_FIELD = descriptor_pb2.FieldDescriptorProto


def _model_config() -> Any:
    """The class of as much of Triton's ModelConfig as these tests write, with Triton's numbers."""
    file = descriptor_pb2.FileDescriptorProto(name="model_config.proto", package="inference", syntax="proto3")

    def message(name: str, *fields: tuple[Any, ...]) -> None:
        made = file.message_type.add(name=name)
        for field, number, kind, label, of in fields:
            made.field.add(name=field, number=number, type=kind, label=label, type_name=of or None)

    one, many = _FIELD.LABEL_OPTIONAL, _FIELD.LABEL_REPEATED
    text, number, nested = _FIELD.TYPE_STRING, _FIELD.TYPE_INT64, _FIELD.TYPE_MESSAGE
    message("Parameter", ("key", 1, text, one, ""), ("value", 2, text, one, ""))
    message("Agent", ("name", 1, text, one, ""), ("parameters", 2, nested, many, ".inference.Parameter"))
    message("Agents", ("agents", 1, nested, many, ".inference.Agent"))
    message("Input", ("name", 1, text, one, ""), ("dims", 3, number, many, ""))
    message(
        "ModelConfig",
        ("name", 1, text, one, ""),
        ("backend", 17, text, one, ""),
        ("max_batch_size", 4, number, one, ""),
        ("input", 5, nested, many, ".inference.Input"),
        ("parameters", 14, nested, many, ".inference.Parameter"),
        ("model_repository_agents", 23, nested, one, ".inference.Agents"),
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig"))


ModelConfig = _model_config()


def parse(text: bytes) -> Any:
    """The configuration as Triton's own parser reads it. Raises text_format.ParseError."""
    return text_format.Parse(text, ModelConfig())


def less_ours(config: Any) -> Any:
    """The configuration without Dragonfly's agents, as protobuf holds it."""
    left = ModelConfig()
    left.CopyFrom(config)
    agents = left.model_repository_agents.agents
    kept = [agent for agent in agents if agent.name not in AGENTS]
    if len(kept) < len(agents):
        left.ClearField("model_repository_agents")
        if kept:
            left.model_repository_agents.agents.extend(kept)
    return left


TEXTS = (*AGENTS, "checksum", "x", "", "a # b", "model_repository_agents { agents {", "é\n\"'\\")
BLANKS = (" ", "\n", "\t", "\r\n", " # } ] a comment, \"with' marks {\n", "#\n")


class Writer(Random):
    """A writer of configurations, each in one of all the ways to write it, by its seed."""

    def gap(self) -> str:
        return self.choice(("", *BLANKS))

    def separated(self, fields: Sequence[str]) -> str:
        """Fields in any order, with or without a mark between them."""
        return "".join(
            f"{self.gap()}{each}{self.gap()}{self.choice(('', '', ',', ';'))}{self.choice(BLANKS)}"
            for each in self.sample(fields, len(fields))
        )

    def message(self, *fields: str) -> str:
        opening, closing = self.choice((("{", "}"), ("<", ">")))
        return f"{opening}{self.separated(fields)}{self.gap()}{closing}"

    def string(self, text: str) -> str:
        """A literal of `text`: either quote, escapes where needed and elsewhere, in adjacent parts."""
        quote = self.choice("\"'")
        parts = []
        for character in text:
            code = ord(character)
            forms = [{"\n": "\\n"}.get(character, f"\\{character}") if character in "\"'\\\n" else character]
            if code < 128:
                forms += [f"\\{code:03o}", f"\\x{code:02x}"]
            if character.isalnum():  # Python's own parser takes no escaped backslash in these forms
                forms += [f"\\u{code:04x}", f"\\U{code:08x}"]
            parts.append(self.choice(forms))
            if not self.randrange(10):
                parts.append(f"{quote}{self.gap()}{quote}")
        return f"{quote}{''.join(parts)}{quote}"

    def field(self, name: str, value: str, *, colon: bool = False) -> str:
        return f"{name}{self.gap()}{':' if colon or self.random() < 0.5 else ''}{self.gap()}{value}"

    def repeated(self, name: str, values: list[str]) -> list[str]:
        """The fields that give `values` to a repeated field: each one alone, or lists of several."""
        fields = []
        while values:
            count = self.randint(1, len(values))
            some, values = values[:count], values[count:]
            alone = count == 1 and self.random() < 0.5
            listed = ",".join(f"{self.gap()}{each}{self.gap()}" for each in some)
            fields.append(self.field(name, some[0] if alone else f"[{listed}]"))
        return fields

    def parameters(self, most: int = 2) -> list[str]:
        """Fields of parameters, none that is an agent."""
        values = [
            self.message(*(self.field(name, self.string(self.choice(TEXTS)), colon=True) for name in ("key", "value")))
            for _ in range(self.randint(0, most))
        ]
        return self.repeated("parameters", values)

    def agent(self) -> str:
        name = self.field("name", self.string(self.choice(TEXTS)), colon=True)
        return self.message(name, *self.parameters())

    def config(self) -> bytes:
        inputs = [self.message(f"name: {self.string('in')}", "dims: [ -1, 3 ]") for _ in range(self.randint(0, 2))]
        fields = ["max_batch_size: 8", self.field("backend", self.string(self.choice(TEXTS)), colon=True)]
        fields += [*self.repeated("input", inputs), *self.parameters()]
        if self.randrange(6):
            agents = self.repeated("agents", [self.agent() for _ in range(self.randint(0, 4))])
            fields.append(self.field("model_repository_agents", self.message(*agents)))
        return self.separated(fields).encode()


@given(st.integers(0, 1 << 32).map(lambda seed: Writer(seed).config()))
def test_protobuf_reads_the_same_less_that_agent(text: bytes) -> None:
    before = parse(text)
    blanked = without_agent(text)
    assert parse(blanked) == less_ours(before)
    assert len(blanked) == len(text)
    assert all(new in (old, 0x20) for old, new in zip(text, blanked, strict=True)), "bytes stay, or become spaces"
    assert blanked.count(b"\n") == text.count(b"\n")
    if less_ours(before) == before:
        assert blanked == text
    assert without_agent(blanked) == blanked


_MARKS = st.sampled_from("{}<>[]:;,#\"'\\ \na1-")
_PIECES = st.one_of(_MARKS, st.sampled_from(["model_repository_agents", "agents", "name", '"dragonfly"', "\x00", "é"]))


@given(st.lists(_PIECES, max_size=60).map(lambda pieces: "".join(pieces).encode()) | st.binary(max_size=60))
def test_any_bytes_keep_their_size_and_become_no_other_configuration(data: bytes) -> None:
    blanked = without_agent(data)
    assert len(blanked) == len(data)
    if blanked != data:
        assert without_agent(blanked) == blanked


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('a: 1 model_repository_agents { agents [ { name: "dragonfly" } ] }; b: 2', "a: 1 b: 2"),
        (
            'model_repository_agents { agents [ { name: "d7y" }, { name: "checksum" } ] }',
            '{ agents [ { name: "checksum" } ] }',
        ),
        ('model_repository_agents { agents { name: "drag\\157nfly" } }', ""),
        ('\ufeffmodel_repository_agents { agents { name: "dragonfly" } }', "\ufeff"),
    ],
)
def test_what_is_left(text: str, left: str) -> None:
    found = without_agent(text.encode()).decode().removeprefix("model_repository_agents")
    assert found.split() == left.split()


@pytest.mark.parametrize(
    "text",
    [
        'model_repository_agents { agents { name: "dragonfly" }',
        'model_repository_agents { agents { name: "dragonfly } }',
        'model_repository_agents { agents { name: "checksum" } }',
        "model_repository_agents { }",
        'parameters { model_repository_agents { agents { name: "dragonfly" } } }',
        '# model_repository_agents { agents { name: "dragonfly" } }',
        "model_repository_agents {" * 200,
    ],
)
def test_what_cannot_be_parsed_or_asks_for_no_such_agent_stays(text: str) -> None:
    assert without_agent(text.encode()) == text.encode()


def test_many_comments_before_a_mark_take_no_time() -> None:
    """A comment may hold what begins a comment: that must not be tried in every way."""
    text = b'model_repository_agents { agents { name: "d7y" } }' + b"# # # # # # # #\n" * 2000 + b'x: "y"'
    assert without_agent(text).startswith(b"     ")


@pytest.mark.parametrize("key", ["config.pbtxt", "m/config.pbtxt", "a/b/config.pbtxt", "m/configs/gpu.pbtxt"])
def test_the_files_that_may_name_agents(key: str) -> None:
    assert may_name_agents(key, MOST_BYTES)
    assert not may_name_agents(key, MOST_BYTES + 1)


@pytest.mark.parametrize(
    "key", ["m/1/graph.pbtxt", "m/config.pbtxt/x", "m/myconfig.pbtxt", "m/config.pbtxt.bak", "configs"]
)
def test_other_files_are_left_alone(key: str) -> None:
    assert not may_name_agents(key, 10)
