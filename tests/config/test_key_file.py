"""Files of variables with keys: what systemd reads is read, and no message has a value."""

from __future__ import annotations

from pathlib import Path

import pytest

from d7yfs.config.key_file import read_variables
from d7yfs.errors import ConfigError


def test_lines_as_systemd_has_them(tmp_path: Path) -> None:
    file = tmp_path / "models.env"
    file.write_text(
        "# keys\n; of models\n\nAWS_ACCESS_KEY_ID=AKIA\n  AWS_SECRET_ACCESS_KEY = x\n".replace(" = ", "= ")
        + 'A=\'it is "so"\'\nB="it\'s"\nC=a b=c \nD=\n'
    )
    assert read_variables(file) == {
        "AWS_ACCESS_KEY_ID": "AKIA",
        "AWS_SECRET_ACCESS_KEY": "x",
        "A": 'it is "so"',
        "B": "it's",
        "C": "a b=c",
        "D": "",
    }


@pytest.mark.parametrize(
    "line", ["SECRET", "1A=SECRET", "A B=SECRET", "A='SECRET", 'A="SECRET', "=SECRET", "A=SEC\\RET"]
)
def test_a_wrong_line_is_named_and_not_shown(tmp_path: Path, line: str) -> None:
    file = tmp_path / "models.env"
    file.write_text(f"GOOD=1\n{line}\n")
    with pytest.raises(ConfigError, match="line 2: is no KEY=value") as caught:
        read_variables(file)
    assert "SEC" not in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_variables(tmp_path / "none")
    with pytest.raises(ConfigError, match="no regular file"):
        read_variables(Path("/dev/null"))
    (tmp_path / "binary").write_bytes(b"A=\xff")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        read_variables(tmp_path / "binary")
