"""Globs by which options name files. Pure.

A glob with a slash is matched with the file's path below the repository's directory in the mount;
one without, with the file's name. `*` matches anything, slashes too (fnmatch(3) without
FNM_PATHNAME). A leading slash only anchors: `/config.json` is that one file. Upper and lower case
differ, as in the store. In a list, a glob cannot hold a comma; write `?` for one.

`matches` is the rule of all options that hold globs (`p2p` too); `Globs` is the type of the options
that are a list of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate


def matches(glob: str, path: str) -> bool:
    """True if `glob` matches the file at `path`, relative to the repository's directory."""
    return fnmatchcase(path, glob.removeprefix("/")) if "/" in glob else fnmatchcase(path.rpartition("/")[2], glob)


@dataclass(frozen=True, slots=True)
class Globs:
    """A comma-separated list of globs; `str` is its normal form. False when it is empty."""

    globs: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Globs:
        """Read the option; empty text is the empty list."""
        return cls(tuple(filter(None, map(str.strip, text.split(",")))))

    def match(self, path: str) -> bool:
        """True if one of them matches the file at `path` (see `matches`)."""
        return any(matches(glob, path) for glob in self.globs)

    def of_names(self) -> Callable[[str], bool]:
        """A fast `match` of globs without a slash, which takes a whole key or path."""
        if not self.globs:
            return lambda _key: False
        name = re.compile("|".join(map(translate, self.globs)))
        return lambda key: name.match(key, key.rfind("/") + 1) is not None

    def __bool__(self) -> bool:
        return bool(self.globs)

    def __str__(self) -> str:
        return ",".join(self.globs)
