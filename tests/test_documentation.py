"""All that the documentation tells people to type is understood: commands, settings files, fstab
lines, make targets, modules. They are parsed as their programs parse them, and not run;
tests/container/test_documentation.py runs some as written.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from d7yfs.cli import main
from d7yfs.cli.mount_helper import translate
from d7yfs.config.sources import load_settings

ROOT = Path(__file__).parent.parent
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "bench/README.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)
_BLOCK = re.compile(r"(?:(?<=\n\n)|(?<=:\n))(?: {4,}.*\n|\n(?= {4}))+")
_SETTING = re.compile(r"^[a-z_]+ *= *[\"\d\[{tf]", re.MULTILINE)
"""A line of TOML, unlike one of a unit or a shell."""
_OURS = re.compile(r"(?:sudo +|\S+=\S+ +)*(?:\.venv/bin/)?d7yfs +")


def blocks() -> Iterator[tuple[str, str]]:
    """Place and text of each block of code."""
    for page in PAGES:
        text = page.read_text()
        for found in _BLOCK.finditer(text):
            line = text[: found.start()].count("\n") + 1
            yield f"{page.relative_to(ROOT)}:{line}", textwrap.dedent(found[0]).strip("\n") + "\n"


def lines(pattern: str) -> list[tuple[str, str]]:
    """Place and text of each line of a block that begins so, with what continues it."""
    return [
        (place, line)
        for place, text in blocks()
        for line in text.replace("\\\n", " ").splitlines()
        if re.match(pattern, line)
    ]


COMMANDS = lines(_OURS.pattern + r"[a-z-]+(?: |$)")
SETTINGS = [(place, text) for place, text in blocks() if _SETTING.search(text) and "models.toml" in text]
FSTAB = lines(r"\S+ +/\S+ +d7yfs +\S+ ")
MAKE = lines("(?:sudo )?make ")
MODULES = lines(r"(?:\S+=\S+ )*\S*python -m ")


def test_there_are_some_of_each() -> None:
    assert len(COMMANDS) > 50
    assert len(SETTINGS) >= 3
    assert len(FSTAB) >= 2
    assert len(MAKE) > 10
    assert len(MODULES) > 5


def words(line: str) -> list[str]:
    """The words of a command: without a comment, what follows a pipe, and the brackets of what may be
    left out."""
    command = shlex.split(_OURS.sub("", re.split(r" \||[;>&]", line)[0], count=1), comments=True)
    return [word.strip("[]") for word in command if word not in ("…", "...")]


@pytest.mark.parametrize(("place", "line"), COMMANDS)
def test_a_command(place: str, line: str) -> None:
    assert place
    name, *arguments = words(line)
    command = main.get_command(main.make_context("d7yfs", ["status"]), name)
    while command is not None and hasattr(command, "commands"):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    assert command is not None, line
    command.make_context(name, arguments)


@pytest.mark.parametrize(("place", "text"), SETTINGS)
def test_a_settings_file(place: str, text: str, tmp_path: Path) -> None:
    assert place
    path, bundle = tmp_path / "models.toml", tmp_path / "ca.pem"
    path.write_text(re.sub(r'(?<=ca_bundle = )"[^"]+"', f'"{bundle}"', text))
    bundle.touch()
    path.chmod(0o600)
    load_settings({}, (), None, {}, path, triton_home=tmp_path, endpoint_file=tmp_path / "none")


@pytest.mark.parametrize(("place", "line"), FSTAB)
def test_a_line_of_fstab(place: str, line: str) -> None:
    assert place
    source, point, _, options = line.split()[:4]
    name, *arguments = translate([source, point, "-o", options])
    command = main.get_command(main.make_context("d7yfs", ["status"]), name)
    assert command is not None
    command.make_context(name, arguments)


@pytest.mark.parametrize(("place", "line"), MAKE)
def test_a_target(place: str, line: str) -> None:
    assert place
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = [word for word in shlex.split(line, comments=True) if re.fullmatch("[a-z-]+", word)]
    assert set(named) - {"sudo", "make"} <= targets


@pytest.mark.parametrize(("place", "line"), MODULES)
def test_a_module(place: str, line: str) -> None:
    assert place
    found = re.search(r"-m (\S+)", line)
    assert found is not None
    assert importlib.util.find_spec(found[1]) is not None
