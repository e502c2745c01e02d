"""The option `publish_marker`: which directories stay hidden until an object says that they are
complete. Pure.

Its text is a comma-separated list of [DIRGLOB/]NAME. DIRGLOB is matched name by name with a
directory's path below the repository's directory, so it fixes the depth. `*/*/READY` means
`resnet/2`, and neither `resnet` nor `resnet/2/variables`. A bare NAME means the directories at the
top, as `*/NAME` does. The first one that matches a directory counts.

Called by `schema` (as the option's type) and by `visibility`.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

ALLOWED = "allowed: a name such as READY, or one with its directories, such as */*/READY"


@dataclass(frozen=True, slots=True)
class Markers:
    """The option's value; `str` is its normal form. False when no directory needs a marker."""

    rules: tuple[tuple[tuple[str, ...], str], ...] = ()
    """(a glob for each name of the directory's path, name of the object)."""

    @classmethod
    def parse(cls, text: str) -> Markers:
        """Read the option. The empty text is no marker. Raises ValueError (see `Kind.parse`)."""
        return cls(tuple(_rule(part) for part in map(str.strip, text.split(",")) if part))

    def name_for(self, path: str) -> str:
        """The object that the directory at `path` (no slash around it) needs; empty for none."""
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
        raise ValueError(f"means the repository's own directory, which is always shown; {ALLOWED}")
    if not marker:
        raise ValueError(f"ends in a slash, so it names no object; {ALLOWED}")
    if any(character in marker for character in "*?[") or marker in (".", ".."):
        raise ValueError(f"is not the name of one object; {ALLOWED}")
    globs = tuple(directory.removeprefix("/").split("/")) if directory else ("*",)
    if "" in globs:
        raise ValueError(f"has two slashes in a row; {ALLOWED}")
    if "**" in globs:
        raise ValueError(f"has **, but each * stands for one directory; {ALLOWED}")
    return globs, marker
