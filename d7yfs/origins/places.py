"""The places where credentials were looked for in vain, each in a line of words: whoever has set some
sees which place they did not reach. No line holds a value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from d7yfs.errors import AccessDenied


def describe_variable(name: str, environ: Mapping[str, str]) -> str:
    """The variable, and whether it is set."""
    return f"{name} {'is set, and is not enough' if environ.get(name) else 'is not set'}"


def describe_file(path: Path, *, lacks: str, is_trusted: bool = True) -> str:
    """The file, and why nothing came from it; `lacks`: what one that is there does not have."""
    if not is_trusted:
        return f"{path} is ignored, because other users can write in the home directory"
    try:
        path.stat()
    except FileNotFoundError:
        return f"{path} does not exist"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror}"
    return f"{path} has no {lacks}"


def none_found(subject: str, give: str, places: Iterable[str]) -> AccessDenied:
    """The error that there are no credentials. `give` says how to give some."""
    return AccessDenied(
        f"{subject}: no credentials were found", hint="\n  ".join([f"{give}. These places have none:", *places])
    )
