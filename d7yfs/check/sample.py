"""The first objects of a repository, as the store lists them and as the mount shows them. Pure.

Called by `check`, once per repository.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from d7yfs.objects import ListingPage, ObjectVersion, Withheld
from d7yfs.tree.listing import HiddenKey, Scan
from d7yfs.tree.visibility import Flat, Visibility


@dataclass(frozen=True, slots=True)
class Sample:
    """The first objects of a repository, or all of them."""

    objects: Sequence[ObjectVersion]
    """Objects that have a size and a date, hidden ones too."""
    is_complete: bool = True
    last: str = ""
    """The last key, of which the directories may have more objects, if it is not complete."""
    tree: Mapping[str, Mapping[str, ObjectVersion | None]] = field(default_factory=dict)
    """The entries that a mount shows of each directory, by prefix; None is a directory."""
    hidden: Sequence[HiddenKey] = ()
    """The keys that no mount can show."""
    withheld: Sequence[Withheld] = ()
    """The entries that settings hide."""

    def knows(self, prefix: str) -> bool:
        """True if no more can be in the directory than the tree has."""
        return self.is_complete or not self.last.startswith(prefix)


def make_sample(pages: Sequence[ListingPage], prefix: str, visibility: Visibility) -> Sample:
    """The sample of a flat listing's first pages, whose keys may come in any order."""
    by_key = {version.key: version for page in pages for version in page.objects}
    objects = [by_key[key] for key in sorted(by_key)]
    is_complete = not (pages and pages[-1].next_token)
    token = "" if is_complete else pages[-1].next_token
    page = ListingPage(tuple(objects), (), token, max((page.date_ns for page in pages), default=0))
    if visibility.hides_any:
        page = Flat(visibility, prefix).add(page)
    scan = Scan(prefix, most_hidden=math.inf)
    scan.add(replace(page, withheld=()))
    listings = list(scan.listings())
    return Sample(
        objects=[version for version in objects if not version.fault],
        is_complete=is_complete,
        last="" if is_complete or not objects else objects[-1].key,
        tree={each.prefix: each.entries for each in listings},
        hidden=[hidden for each in listings for hidden in each.hidden],
        withheld=page.withheld,
    )
