"""The oracle of the simulation of names: the right answers for a name, by the bounds of
`docs/semantics.md`.

An answer rests on a question to the store at time T. A reader asks at time A:

- a listing counts while A < T + max(metadata TTL, 25 x its time), of which a page takes at most
  5 s;
- an answer about one name counts while A < T + metadata TTL, and its absence while A < T + negative
  TTL;
- so do pages of a listing that has not ended: an absence counts for the negative TTL beyond that
  listing's end;
- any answer to a question of A or later counts;
- if the question for this name, or the listing of its directory, has failed at F, an expired answer
  counts while A < F + 5 s;
- after a refresh at R, only answers to questions since R count;
- after another answer about this name alone, or of a listing of its directory alone, only later
  answers count. It takes a while until the kernel knows.

An entry of a read directory (readdir) counts for as long as the listing that it was merged with.
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
    """The judge of each answer; `wrong` has those that nothing justifies."""

    def __init__(self, store: Store, recorded: Recorded, rules: Rules) -> None:
        self.wrong: list[str] = []
        self.judged = 0
        self.gives_up = False
        """True if names were dropped for room: then the kernel may have heard of any absence."""
        self.has_huge = False
        """True if a directory turned out to be huge: the kernel may have heard of absences by its listing."""
        self.loses = False
        """True if there were too many notices for the kernel: then each entry keeps its time."""
        self._store = store
        self._recorded = recorded
        self._rules = rules
        self._noted = 0
        self._flat: list[Question] = []
        self._of_directory: dict[str, list[Question]] = defaultdict(list)
        self._refreshed: list[_Refreshed] = []

    def refreshed(self, prefix: str, since: float) -> None:
        """Note the end of a refresh that began at `since` and has asked for all below `prefix`."""
        self._refreshed.append(_Refreshed(prefix, since, trio.current_time()))

    def entry(self, key: str, meaning: str, asked_at: float, how: str, *, listed: bool = False) -> None:
        """Judge `meaning`, the answer to a reader that asked for `key` at `asked_at`."""
        self.judged += 1
        self._note()
        parent = key[: key.rfind("/") + 1]
        floor = self._floor(key, asked_at, absent=meaning == ABSENT)
        if how != REMEMBERED:
            floor = max(floor, self._learnt_at(key, parent, meaning, asked_at))
        failed_at = self._last_failure(key, parent, asked_at)
        # A newer answer may confirm an older one, and so extend its life.
        is_newest = counts = False
        for question in self._about(parent):
            if not self._says(question, key, parent, meaning):
                continue
            is_newest = is_newest or question.asked_at >= floor
            # An entry that was merged with a listing may be served with that listing's life.
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
        """Judge a huge directory that was read page by page: it must show `key` if that was there
        all the time.
        """
        self.judged += 1
        self._note()
        horizon = asked_at - self._rules.metadata_ttl_s - SLACK_S
        if not shown and not self._was_so(key, ABSENT, horizon):
            self.fail(f"{key} is not shown in its directory, which is huge, asked for at {asked_at:.4f}")
        if shown and not any(self._may_be_shown(moment, key) for moment in self._store.since(horizon)):
            self.fail(f"{key} is shown in its directory, which is huge, asked for at {asked_at:.4f}")

    def _may_be_shown(self, moment: dict[str, ObjectVersion], key: str) -> bool:
        """True if the entry may be shown: a page does not tell whether all below a prefix is
        hidden."""
        is_prefix = any(each.startswith(f"{key}/") for each in moment)
        excluded, marker = self._rules.excluded, self._rules.marker
        return self._meaning(moment, key) != ABSENT or (
            is_prefix and not marker and bool(excluded) and not key.endswith(excluded)
        )

    def error(self, what: str, asked_at: float) -> None:
        """Judge an error for a reader: some request must have failed."""
        self.judged += 1
        self._note()
        for question in reversed(self._recorded.questions):
            if self._failed_at(question) >= asked_at - SLACK_S:
                return
            if question.asked_at < asked_at - 200:
                break
        self.fail(f"{what} is an error without reason, asked for at {asked_at:.4f}")

    def fail(self, what: str) -> None:
        """Record a fault of this moment."""
        self.wrong.append(f"at {trio.current_time():.4f}: {what}")

    def believed_s(self) -> float:
        """Seconds; the longest life of any answer so far."""
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
                later_s = self._rules.negative_ttl_s if absent and (self.gives_up or self.has_huge) else 0.0
                if asked_at >= each.until + later_s:
                    floor = max(floor, each.since)
        return floor

    def _learnt_at(self, key: str, parent: str, meaning: str, asked_at: float) -> float:
        """The time of the newest answer that had come when the reader asked.

        It is about this name alone, or a listing of its directory alone. The age of an equal answer
        does not matter. Nor does the age matter after the directory was gone, because its contents
        are not kept.
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
        """True if a recent answer was that there is no such directory."""
        above = parent[: parent.rfind("/", 0, -1) + 1]
        lists = (each for each in self._of_directory[above] if each.kind == "list")
        return bool(parent) and any(
            each.complete and parent not in each.directories
            for each in (*self._flat, *lists)
            if asked_at - 60 <= each.asked_at and parent.startswith(each.prefix) and each.prefix != parent
        )

    def _last_failure(self, key: str, parent: str, asked_at: float) -> float:
        """The last failure of the question for this name, or of its directory's listing, if it
        counts at `asked_at`."""
        last = -math.inf
        for question in reversed(self._of_directory[parent]):
            if question.kind == "list" or (question.kind in ("stat", "holds") and question.prefix == key):
                last = max(last, self._failed_at(question))
            if question.asked_at < asked_at - 200:
                break
        return last if last + STALE_S + SLACK_S > asked_at else -math.inf

    def _failed_at(self, question: Question) -> float:
        """The time when a question failed: one about a name when both of its requests were over."""
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
        """Seconds of an answer's life; of several possible lives the longest, or as `choose`
        decides.
        """
        ttl_s, negative_ttl_s = self._rules.metadata_ttl_s, self._rules.negative_ttl_s
        if not ttl_s:
            return 0.0
        if question.kind not in ("list", "flat"):
            return min(ttl_s, negative_ttl_s) if meaning == ABSENT else ttl_s
        # The answer may have come after fewer pages, with a larger median.
        took_s = min(question.took_s, choose(_work_s(question.pages_s[:count]) for count in range(question.pages + 1)))
        life_s = max(ttl_s, LIVES_FOR * took_s)
        return life_s if meaning != ABSENT or self._is_whole(question, parent) else min(life_s, took_s + negative_ttl_s)

    def _is_whole(self, question: Question, parent: str) -> bool:
        """True if all of a directory has come."""
        if question.kind not in ("list", "flat"):
            return False
        reached = question.reached
        return question.complete or (question.kind == "flat" and reached > parent and not reached.startswith(parent))

    # --- the store ---

    def _was_so(self, key: str, meaning: str, since: float) -> bool:
        """True if the store itself had that to show at some time since then.

        It uses the store's own history, not d7yfs.
        """
        # Dates are in whole seconds, and a marker as old as a page may be newer.
        moments = self._store.since(since - (1.0 if self._rules.marker else 0.0) - SLACK_S)
        if meaning != ABSENT:
            if meaning == DIRECTORY or any(self._meaning(moment, key) == meaning for moment in moments):
                return True
            # The object and the keys below its name are two requests, or on two pages, each with
            # its own time.
            if any(self._meaning(moment, key) != DIRECTORY for moment in moments) and any(
                key in self._visible(moment, key) and moment[key].validator == meaning for moment in moments
            ):
                return True
            # A directory with such a new marker is not shown yet, but an object of its name is.
            is_new = self._is_overwritten(key, moments)
            return is_new and any(key in each and each[key].validator == meaning for each in moments)
        below = [{k for k in self._visible(moment, key) if k == key or k.startswith(f"{key}/")} for moment in moments]
        return not set.intersection(*below) or self._is_overwritten(key, moments)

    def _is_overwritten(self, key: str, moments: list[dict[str, ObjectVersion]]) -> bool:
        """True if the marker that publishes it was put again, even unchanged."""
        top = key.removeprefix(self._rules.prefix).partition("/")[0]
        marker = f"{self._rules.prefix}{top}/{self._rules.marker}"
        return bool(self._rules.marker) and len({id(moment.get(marker)) for moment in moments}) > 1

    def _meaning(self, moment: dict[str, ObjectVersion], key: str) -> str:
        keys = self._visible(moment, key)
        if any(each.startswith(f"{key}/") for each in keys):
            return DIRECTORY
        return moment[key].validator if key in keys else ABSENT

    def _visible(self, moment: dict[str, ObjectVersion], key: str) -> set[str]:
        """The keys that make the name `key`. Only the directory above asks for its marker, if it
        needs one."""
        rules = self._rules
        is_top = "/" not in key.removeprefix(rules.prefix)
        return set(visible(moment, prefix=rules.prefix, marker=rules.marker if is_top else "", excluded=rules.excluded))


def _work_s(pages_s: list[float]) -> float:
    """Seconds that a store has worked on these pages, as a listing's life counts them."""
    page_s = min(median(pages_s), PAGE_S) if len(pages_s) >= FEW_PAGES else FEW_PAGE_S
    return max(len(pages_s), 1) * page_s
