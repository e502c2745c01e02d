"""What `include`, `exclude` and `publish_marker` do to a repository, for `d7yfs check`: each glob and marker with what it matches.

A filter that matches nothing, or hides everything, is nearly always a typo, and a mount would show it as an empty directory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import aclosing

from d7yfs.check.findings import Finding, Verdict, failed
from d7yfs.config.globs import Globs
from d7yfs.errors import D7yfsError
from d7yfs.origins.survey import list_all
from d7yfs.repository.repository import Repository
from d7yfs.tree.visibility import Visibility

_PAGES = 20
_NAMED = 3


async def check_filters(repository: Repository, prefix: str) -> list[Finding]:
    """One line for the whole, and a warning for each filter that looks wrong; nothing where none are set. At most twenty requests."""
    if not repository.visibility:
        return []
    try:
        keys, complete = await _keys(repository, prefix)
    except D7yfsError as error:
        return [failed("filters", error)]
    return list(judge(repository, keys, complete=complete))


async def _keys(repository: Repository, prefix: str) -> tuple[list[str], bool]:
    """The first objects under `prefix`, hidden or not, and whether these are all; the one object where it is a key."""
    if prefix and not prefix.endswith("/"):
        return [prefix], True
    keys: list[str] = []
    async with aclosing(list_all(repository.origin, prefix, delimiter="")) as pages:
        count = 0
        async for page in pages:
            keys += [version.key for version in page.objects if not version.key.endswith("/")]
            count += 1
            if count == _PAGES or not page.next_token:
                return keys, not page.next_token
    return keys, True


def judge(repository: Repository, keys: Collection[str], *, complete: bool) -> Iterator[Finding]:
    """What the filters do to these objects, the repository's first ones, or all when `complete`."""
    config, visibility = repository.config, repository.visibility
    where, base = str(config.url), config.url.prefix
    known = set(keys)
    last = "" if complete else max(keys, default="")
    markers = {
        each: marker
        for each in _directories(keys)
        if (marker := visibility.marker_of(each)) and not visibility.hides(each)
    }
    # Of a directory that was not read to its end nothing is said.
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
        hint = "the mount would look empty: see what hides what in this line, and upload missing markers"
        yield Finding("filters", Verdict.WARNING, "; ".join(said), hint)
    else:
        yield Finding("filters", Verdict.OK, "; ".join(said))
    if keys and idle:
        hint = "a glob with a slash is held against the path below the URL's prefix, one without against the name; case counts"
        yield Finding("filters", Verdict.WARNING, f"{where}: include {', '.join(idle)} matches none of {of}", hint)
    if config.publish_marker and not markers and keys:
        hint = "READY is about the directories at the top, */*/READY about those below these"
        yield Finding(
            "filters", Verdict.WARNING, f"{where}: publish marker {config.publish_marker} is about no directory", hint
        )


def _directories(keys: Collection[str]) -> set[str]:
    """All directories that the keys lie in."""
    found: set[str] = set()
    for key in keys:
        while (key := key[: key.rfind("/", 0, -1) + 1]) and key not in found:
            found.add(key)
    return found
