"""Which entries of a repository are shown: the options `include`, `exclude` and `publish_marker`. Pure.

Owns the rules, and holds them against listing pages *before* anything else sees these: what is hidden is left out of a page, so that
neither the tree nor a lookup can know of it, whichever way the page came. The rules, for paths relative to the repository's directory:

- A file or directory that a glob of `exclude` matches is hidden, and with a directory all below it.
- With `include`, a file is shown when a glob matches it or a directory that it lies in. A directory is shown when it is or lies in such a
  one, or when the globs alone do not rule out that something below it matches; what it really holds is not asked.
- A directory that needs a marker is hidden, with all below it, while the store does not hold that object; whether the marker itself is
  shown is for the other options to say.

A directory is held against a glob with a slash both as `a/b` and as `a/b/`: so `tmp/*` hides `tmp`, of which nothing could be shown.

Invariant: a flat listing that passed `Flat` shows the same tree as delimiter listings that passed `directory_page`.

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
from d7yfs.tree.listing import name_fault
from d7yfs.tree.scan import Unordered

EXCLUDED = "excluded"
"""Hidden by `exclude`, or left out by `include`."""

UNPUBLISHED = "unpublished"
"""A directory whose marker is not there."""

NAME = "name"
"""Not hidden by settings: no name could show it (see `listing`)."""

_IN_WORDS = {
    EXCLUDED: "hidden by include or exclude",
    UNPUBLISHED: "without their marker",
    NAME: "with names that cannot be shown",
}

_NO_GLOBS = Globs()
_NO_MARKERS = Markers()

_PLACES = 10_000
"""Directories whose state is remembered."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A directory that needs a marker."""

    prefix: str
    marker: str
    """The whole key of the object that publishes it."""


@dataclass(frozen=True, slots=True)
class _Place:
    """What the names on the way to a directory say of it."""

    excluded: str = ""
    """The uppermost directory on the way that is hidden by the globs."""
    nameless: bool = False
    """Whether one on the way has no name that could be shown: none of our business then, nor what is below."""
    included: bool = False
    """Whether all below is, whatever its name."""
    candidates: tuple[_Candidate, ...] = ()
    """Those on the way, uppermost first."""


def in_words(hidden: Mapping[str, int]) -> str:
    """How many entries are not shown, by reason (see `Tree.hidden_by_reason`); empty when all are."""
    return ", ".join(f"{hidden[reason]} {words}" for reason, words in _IN_WORDS.items() if hidden.get(reason))


class Visibility:
    """The rules of one repository; `prefix` is its URL's. False when nothing is hidden."""

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
        self._active = bool(include or exclude or markers)
        self._places: dict[str, _Place] = {}

    def __bool__(self) -> bool:
        return self._active

    def hides(self, key: str) -> bool:
        """Whether the globs hide an object, or a directory when `key` ends in a slash. Its markers are another question."""
        cut = key.rfind("/") + 1
        place = self.place(key[:cut])
        return bool(place.excluded) or self.hides_file(place, key, key[cut:])

    def marker_of(self, prefix: str) -> str:
        """The key that must exist for the directory `prefix` to be shown in the one above it; empty when none need."""
        candidates = self.place(prefix).candidates
        return candidates[-1].marker if candidates and candidates[-1].prefix == prefix else ""

    def markers(self, prefix: str, page: ListingPage) -> dict[str, str]:
        """The directories of a page of the delimiter listing of `prefix` that need a marker, and the key of each one's."""
        directories = {version.key for version in page.objects if version.key.endswith("/")}.union(page.prefixes)
        found = {each: self.marker_of(each) for each in directories if each != prefix and not self.hides(each)}
        return {each: marker for each, marker in found.items() if marker}

    def directory_page(self, page: ListingPage, unpublished: Collection[str] = ()) -> ListingPage:
        """What is shown of a page of a delimiter listing. `unpublished`: those of its directories whose marker is not there."""
        reasons = dict.fromkeys(unpublished, UNPUBLISHED)
        keys = (*(version.key for version in page.objects), *page.prefixes)
        reasons |= {key: EXCLUDED for key in keys if self.hides(key)}
        return replace(
            page,
            objects=tuple(version for version in page.objects if version.key not in reasons),
            prefixes=tuple(prefix for prefix in page.prefixes if prefix not in reasons),
            withheld=page.withheld + tuple(Withheld(key, reason) for key, reason in reasons.items()),
        )

    def hides_file(self, place: _Place, key: str, name: str) -> bool:
        """Whether the globs hide a file of a directory that they show."""
        if place.nameless or not name:
            return False
        path = name if key == self._key else key[len(self._base) :]
        if self._exclude.matches(path, name):
            return True
        return self._include is not None and not place.included and not self._include.matches(path, name)

    def place(self, prefix: str) -> _Place:
        """What the names on the way to a directory say of it."""
        place = self._places.get(prefix)
        if place is None:
            if len(self._places) >= _PLACES:
                self._places.clear()
            place = self._places[prefix] = self._find_place(prefix)
        return place

    def _find_place(self, prefix: str) -> _Place:
        if len(prefix) <= len(self._base) or not prefix.startswith(self._base):
            return _Place()
        above = self.place(prefix[: prefix.rfind("/", 0, -1) + 1])
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
        return _Place(included=included, candidates=candidates)


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
    """What a glob wants of the first characters of a path, one by one, and whether it takes anything after them."""
    head, star, _ = glob.partition("*") if "[" not in glob else _partition(glob)
    tokens = re.findall(r"(?s)\[!?\]?[^]]*\]|.", head)
    return [re.compile(fnmatch.translate(each)) for each in tokens], bool(star)


def _partition(glob: str) -> tuple[str, str, str]:
    """As `str.partition` at the first star that stands in no brackets."""
    for found in re.finditer(r"(?s)\[!?\]?[^]]*\]|.", glob):
        if found[0] == "*":
            return glob[: found.start()], "*", glob[found.end() :]
    return glob, "", ""


@dataclass(slots=True)
class _Open:
    """A directory that needs a marker, while keys below it come."""

    candidate: _Candidate
    start: int
    """Where its entries begin among the events."""
    shown: str
    """The last key shown before it."""
    page: ListingPage
    """That of its first key."""
    published: bool | None = None
    """None until the marker has come, or a key that comes after it."""

    def published_by(self, marker: ObjectVersion, page: ListingPage) -> bool:
        """Whether all that was put before `marker`, which stands on `page`, has come.

        A page tells of its own moment. What begins on an earlier one than its marker may lack what was put in between, so that marker must
        be older; in whole seconds, which is what dates are in. The next listing shows it.
        """
        date_ns = self.page.date_ns
        return page is self.page or marker.mtime_ns < date_ns - date_ns % 1_000_000_000


class Flat:
    """What is shown of one flat listing, page by page, in the origin's order. One per listing.

    A directory of which only hidden keys are known is still one: its own key (`a/`) stands in for them. What depends on a marker that has
    not come yet is kept back for a later page.
    """

    def __init__(self, visibility: Visibility, prefix: str) -> None:
        """`prefix`: what is listed."""
        self._visibility = visibility
        self._prefix = prefix
        self._events: list[ObjectVersion | Withheld] = []
        self._open: list[_Open] = []
        """The directories that need a marker on the way to the last key, uppermost first."""
        self._last = self._shown = ""
        """Of all keys, and of those that are shown."""
        self._page = ListingPage((), (), "", 0)
        self._withheld = Withheld("", "")
        """The last one."""
        self._directory: str | None = None
        self._place = _Place()
        """Of the last key."""

    def add(self, page: ListingPage) -> ListingPage:
        """What is shown of the next page. Raises Unordered when its keys do not come in code point order."""
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
            self._directory, self._place = directory, self._visibility.place(directory)
            self._leave(key)
            self._enter(self._place.candidates[len(self._open) :])
        if self._open and not self._settle(version):
            return
        if self._place.excluded:
            self._withhold(Withheld(self._place.excluded, EXCLUDED))
        elif self._visibility.hides_file(self._place, key, key[len(directory) :]):
            self._withhold(Withheld(key, EXCLUDED))
        else:
            self._events.append(version)
            self._shown = key

    def _enter(self, candidates: Iterable[_Candidate]) -> None:
        if self._open and self._open[-1].published is False:
            return
        for candidate in candidates:
            # What is listed was asked for: its own marker is no question here.
            published = True if len(candidate.prefix) <= len(self._prefix) else None
            self._open.append(_Open(candidate, len(self._events), self._shown, self._page, published))

    def _leave(self, key: str) -> None:
        """Be done with the directories that `key` does not lie in; all of them when it is empty."""
        while self._open and not (key and key.startswith(self._open[-1].candidate.prefix)):
            left = self._open.pop()
            if left.published is None:
                self._drop(left)

    def _settle(self, version: ObjectVersion) -> bool:
        """Learn from an object what it says of the markers on its way. Whether it may be shown, as far as is known."""
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
        """Take note of an entry that is hidden, once, and see that the directory which it is in is shown."""
        if withheld == self._withheld:
            return
        self._withheld = withheld
        directory = withheld.key[: withheld.key.rfind("/", 0, -1) + 1]
        if len(directory) > len(self._prefix) and not self._shown.startswith(directory):
            self._events.append(ObjectVersion(directory, 0, "", 0))
            self._shown = directory
        self._events.append(withheld)
