"""Reading config.pbtxt: the parser finds every form of an agent's block, with its lines, and no
other text.
"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.errors import ConfigError
from d7yfs.servers.triton_config import agents_blocks, removals

PUBLISHED = """\
name: "densenet_onnx"
platform: "onnxruntime_onnx"
model_repository_agents
{
  agents [
    {
      name: "dragonfly",
    }
  ]
}
"""

D7Y = """\
# model_repository_agents { agents [ { name: "dragonfly" } ] }
backend: 'python' max_batch_size: 8
input [ { name: "a # b { model_repository_agents" data_type: TYPE_FP32 dims: [ -1, 3 ] },
        { name: "b" data_type: TYPE_FP32, dims: [ - 1 ] } ]
parameters { key: "x" value: { string_value: "one " 'two' } };
model_repository_agents: <
  agents [
    { name: "checksum" parameters [ { key: "MD5:a", value: "0" } ] },  # stays
    {
      name: "d7y"
      parameters [ { key: "config_path" value: "d7y_config.json" } ]
    }
  ]
>
instance_group [ ]
[some.extension/of.it]: { float: -1.5e-3f }
"""


def test_the_published_form() -> None:
    (block,) = agents_blocks(PUBLISHED)
    assert [agent.name for agent in block.agents] == ["dragonfly"]
    assert removals([block]) == ["lines 3 to 10, model_repository_agents with all in it"]


def test_one_of_several_agents() -> None:
    (block,) = agents_blocks(D7Y)
    assert [agent.name for agent in block.agents] == ["checksum", "d7y"]
    assert removals([block]) == ["lines 9 to 12, the entry of agent d7y with its comma"]


@pytest.mark.parametrize(
    "text",
    [
        'model_repository_agents { agents { name: "dragonfly" } }',
        'model_repository_agents { agents: { name: "dragonfly" } };',
        'model_repository_agents: { agents < name: "dragon" "fly" > }',
        "model_repository_agents{agents:[{name:'dragonfly'}]}",
        "  model_repository_agents { agents { name: 'other' name: 'dragonfly' } } , # as of June\r\n",
    ],
)
def test_every_way_to_write_it(text: str) -> None:
    assert removals(agents_blocks(text)) == ["line 1, model_repository_agents with all in it"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ('name: "x", model_repository_agents { agents { name: "dragonfly" } }', "line 1"),
        ('\nmodel_repository_agents { agents { name: "dragonfly" } }; name: "x"', "line 2"),
        ('model_repository_agents {\n agents { name: "dragonfly" }\n} name: "x"', "lines 1 to 3"),
        ('name: "x" model_repository_agents <\n agents { name: "dragonfly" }\n>', "lines 1 to 3"),
    ],
)
def test_what_else_stands_on_its_lines_is_to_stay(text: str, lines: str) -> None:
    said = f"from {lines} only the part from model_repository_agents to its closing bracket"
    assert removals(agents_blocks(text)) == [said]


def test_agents_written_one_by_one() -> None:
    blocks = agents_blocks('model_repository_agents {\n agents { name: "a" }\n agents {\n name: "d7y" }\n}\n')
    assert removals(blocks) == ["lines 3 to 4, the entry of agent d7y with its comma"]


def test_several_agents_on_one_line() -> None:
    blocks = agents_blocks('model_repository_agents { agents [ { name: "checksum" }, { name: "dragonfly" } ] }')
    assert removals(blocks) == ["from line 1 only the entry of agent dragonfly with its comma"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        'backend: "python"',
        'model_repository_agents { agents [ { name: "checksum" } ] }',
        'model_repository_agents { agents [ { name: "dragonfly2" } ] }',
        'parameters { key: "k" value { string_value: "model_repository_agents { agents { name: \\"dragonfly\\" } }" } }',
        'ensemble_scheduling { model_repository_agents { agents { name: "dragonfly" } } }',
        "# model_repository_agents { agents { name: 'dragonfly' } }",
    ],
)
def test_what_asks_for_no_agent_of_dragonfly(text: str) -> None:
    assert removals(agents_blocks(text)) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('name: "a"\nmodel {', "line 2: not protobuf's text format: } is missing"),
        ('name: "a', "line 1: not protobuf's text format: a string does not end"),
        ('\n\nname "a"', "line 3: not protobuf's text format: a colon or a message must follow name"),
        ("dims: [ 1 2 ]", "a comma or ] is missing"),
        ("dims: [ 1", "a comma or ] is missing"),
        ("a: }", "unexpected '}'"),
        ("a:", "unexpected end"),
        ("}", "unexpected '}'"),
        ("a {" * 200, "nested more than 100 deep"),
        ("[" * 200, "unexpected '['"),
    ],
)
def test_what_is_no_text_format(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        agents_blocks(text)
    assert said in caught.value.message


@given(st.text(alphabet=st.sampled_from("{}<>[]:;,#\"'\\ \na1-"), max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert removals(agents_blocks(text)) == []
