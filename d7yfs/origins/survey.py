"""The survey of a repository's prefix before a mount, for `ls` and for `check`, by any `Origin`.

Owns the answer to "is this a repository?". An absent prefix must not mount as an empty directory:
model servers take that for a healthy empty repository. So the answer names the prefixes nearby.
"""

from __future__ import annotations

import difflib
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial

from d7yfs.bounds.paging import Paging
from d7yfs.errors import AccessDenied, D7yfsError, NotFound
from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.origins.origin import Origin
from d7yfs.origins.rest import ask_again

_FIRST = 20
"""The entries that the first listing asks for. More than one, as a marker of the directory is none."""
_NEAREST = 5
_PAGES = 3
_LEVELS = 8
"""Bounds on the search for neighbours: names, pages per level, and levels before the top."""


@dataclass(frozen=True, slots=True)
class FoundDirectory:
    """A prefix with at least one key under it; empty (the whole bucket) or with a final slash."""

    prefix: str
    first: tuple[str, ...] = field(default=(), compare=False)
    """The directories among its first entries."""


@dataclass(frozen=True, slots=True)
class SingleObject:
    """A prefix that is the key of one object and no directory."""

    version: ObjectVersion


@dataclass(frozen=True, slots=True)
class Empty:
    """A prefix with no key under it, or only the directory's own marker."""

    nearest: tuple[str, ...]
    """Existing prefixes without trailing slash, the likeliest first."""


async def survey(origin: Origin, prefix: str) -> FoundDirectory | SingleObject | Empty:
    """The kind of thing at `prefix` (slashes around it do not matter), by a bounded number of
    requests.

    Where `a` and `a/…` exist it is the directory. Credentials that may not list may still read an
    object by its key. Raises what `Origin.list` and `Origin.stat` raise.
    """
    prefix = prefix.strip("/")
    directory = f"{prefix}/" if prefix else ""
    try:
        async with aclosing(list_all(origin, directory, page_size=_FIRST)) as pages:
            async for page in pages:
                if page.prefixes or any(version.key != directory for version in page.objects):
                    return FoundDirectory(directory, page.prefixes)
    except AccessDenied as denied:
        if prefix:
            with suppress(D7yfsError):
                return SingleObject(await origin.stat(prefix))
        raise denied
    if not prefix:
        return Empty(())
    try:
        return SingleObject(await origin.stat(prefix))
    except NotFound:
        return Empty(await _nearest(origin, prefix))


async def list_all(
    origin: Origin, prefix: str, *, delimiter: str = "/", page_size: int = 1000
) -> AsyncGenerator[ListingPage, None]:
    """Every page of a listing in order. Use `contextlib.aclosing` if you leave early.

    Raises as `Origin.list`, and BadReply for a listing that does not end.
    """
    token, paging = "", Paging(f"{origin.url}/{prefix}")
    while True:
        page = await ask_again(partial(origin.list, prefix, delimiter=delimiter, token=token, page_size=page_size))
        paging.add_page(page)
        yield page
        token = page.next_token
        if not token:
            return


async def _nearest(origin: Origin, prefix: str) -> tuple[str, ...]:
    """Siblings at the lowest existing ancestor of `prefix`, by likeness.

    The ancestor itself when it has only files.
    """
    segments = prefix.split("/")
    for depth in [*range(len(segments) - 1, 0, -1)[:_LEVELS], 0]:
        parent = "/".join(segments[:depth])
        try:
            names, exists = await _children(origin, f"{parent}/" if parent else "")
        except (AccessDenied, NotFound):
            return ()  # a policy may allow listing below one prefix only
        if depth == len(segments) - 1:
            names = [name for name in names if name != segments[depth]]  # it holds only its own marker
        if names:
            ranked = sorted(names, key=lambda name: (-_likeness(name, segments[depth]), name))
            return tuple(f"{parent}/{name}" if parent else name for name in ranked[:_NEAREST])
        if exists and parent:
            return (parent,)
    return ()


async def _children(origin: Origin, directory: str) -> tuple[list[str], bool]:
    """Names of the directories right under `directory`, and True if it holds anything at all."""
    names: list[str] = []
    exists = False
    async with aclosing(list_all(origin, directory)) as pages:
        count = 0
        async for page in pages:
            names += [each[len(directory) :].rstrip("/") for each in page.prefixes]
            exists = exists or bool(page.objects or page.prefixes)
            count += 1
            if count == _PAGES:
                break
    return [name for name in names if name], exists


def _likeness(one: str, other: str) -> float:
    return difflib.SequenceMatcher(None, one.lower(), other.lower()).ratio()
