"""The effect of `include`, `exclude` and `publish_marker` on a repository, for `d7yfs check`: each
with its matches.

A filter that matches nothing, or hides everything, is nearly always a typo, and a mount would show
it as an empty directory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from d7yfs.check.findings import Finding, ok, warning
from d7yfs.config.globs import Globs
from d7yfs.objects import ObjectVersion
from d7yfs.repository.repository import Repository
from d7yfs.tree.visibility import Visibility

_NAMED = 3


def check_filters(repository: Repository, objects: Collection[ObjectVersion], *, complete: bool) -> Iterator[Finding]:
    """A line on all filters, and a warning for each that looks wrong, by these objects: the
    repository's first ones, or all if `complete`."""
    if not repository.visibility.hides_any:
        return
    keys = [version.key for version in objects if not version.key.endswith("/")]
    config, visibility = repository.config, repository.visibility
    where, base = str(config.url), config.url.prefix
    known = set(keys)
    last = "" if complete else max(keys, default="")
    markers = {
        each: marker
        for each in _directories(keys)
        if (marker := visibility.marker_of(each)) and not visibility.hides(each)
    }
    # A directory that was not read to its end is not judged.
    missing = {each for each, marker in markers.items() if marker not in known and not last.startswith(each)}
    shown = [key for key in keys if not visibility.hides(key) and missing.isdisjoint(_directories([key]))]
    of = f"{len(keys)} objects" if complete else f"the first {len(keys)} objects"
    said = [f"{where}: {len(shown)} of {of} are shown"]
    for glob in config.exclude.globs:
        alone = Visibility(base, exclude=Globs((glob,)))
        said.append(f"exclude {glob} hides {sum(map(alone.hides, keys))}")
    idle = []
    for glob in config.include.globs:
        alone = Visibility(base, include=Globs((glob,)))
        count = sum(not alone.hides(key) for key in keys)
        said.append(f"include {glob} matches {count}")
        if not count:
            idle.append(glob)
    if config.publish_marker:
        named = ", ".join(sorted(missing)[:_NAMED]) + (", …" if len(missing) > _NAMED else "")
        said.append(
            f"publish marker {config.publish_marker}: {len(markers) - len(missing)} directories have it, "
            f"{len(missing)} do not" + (f" ({named})" if named else "")
        )
    if keys and not shown:
        hint = "the mount would look empty: this line says what hides what; upload missing markers"
        yield warning("filters", "; ".join(said), hint)
    else:
        yield ok("filters", "; ".join(said))
    if keys and idle:
        hint = "a glob with a slash is matched with the path below the URL's prefix, one without with the name; case matters"
        yield warning("filters", f"{where}: include {', '.join(idle)} matches none of {of}", hint)
    if config.publish_marker and not markers and keys:
        hint = "READY means the directories at the top, */*/READY those below them"
        yield warning("filters", f"{where}: publish marker {config.publish_marker} matches no directory", hint)


def _directories(keys: Collection[str]) -> set[str]:
    """All directories that contain the keys."""
    found: set[str] = set()
    for key in keys:
        while (key := key[: key.rfind("/", 0, -1) + 1]) and key not in found:
            found.add(key)
    return found
