"""What may be said of a name in the simulation: only what the store has shown, for no longer than `docs/semantics.md` says.

The bound, for a reader's question of the moment A and an answer that rests on a question to the store of the moment T:

- a listing counts while A < T + max(metadata TTL, 25 x what it took), of which a page takes at most 5 s;
- an answer about one name counts while A < T + metadata TTL, and one that it is absent while A < T + negative TTL;
- so do pages of a listing that has not come to its end: that a name is absent counts for the negative TTL beyond that listing's end;
- whatever was asked for at A or later counts;
- where the question for this name, or the listing of its directory, has failed at F, what had expired counts while A < F + 5 s;
- after a refresh of R, only what was asked for since R counts;
- after another answer about this name alone, or of a listing of its directory alone, only what was asked for since counts. It takes
  a while until the kernel is told.

An entry of a directory that is read (readdir) counts for as long as the listing that the entry was merged with.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from statistics import median

import trio

from d7yfs.errors import AccessDenied
from d7yfs.objects import ObjectVersion
from tests.simulation.names_store import SLACK_S, Question, Recorded, Store, visible

DIRECTORY = "<directory>"
ABSENT = "<absent>"
REMEMBERED = "the kernel's memory"
LIVES_FOR = 25.0
PAGE_S = 5.0
FEW_PAGES = 3
FEW_PAGE_S = 0.5
STALE_S = 5.0


@dataclass(slots=True)
class Rules:
    """The settings that answers depend on."""

    prefix: str
    metadata_ttl_s: float
    negative_ttl_s: float
    marker: str
    excluded: str


@dataclass(slots=True)
class _Refreshed:
    prefix: str
    since: float
    until: float


class Oracle:
    """Judges each answer when it is given; `wrong` has those that nothing justifies."""

    def __init__(self, store: Store, recorded: Recorded, rules: Rules) -> None:
        self.wrong: list[str] = []
        self.judged = 0
        self.gives_up = False
        """Whether names were given up for room: then nobody knows all that the kernel was told to be absent."""
        self.loses = False
        """Whether notices were too many for the kernel to be told of all: then each entry has its time."""
        self._store = store
        self._recorded = recorded
        self._rules = rules
        self._noted = 0
        self._flat: list[Question] = []
        self._of_directory: dict[str, list[Question]] = defaultdict(list)
        self._refreshed: list[_Refreshed] = []

    def refreshed(self, prefix: str, since: float) -> None:
        """What lies below `prefix` was asked for by a refresh of the moment `since`, which ends now."""
        self._refreshed.append(_Refreshed(prefix, since, trio.current_time()))

    def entry(self, key: str, meaning: str, asked_at: float, how: str, *, listed: bool = False) -> None:
        """`meaning` is the answer to a reader who asked for `key` at `asked_at`."""
        self.judged += 1
        self._note()
        parent = key[: key.rfind("/") + 1]
        floor = self._floor(key, asked_at, absent=meaning == ABSENT)
        if how != REMEMBERED:
            floor = max(floor, self._learnt_at(key, parent, meaning, asked_at))
        failed_at = self._last_failure(key, parent, asked_at)
        # One answer may say how long it is believed, and a newer one confirm it.
        is_newest = counts = False
        for question in self._about(parent):
            if not self._says(question, key, parent, meaning):
                continue
            is_newest = is_newest or question.asked_at >= floor
            # An entry that was merged with a listing may be served with that: then its own life does not matter.
            merged = listed or meaning != ABSENT
            expired_at = -math.inf if merged else question.asked_at + self._life_s(question, parent, meaning, min)
            counts = (
                counts
                or (failed_at > -math.inf and failed_at >= min(asked_at, expired_at) - SLACK_S)
                or (
                    self._counts(question, parent, meaning, asked_at, listed=listed)
                    and self._was_so(key, meaning, question.asked_at)
                )
            )
            if is_newest and counts:
                return
        self.fail(f"{key} is {meaning} by {how}, asked for at {asked_at:.4f} (not before {floor:.4f})")

    def listed(self, key: str, shown: bool, asked_at: float) -> None:
        """A huge directory was read page by page, and shows `key` or not: it must if that was there all the time."""
        self.judged += 1
        self._note()
        horizon = asked_at - self._rules.metadata_ttl_s - SLACK_S
        if not shown and not self._was_so(key, ABSENT, horizon):
            self.fail(f"{key} is not shown in its directory, which is huge, asked for at {asked_at:.4f}")
        if shown and not any(self._may_be_shown(moment, key) for moment in self._store.since(horizon)):
            self.fail(f"{key} is shown in its directory, which is huge, asked for at {asked_at:.4f}")

    def _may_be_shown(self, moment: dict[str, ObjectVersion], key: str) -> bool:
        """A page has prefixes, of which it does not tell whether all that is below them is hidden."""
        is_prefix = any(each.startswith(f"{key}/") for each in moment)
        excluded, marker = self._rules.excluded, self._rules.marker
        return self._meaning(moment, key) != ABSENT or (
            is_prefix and not marker and bool(excluded) and not key.endswith(excluded)
        )

    def error(self, what: str, asked_at: float) -> None:
        """A reader was given an error, for which some request must have given reason."""
        self.judged += 1
        self._note()
        for question in reversed(self._recorded.questions):
            if self._failed_at(question) >= asked_at - SLACK_S:
                return
            if question.asked_at < asked_at - 200:
                break
        self.fail(f"{what} is an error without reason, asked for at {asked_at:.4f}")

    def fail(self, what: str) -> None:
        """Something is wrong now."""
        self.wrong.append(f"at {trio.current_time():.4f}: {what}")

    def believed_s(self) -> float:
        """For how long at most what was asked for so far is believed."""
        lives = [self._life_s(each, each.prefix, DIRECTORY) for each in self._recorded.questions[-500:]]
        return max([self._rules.metadata_ttl_s, self._rules.negative_ttl_s, *lives])

    # --- the questions ---

    def _note(self) -> None:
        for question in self._recorded.questions[self._noted :]:
            if question.kind == "flat":
                self._flat.append(question)
            elif question.kind in ("list", "page"):
                self._of_directory[question.prefix].append(question)
            else:
                self._of_directory[question.prefix[: question.prefix.rfind("/") + 1]].append(question)
        self._noted = len(self._recorded.questions)

    def _about(self, parent: str) -> Iterator[Question]:
        yield from reversed(self._of_directory[parent])
        for question in reversed(self._flat):
            if parent == question.prefix or parent in question.directories:
                yield question

    def _floor(self, key: str, asked_at: float, *, absent: bool) -> float:
        floor = -math.inf
        if self.loses:
            return floor
        for each in self._refreshed:
            if f"{key}/".startswith(each.prefix) and key + "/" != each.prefix:
                later_s = self._rules.negative_ttl_s if absent and self.gives_up else 0.0
                if asked_at >= each.until + later_s:
                    floor = max(floor, each.since)
        return floor

    def _learnt_at(self, key: str, parent: str, meaning: str, asked_at: float) -> float:
        """From when the newest answer is that had come when somebody asked: about this name alone, or a listing of its directory alone.

        Where it is the same answer, how old it is does not matter. Nor does it of a directory that was gone: what it held is then not kept.
        """
        if self.gives_up or self._was_gone(parent, asked_at):
            return -math.inf
        newest, holds = -math.inf, None
        for question in reversed(self._of_directory[parent]):
            if question.asked_at < asked_at - 60:
                break
            if not question.complete or question.told_at >= asked_at - SLACK_S or question.asked_at <= newest:
                continue
            if question.kind in ("holds", "stat") and question.prefix != key:
                continue
            if question.kind == "holds":
                holds = question
            elif question.kind == "stat" and holds is not None and question.asked_at == holds.asked_at:
                if any(self._says(each, key, parent, meaning) for each in (question, holds)):
                    return -math.inf
                newest = question.asked_at
            elif question.kind == "list":
                if self._says(question, key, parent, meaning):
                    return -math.inf
                newest = question.asked_at
        return newest

    def _was_gone(self, parent: str, asked_at: float) -> bool:
        """Whether some answer of the last time was that there is no such directory."""
        above = parent[: parent.rfind("/", 0, -1) + 1]
        lists = (each for each in self._of_directory[above] if each.kind == "list")
        return bool(parent) and any(
            each.complete and parent not in each.directories
            for each in (*self._flat, *lists)
            if asked_at - 60 <= each.asked_at and parent.startswith(each.prefix) and each.prefix != parent
        )

    def _last_failure(self, key: str, parent: str, asked_at: float) -> float:
        """When the question for this name, or the listing of its directory, failed last, if that still counts at `asked_at`."""
        last = -math.inf
        for question in reversed(self._of_directory[parent]):
            if question.kind == "list" or (question.kind in ("stat", "holds") and question.prefix == key):
                last = max(last, self._failed_at(question))
            if question.asked_at < asked_at - 200:
                break
        return last if last + STALE_S + SLACK_S > asked_at else -math.inf

    def _failed_at(self, question: Question) -> float:
        """When a question failed: one about a name when both of its requests were over."""
        if question.error is None:
            return -math.inf
        if question.kind not in ("stat", "holds"):
            return question.failed_at
        parent = question.prefix[: question.prefix.rfind("/") + 1]
        both = [each for each in self._of_directory[parent] if each.asked_at == question.asked_at]
        return max(max(each.told_at, each.failed_at) for each in both if each.prefix == question.prefix)

    def _says(self, question: Question, key: str, parent: str, meaning: str) -> bool:
        is_directory, etag = f"{key}/" in question.directories, question.files.get(key)
        match question.kind:
            case "flat" | "list":
                passed = question.passed(key) or self._is_whole(question, parent)
                if meaning == DIRECTORY:
                    return is_directory
                return passed and not is_directory and etag == (None if meaning == ABSENT else meaning)
            case "page":
                return is_directory if meaning == DIRECTORY else etag == meaning
            case "holds" if question.prefix == key:
                return meaning == DIRECTORY and (is_directory or isinstance(question.error, AccessDenied))
            case "stat" if question.prefix == key:
                if meaning == ABSENT:
                    return question.complete and etag is None and self._holds_nothing(question, parent)
                return etag == meaning
        return False

    def _holds_nothing(self, stat: Question, parent: str) -> bool:
        return any(
            each.kind == "holds" and each.prefix == stat.prefix and each.asked_at == stat.asked_at
            for each in self._of_directory[parent]
            if each.complete and not each.directories
        )

    def _counts(self, question: Question, parent: str, meaning: str, asked_at: float, *, listed: bool) -> bool:
        if question.asked_at >= asked_at - SLACK_S:
            return True
        if asked_at < question.asked_at + self._life_s(question, parent, meaning) + SLACK_S:
            return True
        return (listed or meaning != ABSENT) and any(
            self._is_whole(each, parent)
            and each.asked_at <= question.asked_at
            and asked_at < each.asked_at + self._life_s(each, parent, DIRECTORY) + SLACK_S
            for each in self._about(parent)
        )

    def _life_s(
        self, question: Question, parent: str, meaning: str, choose: Callable[[Iterable[float]], float] = max
    ) -> float:
        """How long an answer lives; where that can be more than one time, the longest, or what else is to be chosen."""
        ttl_s, negative_ttl_s = self._rules.metadata_ttl_s, self._rules.negative_ttl_s
        if not ttl_s:
            return 0.0
        if question.kind not in ("list", "flat"):
            return min(ttl_s, negative_ttl_s) if meaning == ABSENT else ttl_s
        # It may have been answered when fewer pages had come, whose median was larger.
        took_s = min(question.took_s, choose(_work_s(question.pages_s[:count]) for count in range(question.pages + 1)))
        life_s = max(ttl_s, LIVES_FOR * took_s)
        return life_s if meaning != ABSENT or self._is_whole(question, parent) else min(life_s, took_s + negative_ttl_s)

    def _is_whole(self, question: Question, parent: str) -> bool:
        """Whether all of a directory has come."""
        if question.kind not in ("list", "flat"):
            return False
        reached = question.reached
        return question.complete or (question.kind == "flat" and reached > parent and not reached.startswith(parent))

    # --- the store ---

    def _was_so(self, key: str, meaning: str, since: float) -> bool:
        """Whether the store itself had that to show at some moment since then, by an account that goes past d7yfs."""
        # Dates are in whole seconds, and a marker that is as old as a page may be newer.
        moments = self._store.since(since - (1.0 if self._rules.marker else 0.0) - SLACK_S)
        if meaning != ABSENT:
            if meaning == DIRECTORY or any(self._meaning(moment, key) == meaning for moment in moments):
                return True
            # The object and what lies below its name are two requests, or on two pages: each was so at a moment of its own.
            if any(self._meaning(moment, key) != DIRECTORY for moment in moments) and any(
                key in self._visible(moment, key) and moment[key].validator == meaning for moment in moments
            ):
                return True
            # A directory whose marker is that new is not yet shown, and an object of its name is.
            is_new = self._is_overwritten(key, moments)
            return is_new and any(key in each and each[key].validator == meaning for each in moments)
        below = [{k for k in self._visible(moment, key) if k == key or k.startswith(f"{key}/")} for moment in moments]
        return not set.intersection(*below) or self._is_overwritten(key, moments)

    def _is_overwritten(self, key: str, moments: list[dict[str, ObjectVersion]]) -> bool:
        """Whether the marker that publishes it was put again, be it the same."""
        top = key.removeprefix(self._rules.prefix).partition("/")[0]
        marker = f"{self._rules.prefix}{top}/{self._rules.marker}"
        return bool(self._rules.marker) and len({id(moment.get(marker)) for moment in moments}) > 1

    def _meaning(self, moment: dict[str, ObjectVersion], key: str) -> str:
        keys = self._visible(moment, key)
        if any(each.startswith(f"{key}/") for each in keys):
            return DIRECTORY
        return moment[key].validator if key in keys else ABSENT

    def _visible(self, moment: dict[str, ObjectVersion], key: str) -> set[str]:
        """The keys that make the name `key`. Its marker, if it needs one, is asked for in the directory above alone."""
        rules = self._rules
        is_top = "/" not in key.removeprefix(rules.prefix)
        return set(visible(moment, prefix=rules.prefix, marker=rules.marker if is_top else "", excluded=rules.excluded))


def _work_s(pages_s: list[float]) -> float:
    """How long a store has worked on these pages, as a listing's life goes by it."""
    page_s = min(median(pages_s), PAGE_S) if len(pages_s) >= FEW_PAGES else FEW_PAGE_S
    return max(len(pages_s), 1) * page_s
