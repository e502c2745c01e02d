from __future__ import annotations

import math
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from d7yfs.errors import NotADirectory, VersionGone
from d7yfs.objects import ListingPage, ObjectVersion, Withheld
from d7yfs.tree.listing import DirectoryListing, NoObject, Scan
from d7yfs.tree.nodes import FOREVER_S, Absent, Directory, Expired, File, Found, NameChanges
from d7yfs.tree.tree import MAX_ENTRIES, ROOT_INODE, Tree, TreeRoot
from tests.tree.listings import collect, names_in

CREATED_NS = 1_000_000_000_000
TTL_S = 60.0
NEGATIVE_S = 5.0


def make_tree(
    *repositories: TreeRoot, ttl_s: float = TTL_S, negative_s: float = NEGATIVE_S, max_entries: int = MAX_ENTRIES
) -> Tree:
    return Tree(
        repositories or [TreeRoot("", "m/")],
        metadata_ttl_s=ttl_s,
        negative_ttl_s=negative_s,
        created_ns=CREATED_NS,
        max_entries=max_entries,
    )


def listing_of(
    objects: dict[str, ObjectVersion], prefix: str, date_ns: int = 0, page_size: int = 3
) -> DirectoryListing:
    """The answer of an S3 store with these objects to a delimiter listing of `prefix`."""
    keys: list[str] = []
    for key in sorted(objects):
        if key.startswith(prefix):
            rest = key[len(prefix) :]
            shown = prefix + rest[: rest.index("/") + 1] if "/" in rest else key
            if not keys or keys[-1] != shown:
                keys.append(shown)

    def pages() -> Iterator[ListingPage]:
        for start in range(0, max(len(keys), 1), page_size):
            part = keys[start : start + page_size]
            yield ListingPage(
                tuple(objects[key] for key in part if not (key.endswith("/") and key != prefix)),
                tuple(key for key in part if key.endswith("/") and key != prefix),
                "more",
                date_ns,
            )

    return collect(prefix, pages())


def version(key: str, etag: str = "e", size: int = 1, mtime_ns: int = 5, archived: str = "") -> ObjectVersion:
    return ObjectVersion(key, size, f'"{etag}"', mtime_ns, archived=archived)


class Mount:
    """A tree with a store behind it: lists when the tree says so, and counts how often."""

    def __init__(self, tree: Tree, *objects: ObjectVersion) -> None:
        self.tree = tree
        self.now = 0.0
        self.date_ns = 0
        self.objects = {version.key: version for version in objects}
        self.listings = 0

    def put(self, *objects: ObjectVersion) -> None:
        self.objects |= {version.key: version for version in objects}

    def delete(self, *keys: str) -> None:
        for key in keys:
            del self.objects[key]

    def list(self, inode: int = ROOT_INODE) -> NameChanges:
        self.listings += 1
        prefix = self.tree.directory(inode).prefix
        return self.tree.apply(inode, listing_of(self.objects, prefix, self.date_ns), self.now, asked_at=self.now)

    def lookup(self, name: str, parent: int = ROOT_INODE) -> Found | Absent:
        answer = self.tree.lookup(parent, name, self.now)
        if isinstance(answer, Expired):
            assert answer.directory is self.tree.get(parent)
            self.list(parent)
            answer = self.tree.lookup(parent, name, self.now)
        assert not isinstance(answer, Expired)
        return answer

    def find(self, path: str) -> File | Directory:
        node = self.tree.get(ROOT_INODE)
        for name in path.split("/"):
            found = self.lookup(name, node.inode)
            assert isinstance(found, Found), path
            node = found.node
        return node

    def expire(self) -> None:
        self.now += TTL_S


# -- repositories


def test_one_unnamed_repository_is_the_root() -> None:
    mount = Mount(make_tree(TreeRoot("", "m/")), version("m/a"), version("n/b"))
    root = mount.tree.directory(ROOT_INODE)
    assert (root.repository, root.prefix) == ("", "m/")
    mount.find("a")
    assert names_in(mount.tree, ROOT_INODE) == ("a",)


def test_named_repositories_are_the_entries_of_a_fixed_root() -> None:
    mount = Mount(make_tree(TreeRoot("llm", "x/"), TreeRoot("vision", "")), version("x/a"))
    tree = mount.tree
    assert names_in(tree, ROOT_INODE) == ("llm", "vision")
    assert tree.get(ROOT_INODE).nlink == 4
    llm = tree.lookup(ROOT_INODE, "llm", now=1e9)
    assert isinstance(llm, Found)
    assert llm.entry_timeout_s == FOREVER_S
    assert isinstance(llm.node, Directory)
    assert (llm.node.repository, llm.node.prefix) == ("llm", "x/")
    assert tree.lookup(ROOT_INODE, "else", now=0) == Absent(NEGATIVE_S)
    assert tree.get(ROOT_INODE).attributes_timeout_s(now=1e9) == FOREVER_S
    a = mount.find("llm/a")
    assert isinstance(a, File)
    assert a.repository == "llm"
    assert mount.find("vision/x/a").inode != a.inode


@pytest.mark.parametrize("names", [["a", "a"], ["", "a"], ["a/b"], [".."]])
def test_repositories_need_usable_names(names: list[str]) -> None:
    with pytest.raises(ValueError, match="distinct names"):
        make_tree(*(TreeRoot(name, "") for name in names))


def test_a_repository_that_is_one_object_is_a_directory_with_that_file() -> None:
    mount = Mount(make_tree(TreeRoot("", "m/model.bin")), version("m/model.bin"), version("m/model.bin.old"))
    assert mount.find("model.bin").is_directory is False
    assert names_in(mount.tree, ROOT_INODE) == ("model.bin",)
    assert isinstance(mount.lookup("model.bin.old"), Absent)


def test_directories_need_a_positive_mtime() -> None:
    with pytest.raises(ValueError, match="positive"):
        Tree([TreeRoot("", "")], metadata_ttl_s=1, negative_ttl_s=1, created_ns=0)


# -- freshness


def test_timeouts_are_what_remains_of_the_listing() -> None:
    mount = Mount(make_tree(), version("m/a"))
    assert isinstance(mount.tree.lookup(ROOT_INODE, "a", 0), Expired)
    assert not mount.tree.listed(ROOT_INODE, 0)
    mount.list()
    found = mount.lookup("a")
    assert isinstance(found, Found)
    assert found.entry_timeout_s == TTL_S
    assert mount.lookup("b") == Absent(NEGATIVE_S)
    mount.now = 58.0
    found = mount.lookup("a")
    assert isinstance(found, Found)
    assert found.entry_timeout_s == 2.0
    assert mount.lookup("b") == Absent(2.0)
    assert mount.tree.get(ROOT_INODE).attributes_timeout_s(mount.now) == 2.0
    mount.now = TTL_S
    assert isinstance(mount.tree.lookup(ROOT_INODE, "a", mount.now), Expired)
    assert mount.listings == 1


def test_a_listing_ages_from_when_it_was_asked_for() -> None:
    mount = Mount(make_tree(), version("m/a"))
    mount.tree.apply(ROOT_INODE, listing_of(mount.objects, "m/"), now=100.0 + 20, asked_at=100.0)
    found = mount.tree.lookup(ROOT_INODE, "a", now=120.0)
    assert isinstance(found, Found)
    assert found.entry_timeout_s == TTL_S - 20


@pytest.mark.parametrize("ttl_s", [0.0, 3.0])
def test_a_listing_made_for_a_question_answers_it_however_long_it_took(ttl_s: float) -> None:
    mount = Mount(make_tree(ttl_s=ttl_s), version("m/a"))
    mount.tree.apply(ROOT_INODE, listing_of(mount.objects, "m/"), now=20.0, asked_at=10.0)
    found = mount.tree.lookup(ROOT_INODE, "a", now=20.0, asked_at=9.5)
    assert isinstance(found, Found)
    assert found.entry_timeout_s == 0.0
    assert mount.tree.lookup(ROOT_INODE, "b", now=20.0, asked_at=9.5) == Absent(0.0)
    assert isinstance(mount.tree.lookup(ROOT_INODE, "a", now=20.0), Expired)
    if not ttl_s:
        assert isinstance(mount.tree.lookup(ROOT_INODE, "a", now=20.0, asked_at=10.5), Expired), "asked too late for it"


def test_an_infinite_time_to_live_gives_finite_timeouts() -> None:
    mount = Mount(make_tree(ttl_s=math.inf, negative_s=math.inf), version("m/a"))
    mount.list()
    mount.now = 1e9
    found = mount.lookup("a")
    assert isinstance(found, Found)
    assert found.entry_timeout_s == FOREVER_S
    assert mount.lookup("b") == Absent(FOREVER_S)
    assert mount.listings == 1


def test_a_listing_older_than_the_one_applied_changes_nothing() -> None:
    mount = Mount(make_tree(), version("m/a"))
    old = listing_of(mount.objects, "m/")
    mount.put(version("m/b"))
    mount.now = 10.0
    mount.list()
    assert not mount.tree.apply(ROOT_INODE, old, now=11.0, asked_at=9.0)
    assert names_in(mount.tree, ROOT_INODE) == ("a", "b")
    found = mount.lookup("b")
    assert isinstance(found, Found)
    assert found.entry_timeout_s == TTL_S


def test_a_failed_listing_serves_the_older_one_until_the_retry() -> None:
    mount = Mount(make_tree(), version("m/a"))
    assert mount.tree.extend_stale(ROOT_INODE, 0.0, retry_s=4.0) is False
    mount.list()
    mount.expire()
    assert mount.tree.extend_stale(ROOT_INODE, mount.now, retry_s=4.0) is True
    found = mount.tree.lookup(ROOT_INODE, "a", mount.now)
    assert isinstance(found, Found)
    assert found.entry_timeout_s == 4.0
    assert mount.tree.lookup(ROOT_INODE, "b", mount.now) == Absent(4.0)
    mount.now += 4.0
    assert isinstance(mount.tree.lookup(ROOT_INODE, "a", mount.now), Expired)
    assert mount.tree.extend_stale(ROOT_INODE, mount.now, retry_s=0.1)
    found = mount.tree.lookup(ROOT_INODE, "a", mount.now)
    assert isinstance(found, Found)
    assert found.entry_timeout_s == 1.0, "a retry is never sooner"
    assert mount.tree.statistics().stale_listings_total == 2
    assert mount.tree.statistics().stale_answers_total == 3
    mount.list()
    mount.lookup("a")
    assert mount.tree.statistics().stale_answers_total == 3


def test_entries_are_those_of_the_names_that_there_still_are() -> None:
    mount = Mount(make_tree(), version("m/a"), version("m/b"), version("m/c"))
    mount.list()
    names = names_in(mount.tree, ROOT_INODE)
    a, c = mount.find("a"), mount.find("c")
    mount.delete("m/b")
    mount.put(version("m/d"))
    mount.list()
    assert list(mount.tree.entries(ROOT_INODE, names, 0)) == [(0, "a", a), (2, "c", c)]
    assert list(mount.tree.entries(ROOT_INODE, names, 1)) == [(2, "c", c)]
    assert not list(mount.tree.entries(ROOT_INODE, names, 3))
    mount.expire()
    assert mount.tree.extend_stale(ROOT_INODE, mount.now, retry_s=4.0)
    list(mount.tree.entries(ROOT_INODE, names, 0))
    assert mount.tree.statistics().stale_answers_total == 1
    with pytest.raises(NotADirectory):
        mount.tree.entries(a.inode, names, 0)


def test_a_failed_refresh_does_not_shorten_what_lives_longer() -> None:
    mount = Mount(make_tree(), version("m/a"))
    mount.list()
    assert mount.tree.extend_stale(ROOT_INODE, 1.0, retry_s=4.0)
    mount.now = 1.0
    found = mount.lookup("a")
    assert isinstance(found, Found)
    assert found.entry_timeout_s == TTL_S - 1
    assert mount.tree.statistics().stale_answers_total == 0


# -- inodes


def test_the_same_identity_keeps_its_inode_and_its_first_mtime() -> None:
    mount = Mount(make_tree(), version("m/a", mtime_ns=5))
    first = mount.find("a")
    mount.expire()
    mount.put(version("m/a", mtime_ns=9))
    assert not mount.list()
    again = mount.find("a")
    assert again is first
    assert again.mtime_ns == 5


@pytest.mark.parametrize("other", [version("m/a", etag="f"), version("m/a", size=2)])
def test_a_changed_object_is_another_inode_and_the_old_one_lives_while_remembered(other: ObjectVersion) -> None:
    mount = Mount(make_tree(), version("m/a"))
    old = mount.find("a")
    mount.tree.remember(old.inode)  # LOOKUP
    mount.tree.remember(old.inode)  # OPEN
    mount.expire()
    mount.put(other)
    assert mount.list() == NameChanges(replaced=("a",))
    new = mount.find("a")
    assert isinstance(new, File)
    assert new.inode != old.inode
    assert new.version == other
    mount.tree.forget(old.inode)
    assert mount.tree.get(old.inode) is old
    mount.tree.forget(old.inode)
    with pytest.raises(VersionGone):
        mount.tree.get(old.inode)
    with pytest.raises(VersionGone):
        mount.tree.remember(old.inode)


def test_the_numbers_of_a_version_are_those_that_somebody_remembers() -> None:
    mount = Mount(make_tree(), version("m/a"), version("m/b"))
    inode = mount.find("a").inode
    assert mount.tree.inodes_of(version("m/a")) == []
    mount.tree.remember(inode)
    assert mount.tree.inodes_of(version("m/a")) == [inode]
    assert mount.tree.inodes_of(version("m/a", etag="f")) == []
    mount.expire()
    mount.delete("m/a")
    mount.list()
    assert mount.tree.inodes_of(version("m/a")) == [inode], "it is no entry any more, but may be open"
    mount.tree.forget(inode)
    assert mount.tree.inodes_of(version("m/a")) == []


def test_a_replaced_version_that_nobody_remembers_is_gone_at_once() -> None:
    mount = Mount(make_tree(), version("m/a"))
    old = mount.find("a")
    mount.put(version("m/a", etag="f"))
    mount.list()
    with pytest.raises(VersionGone):
        mount.tree.get(old.inode)


def test_a_version_that_comes_back_while_remembered_is_the_same_inode() -> None:
    mount = Mount(make_tree(), version("m/a", mtime_ns=5))
    old = mount.find("a")
    mount.tree.remember(old.inode)
    mount.put(version("m/a", etag="f"))
    mount.list()
    mount.put(version("m/a", mtime_ns=50))
    mount.list()
    assert mount.find("a") is old
    assert old.mtime_ns == 5
    mount.tree.forget(old.inode)
    assert mount.find("a") is old, "an entry again, not aside any more"


def test_an_object_restored_from_the_archive_keeps_its_inode_but_is_not_archived() -> None:
    mount = Mount(make_tree(), version("m/a", archived="GLACIER"))
    node = mount.find("a")
    assert isinstance(node, File)
    assert node.version.archived == "GLACIER"
    mount.put(version("m/a", mtime_ns=77))
    assert not mount.list()
    assert mount.find("a") is node
    assert node.version == version("m/a", mtime_ns=5)


def test_file_becomes_directory_and_back() -> None:
    mount = Mount(make_tree(), version("m/a"))
    file = mount.find("a")
    mount.tree.remember(file.inode)
    mount.delete("m/a")
    mount.put(version("m/a/b"))
    assert mount.list() == NameChanges(replaced=("a",))
    directory = mount.find("a")
    assert isinstance(directory, Directory)
    assert directory.inode != file.inode
    below = mount.find("a/b")
    mount.tree.remember(directory.inode)
    mount.delete("m/a/b")
    mount.put(version("m/a"))
    assert mount.list() == NameChanges(replaced=("a",))
    assert mount.find("a") is file
    assert mount.tree.get(directory.inode) is directory
    mount.tree.forget(directory.inode)
    for gone in (directory, below):
        with pytest.raises(VersionGone):
            mount.tree.get(gone.inode)


def test_of_an_object_and_a_directory_the_directory_wins_and_the_file_goes() -> None:
    mount = Mount(make_tree(), version("m/a"))
    mount.find("a")
    mount.put(version("m/a/b"))
    changes = mount.list()
    assert mount.find("a").is_directory
    assert [hidden.key for hidden in changes.hidden] == ["m/a"]


def test_a_directory_that_comes_back_while_remembered_is_the_same_inode() -> None:
    mount = Mount(make_tree(), version("m/d/a"))
    directory = mount.find("d")
    mount.tree.remember(directory.inode)
    mount.delete("m/d/a")
    assert mount.list() == NameChanges(removed=("d",))
    mount.expire()
    assert isinstance(mount.lookup("a", directory.inode), Absent), "an open directory that is gone is empty"
    mount.put(version("m/d/b"))
    mount.expire()
    assert mount.find("d") is directory
    mount.find("d/b")


def test_a_removed_directory_takes_what_is_below_it_along_but_not_what_is_remembered() -> None:
    mount = Mount(make_tree(), *(version(f"m/d/e/f/{name}") for name in "xyz"))
    nodes = [mount.find(path) for path in ("d", "d/e", "d/e/f", "d/e/f/x", "d/e/f/y")]
    held = nodes.pop()
    mount.tree.remember(held.inode)
    mount.objects.clear()
    mount.put(version("m/other"))
    mount.list()
    for node in nodes:
        with pytest.raises(VersionGone):
            mount.tree.get(node.inode)
    assert mount.tree.get(held.inode) is held
    assert mount.tree.statistics().inodes == 3  # root, other, held
    mount.tree.forget(held.inode)
    assert mount.tree.statistics().inodes == 2


def test_very_deep_trees_are_removed_without_recursion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("d7yfs.tree.listing.KEY_MAX_CHARACTERS", 5000)
    monkeypatch.setattr("d7yfs.tree.listing.KEY_MAX_DIRECTORIES", 5000)
    mount = Mount(make_tree(), version("m/" + "d/" * 2000 + "a"))
    node = mount.tree.get(ROOT_INODE)
    for _ in range(2000):
        found = mount.lookup("d", node.inode)
        assert isinstance(found, Found)
        node = found.node
    mount.objects.clear()
    mount.list()
    assert mount.tree.statistics().inodes == 1


def test_forgetting_too_much_is_counted_and_harms_nothing() -> None:
    mount = Mount(make_tree(), version("m/a"))
    node = mount.find("a")
    mount.tree.remember(node.inode, 2)
    mount.tree.forget(node.inode, 3)
    mount.tree.forget(node.inode)
    mount.tree.forget(4711)
    statistics = mount.tree.statistics()
    assert statistics.unmatched_forgets_total == 3
    assert statistics.remembered == 1  # the root
    assert mount.find("a") is node


def test_the_root_stays_whatever_is_forgotten() -> None:
    tree = make_tree()
    tree.forget(ROOT_INODE, 5)
    assert tree.get(ROOT_INODE).inode == ROOT_INODE


def test_directory_operations_on_files_and_unknown_numbers() -> None:
    mount = Mount(make_tree(), version("m/a"))
    file = mount.find("a")
    with pytest.raises(NotADirectory, match="m/a"):
        mount.tree.lookup(file.inode, "x", 0)
    with pytest.raises(NotADirectory):
        names_in(mount.tree, file.inode)
    with pytest.raises(VersionGone, match="4711"):
        mount.tree.lookup(4711, "x", 0)


# -- attributes


def test_link_counts() -> None:
    mount = Mount(make_tree(), version("m/a"), version("m/d/x"), version("m/e/x"))
    root = mount.tree.get(ROOT_INODE)
    assert root.nlink == 1, "unknown until listed"
    mount.list()
    assert root.nlink == 4
    assert mount.find("a").nlink == 1
    mount.delete("m/e/x")
    mount.list()
    assert root.nlink == 3


def test_attributes_of_a_file_last_and_those_of_an_unlisted_directory_do_not() -> None:
    mount = Mount(make_tree(), version("m/a", size=7), version("m/d/x"))
    file, directory = mount.find("a"), mount.find("d")
    assert (file.size_bytes, file.mtime_ns) == (7, 5)
    assert file.attributes_timeout_s(1e9) == FOREVER_S
    assert directory.attributes_timeout_s(mount.now) == 0.0
    assert directory.size_bytes == 0


def test_a_directorys_mtime_rises_only_when_its_own_entries_change() -> None:
    mount = Mount(make_tree(), version("m/a"), version("m/d/x"))
    root, directory = mount.tree.get(ROOT_INODE), mount.find("d")
    assert root.mtime_ns == directory.mtime_ns == CREATED_NS, "fixed at first sight, whatever the first listing holds"
    mount.date_ns = CREATED_NS + 10_000
    mount.list()
    mount.put(version("m/d/y"))
    mount.list(directory.inode)
    mount.list()
    assert root.mtime_ns == CREATED_NS, "equal after identical listings, and a change below is not its own"
    assert directory.mtime_ns == CREATED_NS, "its first listing"
    mount.put(version("m/d/z"))
    mount.list(directory.inode)
    assert directory.mtime_ns == mount.date_ns
    mount.put(version("m/a", etag="f", mtime_ns=CREATED_NS + 30_000))
    mount.list()
    assert root.mtime_ns == CREATED_NS + 30_000, "the newest of the changed entries and the reply's date"
    mount.delete("m/a")
    mount.list()
    assert root.mtime_ns == CREATED_NS + 31_000, "a change always shows, even when the origin's clock is behind"
    mount.list()
    assert root.mtime_ns == CREATED_NS + 31_000


def test_first_sight_is_the_same_whenever_it_happens() -> None:
    mount = Mount(make_tree(), version("m/d/x"))
    mount.date_ns = CREATED_NS + 10_000
    assert mount.find("d").mtime_ns == CREATED_NS


def test_a_directory_that_appears_again_is_not_older_than_before() -> None:
    mount = Mount(make_tree(), version("m/a"), version("m/d/x"))
    mount.find("d/x")
    mount.date_ns = CREATED_NS + 10_000
    mount.put(version("m/d/y"))
    mount.expire()
    before = mount.find("d")
    mount.list(before.inode)
    assert before.mtime_ns == mount.date_ns
    mount.delete("m/d/x", "m/d/y")
    mount.list()
    mount.date_ns += 10_000
    mount.put(version("m/d/x"))
    mount.list()
    again = mount.find("d")
    assert again is not before
    assert again.mtime_ns == mount.date_ns


# -- the rest of the surface


def test_changes_name_entries_only_of_a_directory_listed_before() -> None:
    mount = Mount(make_tree(), version("m/a"), version("m/b"), version("m/c"))
    first = mount.list()
    assert first == NameChanges()
    assert not first
    mount.delete("m/a")
    mount.put(version("m/b", etag="f"), version("m/d"))
    changes = mount.list()
    assert changes == NameChanges(added=("d",), removed=("a",), replaced=("b",))
    assert changes


def test_the_order_of_a_directory_does_not_tell_how_it_was_listed() -> None:
    """It is that of keys, in which a directory's name ends in a slash: `b-` is before `b/`."""
    keys = [f"m/{each}" for each in ("a", "b-", "b/x", "b0", "c.d/x", "c/x", "z")]
    objects = tuple(version(key) for key in keys)
    flat, alone, by_name = make_tree(), Mount(make_tree(), *objects), Mount(make_tree(), *objects[2:-1])
    scan = Scan("m/")
    scan.add(ListingPage(objects, (), "", 0))
    flat.apply(ROOT_INODE, next(scan.listings()), 0.0, asked_at=0.0)
    listing = listing_of(alone.objects, "m/", page_size=len(keys))
    assert list(listing.entries) == ["a", "b-", "b0", "z", "b", "c.d", "c"], "objects first"
    alone.tree.apply(ROOT_INODE, listing, 0.0, asked_at=0.0)
    by_name.list()
    for name, answer in (("z", objects[-1]), ("b-", objects[1]), ("a", objects[0])):
        by_name.tree.apply_name(ROOT_INODE, name, answer, 1.0, asked_at=1.0)
    for tree in (flat, alone.tree, by_name.tree):
        assert names_in(tree, ROOT_INODE) == ("a", "b-", "b", "b0", "c.d", "c", "z")


def test_children_are_a_snapshot() -> None:
    mount = Mount(make_tree(), version("m/a"), version("m/b"))
    assert names_in(mount.tree, ROOT_INODE) == ()
    mount.list()
    snapshot = names_in(mount.tree, ROOT_INODE)
    opened_at = mount.now
    mount.expire()
    mount.now += 1
    mount.delete("m/a")
    mount.put(version("m/b", etag="f"))
    mount.list()
    mount.expire()
    assert snapshot == ("a", "b")
    answers = [mount.tree.lookup(ROOT_INODE, name, mount.now, asked_at=opened_at) for name in snapshot]
    assert answers[0] == Absent(0.0)
    assert isinstance(answers[1], Found)
    assert isinstance(answers[1].node, File)
    assert answers[1].node.version.validator == '"f"', "shown as it is now"
    assert answers[1].entry_timeout_s == 0.0, "and believed no longer than its listing"


def test_resolve_knows_what_is_known_and_asks_for_nothing() -> None:
    mount = Mount(make_tree(TreeRoot("llm", "x/")), version("x/d/a"))
    a = mount.find("llm/d/a")
    mount.expire()
    assert mount.tree.resolve("llm/d/a") is a
    assert mount.tree.resolve("/llm//d/") is mount.tree.resolve("llm/d")
    assert mount.tree.resolve("") is mount.tree.get(ROOT_INODE)
    for path in ("llm/d/b", "llm/d/a/b", "vision"):
        assert mount.tree.resolve(path) is None
    assert mount.listings == 2


def test_hidden_keys_are_reported_once_and_counted_while_they_are_there() -> None:
    mount = Mount(make_tree(), version("m/a"), version("m//x"), version("m/../y"))
    changes = mount.list()
    assert sorted(hidden.key for hidden in changes.hidden) == ["m/../", "m//"]
    assert mount.list().hidden == ()
    assert mount.tree.statistics().hidden_keys == 2
    mount.delete("m//x")
    mount.list()
    assert mount.tree.statistics().hidden_keys == 1


def test_hidden_keys_of_a_directory_that_is_gone_are_not_counted() -> None:
    mount = Mount(make_tree(), version("m/a"), version("m/d//x"))
    mount.list(mount.find("d").inode)
    assert mount.tree.statistics().hidden_keys == 1
    mount.delete("m/d//x")
    mount.list()
    assert mount.tree.statistics().hidden_keys == 0


def test_what_settings_hide_is_counted_by_reason_while_its_directory_is_listed() -> None:
    tree = make_tree()
    withheld = (Withheld("m/x.tmp", "excluded"), Withheld("m/y.tmp", "excluded"), Withheld("m/new/", "unpublished"))
    page = ListingPage((version("m/a"), version("m//x")), (), "", CREATED_NS, withheld)
    tree.apply(ROOT_INODE, collect("m/", [page]), 0.0, asked_at=0.0)
    assert tree.hidden_by_reason("") == {"name": 1, "excluded": 2, "unpublished": 1}
    tree.apply(ROOT_INODE, collect("m/", [replace(page, withheld=withheld[:1])]), 1.0, asked_at=1.0)
    assert tree.hidden_by_reason("") == {"name": 1, "excluded": 1}
    tree.apply(ROOT_INODE, collect("m/", [ListingPage((), (), "", CREATED_NS)]), 2.0, asked_at=2.0)
    assert not +tree.hidden_by_reason("")


def test_the_report_of_hidden_keys_is_bounded() -> None:
    mount = Mount(make_tree(), *(version(f"m/{directory}/{'x' * 300}{i}") for directory in "ab" for i in range(80)))
    mount.find("a")
    reported = [mount.list(mount.find(directory).inode).hidden for directory in "ab"]
    assert [len(hidden) for hidden in reported] == [80, 20]
    assert mount.tree.statistics().hidden_keys == 160


# -- the bound


def directories(count: int, files: int) -> list[ObjectVersion]:
    return [version(f"m/d{i:03}/f{j:03}") for i in range(count) for j in range(files)]


def walk(mount: Mount, *, hold: bool = False) -> None:
    for i in range(len({key.split("/")[1] for key in mount.objects if key.startswith("m/d")})):
        directory = mount.find(f"d{i:03}")
        mount.list(directory.inode)
        for name in names_in(mount.tree, directory.inode):
            if hold:
                mount.tree.remember(mount.find(f"d{i:03}/{name}").inode)


def test_drops_the_expired_that_were_used_longest_ago() -> None:
    mount = Mount(make_tree(max_entries=100), *directories(20, 10))
    for i in range(5):
        mount.find(f"d{i:03}/f000")
    mount.expire()
    mount.find("d000/f000")
    for i in range(5, 8):
        mount.find(f"d{i:03}/f000")
    assert mount.tree.statistics().inodes <= 100
    assert isinstance(mount.tree.resolve("d000/f000"), File), "used again since"
    assert mount.tree.resolve("d001/f000") is None
    assert mount.tree.resolve("d007/f000") is not None
    assert mount.tree.statistics().dropped_inodes_total > 0


def test_a_lookup_counts_as_use() -> None:
    mount = Mount(make_tree(max_entries=60), *directories(20, 10))
    for i in (0, 1, 2, 0, 3):
        mount.find(f"d{i:03}/f000")
    assert mount.listings == 5
    assert mount.tree.resolve("d000/f000") is not None
    assert mount.tree.resolve("d001/f000") is None


def test_a_directory_that_was_dropped_comes_back_with_no_earlier_mtime() -> None:
    mount = Mount(make_tree(max_entries=40), version("m/p/q/x"), *directories(20, 10))
    directory = mount.find("p/q")
    mount.list(directory.inode)
    mount.put(version("m/p/q/y"))
    mount.date_ns = CREATED_NS + 10_000
    mount.list(directory.inode)
    assert directory.mtime_ns == mount.date_ns
    walk(mount)
    assert mount.tree.resolve("p/q") is None
    assert mount.find("p/q").mtime_ns >= directory.mtime_ns


def test_walking_more_than_the_bound_within_one_time_to_live_stays_bounded() -> None:
    mount = Mount(make_tree(max_entries=100), *directories(50, 10))
    walk(mount)
    assert mount.tree.statistics().inodes <= 100
    assert mount.tree.resolve("d049/f009") is not None, "the one listed last"


def test_a_directory_larger_than_the_bound_is_known_whole() -> None:
    mount = Mount(make_tree(max_entries=10), *directories(2, 50))
    mount.list()
    mount.find("d000/f049")
    assert len(names_in(mount.tree, mount.find("d000").inode)) == 50


def test_what_the_kernel_remembers_is_never_dropped() -> None:
    mount = Mount(make_tree(max_entries=100), *directories(30, 10))
    walk(mount, hold=True)
    held = [node for i in range(30) if (node := mount.tree.resolve(f"d{i:03}/f000"))]
    assert len(held) == 30
    for node in held:
        mount.tree.forget(node.inode)
    mount.expire()
    mount.list()
    assert mount.tree.statistics().remembered == 30 * 9 + 1


def test_forgotten_inodes_make_room_again() -> None:
    mount = Mount(make_tree(max_entries=100), *directories(30, 10))
    walk(mount, hold=True)
    assert mount.tree.statistics().inodes > 300
    for i in range(30):
        for j in range(10):
            node = mount.tree.resolve(f"d{i:03}/f{j:03}")
            assert node
            mount.tree.forget(node.inode)
    mount.list(mount.find("d000").inode)
    assert mount.tree.statistics().inodes <= 100


def test_of_what_the_kernel_remembers_too_much_it_is_to_forget_the_oldest() -> None:
    mount = Mount(make_tree(max_entries=80), *directories(10, 10))
    tree = mount.tree
    assert not tree.is_crowded
    walk(mount, hold=True)
    assert tree.is_crowded
    opened = mount.find("d000/f003")
    mount.find("d001/f000")
    surplus = tree.pick_names_to_forget({opened.inode})
    assert not tree.is_crowded, "it has been said"
    assert sum(map(len, surplus.values())) == tree.statistics().remembered - 40
    paths = {f"{tree.directory(inode).prefix}{name}" for inode, names in surplus.items() for name in names}
    assert {f"m/d{i:03}/f{j:03}" for i in range(2, 8) for j in range(10)} <= paths
    assert opened.version.key not in paths
    for inode, names in surplus.items():
        for name in names:
            tree.forget((tree.directory(inode).children or {})[name].inode)
    assert tree.statistics().remembered == 40
    assert not tree.is_crowded
    walk(mount, hold=True)
    assert tree.is_crowded


def test_a_kernel_that_does_not_forget_is_not_told_at_every_turn() -> None:
    mount = Mount(make_tree(max_entries=80), *directories(20, 10))
    told = []
    for i in range(20):
        for j in range(10):
            mount.tree.remember(mount.find(f"d{i:03}/f{j:03}").inode)
            if mount.tree.is_crowded:
                told.append(sum(map(len, mount.tree.pick_names_to_forget(()).values())))
    assert len(told) == len(range(61, 202, 10)), "the root is remembered too"
    assert told == sorted(told)


def test_names_that_were_learnt_one_by_one_are_forgotten_too() -> None:
    tree = make_tree(max_entries=40)
    for number in range(40):
        key = f"m/f{number:03}"
        tree.apply_name(ROOT_INODE, f"f{number:03}", version(key), 0.0, asked_at=0.0)
        found = tree.lookup(ROOT_INODE, f"f{number:03}", 0.0)
        assert isinstance(found, Found)
        tree.remember(found.node.inode)
    assert tree.pick_names_to_forget(()) == {ROOT_INODE: [f"f{number:03}" for number in range(21)]}


def test_a_remembered_file_survives_its_directory_being_dropped() -> None:
    mount = Mount(make_tree(max_entries=40), *directories(20, 10))
    held = mount.find("d000/f003")
    mount.tree.remember(held.inode)
    walk(mount)
    assert mount.tree.resolve("d000/f003") is None
    assert mount.tree.get(held.inode) is held
    assert mount.find("d000/f003") is held


def test_strays_are_what_is_remembered_and_no_entry_of_what_is_known() -> None:
    mount = Mount(make_tree(max_entries=40), *directories(20, 10))
    tree = mount.tree
    top, above, held = tree.top(""), mount.find("d000"), mount.find("d000/f003")
    assert isinstance(above, Directory)
    for node in (above, held):
        tree.remember(node.inode)
    assert tree.find_strays(top) == {}
    walk(mount)
    assert tree.find_strays(top) == tree.find_strays(above) == {above.inode: ["f003"]}, "dropped for room"
    mount.find("d000/f003")
    assert tree.find_strays(top) == {}
    mount.delete(*(key for key in mount.objects if key.startswith("m/d000/")))
    mount.list()
    assert tree.find_strays(top) == {ROOT_INODE: ["d000"]}
    mount.list(above.inode)
    assert tree.find_strays(top) == {ROOT_INODE: ["d000"], above.inode: ["f003"]}, "gone"


def test_a_dropped_directory_still_notices_a_change_of_its_entries() -> None:
    mount = Mount(make_tree(max_entries=40), *directories(20, 10))
    nodes = [mount.find("d000"), mount.find("d001")]
    for node in nodes:
        mount.tree.remember(node.inode)
        mount.list(node.inode)
    walk(mount)
    assert mount.tree.resolve("d000/f000") is mount.tree.resolve("d001/f000") is None
    mount.delete("m/d001/f003")
    mount.date_ns = CREATED_NS + 10_000
    for node in nodes:
        mount.list(node.inode)
    assert [node.mtime_ns for node in nodes] == [CREATED_NS, mount.date_ns]


def test_listing_a_directory_nobody_remembers_does_not_lose_it_to_the_bound() -> None:
    objects = [version(f"m/a/b/c/f{i}") for i in range(20)]
    mount = Mount(make_tree(max_entries=5), *objects, *directories(3, 10))
    node = mount.find("a/b/c")
    mount.expire()
    mount.list(node.inode)
    assert mount.tree.get(node.inode) is node
    assert mount.tree.resolve("a/b/c/f0") is not None


@pytest.mark.parametrize("absent", [False, True])
def test_of_names_that_were_learnt_one_by_one_the_oldest_make_room(absent: bool) -> None:
    tree = make_tree(max_entries=50)
    for number in range(1000):
        answer = NoObject.ABSENT if absent else version(f"m/f{number:04}")
        tree.apply_name(ROOT_INODE, f"f{number:04}", answer, 0.0, asked_at=0.0)
        if not absent and number == 500:
            tree.remember(tree.directory(ROOT_INODE).entries[-1].inode)
    root = tree.directory(ROOT_INODE)
    assert root.singles is not None
    assert len(root.singles) <= 50
    assert not isinstance(tree.lookup(ROOT_INODE, "f0999", 0.0), Expired)
    assert isinstance(tree.lookup(ROOT_INODE, "f0000", 0.0), Expired)
    assert isinstance(tree.lookup(ROOT_INODE, "f0500", 0.0), Expired) is absent, "it is remembered"
    mount = Mount(tree, version("m/f0999"))
    mount.now = 1.0
    mount.list()
    assert root.singles is None
    assert tree.statistics().inodes == (2 if absent else 3)


def test_names_that_were_learnt_one_by_one_go_with_the_least_used_directory() -> None:
    mount = Mount(make_tree(max_entries=60), *directories(3, 10))
    first, second = mount.find("d000"), mount.find("d001")
    for number in range(20):
        mount.tree.apply_name(first.inode, f"x{number}", version(f"m/d000/x{number}"), 0.0, asked_at=0.0)
    for number in range(60):
        mount.tree.apply_name(second.inode, f"x{number}", NoObject.ABSENT, 0.0, asked_at=0.0)
    assert isinstance(first, Directory)
    assert isinstance(second, Directory)
    assert first.singles is None
    assert len(second.singles or {}) > 20


def test_per_name_the_last_question_counts() -> None:
    mount = Mount(make_tree(), version("m/a", etag="1"), version("m/b"))
    mount.list()
    old = listing_of(mount.objects, "m/")
    mount.now = 10.0
    assert mount.tree.apply_name(ROOT_INODE, "a", version("m/a", etag="2"), 10.0, asked_at=10.0) == NameChanges(
        replaced=("a",)
    )
    assert mount.tree.apply_name(ROOT_INODE, "b", NoObject.ABSENT, 10.0, asked_at=10.0) == NameChanges(removed=("b",))
    assert mount.tree.apply_name(ROOT_INODE, "c", NoObject.DIRECTORY, 10.0, asked_at=10.0) == NameChanges(added=("c",))
    assert names_in(mount.tree, ROOT_INODE) == ("a", "c")
    assert mount.tree.get(ROOT_INODE).nlink == 3
    assert not mount.tree.apply(ROOT_INODE, old, 11.0, asked_at=5.0), "what it says is older, though it came later"
    assert names_in(mount.tree, ROOT_INODE) == ("a", "c")
    assert not mount.tree.apply_name(ROOT_INODE, "a", NoObject.ABSENT, 12.0, asked_at=9.0)
    mtime_ns = mount.tree.get(ROOT_INODE).mtime_ns
    assert mount.tree.apply(ROOT_INODE, old, 12.0, asked_at=12.0) == NameChanges(
        added=("b",), removed=("c",), replaced=("a",)
    )
    assert mount.tree.get(ROOT_INODE).mtime_ns > mtime_ns


def test_a_name_that_is_asked_for_alone_keeps_its_place() -> None:
    mount = Mount(make_tree(), version("m/a"), version("m/b", etag="1"), version("m/c"))
    mount.list()
    before = listing_of(mount.objects, "m/")
    mount.now = 10.0
    for etag in ("2", "3"):
        mount.tree.apply_name(ROOT_INODE, "b", version("m/b", etag=etag), 10.0, asked_at=10.0)
        assert [*mount.tree.directory(ROOT_INODE).names] == ["a", "b", "c"]
    mount.tree.apply(ROOT_INODE, before, 11.0, asked_at=9.0)
    assert [*mount.tree.directory(ROOT_INODE).names] == ["a", "b", "c"]


def test_a_name_lives_by_itself_and_its_absence_shorter() -> None:
    tree = make_tree()
    tree.apply_name(ROOT_INODE, "a", version("m/a"), 2.0, asked_at=1.0, took_s=1.0)
    tree.apply_name(ROOT_INODE, "b", NoObject.ABSENT, 2.0, asked_at=1.0, took_s=1.0)
    found = tree.lookup(ROOT_INODE, "a", 10.0)
    assert isinstance(found, Found)
    assert found.entry_timeout_s == TTL_S - 9
    assert tree.lookup(ROOT_INODE, "b", 6.5) == Absent(NEGATIVE_S - 4.5)
    assert isinstance(tree.lookup(ROOT_INODE, "b", 2.0 + NEGATIVE_S), Expired)
    assert isinstance(tree.lookup(ROOT_INODE, "c", 2.0), Expired)
    assert tree.extend_stale(ROOT_INODE, 70.0, 4.0, name="a")
    again = tree.lookup(ROOT_INODE, "a", 70.0)
    assert isinstance(again, Found)
    assert (again.node, again.entry_timeout_s) == (found.node, 4.0)
    assert not tree.extend_stale(ROOT_INODE, 70.0, 4.0, name="c")
    assert tree.statistics().stale_answers_total == 1


def test_that_a_name_is_absent_lives_no_longer_in_a_listing_that_was_older() -> None:
    mount = Mount(make_tree(), version("m/a"), version("m/b"))
    mount.list()
    mount.tree.apply_name(ROOT_INODE, "a", NoObject.ABSENT, 10.0, asked_at=10.0)
    assert mount.tree.lookup(ROOT_INODE, "a", 14.0) == Absent(1.0)
    assert isinstance(mount.tree.lookup(ROOT_INODE, "a", 10.0 + NEGATIVE_S), Expired)
    assert isinstance(mount.tree.lookup(ROOT_INODE, "b", 10.0 + NEGATIVE_S), Found), (
        "the others are as they were listed"
    )
    # A listing that was asked for earlier, and ended later.
    mount.tree.apply(ROOT_INODE, listing_of(mount.objects, "m/"), 16.0, asked_at=9.0)
    assert names_in(mount.tree, ROOT_INODE) == ("b",)
    assert isinstance(mount.tree.lookup(ROOT_INODE, "a", 16.0), Expired)
    assert mount.tree.lookup(ROOT_INODE, "a", 16.0, asked_at=9.5) == Absent(0.0), "who asked before that answer has it"


@pytest.mark.parametrize("answer", [version("m/a"), NoObject.DIRECTORY, NoObject.ABSENT])
def test_an_answer_about_one_name_lives_as_long_as_a_listing_that_says_the_same(
    answer: ObjectVersion | NoObject,
) -> None:
    objects = {"a": version("m/a")} if isinstance(answer, ObjectVersion) else {}
    objects |= {"a/x": version("m/a/x")} if answer is NoObject.DIRECTORY else {}
    mount = Mount(make_tree(), *objects.values())
    mount.tree.apply_name(ROOT_INODE, "a", answer, 1.0, asked_at=1.0)
    mount.tree.apply(ROOT_INODE, listing_of(mount.objects, "m/"), 4.0, asked_at=0.0, took_s=4.0)
    assert not isinstance(mount.tree.lookup(ROOT_INODE, "a", 99.0), Expired), "25 times as long as that took"
    assert isinstance(mount.tree.lookup(ROOT_INODE, "a", 100.0), Expired)


def test_a_name_that_cannot_be_asked_for_says_nothing_of_the_others() -> None:
    mount = Mount(make_tree(), version("m/a"), version("m/b"))
    a = mount.find("a")
    mount.expire()
    assert mount.tree.extend_stale(ROOT_INODE, mount.now, 4.0, name="a")
    assert mount.tree.lookup(ROOT_INODE, "a", mount.now) == Found(a, 4.0)
    assert isinstance(mount.tree.lookup(ROOT_INODE, "b", mount.now), Expired)
    assert not mount.tree.extend_stale(ROOT_INODE, mount.now, 4.0, name="c"), "that it was absent then is no answer"
    assert isinstance(mount.tree.lookup(ROOT_INODE, "c", mount.now), Expired)
    mount.list()
    assert mount.tree.directory(ROOT_INODE).singles is None, "the next listing tells"


def test_a_directory_that_is_back_is_asked_for_again_with_all_below_it() -> None:
    mount = Mount(make_tree(ttl_s=math.inf), version("m/d/e/x"))
    d, e = mount.find("d"), mount.find("d/e")
    mount.find("d/e/x")
    for node in (d, e):
        mount.tree.remember(node.inode)
    mount.tree.apply_name(d.inode, "f", NoObject.DIRECTORY, 1.0, asked_at=1.0)
    mount.delete("m/d/e/x")
    mount.list()
    assert mount.tree.resolve("d") is None
    mount.put(version("m/d/e/y"))
    mount.list()
    assert mount.tree.resolve("d/e") is e, "it is the same, for the kernel remembers it"
    for parent, name in ((d, "e"), (d, "f"), (e, "x"), (e, "y")):
        assert isinstance(mount.tree.lookup(parent.inode, name, 2.0), Expired), name
        assert not mount.tree.extend_stale(parent.inode, 2.0, 4.0, name=name), (
            "it was learnt before the directory was gone"
        )
    for node in (d, e):
        assert not mount.tree.extend_stale(node.inode, 2.0, 4.0), "a failing listing is no reason to serve that either"


def test_what_a_huge_directory_had_is_known_name_by_name() -> None:
    mount = Mount(make_tree(), version("m/a"), version("m//hidden"))
    a = mount.find("a")
    mount.tree.split_listing(ROOT_INODE)
    assert mount.tree.directory(ROOT_INODE).huge
    assert mount.tree.directory(ROOT_INODE).children is None
    assert mount.tree.statistics().hidden_keys == 0
    assert mount.tree.lookup(ROOT_INODE, "a", 10.0) == Found(a, TTL_S - 10)
    assert isinstance(mount.tree.lookup(ROOT_INODE, "new", 10.0), Expired)
    assert not mount.tree.extend_stale(ROOT_INODE, 100.0, 4.0), "nothing of it is a listing any more"


def test_memory_per_object_stays_within_a_kibibyte() -> None:
    count = 20_000
    prefix = "repository/models/some-language-model/"
    tracemalloc.start()
    tree = make_tree(TreeRoot("", prefix))
    page = ListingPage(
        tuple(
            ObjectVersion(f"{prefix}weights-{i:08}.safetensors", 1 << 33 | i, f'"{i:032x}"', 1700 * 10**15 + i)
            for i in range(count)
        ),
        (),
        "",
        1,
    )
    tree.apply(ROOT_INODE, collect(prefix, [page]), 0.0, asked_at=0.0)
    del page
    known_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert known_bytes / count < 1024


# -- against a model


@dataclass(frozen=True)
class Seen:
    """The meaning of a number when it was first given out."""

    path: str
    identity: tuple[str, int] | None  # ETag and size; None is a directory
    mtime_ns: int  # of a file


@dataclass(frozen=True)
class Learnt:
    """The meaning of one name when it was asked for alone."""

    version: ObjectVersion | None  # None is a directory
    is_there: bool
    asked_at: float
    lives_until: float


class TreeModel(RuleBasedStateMachine):
    """Random changes, listings, lookups and forgets, checked against plain dicts.

    There is one dict per directory and one per kernel.
    """

    max_entries = MAX_ENTRIES
    names = st.sampled_from(["a", "b", "c"])

    @initialize(ttl_s=st.sampled_from([0.0, 10.0, math.inf]), named=st.booleans())
    def start(self, ttl_s: float, named: bool) -> None:
        self.ttl_s = ttl_s
        self.now = 100.0
        self.date_ns = CREATED_NS
        self.named = named
        self.tree = make_tree(
            *([TreeRoot("r", "m/"), TreeRoot("s", "n/")] if named else [TreeRoot("", "m/")]),
            ttl_s=ttl_s,
            max_entries=self.max_entries,
        )
        self.objects: dict[str, ObjectVersion] = {}
        self.listed: dict[int, DirectoryListing] = {}  # by inode: the newest
        self.listed_at: dict[int, float] = {}
        self.lives_until: dict[int, float] = {}
        self.singles: dict[int, dict[str, Learnt]] = {}  # by inode: what was asked for after that
        self.kernel: dict[int, int] = {ROOT_INODE: 1}
        self.seen: dict[int, Seen] = {}
        self.mtimes: dict[str, int] = {}

    # -- the origin

    @rule(path=st.lists(names, min_size=1, max_size=3), etag=st.integers(0, 2), repository=st.sampled_from("mn"))
    def put(self, path: list[str], etag: int, repository: str) -> None:
        key = "/".join([repository, *path])
        self.date_ns += 1_000_000_000
        self.objects[key] = ObjectVersion(key, etag, f'"{etag}"', self.date_ns)

    @rule(path=st.lists(names, min_size=1, max_size=2), repository=st.sampled_from("mn"))
    def put_marker(self, path: list[str], repository: str) -> None:
        key = "/".join([repository, *path, ""])
        self.objects[key] = ObjectVersion(key, 0, '"0"', self.date_ns)

    @precondition(lambda self: self.objects)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        del self.objects[data.draw(st.sampled_from(sorted(self.objects)))]

    @rule(seconds=st.sampled_from([0.5, 4.0, 11.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    # -- the mount

    def directories(self) -> list[Directory]:
        """The directories that the kernel can ask about, except the fixed root."""
        nodes = (self.tree.get(inode) for inode in sorted(self.kernel))
        return [node for node in nodes if isinstance(node, Directory) and node.repository is not None]

    def apply(self, directory: Directory, age_s: float = 0.0) -> None:
        self.apply_listing(directory, listing_of(self.objects, directory.prefix, self.date_ns), self.now - age_s)

    def apply_listing(self, directory: Directory, listing: DirectoryListing, asked_at: float) -> None:
        inode = directory.inode
        before = set(names_in(self.tree, inode)) if directory.children is not None else None
        vanished = self.vanished()
        changes = self.tree.apply(inode, listing, self.now, asked_at=asked_at)
        self.doubt(vanished)
        if asked_at < self.listed_at.get(inode, -math.inf):
            assert not changes
            return
        self.listed[inode] = listing
        self.listed_at[inode] = asked_at
        self.lives_until[inode] = asked_at + self.ttl_s
        newer = {name: each for name, each in self.singles.get(inode, {}).items() if each.asked_at > asked_at}
        for name, each in newer.items():
            if not each.is_there and name not in listing.entries:
                newer[name] = replace(each, lives_until=max(each.lives_until, asked_at + self.ttl_s))
        self.singles[inode] = newer
        after = listing.entries.keys() - newer.keys() | {name for name, each in newer.items() if each.is_there}
        if before is not None:
            assert set(changes.added) == after - before
            assert set(changes.removed) == before - after

    def known(self, inode: int, name: str) -> tuple[bool, ObjectVersion | None, float]:
        """The presence and meaning of a name, and its expiry, by the newest question."""
        single = self.singles.get(inode, {}).get(name)
        if single is not None:
            return single.is_there, single.version, single.lives_until
        entries = self.listed[inode].entries if inode in self.listed else {}
        return name in entries, entries.get(name), self.lives_until.get(inode, -math.inf)

    def vanished(self) -> list[Directory]:
        """The directories that the kernel remembers and the origin had no more."""
        return [directory for directory in self.directories() if directory.vanished]

    def doubt(self, vanished: list[Directory]) -> None:
        """Expire all that is known of these and below them."""
        pending = [directory for directory in vanished if not directory.vanished]
        while pending:
            directory = pending.pop()
            self.lives_until[directory.inode] = -math.inf
            singles = self.singles.get(directory.inode, {})
            singles.update({name: replace(each, lives_until=-math.inf) for name, each in singles.items()})
            pending.extend(child for child in directory.entries if isinstance(child, Directory))

    def check(self, directory: Directory, name: str, found: Found | Absent) -> None:
        """An answer is that of the newest question about it, and lives no longer."""
        is_there, version, lives_until = self.known(directory.inode, name)
        seconds = max(lives_until - self.now, 0.0)
        if isinstance(found, Absent):
            assert not is_there
            assert found.timeout_s <= min(seconds, NEGATIVE_S)
            return
        assert is_there
        node = found.node
        assert found.entry_timeout_s == min(seconds, FOREVER_S)
        path = f"{directory.prefix}{name}"
        if version is None:
            assert isinstance(node, Directory)
            assert node.prefix == f"{path}/"
            self.give_out(node.inode, Seen(path, None, 0))
        else:
            assert isinstance(node, File)
            assert node.version.identity == version.identity
            assert node.mtime_ns <= version.mtime_ns
            self.give_out(node.inode, Seen(path, (version.validator, version.size_bytes), node.mtime_ns))
        self.tree.remember(node.inode)
        self.kernel[node.inode] = self.kernel.get(node.inode, 0) + 1

    def give_out(self, inode: int, seen: Seen) -> None:
        """A number means one thing for ever, and a remembered node has one number."""
        assert self.seen.setdefault(inode, seen) == seen
        others = [i for i in self.kernel if i != inode and i in self.seen and self.seen[i] == seen]
        assert others == [], "the same version under two numbers"

    def lookup_entry(self, directory: Directory, name: str, *, fails: bool) -> None:
        inode = directory.inode
        answer = self.tree.lookup(inode, name, self.now)
        if isinstance(answer, Expired):
            if self.max_entries == MAX_ENTRIES:
                assert self.now >= self.known(inode, name)[2], "asked to list again what still lives"
            assert answer.directory is directory
            if fails:
                alone = name in (directory.singles or {})
                known = alone or directory.children is not None
                assert self.tree.extend_stale(inode, self.now, retry_s=2.0, name=name if alone else None) == known
                if not known:
                    return
                if alone:
                    self.singles[inode][name] = replace(self.singles[inode][name], lives_until=self.now + 2.0)
                else:
                    self.lives_until[inode] = self.now + 2.0
            else:
                self.apply(directory)
            answer = self.tree.lookup(inode, name, self.now)
        assert isinstance(answer, Found | Absent)
        self.check(directory, name, answer)

    def any_directory(self, data: st.DataObject) -> Directory:
        choices = self.directories()
        if self.named:
            for repository in ("r", "s"):
                found = self.tree.lookup(ROOT_INODE, repository, self.now)
                assert isinstance(found, Found)
                assert isinstance(found.node, Directory)
                choices.append(found.node)
        return data.draw(st.sampled_from(choices))

    def age_s(self, data: st.DataObject) -> float:
        """The seconds that an answer was under way. A tree that drops things forgets newer
        answers."""
        return data.draw(st.sampled_from([0.0, 3.0])) if self.max_entries == MAX_ENTRIES else 0.0

    @rule(data=st.data(), name=names, fails=st.booleans())
    def lookup(self, data: st.DataObject, name: str, fails: bool) -> None:
        self.lookup_entry(self.any_directory(data), name, fails=fails)

    @rule(data=st.data(), name=names)
    def admit(self, data: st.DataObject, name: str) -> None:
        directory = self.any_directory(data)
        inode, asked_at = directory.inode, self.now - self.age_s(data)
        entries = listing_of(self.objects, directory.prefix).entries
        found = entries.get(name, NoObject.ABSENT)
        answer = NoObject.DIRECTORY if found is None else found
        before = directory.entry(name)
        known = directory.children is not None or name in (directory.singles or {})
        old = self.singles.get(inode, {}).get(name)
        vanished = self.vanished()
        changes = self.tree.apply_name(inode, name, answer, self.now, asked_at=asked_at, took_s=0.0)
        self.doubt(vanished)
        if asked_at < max(self.listed_at.get(inode, -math.inf), old.asked_at if old else -math.inf):
            assert directory.entry(name) is before
            assert not changes
            return
        is_there = answer is not NoObject.ABSENT
        lives_until = asked_at + (self.ttl_s if is_there else min(self.ttl_s, NEGATIVE_S))
        learnt = Learnt(entries.get(name), is_there, asked_at, lives_until)
        self.singles.setdefault(inode, {})[name] = learnt
        after = directory.entry(name)
        assert bool(changes) == (known and before is not after)
        if known:
            assert changes.added == ((name,) if before is None and after is not None else ())
            assert changes.removed == ((name,) if after is None and before is not None else ())

    @rule(data=st.data())
    def refresh(self, data: st.DataObject) -> None:
        if choices := self.directories():
            self.apply(data.draw(st.sampled_from(choices)), self.age_s(data))

    @rule(data=st.data())
    def scan(self, data: st.DataObject) -> None:
        """A flat listing of a repository, applied from the top down."""
        repository = data.draw(st.sampled_from("rs")) if self.named else ""
        asked_at = self.now - self.age_s(data)
        top = self.tree.top(repository)
        scan = Scan(top.prefix)
        keys = sorted(key for key in self.objects if key.startswith(top.prefix))
        scan.add(ListingPage(tuple(self.objects[key] for key in keys), (), "", self.date_ns))
        for listing in scan.listings():
            directory = self.tree.find_directory(repository, listing.prefix)
            if directory is not None:
                self.apply_listing(directory, listing, asked_at)

    @rule(data=st.data())
    def readdir(self, data: st.DataObject) -> None:
        choices = self.directories()
        if not choices:
            return
        directory = data.draw(st.sampled_from(choices))
        if not self.tree.listed(directory.inode, self.now):
            self.apply(directory)
        names = names_in(self.tree, directory.inode)
        entries = self.listed[directory.inode].entries.keys() | self.singles.get(directory.inode, {}).keys()
        assert sorted(names) == sorted(name for name in entries if self.known(directory.inode, name)[0])
        for name in names:
            self.lookup_entry(directory, name, fails=False)

    @precondition(lambda self: len(self.kernel) > 1)
    @rule(data=st.data(), whole=st.booleans())
    def forget(self, data: st.DataObject, whole: bool) -> None:
        inode = data.draw(st.sampled_from(sorted(self.kernel.keys() - {ROOT_INODE})))
        count = self.kernel[inode] if whole else 1
        self.tree.forget(inode, count)
        self.kernel[inode] -= count
        if not self.kernel[inode]:
            del self.kernel[inode]

    # -- what always holds

    @invariant()
    def remembered_inodes_are_what_they_were(self) -> None:
        for inode, count in self.kernel.items():
            node = self.tree.get(inode)
            assert node.lookups == count
            if inode not in self.seen:
                continue
            seen = self.seen[inode]
            if isinstance(node, File):
                assert seen == Seen(node.version.key, (node.version.validator, node.size_bytes), node.mtime_ns)
            else:
                assert seen == Seen(node.prefix.removesuffix("/"), None, 0)

    @invariant()
    def forgotten_inodes_that_are_no_entries_are_gone(self) -> None:
        reachable: dict[int, File | Directory] = {}
        pending = [self.tree.get(inode) for inode in self.kernel]
        while pending:
            node = pending.pop()
            if node.inode in reachable:
                continue
            reachable[node.inode] = node
            if isinstance(node, Directory):
                pending.extend(node.entries)
        for inode in self.seen.keys() - reachable.keys():
            with pytest.raises(VersionGone):
                self.tree.get(inode)
        statistics = self.tree.statistics()
        listed = [n for n in reachable.values() if isinstance(n, Directory) and n.children is not None]
        assert statistics.inodes == len(reachable)
        assert statistics.directories == sum(node.is_directory for node in reachable.values())
        assert statistics.remembered == len(self.kernel)
        assert statistics.directories_listed == sum(node.repository is not None for node in listed)
        assert statistics.hidden_keys == sum(node.hidden_count for node in listed)
        directories = [node for node in reachable.values() if isinstance(node, Directory)]
        entries = {child.inode for node in directories for child in node.entries}
        assert statistics.unlinked == len(self.kernel.keys() - entries - {ROOT_INODE})
        assert statistics.unmatched_forgets_total == 0

    @invariant()
    def mtimes_of_directories_never_decrease(self) -> None:
        for directory in self.directories():
            assert directory.mtime_ns >= self.mtimes.get(directory.prefix, CREATED_NS)
            self.mtimes[directory.prefix] = directory.mtime_ns


class BoundedTreeModel(TreeModel):
    """The same model under a bound so small that directories are dropped all the time."""

    max_entries = 4


TestTreeModel = TreeModel.TestCase
TestTreeModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestBoundedTreeModel = BoundedTreeModel.TestCase
TestBoundedTreeModel.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


# -- names of an earlier mount


def recalled(age_s: float, *, ttl_s: float = TTL_S, is_believed: bool = True) -> Mount:
    """A mount that recalls a listing with `a` and `d/`; its store has `b` as well."""
    mount = Mount(make_tree(ttl_s=ttl_s), version("m/a"), version("m/d/x"))
    kept = listing_of(mount.objects, "m/")
    mount.tree.recall(ROOT_INODE, kept, mount.now, age_s=age_s, is_believed=is_believed)
    mount.put(version("m/b"))
    return mount


def test_recalled_names_live_as_long_as_they_would_have() -> None:
    mount = recalled(TTL_S - 1)
    found = mount.lookup("a")
    assert isinstance(found, Found)
    assert found.entry_timeout_s == 1
    assert isinstance(mount.lookup("b"), Absent)
    assert mount.listings == 0
    mount.now = 1
    assert isinstance(mount.lookup("b"), Found)
    assert mount.listings == 1


@pytest.mark.parametrize(
    ("age_s", "ttl_s", "is_believed"), [(TTL_S, TTL_S, True), (1, 0, True), (1, math.inf, True), (1, TTL_S, False)]
)
def test_recalled_names_that_count_no_more_stand_in_for_a_listing_that_fails(
    age_s: float, ttl_s: float, is_believed: bool
) -> None:
    mount = recalled(age_s, ttl_s=ttl_s, is_believed=is_believed)
    assert isinstance(mount.tree.lookup(ROOT_INODE, "a", mount.now), Expired)
    assert mount.tree.extend_stale(ROOT_INODE, mount.now, 5)
    assert isinstance(mount.tree.lookup(ROOT_INODE, "a", mount.now), Found)
    mount.now += 5
    assert isinstance(mount.lookup("b"), Found)


def test_what_is_distrusted_is_no_answer_even_if_there_is_no_other() -> None:
    mount = recalled(1)
    mount.tree.distrust(mount.tree.directory(ROOT_INODE))
    assert isinstance(mount.tree.lookup(ROOT_INODE, "a", mount.now), Expired)
    assert not mount.tree.extend_stale(ROOT_INODE, mount.now, 5)
    assert isinstance(mount.lookup("a"), Found)


def test_answers_that_tell_something_are_counted() -> None:
    mount = recalled(1)
    before = mount.tree.applied[""]
    for name, answer, counted in (("a", version("m/a"), 0), ("b", version("m/b"), 1)):
        mount.tree.apply_name(ROOT_INODE, name, answer, mount.now, asked_at=mount.now)
        assert mount.tree.applied[""] == before + counted
    mount.list()
    assert mount.tree.applied[""] == before + 2
