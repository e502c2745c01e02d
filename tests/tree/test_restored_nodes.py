"""Nodes that an earlier process told the kernel: under their old numbers, and nothing else believed."""

from __future__ import annotations

import pytest

from d7yfs.errors import VersionGone
from d7yfs.objects import ObjectVersion
from d7yfs.tree.inode_table import fingerprint
from d7yfs.tree.nodes import Directory, Expired, File, Found, Node
from d7yfs.tree.tree import ROOT_INODE, Tree, TreeRoot
from tests.tree.test_tree import CREATED_NS, listing_of, make_tree

OBJECTS = {key: ObjectVersion(key, 3, '"e"', 5) for key in ("m/a", "m/d/x", "m/d/y")}
FIRST = 1 << 40


class Notes:
    """A ledger in memory."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.closed: set[int] = set()
        """The numbers of those that are not remembered."""
        self.first_sight_ns = 0

    def remembered(self, node: Node) -> None:
        self.nodes[node.inode] = node
        self.closed.discard(node.inode)

    def changed(self, node: Node) -> None:
        if node.inode in self.nodes:
            self.nodes[node.inode] = node

    def forgotten(self, inode: int) -> None:
        self.closed.add(inode)

    def gone(self, inode: int) -> None:
        self.nodes.pop(inode, None)

    def begun(self, first_sight_ns: int) -> None:
        self.first_sight_ns = first_sight_ns


def list_all(tree: Tree, inode: int) -> None:
    directory = tree.directory(inode)
    tree.apply(inode, listing_of(OBJECTS, directory.prefix), 0.0, asked_at=0.0)


def found(tree: Tree, parent: int, name: str) -> Node:
    answer = tree.lookup(parent, name, 0.0)
    assert isinstance(answer, Found), answer
    return answer.node


def walk(tree: Tree) -> dict[str, int]:
    """The numbers of all names, each of which the kernel is told."""
    list_all(tree, ROOT_INODE)
    numbers = {}
    for name in ("a", "d"):
        numbers[name] = found(tree, ROOT_INODE, name).inode
    list_all(tree, numbers["d"])
    for name in ("x", "y"):
        numbers[name] = found(tree, numbers["d"], name).inode
    for inode in numbers.values():
        tree.remember(inode)
    return numbers


def successor(notes: Notes, *roots: TreeRoot, max_entries: int = 1000) -> Tree:
    tree = make_tree(*roots, max_entries=max_entries)
    for node in notes.nodes.values():
        copy = (
            Directory(
                *(node.inode, node.repository, node.prefix, node.mtime_ns),
                fingerprint=fingerprint(node.children) if node.children is not None else 0,
            )
            if isinstance(node, Directory)
            else File(node.inode, node.repository, node.version, node.parent)
        )
        tree.restore(copy, remembered=node.inode not in notes.closed)
    tree.number_from(FIRST)
    return tree


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
def first(notes: Notes) -> Tree:
    tree = make_tree()
    notes.remembered(tree.get(ROOT_INODE))
    tree.ledger = notes
    return tree


def test_the_ledger_has_what_is_remembered(first: Tree, notes: Notes) -> None:
    numbers = walk(first)
    assert sorted(notes.nodes) == [ROOT_INODE, *sorted(numbers.values())]
    first.remember(numbers["x"])
    first.forget(numbers["x"])
    assert numbers["x"] not in notes.closed
    first.forget(numbers["x"])
    assert numbers["x"] in notes.closed
    first.remember(numbers["x"])
    assert numbers["x"] not in notes.closed
    first.apply(numbers["d"], listing_of({}, "m/d/"), 1.0, asked_at=1.0)
    assert numbers["x"] in notes.nodes, "it is remembered"
    first.forget(numbers["x"])
    assert numbers["x"] not in notes.nodes


def test_names_keep_their_numbers(first: Tree, notes: Notes) -> None:
    numbers = walk(first)
    second = successor(notes)
    assert isinstance(second.lookup(ROOT_INODE, "a", 0.0), Expired), "nothing is believed of a directory"
    assert isinstance(second.lookup(numbers["d"], "x", 0.0), Expired)
    assert second.get(numbers["x"]).size_bytes == 3, "but a number has its meaning at once"
    assert walk(second) == numbers
    assert second.statistics().unlinked == 0


def test_names_that_the_kernel_forgot_keep_their_numbers_and_times(first: Tree, notes: Notes) -> None:
    """A kernel that is short of memory forgets all that nobody has open."""
    numbers = walk(first)
    first.directory(numbers["d"]).mtime_ns += 7
    for inode in numbers.values():
        first.forget(inode)
    second = successor(notes)
    assert second.statistics().remembered == 1
    assert walk(second) == numbers
    assert second.directory(numbers["d"]).mtime_ns == first.directory(numbers["d"]).mtime_ns


def test_what_nobody_remembers_is_gone_once_room_is_needed(first: Tree, notes: Notes) -> None:
    numbers = walk(first)
    first.forget(numbers["x"])
    second = successor(notes, max_entries=5)
    second.ledger = notes
    second.apply(ROOT_INODE, listing_of(OBJECTS, "m/"), 0.0, asked_at=0.0)
    assert numbers["x"] in second.nodes
    others = {f"m/{name}": ObjectVersion(f"m/{name}", 3, '"e"', 5) for name in "bc"}
    second.apply(ROOT_INODE, listing_of(OBJECTS | others, "m/"), 1.0, asked_at=1.0)
    assert numbers["x"] not in second.nodes
    assert numbers["x"] not in notes.nodes
    assert numbers["y"] in second.nodes


def test_the_times_of_directories_that_are_gone_are_noted(first: Tree, notes: Notes) -> None:
    directory = first.directory(walk(first)["d"])
    directory.mtime_ns += 7
    first.forget(directory.inode)
    first.apply(ROOT_INODE, listing_of({}, "m/"), 1.0, asked_at=1.0)
    assert notes.first_sight_ns == directory.mtime_ns


def test_new_numbers_are_above_all_old_ones(first: Tree, notes: Notes) -> None:
    walk(first)
    second = successor(notes)
    second.apply(ROOT_INODE, listing_of({"m/new": ObjectVersion("m/new", 3, '"e"', 5)}, "m/"), 0.0, asked_at=0.0)
    assert found(second, ROOT_INODE, "new").inode >= FIRST


def test_the_tops_of_repositories_are_there_already(notes: Notes) -> None:
    roots = TreeRoot("one", "m/"), TreeRoot("two", "")
    before = make_tree(*roots)
    before.ledger = notes
    tops = [found(before, ROOT_INODE, name).inode for name in ("one", "two")]
    for inode in tops:
        before.remember(inode)
    second = successor(notes, *roots)
    assert [found(second, ROOT_INODE, name).inode for name in ("one", "two")] == tops
    assert second.get(tops[0]) is second.top("one")
    assert second.statistics().directories == before.statistics().directories


@pytest.mark.parametrize("count", [1, 7])
def test_the_kernels_own_count_is_not_known(first: Tree, notes: Notes, count: int) -> None:
    numbers = walk(first)
    second = successor(notes)
    for _ in range(2):
        second.forget(numbers["x"], count)
        assert second.get(numbers["x"]).inode == numbers["x"], "it may be an entry"
    list_all(second, numbers["d"])
    assert found(second, numbers["d"], "x").inode == numbers["x"]
    second.remember(numbers["x"])
    second.apply(numbers["d"], listing_of({}, "m/d/"), 1.0, asked_at=1.0)
    second.forget(numbers["x"], count)
    with pytest.raises(VersionGone):
        second.get(numbers["x"])
    assert second.statistics().unmatched_forgets_total == 0
    assert second.statistics().remembered == first.statistics().remembered - 1


def test_an_mtime_changes_with_the_entries(first: Tree, notes: Notes) -> None:
    """Also when they changed while no process looked, and not otherwise."""
    inode = walk(first)["d"]
    shown = first.get(inode).mtime_ns
    same, other = successor(notes), successor(notes)
    assert same.get(inode).mtime_ns == shown
    list_all(same, inode)
    assert same.get(inode).mtime_ns == shown
    changed = listing_of({"m/d/z": ObjectVersion("m/d/z", 1, '"z"', CREATED_NS * 2)}, "m/d/")
    other.apply(inode, changed, 1.0, asked_at=1.0)
    assert other.get(inode).mtime_ns > shown


def test_the_root_keeps_its_mtime(first: Tree, notes: Notes) -> None:
    list_all(first, ROOT_INODE)
    first.get(ROOT_INODE).mtime_ns = 77  # type: ignore[misc]
    second = successor(notes)
    assert second.get(ROOT_INODE).mtime_ns == 77
