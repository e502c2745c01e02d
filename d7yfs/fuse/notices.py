"""Notices to the kernel: names to forget, since their meaning changed while it still believed the
old one, and names to ask for again.

Owns the queue between the event loop, which learns of changes, and the one thread that tells the
kernel. A notice about a directory's entries takes that directory's lock. The kernel holds it while
it waits for *our* answer to a lookup or readdir there. So:

- the event loop never waits for a notice;
- notices about a directory wait here, not in the kernel, while requests in it are unanswered
  (`holding`). In the kernel they would hold up each later lookup in that directory, and a daemon
  that ended then would leave them waiting for ever. Only where requests follow each other without a
  pause, and none hangs, a notice goes to the kernel among them after a second;
- the queue is bounded, and equal notices are told once. A notice that does not fit is dropped and
  counted (backpressure). Then the kernel's own timeout bounds how long the old entry is believed:
  never more than the listing's remaining life.

`daemon` adds the listers' changes, and names of which the kernel is to remember fewer; the responder
adds names to ask for again. The engine says which requests are unanswered, and tells the kernel.
Trio thread only.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice

import trio

from d7yfs.stats.status import NoticesStatus, blank

log = logging.getLogger(__name__)

MAX_NAMES = 65_536
"""The most names that wait at once: some 10 MiB, and half a second of telling."""

_PATIENCE_S = 1.0
_YOUNG_S = 0.5
"""A notice that has waited `_PATIENCE_S` goes to the kernel among requests that are all younger
than this: their answers are near."""
_LOOK_AGAIN_S = 0.1

_AT_ONCE = 512
"""The names per change of threads: a few milliseconds."""

Tell = Callable[[int, Sequence[bytes]], int]
"""Have the kernel forget these entries of a directory, and its attributes, or ask for them again;
returns how many it knew. Blocks: for a thread."""


class Invalidator:
    """The notices of one mount to its kernel; `tell` gives those about names to forget."""

    def __init__(self, tell: Tell, *, max_names: int = MAX_NAMES) -> None:
        self.counters = blank(NoticesStatus)
        self.tell_expired: Tell = lambda _directory, _names: 0
        """Gives those about names to ask for again; set by an engine that has some."""
        self._tell = tell
        self._max_names = max_names
        self._waiting: dict[int, dict[bytes, bool]] = {}
        """The names by directory, both in the order in which they came; True for those to forget."""
        self._waiting_since: dict[int, float] = {}
        self._under_way: int | None = None
        self._thread = trio.CapacityLimiter(1)
        self._stopped = False
        self._unanswered: dict[int, list[float]] = {}
        """The times when unanswered requests began that hold a directory's lock, oldest first."""
        self._stirred = trio.Event()
        """An event that is set, and replaced, after each new notice, told notice or answer."""

    def changed(self, directory: int, names: Iterable[str]) -> None:
        """Have the kernel forget `names` in the directory of this inode, and its attributes."""
        self._add(directory, names, forget=True)

    def expired(self, directory: int, names: Iterable[str]) -> None:
        """Have the kernel ask for `names` in the directory of this inode when they are next used."""
        self._add(directory, names, forget=False)

    def _add(self, directory: int, names: Iterable[str], *, forget: bool) -> None:
        waiting = self._waiting.setdefault(directory, {})
        self._waiting_since.setdefault(directory, trio.current_time())
        room = self._max_names - sum(map(len, self._waiting.values()))
        encoded = dict.fromkeys(map(os.fsencode, names))
        new = [name for name in encoded if name not in waiting]
        self.counters.overflow += len(new[room:])
        waiting.update(dict.fromkeys(new[:room], forget))
        if forget:
            waiting.update((name, True) for name in encoded if name in waiting)
        self._stir()

    @contextmanager
    def holding(self, directory: int) -> Iterator[None]:
        """Mark a request unanswered meanwhile, for which the kernel holds the directory's lock."""
        began_at = trio.current_time()
        unanswered = self._unanswered.setdefault(directory, [])
        unanswered.append(began_at)
        try:
            yield
        finally:
            unanswered.remove(began_at)
            if not unanswered:
                del self._unanswered[directory]
                if directory in self._waiting:
                    self._stir()

    def waiting(self) -> list[int]:
        """The directories with notices that the kernel has not taken yet."""
        return [*self._waiting, *([self._under_way] if self._under_way is not None else [])]

    async def told(self, directories: Collection[int]) -> None:
        """Return once the kernel has taken all notices about these directories so far."""
        while self._under_way in directories or any(each in self._waiting for each in directories):
            await self._stirred.wait()

    async def settle(self) -> None:
        """Return once the kernel has taken all notices so far, or has had the time for it."""
        with trio.move_on_after(_PATIENCE_S):
            await self.told(self.waiting())

    def stop(self) -> None:
        """Tell no more."""
        self._stopped = True
        self._stir()

    async def quiet(self) -> None:
        """Return once the kernel has taken the present notice; call it after `stop`."""
        while self._under_way is not None:
            await self._stirred.wait()

    async def run(self) -> None:
        """Tell until cancelled; a notice that the kernel holds up then is left in its thread."""
        while not self._stopped:
            directory = next(filter(self._may_be_told, self._waiting), None)
            if directory is None:
                with trio.move_on_after(_LOOK_AGAIN_S if self._waiting else math.inf):
                    await self._stirred.wait()
                continue
            names, forget = self._take(directory)
            tell = self._tell if forget else self.tell_expired
            self._under_way = directory
            try:
                known = await trio.to_thread.run_sync(
                    partial(tell, directory, names), abandon_on_cancel=True, limiter=self._thread
                )
                self.counters.notices += len(names)
                self.counters.known += known
            except Exception:
                log.exception("the kernel could not be told of %d changed names", len(names))
            finally:
                self._under_way = None
                self._stir()

    def _may_be_told(self, directory: int) -> bool:
        unanswered = self._unanswered.get(directory)
        if not unanswered:
            return True
        now = trio.current_time()
        return now - self._waiting_since[directory] >= _PATIENCE_S and now - unanswered[0] < _YOUNG_S

    def _take(self, directory: int) -> tuple[list[bytes], bool]:
        """The next names of a directory, which then wait no more, and True if they are to be
        forgotten."""
        waiting = self._waiting[directory]
        forget = all(waiting.values())
        names = list(islice((name for name, each in waiting.items() if each is forget), _AT_ONCE))
        if len(names) == len(waiting):
            del self._waiting[directory], self._waiting_since[directory]
        else:
            for name in names:
                del waiting[name]
        return names, forget

    def _stir(self) -> None:
        self._stirred.set()
        self._stirred = trio.Event()
