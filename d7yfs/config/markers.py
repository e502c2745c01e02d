"""Which directories wait for an object that says they are complete: the option `publish_marker`. Pure.

Its text is a comma list of [DIRGLOB/]NAME. DIRGLOB is held against a directory's path below the repository's directory, name by name, so
that it tells at which depth: `*/*/READY` is about `resnet/2` and neither about `resnet` nor about `resnet/2/variables`. A bare NAME is
about the directories at the top, as `*/NAME` is. The first one that is about a directory counts.

Called by `schema` (as the option's type) and by `visibility`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

ALLOWED = "allowed: a name such as READY, or one with the directories that need it, such as */*/READY"


@dataclass(frozen=True, slots=True)
class Markers:
    """The option's value; `str` is its normal form, which `parse` reads back. False when no directory needs a marker."""

    rules: tuple[tuple[tuple[str, ...], str], ...] = ()
    """(a glob for each name of the directory's path, name of the object)."""

    @classmethod
    def parse(cls, value: object) -> Markers:
        """Read the option. The empty text is no marker. Raises ValueError (see `Kind.parse`)."""
        if isinstance(value, Markers):
            return value
        if not isinstance(value, str):
            raise ValueError("has the wrong type; allowed: text in quotes")
        return cls(tuple(_rule(part) for part in map(str.strip, value.split(",")) if part))

    def name_for(self, path: str) -> str:
        """Name of the object that the directory at `path` needs (relative to the repository's, no slash around it); empty when none."""
        names = path.split("/")
        for globs, marker in self.rules:
            if len(globs) == len(names) and all(map(fnmatchcase, names, globs)):
                return marker
        return ""

    def __bool__(self) -> bool:
        return bool(self.rules)

    def __str__(self) -> str:
        return ",".join("/".join((*globs, marker)) for globs, marker in self.rules)


def _rule(text: str) -> tuple[tuple[str, ...], str]:
    directory, _, marker = text.rpartition("/")
    if text.startswith("/") and not directory:
        raise ValueError(f"is about the repository's own directory, which is always shown; {ALLOWED}")
    if not marker:
        raise ValueError(f"ends in a slash, and so names no object; {ALLOWED}")
    if any(character in marker for character in "*?[") or marker in (".", ".."):
        raise ValueError(f"is no name of one object; {ALLOWED}")
    globs = tuple(directory.removeprefix("/").split("/")) if directory else ("*",)
    if "" in globs:
        raise ValueError(f"has two slashes beside each other; {ALLOWED}")
    if "**" in globs:
        raise ValueError(f"has **, but each * stands for one directory here; {ALLOWED}")
    return globs, marker
