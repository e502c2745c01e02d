"""The option `p2p`: which files go through Dragonfly, and how strictly. Pure.

Its text is a comma-separated list of GLOB=MODE, where the first match wins, and at most one bare
MODE for all other files (else `auto`): `*.json=never,*.safetensors=always,auto`. `globs` says what
a glob matches.

Called by `schema` (as the option's type) and, once per opened version, by `daemon`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from d7yfs.config.globs import matches

ALLOWED = "allowed: always, auto or never, for some files as GLOB=MODE, such as *.json=never,*.safetensors=always,auto"


class Mode(Enum):
    """How much of a file's data goes through dfdaemon, where one is configured."""

    AUTO = "auto"
    """Files over 4 MiB, except for a bounded part that a reader waits for."""
    ALWAYS = "always"
    """Every byte, even of small files and of the part that a reader waits for."""
    NEVER = "never"
    """Nothing, as if no dfdaemon were configured."""


@dataclass(frozen=True, slots=True)
class P2p:
    """The option's value; `str` is its normal form, which `parse` reads back."""

    rules: tuple[tuple[str, Mode], ...] = ()
    """(glob, mode); the first match counts."""
    default: Mode = Mode.AUTO

    @classmethod
    def parse(cls, text: str) -> P2p:
        """Read the option. The empty text is the default. Raises ValueError (see `Kind.parse`)."""
        rules: list[tuple[str, Mode]] = []
        bare: list[Mode] = []
        for part in filter(None, map(str.strip, text.split(","))):
            glob, separator, word = part.rpartition("=")
            mode = _mode(word)
            if not separator:
                bare.append(mode)
            elif glob := glob.rstrip():
                rules.append((glob, mode))
            else:
                raise ValueError(f"has no glob before an equals sign; {ALLOWED}")
        if len(bare) > 1:
            raise ValueError(f"names more than one mode for all other files; {ALLOWED}")
        return cls(tuple(rules), *bare)

    def mode_of(self, path: str) -> Mode:
        """The mode of the file at `path`, relative to the repository's directory."""
        for glob, mode in self.rules:
            if matches(glob, path):
                return mode
        return self.default

    def __str__(self) -> str:
        return ",".join([*(f"{glob}={mode.value}" for glob, mode in self.rules), self.default.value])


def _mode(word: str) -> Mode:
    try:
        return Mode(word.strip().lower())
    except ValueError:
        raise ValueError(f"names an unknown mode; {ALLOWED}") from None
