"""The entries that are shown: each rule, and that both ways of listing show the same tree."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from d7yfs.config.globs import Globs
from d7yfs.config.markers import Markers
from d7yfs.objects import ListingPage, ObjectVersion, Withheld
from d7yfs.tree.listing import DirectoryListing, HiddenKey, Scan, Unordered
from d7yfs.tree.visibility import EXCLUDED, UNPUBLISHED, Flat, Visibility


def version(key: str) -> ObjectVersion:
    return ObjectVersion(key, 1, '"e"', mtime_ns=0)


def rules(include: str = "", exclude: str = "", marker: str = "", prefix: str = "") -> Visibility:
    return Visibility(prefix, include=Globs.parse(include), exclude=Globs.parse(exclude), markers=Markers.parse(marker))


def pages(keys: Iterable[str], prefix: str, *, delimiter: str, size: int = 1000) -> Iterator[ListingPage]:
    """Pages as a store lists them."""
    found: list[ObjectVersion | str] = []
    for key in sorted(keys):
        if not key.startswith(prefix):
            continue
        rest, slash, _ = key[len(prefix) :].partition("/")
        if not delimiter or not slash:
            found.append(version(key))
        elif f"{prefix}{rest}/" not in found:
            found.append(f"{prefix}{rest}/")
    batches = [found[start : start + size] for start in range(0, len(found), size)] or [[]]
    for position, batch in enumerate(batches, 1):
        objects = tuple(each for each in batch if isinstance(each, ObjectVersion))
        prefixes = tuple(each for each in batch if isinstance(each, str))
        yield ListingPage(objects, prefixes, str(position) if position < len(batches) else "", position * 1_000_000_000)


def by_directory(visibility: Visibility, keys: Iterable[str], prefix: str, *, size: int = 1000) -> DirectoryListing:
    """One directory as it is shown when it is listed alone, with a look for each marker."""
    keys = set(keys)
    listing = DirectoryListing(prefix)
    for page in pages(keys, prefix, delimiter="/", size=size):
        needed = visibility.markers(prefix, page)
        listing.add(visibility.directory_page(page, [each for each, marker in needed.items() if marker not in keys]))
    return listing


def flat(visibility: Visibility, keys: Iterable[str], prefix: str = "", *, size: int = 1000) -> list[ListingPage]:
    passing = Flat(visibility, prefix)
    return [passing.add(page) for page in pages(keys, prefix, delimiter="", size=size)]


def shown(visibility: Visibility, *keys: str, prefix: str = "") -> set[str]:
    """All paths that are shown, directories with a slash; the same by both ways."""
    found: set[str] = set()
    pending = [f"{prefix}/" if prefix else ""]
    while pending:
        directory = pending.pop()
        for name, entry in by_directory(visibility, keys, directory).entries.items():
            found.add(f"{directory}{name}/" if entry is None else f"{directory}{name}")
            if entry is None:
                pending.append(f"{directory}{name}/")
    root = f"{prefix}/" if prefix else ""
    listed = {each.key for page in flat(visibility, keys, root) for each in page.objects}
    above = {f"{root}{'/'.join(names[:depth])}/" for names in _names(listed, root) for depth in range(1, len(names))}
    assert (listed | above) - {root} == found
    return found


def _names(keys: Iterable[str], root: str) -> list[list[str]]:
    return [key[len(root) :].split("/") for key in keys]


KEYS = ("a/1/x.onnx", "a/1/x.tmp", "a/config.pbtxt", "b/1/y.onnx", "b/tmp/y.onnx", "tmp/z.onnx", "top.txt")


@pytest.mark.parametrize(
    ("exclude", "hidden"),
    [
        ("*.tmp", {"a/1/x.tmp"}),
        ("tmp", {"b/tmp/", "b/tmp/y.onnx", "tmp/", "tmp/z.onnx"}),
        ("tmp/", {"tmp/", "tmp/z.onnx"}),
        ("/tmp", {"tmp/", "tmp/z.onnx"}),
        ("tmp/*", {"tmp/", "tmp/z.onnx"}),
        ("*/tmp/", {"b/tmp/", "b/tmp/y.onnx"}),
        ("a/*.onnx", {"a/1/x.onnx"}),
        ("/top.txt,b/1", {"top.txt", "b/1/", "b/1/y.onnx"}),
        ("top.txt/", set()),
        ("*", {*KEYS, "a/", "a/1/", "b/", "b/1/", "b/tmp/", "tmp/"}),
        ("*/", {*KEYS, "a/", "a/1/", "b/", "b/1/", "b/tmp/", "tmp/"} - {"top.txt"}),
    ],
)
def test_what_exclude_hides(exclude: str, hidden: set[str]) -> None:
    everything = shown(rules(), *KEYS)
    assert everything == {*KEYS, "a/", "a/1/", "b/", "b/1/", "b/tmp/", "tmp/"}
    assert everything - shown(rules(exclude=exclude), *KEYS) == hidden


@pytest.mark.parametrize(
    ("include", "visible"),
    [
        (
            "*.onnx",
            {"a/", "a/1/", "a/1/x.onnx", "b/", "b/1/", "b/1/y.onnx", "b/tmp/", "b/tmp/y.onnx", "tmp/", "tmp/z.onnx"},
        ),
        ("a/*", {"a/", "a/1/", "a/1/x.onnx", "a/1/x.tmp", "a/config.pbtxt"}),
        ("a/", {"a/", "a/1/", "a/1/x.onnx", "a/1/x.tmp", "a/config.pbtxt"}),
        ("/a", {"a/", "a/1/", "a/1/x.onnx", "a/1/x.tmp", "a/config.pbtxt"}),
        ("?/1/*.onnx", {"a/", "a/1/", "a/1/x.onnx", "b/", "b/1/", "b/1/y.onnx"}),
        ("[!a]/1/y.onnx", {"b/", "b/1/", "b/1/y.onnx"}),
        ("[*]/x", set()),
        ("/top.txt", {"top.txt"}),
        ("/top.*", {"top.txt"}),
        ("nothing/of/it", set()),
    ],
)
def test_what_include_leaves(include: str, visible: set[str]) -> None:
    assert shown(rules(include=include), *KEYS) == visible


def test_exclude_wins_over_include() -> None:
    assert shown(rules(include="a/*", exclude="*.tmp,config.pbtxt"), *KEYS) == {"a/", "a/1/", "a/1/x.onnx"}


def test_paths_begin_at_the_repositorys_directory() -> None:
    keys = [f"lib/x/{key}" for key in KEYS]
    expected = {"lib/x/a/", "lib/x/a/1/", "lib/x/a/1/x.onnx"}
    assert shown(rules("/a/1/*.onnx", prefix="lib/x"), *keys, prefix="lib/x") == expected


def test_a_lone_object_is_held_against_by_its_name() -> None:
    for exclude, hides in (("model.bin", True), ("/model.bin", True), ("lib/*", False), ("lib", False)):
        assert rules(exclude=exclude, prefix="lib/model.bin").hides("lib/model.bin") == hides


# --- markers ---

MODELS = ("a/1/x", "a/READY", "b/1/y", "b/READY/file", "c/READY", "d/1/READY", "file")


def test_a_directory_is_shown_once_it_holds_its_marker() -> None:
    assert shown(rules(marker="READY"), *MODELS) == {"a/", "a/1/", "a/1/x", "a/READY", "c/", "c/READY", "file"}
    assert shown(rules(marker="*/*/READY"), *MODELS) == {
        *("a/", "a/READY", "b/", "c/", "c/READY", "d/", "d/1/", "d/1/READY", "file")
    }
    assert shown(rules(marker="a/READY,[bd]/1/x"), *MODELS) == shown(rules(), *MODELS) - {
        "b/1/",
        "b/1/y",
        "d/1/",
        "d/1/READY",
    }


def test_markers_on_two_levels() -> None:
    keys = ("m/1/READY", "m/1/x", "m/2/x", "m/OK", "n/1/READY", "n/1/x")
    assert shown(rules(marker="*/OK,*/*/READY"), *keys) == {"m/", "m/1/", "m/1/READY", "m/1/x", "m/OK"}


def test_a_marker_counts_whether_it_is_shown_or_not() -> None:
    assert shown(rules(marker="READY", exclude="READY"), "a/READY", "a/x", "b/x") == {"a/", "a/x"}
    assert shown(rules(marker="READY", include="*.onnx"), "a/READY", "a/x.onnx") == {"a/", "a/x.onnx"}


def test_an_excluded_directory_is_not_asked_for_its_marker() -> None:
    page = ListingPage((version("c/"),), ("a/", "b/", "d//"), "", 7)
    visibility = rules(marker="READY", exclude="b")
    assert visibility.markers("", page) == {"a/": "a/READY", "c/": "c/READY"}
    assert visibility.markers("c/", page) == {"a/": "a/READY"}, "the directory's own key is no entry of it"
    assert visibility.marker_of("a/1/") == visibility.marker_of("b/") == ""


def test_what_is_hidden_is_counted_once_for_each_entry() -> None:
    visibility = rules(exclude="tmp,*.part", marker="READY")
    keys = ("a/READY", "a/tmp/1", "a/tmp/2/3", "a/x.part", "b/1", "b/2", "tmp/x", "y.part")
    expected = {
        ("a/tmp/", EXCLUDED),
        ("a/x.part", EXCLUDED),
        ("b/", UNPUBLISHED),
        ("tmp/", EXCLUDED),
        ("y.part", EXCLUDED),
    }
    for size in (1, 2, 1000):
        withheld = [each for page in flat(visibility, keys, size=size) for each in page.withheld]
        assert sorted(withheld) == sorted(Withheld(*each) for each in expected)
    assert dict(by_directory(visibility, keys, "").withheld) == {EXCLUDED: 2, UNPUBLISHED: 1}
    assert dict(by_directory(visibility, keys, "a/").withheld) == {EXCLUDED: 2}
    assert not by_directory(visibility, keys, "a/").hidden_count


def test_what_a_hidden_directory_stood_before_is_shown() -> None:
    listing = by_directory(rules(marker="READY"), ("a", "a/x"), "")
    assert listing.entries == {"a": version("a")}
    assert shown(rules(exclude="a/"), "a", "a/x") == {"a"}


def test_a_directory_of_which_all_files_are_hidden_stays() -> None:
    assert shown(rules(exclude="x"), "a/b/x", "a/c/y") == {"a/", "a/b/", "a/c/", "a/c/y"}


def test_names_that_cannot_be_shown_are_left_to_the_listing() -> None:
    listing = by_directory(rules(exclude="..,b,a//*"), ("a//b", "a/../b"), "a/")
    assert not listing.entries
    assert listing.hidden == [HiddenKey("a/../", "path segment '..'"), HiddenKey("a//", "empty path segment")]
    assert not listing.withheld


# --- flat, page by page ---


def test_nothing_is_kept_back_longer_than_until_the_marker_is_settled() -> None:
    passing = Flat(rules(marker="READY"), "")

    def keys_of(*keys: str, last: bool = False) -> list[str]:
        page = passing.add(ListingPage(tuple(map(version, keys)), (), "" if last else "more", 1_000_000_000))
        return [each.key for each in page.objects]

    assert keys_of("a", "b/1", "b/2") == ["a"]
    assert keys_of("b/3") == []
    assert keys_of("b/READY", "b/x", "c/1") == ["b/1", "b/2", "b/3", "b/READY", "b/x"]
    assert keys_of("c/a", "c/b", "d") == ["d"]
    assert keys_of("e/1") == []
    assert keys_of(last=True) == []


@pytest.mark.parametrize(
    ("first_s", "second_s", "put_s", "published"),
    [
        (100.0, 101.0, 99.9, True),
        (100.0, 101.0, 100.0, False),
        (100.9, 101.0, 100.0, False),
        (100.0, 100.0, 100.0, False),
        (101.0, 102.0, 100.9, True),
    ],
)
def test_a_marker_that_was_put_between_two_pages_does_not_count_yet(
    first_s: float, second_s: float, put_s: float, published: bool
) -> None:
    passing = Flat(rules(marker="READY"), "")
    passing.add(ListingPage((version("a/1"),), (), "more", int(first_s * 1e9)))
    marker = ObjectVersion("a/READY", 0, '"m"', int(put_s * 1e9))
    page = passing.add(ListingPage((marker, version("a/x"), version("b")), (), "", int(second_s * 1e9)))
    assert [each.key for each in page.objects] == (["a/1", "a/READY", "a/x"] if published else []) + ["b"]
    together = Flat(rules(marker="READY"), "").add(ListingPage((version("a/1"), marker), (), "", int(put_s * 1e9)))
    assert len(together.objects) == 2, "on one page it is as the page says"


def test_a_listing_below_a_directory_does_not_ask_for_its_own_marker() -> None:
    listed = [
        each.key
        for page in flat(rules(marker="*/*/READY,*/OK"), ["a/1/x", "a/1/y/z", "a/2/x"], "a/1/")
        for each in page.objects
    ]
    assert listed == ["a/1/x", "a/1/y/z"]


def test_keys_out_of_order_are_told() -> None:
    passing = Flat(rules(exclude="b"), "")
    passing.add(ListingPage((version("b"),), (), "more", 7))
    with pytest.raises(Unordered):
        passing.add(ListingPage((version("a"),), (), "", 7))


# --- both ways, whatever the keys and rules ---

NAMES = st.sampled_from(["a", "b", "ab", "a.b", "", ".", "é", "READY", "x" * 256])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map("/".join).filter(bool)
GLOBS = st.lists(st.text("ab/*?.[!]", min_size=1, max_size=6) | PATHS, max_size=3).map(",".join)
MARKERS = st.sampled_from(
    ["", "READY", "*/*/READY", "a/READY,*/b", "*/a/READY", "*/READY,*/*/READY", "*/a,*/*/b,*/*/*/a"]
)


def tree_of(visibility: Visibility, keys: set[str], root: str, size: int) -> dict[str, DirectoryListing]:
    """Every directory that is shown, each listed alone."""
    found: dict[str, DirectoryListing] = {}
    pending = [root]
    while pending:
        directory = pending.pop()
        listing = found[directory] = by_directory(visibility, keys, directory, size=size)
        pending += [f"{directory}{name}/" for name, entry in listing.entries.items() if entry is None]
    return found


@settings(max_examples=400)
@given(
    keys=st.sets(PATHS, max_size=14),
    include=GLOBS,
    exclude=GLOBS,
    marker=MARKERS,
    root=st.sampled_from(["", "a/"]),
    size=st.integers(1, 5),
)
def test_both_ways_show_the_same_tree(
    keys: set[str], include: str, exclude: str, marker: str, root: str, size: int
) -> None:
    visibility = rules(include, exclude, marker, prefix=root.removesuffix("/"))
    one_by_one = tree_of(visibility, keys, root, size)
    scan = Scan(root)
    for page in flat(visibility, keys, root, size=size):
        scan.add(page)
    whole = {listing.prefix: listing for listing in scan.listings()}
    assert whole.keys() == one_by_one.keys()
    for directory, listing in one_by_one.items():
        assert whole[directory].entries == listing.entries
        assert set(whole[directory].hidden) == set(listing.hidden)
        assert whole[directory].withheld == listing.withheld


@settings(max_examples=200)
@given(keys=st.sets(PATHS, max_size=10), include=GLOBS, exclude=GLOBS)
def test_a_key_is_hidden_from_a_lookup_as_from_a_listing(keys: set[str], include: str, exclude: str) -> None:
    visibility = rules(include, exclude)
    listed = {each.key for page in flat(visibility, keys) for each in page.objects}
    for key in keys:
        assert visibility.hides(key) == (key not in listed)


def test_an_excluded_branch_is_passed_over_in_pages_of_any_size() -> None:
    keys = [f"{top}/{number:03}" for top, number in itertools.product(("a", "tmp", "z"), range(50))]
    for size in (1, 7, 1000):
        found = flat(rules(exclude="tmp"), keys, size=size)
        assert [each.key for page in found for each in page.objects] == [
            key for key in keys if not key.startswith("tmp")
        ]
        assert [each for page in found for each in page.withheld] == [Withheld("tmp/", EXCLUDED)]
