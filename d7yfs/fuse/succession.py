"""One worker after another on one connection: whether this one may follow, and what it takes up.

The contract with the supervisor is in `host.handed_session`, and what is known of earlier workers in
`journal`. Nothing is believed of directories' entries: they are listed again when they are asked for.
A reader's handle is made anew when it is next used (`OpenFiles.adopt`).

Called by `daemon` before the session begins, and by the session.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from d7yfs.errors import CannotTakeOver
from d7yfs.fs.filesystem import Filesystem
from d7yfs.fuse.journal import AgreedTerms, Journaled, SessionJournal
from d7yfs.fuse.passthrough import Backings
from d7yfs.fuse.wire import InitFlag
from d7yfs.host import kernel
from d7yfs.host.handed_session import HandedSession

log = logging.getLogger(__name__)

_NUMBERS_PER_GENERATION = 1 << 40


@dataclass(frozen=True, slots=True)
class Succession:
    """The place of this process among the workers of a connection. `source` names what is mounted.
    `backings`: how to register files, if this process may not do it itself."""

    handed: HandedSession
    journal: SessionJournal
    known: Journaled
    source: str
    backings: Backings | None = None

    @classmethod
    def begin(cls, handed: HandedSession, source: str, backings: Backings | None = None) -> Succession:
        """Read the journal. Blocks. Raises CannotTakeOver if this process cannot go on from there."""
        journal = SessionJournal(handed.journal_fd)
        known = journal.load()
        if known.generation >= handed.generation:
            raise CannotTakeOver(
                f"generation {handed.generation} of the workers cannot follow generation {known.generation}",
                hint="a supervisor counts them up",
            )
        if known.terms is not None and (obstacle := _obstacle(known.terms, source)):
            raise CannotTakeOver(f"the connection to the kernel cannot be taken over: {obstacle}", hint="mount anew")
        if known.terms is None and handed.generation > 1:
            log.warning("the journal is empty: if the connection is not new, files that are open fail with ESTALE")
        journal.begin(handed.generation)
        return cls(handed, journal, known, source, backings)

    @property
    def follows(self) -> bool:
        """True if the connection may have requests that an earlier worker did not answer."""
        return self.handed.generation > 1

    def restore(self, filesystem: Filesystem) -> None:
        """Give the file system the numbers that earlier workers told the kernel."""
        generation, tree = self.handed.generation, filesystem.tree
        self.journal.keep(tree.nodes.values())
        for node in self.known.nodes:
            tree.restore(node, remembered=node.inode not in self.known.forgotten)
        tree.ledger = self.journal
        if self.known.first_sight_ns:
            tree.first_sight_ns = self.known.first_sight_ns
        else:
            self.journal.begun(tree.first_sight_ns)
        if self.follows:
            first = (generation - 1) * _NUMBERS_PER_GENERATION
            tree.number_from(first)
            filesystem.number_from(first)
            log.info(
                "generation %d takes over: %d nodes, %d open files, %d directories being read",
                *(generation, len(self.known.nodes), len(self.known.open_files), len(self.known.readers)),
            )

    def greet(self, flags: InitFlag) -> None:
        """Note what is agreed in INIT; say so if no worker can follow."""
        terms = AgreedTerms(int(flags), self.source, kernel.request_timeout_s())
        self.journal.greeted(terms)
        if obstacle := _obstacle(terms, self.source):
            log.warning("no worker can take over from this one: %s", obstacle)

    def note_tops(self, tops: Mapping[str, str]) -> None:
        """Note the prefix that each repository lists."""
        if tops != self.known.tops:
            self.journal.located(tops)


def _obstacle(terms: AgreedTerms, source: str) -> str:
    """The reason why no worker can follow on a connection with these terms; empty if one can."""
    if not terms.flags & InitFlag.HAS_RESEND:
        return "this kernel does not send requests again (FUSE_NOTIFY_RESEND, Linux 6.9)"
    if terms.request_timeout_s:
        return f"the kernel ends it after {terms.request_timeout_s} s without an answer (fs.fuse.*_request_timeout)"
    if terms.source != source:
        return f"it shows {terms.source}, and this process would show {source}"
    return ""
