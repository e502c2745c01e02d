"""The effect of `include`, `exclude` and `publish_marker` on a repository, for `d7yfs check`: each
with its matches.

A filter that matches nothing, or hides everything, is nearly always a typo, and a mount would show
it as an empty directory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from d7yfs.check.findings import Finding, examples, ok, warning
from d7yfs.check.sample import Sample
from d7yfs.config.globs import Globs
from d7yfs.repository.repository import Repository
from d7yfs.tree.visibility import EXCLUDED, UNPUBLISHED, Visibility

_REASONS = {EXCLUDED: "hidden by include or exclude", UNPUBLISHED: "its marker is not there"}


def check_filters(repository: Repository, sample: Sample) -> Iterator[Finding]:
    """A line on all filters with what they hide, and a warning for each that looks wrong."""
    if not repository.visibility.hides_any:
        return
    keys, complete = [version.key for version in sample.objects if not version.key.endswith("/")], sample.is_complete
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
        hidden = [key for key in keys if alone.hides(key)]
        said.append(f"exclude {glob} hides {len(hidden)}" + (f" ({examples(hidden)})" if hidden else ""))
    idle = []
    for glob in config.include.globs:
        alone = Visibility(base, include=Globs((glob,)))
        matched = [key for key in keys if not alone.hides(key)]
        said.append(f"include {glob} matches {len(matched)}")
        if not matched:
            idle.append(glob)
    if config.publish_marker:
        named = examples(sorted(missing))
        said.append(
            f"publish marker {config.publish_marker}: {len(markers) - len(missing)} directories have it, "
            f"{len(missing)} do not" + (f" ({named})" if named else "")
        )
    names = [f"{each.key}: {_REASONS.get(each.reason, each.reason)}" for each in sample.withheld]
    if keys and not shown:
        hint = "the mount would look empty: this line says what hides what; upload missing markers"
        yield warning("filters", "; ".join(said), hint, names)
    else:
        yield ok("filters", "; ".join(said), names)
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
