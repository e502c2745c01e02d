"""The keys of a repository that no mount can show, for `d7yfs check`: each kind with its number. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from d7yfs.check.findings import Finding, count, examples, warning
from d7yfs.check.sample import Sample
from d7yfs.tree.listing import DirectoryListing

_KINDS = {
    "empty path segment": ("an empty path segment", "no key may have // in it"),
    "path segment": ("a path segment that is . or ..", "a path cannot have it"),
    "NUL": ("NUL in the name", "no name may have it"),
    "name is not": ("a name that is not valid Unicode", "names are UTF-8"),
    "name of": ("a name that is too long", "a name has 255 bytes at most"),
    "key of": ("a key that is too long", "a key has 1,024 characters at most"),
    "in ": ("too many directories above", "256 at most"),
    "a directory has": ("the name of a directory", "of `a` and `a/b` the directory is shown"),
    "the store lists": ("a size, a date or an ETag that no file can have", "upload the object again"),
    "": ("a key that is outside of the listed prefix", "the store answers for another prefix"),
}
"""The beginnings of the reasons in `tree.listing`: each kind in words, and what to know of it."""


def check_hidden(where: str, listing: DirectoryListing, sample: Sample) -> Iterator[Finding]:
    """A warning for each kind of key that cannot be shown: those of the top directory, and of the sample."""
    found = {each.key: each.reason for each in (*listing.hidden, *sample.hidden)}
    kinds: defaultdict[str, list[str]] = defaultdict(list)
    for key, reason in found.items():
        kinds[next(kind for kind in _KINDS if reason.startswith(kind))].append(key)
    for kind, keys in kinds.items():
        words, hint = _KINDS[kind]
        names = [f"{key!r}: {found[key]}" for key in keys]
        said = f"{where}: {count(len(keys), 'key', 'keys')} cannot be shown, with {words}: {examples(list(map(repr, keys)))}"
        yield warning("names", said, f"rename them; {hint}", names)
