"""Each refusal of a setting names the place that gave it: an option, a variable, a file and the key in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from d7yfs.config.key_file import read_variables
from d7yfs.config.sources import load_settings
from d7yfs.errors import ConfigError
from d7yfs.repository.repository import open_repositories

CONTAINER = "as://account/container"


class Layers:
    """The layers of a configuration, each of which a test fills."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.flags: dict[str, object] = {"cache_dir": directory}
        self.environ: dict[str, str] = {"HOME": str(directory)}
        self.toml = directory / "config.toml"
        self.toml.write_text("")

    def write_json(self, name: str, variable: str, content: Mapping[str, object]) -> None:
        path = self.directory / name
        path.touch(0o600)
        path.write_text(json.dumps(content))
        self.environ[variable] = str(path)

    def give(self, layer: str, name: str, value: str) -> str:
        """Give an option in a layer; returns the words for that place."""
        variable, toml = f"D7YFS_{name.upper()}", self.toml
        match layer:
            case "option":
                self.flags[name] = value
                return f"--{name.replace('_', '-')}"
            case "variable":
                self.environ[variable] = value
                return variable
            case "file of variables":
                file = self.directory / "models.env"
                file.write_text(f"# systemd's EnvironmentFile=\n{variable}={json.dumps(value)}\n")
                self.environ |= read_variables(file)
                return variable
            case "settings file":
                toml.write_text(f"{name} = {json.dumps(value)}\n")
                return str(toml)
        toml.write_text(f'[repositories.a]\nurl = "s3://bucket"\n{name} = {json.dumps(value)}\n')
        return f"{toml}: [repositories.a]"

    def refusal(self, *sources: str) -> str:
        if "[repositories" in self.toml.read_text():
            sources = ()
        with pytest.raises(ConfigError) as caught:
            open_repositories(load_settings(self.flags, sources, None, self.environ, self.toml))
        return caught.value.message


@pytest.fixture
def layers(tmp_path: Path) -> Layers:
    return Layers(tmp_path)


LAYERS = ["option", "variable", "file of variables", "settings file", "table of a repository"]


@pytest.mark.parametrize("layer", LAYERS)
def test_a_value_that_cannot_be_read(layers: Layers, layer: str) -> None:
    place = layers.give(layer, "p2p_priority", "high")
    said = layers.refusal("s3://bucket")
    assert said.startswith((f"{place} 'high' is not ", f"{place}: p2p_priority = 'high' is not "))


@pytest.mark.parametrize("layer", LAYERS)
def test_a_value_that_cannot_be_used(layers: Layers, layer: str) -> None:
    layers.flags["proxy"] = "http://127.0.0.1:4001"
    place = layers.give(layer, "p2p_secret_file", "/absent")
    said = "p2p_secret_file: /absent cannot be read: No such file or directory"
    assert layers.refusal("s3://bucket") == f"{said} (p2p_secret_file is from {place})"


def test_two_values_that_contradict_each_other(layers: Layers) -> None:
    layers.flags["endpoint_url"] = "http://127.0.0.1:9"
    layers.toml.write_text("dual_stack = true\n")
    places = f"dual_stack is from {layers.toml}, endpoint_url is from --endpoint-url"
    assert layers.refusal("s3://bucket").endswith(f"but the endpoint is http://127.0.0.1:9 ({places})")


def test_what_triton_and_its_agent_give(layers: Layers) -> None:
    layers.write_json("keys.json", "TRITON_CLOUD_CREDENTIAL_PATH", {"s3": {"": {"key_id": 5}}})
    assert layers.refusal("s3://bucket") == f'{layers.directory}/keys.json: s3[""].key_id has the wrong type'
    layers.write_json(
        "keys.json", "TRITON_CLOUD_CREDENTIAL_PATH", {"as": {"": {"account_str": "account", "account_key": "%"}}}
    )
    said = layers.refusal(CONTAINER)
    assert said.endswith(f' is not in base64 (credentials are from {layers.directory}/keys.json, key "")')
    layers.environ.pop("TRITON_CLOUD_CREDENTIAL_PATH")
    layers.write_json("agent.json", "TRITON_DRAGONFLY_CONFIG_PATH", {"proxy": "ftp://h"})
    assert layers.refusal("s3://bucket").startswith(f'{layers.directory}/agent.json: "proxy" ')


@pytest.mark.parametrize("variable", ["AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CONNECTION_STRING"])
def test_credentials_that_are_none(layers: Layers, variable: str) -> None:
    layers.environ |= {"AZURE_STORAGE_ACCOUNT": "account"} if variable.endswith("TOKEN") else {}
    layers.environ[variable] = "se=2030" if variable.endswith("TOKEN") else "SharedAccessSignature=se=2030"
    said = layers.refusal(CONTAINER)
    assert said == f"the shared access signature has no sig=… (credentials are from {variable})"


def test_repositories_without_names(layers: Layers) -> None:
    layers.environ["D7YFS_SOURCE"] = "s3://one s3://two"
    assert layers.refusal() == "D7YFS_SOURCE: several repositories need a name each"
    layers.environ["D7YFS_SOURCE"] = "a=s3://one a=s3://two"
    assert layers.refusal() == "D7YFS_SOURCE: repository name 'a' is given twice"
