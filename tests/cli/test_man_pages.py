"""The pages of the manual: they are those of this command line, have everything, and can be read."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from d7yfs.cli import COMMANDS
from d7yfs.cli.mount_helper import REFUSED
from d7yfs.config.schema import OPTIONS
from scripts import man_pages

PAGES = sorted(man_pages.MAN.iterdir())
# Each renders a page as text on stdout, and its complaints on stderr.
RENDERERS = {
    "man": ("man", "--warnings", "--no-hyphenation", "--no-justification", "-E", "UTF-8", "-l"),
    "groff": ("groff", "-ww", "-k", "-man", "-Tutf8", "-P-cbou"),
    "mandoc": ("mandoc", "-Tutf8", "-Wwarning"),
}


def test_they_are_those_of_this_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert [page.name for page in PAGES] == ["d7yfs.1", "mount.d7yfs.8"]
    assert man_pages.main(["--check"]) == 0, capsys.readouterr().out


def rendered(page: Path) -> dict[str, str]:
    """The text of a page by each program that can show it, with one blank between words."""
    environment = os.environ | {"MANWIDTH": "1000", "LC_ALL": "C.UTF-8", "MANPAGER": "cat"}
    texts = {}
    for name, command in RENDERERS.items():
        if shutil.which(name):
            done = subprocess.run([*command, page], capture_output=True, text=True, env=environment, timeout=60)
            assert (done.returncode, done.stderr) == (0, ""), name
            texts[name] = " ".join(done.stdout.replace("\N{HYPHEN}", "-").split())
    return texts


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_they_can_be_read_without_a_warning(page: Path) -> None:
    for text in rendered(page).values():
        assert "NAME" in text
        assert not {"\\", "\b"} & set(text)


def test_every_command_and_every_setting_is_there() -> None:
    for text in rendered(man_pages.MAN / "d7yfs.1").values():
        words = set(text.split())
        assert not [name for name in COMMANDS if f"d7yfs {name}" not in text]
        assert not [each.flag for each in OPTIONS.values() if not {each.flag, each.off_flag} & words]
    for text in rendered(man_pages.MAN / "mount.d7yfs.8").values():
        known = {word.partition("=")[0] for word in text.split()}
        spelled = {
            each.name: {each.name, f"no_{each.name}", each.off_flag[2:].replace("-", "_")} for each in OPTIONS.values()
        }
        assert [name for name in spelled if not spelled[name] & known] == [name for name in REFUSED if name in OPTIONS]
