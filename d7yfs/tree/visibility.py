"""The entries of a repository that are shown: `include`, `exclude`, `publish_marker`. Pure.

Owns the rules, and applies them to listing pages *before* anything else sees these. Hidden entries
are left out of a page: neither the tree nor a lookup can know of them. The rules, for paths
relative to the repository's directory:

- A file or directory that a glob of `exclude` matches is hidden, and with a directory all below it.
- With `include`, a file is shown if a glob matches it or a directory that it lies in. A directory
  is shown if it is or lies in such a one, or if a glob may match something below it; its real
  contents are not asked for.
- A directory that needs a marker is hidden, with all below it, while the store lacks that object.
  The other options decide whether the marker itself is shown.

A directory is matched with a glob with a slash both as `a/b` and as `a/b/`: so `tmp/*` hides `tmp`,
of which nothing could be shown.

Invariant: a flat listing that passed `Flat` shows the same tree as delimiter listings that passed
`directory_page`.

Called by `repository` and `check`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from d7yfs.config.globs import Globs
from d7yfs.config.markers import Markers
from d7yfs.objects import ListingPage, ObjectVersion, Withheld
from d7yfs.tree.listing import Unordered, name_fault

EXCLUDED = "excluded"
"""Hidden by `exclude`, or left out by `include`."""

UNPUBLISHED = "unpublished"
"""A directory whose marker is not there."""

NAME = "name"
"""An entry that no name could show (see `listing`); settings do not hide it."""

_IN_WORDS = {
    EXCLUDED: "hidden by include or exclude",
    UNPUBLISHED: "without their marker",
    NAME: "with names that cannot be shown",
}

_NO_GLOBS = Globs()
_NO_MARKERS = Markers()

_RULES_KEPT = 10_000
"""The directories whose rules are remembered."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A directory that needs a marker."""

    prefix: str
    marker: str
    """The whole key of the object that publishes it."""


@dataclass(frozen=True, slots=True)
class _PathRules:
    """The rules for a directory that follow from the names on its path."""

    excluded: str = ""
    """The uppermost directory on the path that the globs hide."""
    nameless: bool = False
    """True if one on the path has no name that could be shown: no rule applies there or below."""
    included: bool = False
    """True if all below is included, whatever its name."""
    candidates: tuple[_Candidate, ...] = ()
    """The directories on the path that need a marker, uppermost first."""


def in_words(hidden: Mapping[str, int]) -> str:
    """The numbers of hidden entries by reason, in words; empty for none."""
    return ", ".join(f"{hidden[reason]} {words}" for reason, words in _IN_WORDS.items() if hidden.get(reason))


class Visibility:
    """The rules of one repository; `prefix` is its URL's."""

    def __init__(
        self,
        prefix: str = "",
        *,
        include: Globs = _NO_GLOBS,
        exclude: Globs = _NO_GLOBS,
        markers: Markers = _NO_MARKERS,
    ) -> None:
        self._key = prefix
        self._base = f"{prefix}/" if prefix else ""
        self._include = _Matcher(include.globs) if include else None
        self._exclude = _Matcher(exclude.globs)
        self._markers = markers
        self.hides_any = bool(include or exclude or markers)
        """True if there is any rule."""
        self._rules: dict[str, _PathRules] = {}

    def hides(self, key: str) -> bool:
        """True if the globs hide an object, or a directory if `key` ends in a slash. No markers."""
        cut = key.rfind("/") + 1
        rules = self.rules_for(key[:cut])
        return bool(rules.excluded) or self.hides_file(rules, key, key[cut:])

    def marker_of(self, prefix: str) -> str:
        """The key that must exist for `prefix` to be shown in the directory above; may be empty."""
        candidates = self.rules_for(prefix).candidates
        return candidates[-1].marker if candidates and candidates[-1].prefix == prefix else ""

    def markers(self, prefix: str, page: ListingPage) -> dict[str, str]:
        """The directories of a delimiter page of `prefix` that need a marker, with its key."""
        directories = {version.key for version in page.objects if version.key.endswith("/")}.union(page.prefixes)
        found = {each: self.marker_of(each) for each in directories if each != prefix and not self.hides(each)}
        return {each: marker for each, marker in found.items() if marker}

    def directory_page(self, page: ListingPage, unpublished: Collection[str] = ()) -> ListingPage:
        """A page of a delimiter listing, without hidden entries.

        `unpublished`: those of its directories whose marker is not there.
        """
        reasons = dict.fromkeys(unpublished, UNPUBLISHED)
        keys = (*(version.key for version in page.objects), *page.prefixes)
        reasons |= {key: EXCLUDED for key in keys if self.hides(key)}
        return replace(
            page,
            objects=tuple(version for version in page.objects if version.key not in reasons),
            prefixes=tuple(prefix for prefix in page.prefixes if prefix not in reasons),
            withheld=page.withheld + tuple(Withheld(key, reason) for key, reason in reasons.items()),
        )

    def hides_file(self, rules: _PathRules, key: str, name: str) -> bool:
        """True if the globs hide a file of a directory that they show."""
        if rules.nameless or not name:
            return False
        path = name if key == self._key else key[len(self._base) :]
        if self._exclude.matches(path, name):
            return True
        return self._include is not None and not rules.included and not self._include.matches(path, name)

    def rules_for(self, prefix: str) -> _PathRules:
        """The rules that follow from the names on the way to a directory."""
        rules = self._rules.get(prefix)
        if rules is None:
            if len(self._rules) >= _RULES_KEPT:
                self._rules.clear()
            rules = self._rules[prefix] = self._find_rules(prefix)
        return rules

    def _find_rules(self, prefix: str) -> _PathRules:
        if len(prefix) <= len(self._base) or not prefix.startswith(self._base):
            return _PathRules()
        above = self.rules_for(prefix[: prefix.rfind("/", 0, -1) + 1])
        if above.excluded or above.nameless:
            return above
        path = prefix[len(self._base) : -1]
        name = path.rpartition("/")[2]
        if name_fault(name):
            return replace(above, nameless=True)
        if self._exclude.matches_directory(path, name):
            return replace(above, excluded=prefix)
        included = above.included
        if self._include is not None and not included:
            included = self._include.matches_directory(path, name)
            if not included and not self._include.may_match_below(path):
                return replace(above, excluded=prefix)
        marker = self._markers.name_for(path)
        candidates = (*above.candidates, _Candidate(prefix, prefix + marker)) if marker else above.candidates
        return _PathRules(included=included, candidates=candidates)


class _Matcher:
    """A list of globs, compiled."""

    def __init__(self, globs: Iterable[str]) -> None:
        globs = tuple(globs)
        self._names = _compile(each for each in globs if "/" not in each)
        paths = [each.removeprefix("/") for each in globs if "/" in each]
        self._paths = _compile(paths)
        self._heads = None if len(paths) < len(globs) else [_head(each) for each in paths]
        """None when a glob is about names: a match may then lie anywhere."""

    def matches(self, path: str, name: str) -> bool:
        return bool((self._names and self._names.match(name)) or (self._paths and self._paths.match(path)))

    def matches_directory(self, path: str, name: str) -> bool:
        return self.matches(path, name) or bool(self._paths and self._paths.match(f"{path}/"))

    def may_match_below(self, path: str) -> bool:
        if self._heads is None:
            return True
        path += "/"
        return any(
            (open_ended or len(path) < len(head))
            and all(each.match(character) for each, character in zip(head, path, strict=False))
            for head, open_ended in self._heads
        )


def _compile(globs: Iterable[str]) -> re.Pattern[str] | None:
    translated = [fnmatch.translate(each) for each in globs]
    return re.compile("|".join(translated)) if translated else None


def _head(glob: str) -> tuple[list[re.Pattern[str]], bool]:
    """The patterns of a glob for the first characters of a path, and true if it takes anything
    after them."""
    tokens = re.findall(r"(?s)\[!?\]?[^]]*\]|.", glob)
    stop = tokens.index("*") if "*" in tokens else len(tokens)
    return [re.compile(fnmatch.translate(each)) for each in tokens[:stop]], stop < len(tokens)


@dataclass(slots=True)
class _Open:
    """A directory that needs a marker, while keys below it come."""

    candidate: _Candidate
    start: int
    """The index of its first entry among the events."""
    shown: str
    """The last key shown before it."""
    page: ListingPage
    """The page of its first key."""
    published: bool | None = None
    """None until the marker has come, or a key after it."""

    def published_by(self, marker: ObjectVersion, page: ListingPage) -> bool:
        """True if everything that was put before `marker`, which stands on `page`, has come.

        A page tells of its own moment. A directory that begins on an earlier page than its marker
        may lack what was put in between. So that marker must be older, in whole seconds as dates
        are. The next listing shows it.
        """
        date_ns = self.page.date_ns
        return page is self.page or marker.mtime_ns < date_ns - date_ns % 1_000_000_000


class Flat:
    """A filter for one flat listing, page by page, in the origin's order.

    A directory of which only hidden keys are known is still one: its own key (`a/`) stands in for
    them. Entries that depend on a marker are kept back until it has come.
    """

    def __init__(self, visibility: Visibility, prefix: str) -> None:
        """`prefix` is the prefix that is listed."""
        self._visibility = visibility
        self._prefix = prefix
        self._events: list[ObjectVersion | Withheld] = []
        self._open: list[_Open] = []
        """The directories that need a marker on the way to the last key, uppermost first."""
        self._last = self._shown = ""
        """The last keys: of all, and of those that are shown."""
        self._page = ListingPage((), (), "", 0)
        self._withheld = Withheld("", "")
        """The last one of them."""
        self._directory: str | None = None
        self._path_rules = _PathRules()
        """The rules of the last key's directory."""

    def add(self, page: ListingPage) -> ListingPage:
        """The next page without hidden entries. Raises Unordered if keys are out of order."""
        self._page = page
        for version in page.objects:
            if version.key <= self._last:
                raise Unordered(version.key)
            self._last = version.key
            self._take(version)
        if not page.next_token:
            self._leave("")
        pending = next((each.start for each in self._open if each.published is None), len(self._events))
        ready, self._events = self._events[:pending], self._events[pending:]
        for each in self._open:
            each.start -= pending
        objects = tuple(each for each in ready if isinstance(each, ObjectVersion))
        withheld = tuple(each for each in ready if isinstance(each, Withheld))
        left_out = len(page.objects) - len(objects)
        return replace(page, objects=objects, withheld=page.withheld + withheld, left_out=page.left_out + left_out)

    def _take(self, version: ObjectVersion) -> None:
        key = version.key
        directory = key[: key.rfind("/") + 1]
        if directory != self._directory:
            self._directory, self._path_rules = directory, self._visibility.rules_for(directory)
            self._leave(key)
            self._enter(self._path_rules.candidates[len(self._open) :])
        if self._open and not self._check_markers(version):
            return
        if self._path_rules.excluded:
            self._withhold(Withheld(self._path_rules.excluded, EXCLUDED))
        elif self._visibility.hides_file(self._path_rules, key, key[len(directory) :]):
            self._withhold(Withheld(key, EXCLUDED))
        else:
            self._events.append(version)
            self._shown = key

    def _enter(self, candidates: Iterable[_Candidate]) -> None:
        if self._open and self._open[-1].published is False:
            return
        for candidate in candidates:
            # The listed prefix was asked for: its own marker does not count.
            published = True if len(candidate.prefix) <= len(self._prefix) else None
            self._open.append(_Open(candidate, len(self._events), self._shown, self._page, published))

    def _leave(self, key: str) -> None:
        """Leave the directories that `key` does not lie in; all of them when it is empty."""
        while self._open and not (key and key.startswith(self._open[-1].candidate.prefix)):
            left = self._open.pop()
            if left.published is None:
                self._drop(left)

    def _check_markers(self, version: ObjectVersion) -> bool:
        """Compare an object with the markers on its path. True if it may be shown so far."""
        for position, each in enumerate(self._open):
            if each.published is None and version.key >= each.candidate.marker:
                each.published = version.key == each.candidate.marker and each.published_by(version, self._page)
                if not each.published:
                    del self._open[position + 1 :]
                    self._drop(each)
            if each.published is False:
                return False
        return True

    def _drop(self, unpublished: _Open) -> None:
        del self._events[unpublished.start :]
        self._shown = unpublished.shown
        self._withhold(Withheld(unpublished.candidate.prefix, UNPUBLISHED))

    def _withhold(self, withheld: Withheld) -> None:
        """Record a hidden entry, once, and see that its directory is shown."""
        if withheld == self._withheld:
            return
        self._withheld = withheld
        directory = withheld.key[: withheld.key.rfind("/", 0, -1) + 1]
        if len(directory) > len(self._prefix) and not self._shown.startswith(directory):
            self._events.append(ObjectVersion(directory, 0, "", 0))
            self._shown = directory
        self._events.append(withheld)
