"""How full models are, and how long that took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from d7yfs.objects import ObjectVersion
from d7yfs.stats.load_times import FILES, LOOK_FILES, LOOK_PERIOD_S, PAUSE_S, Fullness
from d7yfs.stats.models import OTHER, Models
from d7yfs.stats.repository_status import ModelStatus
from d7yfs.stats.status import blank

full = partial(blank, ModelStatus)


class Scene:
    """A repository of models, and what of it is cached."""

    def __init__(self, limit: int = 9) -> None:
        self.cached: dict[str, int] = {}
        self.looked: list[str] = []
        self.models = Models(limit=limit)
        self.fullness = Fullness(self.models, self._open_bytes, self._look)

    def _open_bytes(self, version: ObjectVersion) -> int:
        return self.cached.get(version.key, 0)

    def _look(self, versions: Sequence[ObjectVersion], tell: Callable[[list[int]], None]) -> None:
        self.looked += [each.key for each in versions]
        tell([self.cached.get(each.key, 0) for each in versions])

    def open(self, key: str, now: float, *, whole: bool = False, validator: str = "1") -> ObjectVersion:
        found = version(key, validator)
        self.fullness.opened(found, now, whole=whole)
        return found

    def bring(self, key: str, now: float) -> None:
        self.cached[key] = 100
        self.fullness.whole(version(key), now)

    def close(self, found: ObjectVersion, now: float) -> None:
        self.fullness.closed(found, now, self.cached.get(found.key, 0))

    def model(self, name: str, now: float) -> ModelStatus:
        return self.fullness.measure(now)[name]


def version(key: str, validator: str = "1") -> ObjectVersion:
    return ObjectVersion(key, 100, validator, 1)


def test_a_load_lasts_until_nothing_is_missing_of_what_is_open() -> None:
    scene = Scene()
    scene.open("llm/a", 10.0)
    scene.open("llm/b", 11.0)
    scene.open("bert/a", 12.0, whole=True)
    scene.bring("llm/a", 15.0)
    assert scene.model("llm", 16.0) == full(files=2, size_bytes=200, cached_bytes=100, loads=1, load_s=None)
    scene.bring("llm/b", 18.0)
    assert scene.model("llm", 19.0) == full(files=2, size_bytes=200, cached_bytes=200, loads=1, load_s=8.0)
    assert scene.model("bert", 19.0).loads == 0


def test_files_that_are_opened_one_after_another_are_one_load() -> None:
    scene = Scene()
    scene.open("llm/a", 0.0)
    scene.bring("llm/a", 5.0)
    scene.open("llm/b", 5.0 + PAUSE_S)
    scene.bring("llm/b", 40.0)
    assert (scene.model("llm", 70.0).loads, scene.model("llm", 70.0).load_s) == (1, 40.0)
    scene.open("llm/c", 200.0)
    scene.bring("llm/c", 203.0)
    assert (scene.model("llm", 203.0).loads, scene.model("llm", 203.0).load_s) == (2, 3.0)


def test_what_is_closed_before_it_is_whole_is_not_waited_for() -> None:
    scene = Scene()
    whole, header = scene.open("llm/a", 0.0), scene.open("llm/b", 0.0)
    scene.bring("llm/a", 4.0)
    scene.close(header, 9.0)
    assert scene.model("llm", 9.0).load_s == 4.0
    scene.close(whole, 9.0)
    scene.close(scene.open("bert/a", 0.0), 1.0)
    assert scene.model("bert", 9.0).load_s is None


def test_each_file_is_waited_for_once() -> None:
    scene = Scene()
    assert scene.fullness.opened(version("llm/a"), 0.0, whole=False)
    assert not scene.fullness.opened(version("llm/a"), 1.0, whole=False)
    scene.close(version("llm/a"), 2.0)
    scene.bring("llm/a", 3.0)
    assert scene.model("llm", 3.0) == full(files=1, size_bytes=100, cached_bytes=100, loads=1, load_s=3.0)


def test_what_is_closed_is_looked_at_again_now_and_then() -> None:
    scene = Scene()
    for number in range(LOOK_FILES + 10):
        scene.cached[f"llm/{number}"] = 100
        scene.close(scene.open(f"llm/{number}", 0.0, whole=True), 0.0)
    assert scene.model("llm", 1.0).cached_bytes == 100 * (LOOK_FILES + 10)
    scene.cached.clear()  # evicted
    scene.looked.clear()
    assert scene.model("llm", 2.0).cached_bytes == 100 * (LOOK_FILES + 10)
    assert scene.looked == [], "a look costs something"
    # The first look was at the first of them, before they were evicted; now it is the turn of the others.
    assert scene.model("llm", 1.0 + LOOK_PERIOD_S).cached_bytes == 100 * LOOK_FILES
    assert len(scene.looked) == 10
    assert scene.model("llm", 1.0 + 2 * LOOK_PERIOD_S).cached_bytes == 0
    assert len(scene.looked) == 10 + LOOK_FILES


def test_what_is_in_use_is_known_at_once() -> None:
    scene = Scene()
    scene.open("llm/a", 0.0)
    scene.cached["llm/a"] = 70
    assert scene.model("llm", 0.0).cached_bytes == 70
    scene.cached["llm/a"] = 80
    assert scene.model("llm", 0.1).cached_bytes == 80


def test_what_the_repository_has_no_more_does_not_count() -> None:
    scene = Scene()
    scene.close(scene.open("llm/1/a", 0.0, whole=True), 0.0)
    still_open = scene.open("llm/1/b", 0.0, whole=True)
    scene.close(scene.open("llm/10/a", 0.0, whole=True), 0.0)
    scene.close(scene.open("bert/1/a", 0.0, whole=True), 0.0)
    scene.fullness.forget("llm/", {"1", "2"})
    assert scene.model("llm", 1.0).files == 2
    scene.close(still_open, 2.0)
    assert scene.model("llm", 2.0).files == 1
    scene.fullness.forget("llm/10/", {"b"})
    assert (scene.model("llm", 2.0).files, scene.model("bert", 2.0).files) == (1, 1)
    scene.fullness.forget("", {"llm", "bert"})
    assert (scene.model("llm", 2.0).files, scene.model("bert", 2.0).files) == (0, 0)


def test_of_a_file_the_newest_version_counts() -> None:
    scene = Scene()
    old = scene.open("llm/a", 0.0)
    scene.open("llm/a", 1.0, validator="2")
    assert scene.model("llm", 1.0).files == 1
    scene.close(old, 2.0)
    scene.fullness.whole(version("llm/a", "2"), 5.0)
    assert scene.model("llm", 5.0).load_s == 5.0


def test_files_and_models_are_bounded() -> None:
    scene = Scene(limit=1)
    for number in range(FILES + 3):
        scene.open(f"llm/{number}", 0.0)
    for name in "ab":
        scene.open(f"{name}/x", 0.0)
    described = scene.fullness.measure(0.0)
    assert {name: full.files for name, full in described.items()} == {"llm": FILES, OTHER: 2}
    scene.close(version("llm/0"), 1.0)  # forgotten by then


def test_a_limit_that_rises_while_a_file_is_open() -> None:
    scene = Scene(limit=0)
    opened = scene.open("llm/a", 0.0)
    scene.models.limit = 9
    scene.models.of("llm/b")
    scene.bring("llm/a", 2.0)
    scene.close(opened, 3.0)
    assert scene.model(OTHER, 3.0).load_s == 2.0
