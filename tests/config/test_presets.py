"""`--for`: the settings of each server, their source, and what wins over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from d7yfs.config.presets import PRESETS, preset_layer
from d7yfs.config.schema import ANY_SERVER, OPTIONS
from d7yfs.config.sources import Settings, load_settings


def load(
    flags: dict[str, object] | None = None, environ: dict[str, str] | None = None, toml: Path | None = None
) -> Settings:
    given = {"profile": "x"} | (flags or {})
    return load_settings(given, ["s3://b/models"], Path("/mnt"), environ or {}, toml, here=Path("/"))


@pytest.mark.parametrize("server", PRESETS)
def test_each_server_has_settings_that_can_be_read(server: str) -> None:
    explained = load({"for": server}).explain()
    assert explained["for"] == {"value": server, "from": "--for"}
    for name, value in preset_layer(server).items():
        assert explained[name] == {"value": OPTIONS[name].kind.show(value.value), "from": f"--for {server}"}
    others = {name for name, row in explained.items() if row["from"] == f"--for {server}"}
    assert others == preset_layer(server).keys()


def test_the_option_names_the_servers() -> None:
    assert OPTIONS["for"].kind.choices == tuple(PRESETS)
    assert OPTIONS["for"].kind.unset == ANY_SERVER


def test_without_it_nothing_is_chosen() -> None:
    assert (
        load().config.repositories[0].revalidate_on_open
        == load({"for": "any"}).config.repositories[0].revalidate_on_open
    )
    assert not load().config.repositories[0].revalidate_on_open


def test_whatever_is_given_wins(tmp_path: Path) -> None:
    toml = tmp_path / "d7yfs.toml"
    toml.write_text('for = "vllm"\nopen_wait = "2s"\n')
    by_file = load(toml=toml)
    assert by_file.config.open_wait_s == 2
    assert by_file.config.noexec
    assert by_file.provenance["noexec"] == "--for vllm"
    assert str(by_file.config.repositories[0].revalidate_on_open) == "config.json"
    by_variable = load(environ={"D7YFS_REVALIDATE_ON_OPEN": "x"}, toml=toml)
    assert str(by_variable.config.repositories[0].revalidate_on_open) == "x"
    assert load({"noexec": False}, toml=toml).config.noexec is False
    assert load({"for": "triton"}, {"D7YFS_FOR": "torchserve"}, toml).config.noexec is False


def test_a_repository_of_a_file_has_its_own(tmp_path: Path) -> None:
    toml = tmp_path / "d7yfs.toml"
    toml.write_text(
        'for = "triton"\nmountpoint = "/mnt"\nprofile = "x"\n[repositories.a]\nurl = "s3://a"\n'
        '[repositories.b]\nurl = "s3://b"\nrevalidate_on_open = "x"\n'
    )
    settings = load_settings({}, [], None, {}, toml, here=Path("/"))
    assert [str(each.revalidate_on_open) for each in settings.config.repositories] == ["config.pbtxt", "x"]
    assert settings.provenance["a.revalidate_on_open"] == "--for triton"
