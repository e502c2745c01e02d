"""The names that d7yfs keeps for itself in a repository, which no mount shows. Pure.

`d7yfs publish` writes below a directory of this name (see `published`). It is hidden wherever it is:
a mount of a prefix above a published one must not show it either.
"""

from __future__ import annotations

from dataclasses import replace

from d7yfs.objects import ListingPage

RESERVED = ".d7yfs/"
"""The directory that is hidden, with all below it."""
_BELOW = f"/{RESERVED}"


def is_reserved(path: str) -> bool:
    """True if a path, relative to the repository, is or lies in such a directory. A directory's ends
    in a slash."""
    return path.startswith(RESERVED) or _BELOW in path


def hide_reserved(page: ListingPage, base: str) -> ListingPage:
    """A page of a listing without what is reserved below the repository's prefix, `base`."""
    objects = page.objects
    if any(RESERVED in each.key for each in objects):
        objects = tuple(each for each in objects if not is_reserved(each.key.removeprefix(base)))
    prefixes = page.prefixes
    if any(RESERVED in each for each in prefixes):
        prefixes = tuple(each for each in prefixes if not is_reserved(each.removeprefix(base)))
    if objects is page.objects and prefixes is page.prefixes:
        return page
    return replace(page, objects=objects, prefixes=prefixes, left_out=page.left_out + len(page.objects) - len(objects))
