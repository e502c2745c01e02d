"""Variables from a file, for credentials above all: `KEY=value` lines, as systemd's EnvironmentFile= takes
them (systemd.exec(5)). So one file serves a unit and a line of fstab.

A message names the file and the line, and never a value. Called by the command line.
"""

from __future__ import annotations

import re
from pathlib import Path

from d7yfs.config.settings_file import read_text
from d7yfs.errors import ConfigError

_LINE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=\s*(?:'([^']*)'|\"([^\"\\]*)\"|([^'\"\\]*?))\s*")


def read_variables(path: Path) -> dict[str, str]:
    """The variables in the file. Raises ConfigError."""
    found = {}
    for number, line in enumerate(map(str.strip, read_text(path, "--credentials").splitlines()), 1):
        if not line or line.startswith(("#", ";")):
            continue
        if (match := _LINE.fullmatch(line)) is None:
            raise ConfigError(
                f"{path}, line {number}: is no KEY=value",
                hint="write AWS_ACCESS_KEY_ID=… and the like, one in each line; quote a value with \" or ' in it",
            )
        found[match[1]] = next(value for value in match.groups()[1:] if value is not None)
    return found
