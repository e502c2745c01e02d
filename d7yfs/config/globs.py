"""Globs that options name files by. Pure.

A glob with a slash is held against the file's path below the repository's directory in the mount; one without against the file's name.
`*` matches anything, slashes too (fnmatch(3) without FNM_PATHNAME); a slash at the beginning only anchors: `/config.json` is that one file.
Upper and lower case differ, as they do in the store. In a list a glob cannot hold a comma; `?` stands in for one.

`matches` is the rule, shared by all options that hold globs (`p2p` too); `Globs` is the type of those that are a list of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


def matches(glob: str, path: str) -> bool:
    """Whether `glob` is about the file at `path`, relative to the repository's directory, without a slash at its beginning."""
    return fnmatchcase(path, glob.removeprefix("/")) if "/" in glob else fnmatchcase(path.rpartition("/")[2], glob)


@dataclass(frozen=True, slots=True)
class Globs:
    """A comma list of globs; `str` is its normal form, which `parse` reads back. False when it is empty."""

    globs: tuple[str, ...] = ()

    @classmethod
    def parse(cls, value: object) -> Globs:
        """Read the option. The empty text is the empty list. Raises ValueError (see `Kind.parse`)."""
        if isinstance(value, Globs):
            return value
        if not isinstance(value, str):
            raise ValueError("has the wrong type; allowed: text in quotes, globs with commas between them")
        return cls(tuple(filter(None, map(str.strip, value.split(",")))))

    def match(self, path: str) -> bool:
        """Whether one of them is about the file at `path` (see `matches`)."""
        return any(matches(glob, path) for glob in self.globs)

    def __bool__(self) -> bool:
        return bool(self.globs)

    def __str__(self) -> str:
        return ",".join(self.globs)
