"""The journal of a connection: what a worker must know to go on for one that was killed.

It lies in a file that the supervisor holds (`host.handed_session`). What the kernel is told is
written first: the session flushes before each reply. So every number that the kernel may ask about
has its meaning here:

- the terms of INIT, and the prefix that each repository lists
- each node that the kernel remembers, with all that a read of it needs
- each open file: its node, and the backing id by which the kernel reads it by itself, or 0. The
  kernel refuses to mix both ways, or two ids, among the open handles of a node
- each directory that is being read, with the names that its reader goes through

The kernel sends a RELEASE again, too, if it has no reply. But of an OPEN that was noted and not
answered the kernel makes a second one: the first handle counts as open until the mount ends.

Used by the session, the responder and the tree.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from d7yfs.fuse.keyed_log import KeyedLog
from d7yfs.objects import ObjectVersion
from d7yfs.tree.inode_table import fingerprint
from d7yfs.tree.nodes import Directory, File, Node

_OPEN = struct.Struct("=QI")
"""Node id and backing id."""
_FILE = struct.Struct("=QQQ7I")
"""The directory's node id, size, mtime in ns, and how many characters each text has; the texts
follow, and the edit. Each first lookup of a file writes one: JSON would take four times as long."""
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode


class _Kind(IntEnum):
    """The kinds of records, each with numbers of its own."""

    GENERATION = 1
    TERMS = 2
    TOPS = 3
    DIRECTORY = 4
    OPEN_FILE = 5
    NAMES = 6
    READER = 7
    FIRST_SIGHT = 8
    FORGOTTEN = 9
    FILE = 10


@dataclass(frozen=True, slots=True)
class AgreedTerms:
    """The terms of INIT, and the mount that they are about."""

    flags: int
    source: str
    """The mount's name in the mount table: its repositories."""
    request_timeout_s: int
    """The kernel's own limit on an unanswered request; 0 for none."""


@dataclass(slots=True)
class Journaled:
    """The content of a journal."""

    generation: int = 0
    terms: AgreedTerms | None = None
    """None: the kernel was not greeted yet."""
    tops: Mapping[str, str] = field(default_factory=dict)
    """The prefix that each repository lists, as far as it was known."""
    first_sight_ns: int = 0
    """The mtime of a directory at first sight; 0 before the first worker has begun."""
    nodes: list[Node] = field(default_factory=list)
    forgotten: set[int] = field(default_factory=set)
    """The numbers of those that the kernel does not remember."""
    open_files: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Node id and backing id, by handle."""
    readers: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """The names that the readers of directories go through, by handle."""


class SessionJournal:
    """The journal in the file `fd`. Call `load` first, also of an empty one."""

    def __init__(self, fd: int) -> None:
        self._log = KeyedLog(fd)
        self._readers: dict[int, int] = {}
        """The digest of each reader's names, by handle."""
        self._digests = Counter[int]()
        self._kept: set[int] = set()

    def flush(self) -> None:
        """Write what was noted, if anything was."""
        self._log.flush()

    def load(self) -> Journaled:
        """The notes of earlier workers."""
        found = self._log.load()
        known = Journaled()
        if generation := found.get(_Kind.GENERATION):
            known.generation = int.from_bytes(generation[0], "little")
        if terms := found.get(_Kind.TERMS):
            known.terms = AgreedTerms(*json.loads(terms[0]))
        if tops := found.get(_Kind.TOPS):
            known.tops = json.loads(tops[0])
        if first_sight := found.get(_Kind.FIRST_SIGHT):
            known.first_sight_ns = int.from_bytes(first_sight[0], "little")
        known.nodes = [_directory(inode, content) for inode, content in found.get(_Kind.DIRECTORY, {}).items()]
        known.nodes += [_file(inode, content) for inode, content in found.get(_Kind.FILE, {}).items()]
        known.forgotten = set(found.get(_Kind.FORGOTTEN, ()))
        for handle, content in found.get(_Kind.OPEN_FILE, {}).items():
            known.open_files[handle] = _OPEN.unpack(content)
        names = found.get(_Kind.NAMES, {})
        for handle, content in found.get(_Kind.READER, {}).items():
            digest = int.from_bytes(content, "little")
            if digest in names:
                self._readers[handle] = digest
                self._digests[digest] += 1
                known.readers[handle] = tuple(os.fsdecode(names[digest]).split("\0"))
        return known

    # --- the connection ---

    def begin(self, generation: int) -> None:
        """Note, at once, that a worker begins."""
        self._log.put(_Kind.GENERATION, 0, generation.to_bytes(8, "little"))
        self._log.flush()

    def greeted(self, terms: AgreedTerms) -> None:
        self._log.put(_Kind.TERMS, 0, _ENCODE([terms.flags, terms.source, terms.request_timeout_s]).encode())

    def located(self, tops: Mapping[str, str]) -> None:
        """Note, at once, the prefix that each repository lists, of those that are known."""
        self._log.put(_Kind.TOPS, 0, _ENCODE(dict(tops)).encode())
        self._log.flush()

    def begun(self, first_sight_ns: int) -> None:
        """Note the mtime of a directory at first sight."""
        self._log.put(_Kind.FIRST_SIGHT, 0, first_sight_ns.to_bytes(8, "little"))

    def keep(self, nodes: Iterable[Node]) -> None:
        """Note nodes that stay known even if the kernel forgets them: the root, and those of
        repositories."""
        for node in nodes:
            self._kept.add(node.inode)
            if node.inode not in self._log.numbers(_Kind.DIRECTORY):
                self.remembered(node)

    # --- nodes (see `inode_table.Ledger`) ---

    def remembered(self, node: Node) -> None:
        self._log.strike(_Kind.FORGOTTEN, node.inode)
        self._put(node)

    def changed(self, node: Node) -> None:
        if node.inode in self._log.numbers(_Kind.FILE if isinstance(node, File) else _Kind.DIRECTORY):
            self._put(node)

    def _put(self, node: Node) -> None:
        if isinstance(node, File):
            it = node.version
            texts = (node.repository, it.key, it.validator, it.version_id, it.archived, it.encoding, it.fault)
            head = _FILE.pack(node.parent, it.size_bytes, it.mtime_ns, *map(len, texts))
            self._log.put(_Kind.FILE, node.inode, head + "".join((*texts, it.edit)).encode(errors="surrogatepass"))
            return
        listed = fingerprint(node.children) if node.children is not None else node.fingerprint
        content = _ENCODE([node.repository, node.prefix, node.mtime_ns, listed])
        self._log.put(_Kind.DIRECTORY, node.inode, content.encode())

    def forgotten(self, inode: int) -> None:
        if inode not in self._kept:
            self._log.put(_Kind.FORGOTTEN, inode, b"")

    def gone(self, inode: int) -> None:
        for kind in (_Kind.FORGOTTEN, _Kind.FILE, _Kind.DIRECTORY):
            self._log.strike(kind, inode)

    # --- handles ---

    def opened(self, handle: int, nodeid: int, backing_id: int) -> None:
        self._log.put(_Kind.OPEN_FILE, handle, _OPEN.pack(nodeid, backing_id))

    def released(self, handle: int) -> None:
        self._log.strike(_Kind.OPEN_FILE, handle)

    def reading(self, handle: int, names: Sequence[str]) -> None:
        """Note the names that the reader of a directory goes through. Equal ones are kept once."""
        self.stopped_reading(handle)
        if not names:
            return
        joined = os.fsencode("\0".join(names))
        digest = int.from_bytes(hashlib.blake2b(joined, digest_size=8).digest(), "little")
        if not self._digests[digest]:
            self._log.put(_Kind.NAMES, digest, joined)
        self._digests[digest] += 1
        self._readers[handle] = digest
        self._log.put(_Kind.READER, handle, digest.to_bytes(8, "little"))

    def stopped_reading(self, handle: int) -> None:
        digest = self._readers.pop(handle, None)
        if digest is None:
            return
        self._log.strike(_Kind.READER, handle)
        self._digests[digest] -= 1
        if not self._digests[digest]:
            del self._digests[digest]
            self._log.strike(_Kind.NAMES, digest)


def _directory(inode: int, content: bytes) -> Directory:
    repository, prefix, mtime_ns, listed = json.loads(content)
    return Directory(inode, repository, prefix, mtime_ns, fingerprint=listed)


def _file(inode: int, content: bytes) -> File:
    parent, size_bytes, mtime_ns, *lengths = _FILE.unpack_from(content)
    joined, stops = content[_FILE.size :].decode(errors="surrogatepass"), [*itertools.accumulate(lengths)]
    repository, key, validator, *rest = (
        joined[stop - length : stop] for length, stop in zip(lengths, stops, strict=True)
    )
    rest.append(joined[stops[-1] :])
    return File(inode, repository, ObjectVersion(key, size_bytes, validator, mtime_ns, *rest), parent)
