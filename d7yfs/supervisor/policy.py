"""When a worker is started, killed, replaced or given up: the decisions of a supervisor. Pure.

A mount has one *active* worker, which serves it, and perhaps a *standby*: a worker that has read
the settings and waits for its turn. Each method is an event, with the time at which it happened, and
returns the orders that follow. `supervisor` carries them out.

- A worker that dies is followed at once: by the standby if there is one. After five deaths in a row
  the next ones are followed after a pause, which doubles from 1 s up to 60 s. A worker that has
  served for five seconds ends the row: what killed it did not come with its first requests.
- Before the first worker serves, its end is the end of the supervisor.
- An upgrade starts a new standby. The active worker is asked to leave once that is prepared.
- A process that stands still with the supervisor (a frozen host or container) is no silent one.
"""

from __future__ import annotations

import errno
import os
import stat
from enum import Enum, auto
from typing import NamedTuple

PREPARATION_S = 120.0
"""The longest time from a worker's start until it is prepared."""
STANDBY_DELAY_S = 2.0
"""The quiet time before the first standby is started: readers of a new mount have the processors."""
STANDBY_PATIENCE_S = 10.0
"""How much longer it waits for a quiet time."""
NEXT_STANDBY_DELAY_S = 0.5
"""The pause after a takeover, busy or not: its readers waited, and the next one would wait for a whole
start."""
STANDBY_RETRY_S = 60.0
"""The pause after a standby that could not be prepared."""
LEAVE_S = 3.0
"""The time that a worker has to leave before it is killed."""
DYING_S = 0.5
"""The time that a killed worker has to die. A thread of it may hang in a notice to the kernel, which
only its successor can free."""
STOP_MARGIN_S = 10.0
"""The time beyond the one for running reads after which a worker that stops is given up."""
GONE_S = 5.0
"""The time that a worker has to end once its connection is gone."""

_AT_ONCE = 5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_HEALTHY_S = 5.0
"""A worker that has served for so long was healthy."""
_STALL_S = 5.0
"""A pause between two ticks from which on the supervisor itself stood still."""


def judge_backing(found: os.stat_result, flags: int, cache_device: int) -> int:
    """Why a worker's file is not registered: an error number; 0 if it is.

    The kernel opens the file anew with the supervisor's rights. So it must be one that the worker could
    open for reading by itself: a descriptor of O_PATH needs no such right. And it must be the cache's:
    files of /proc show root more than others.
    """
    if not stat.S_ISREG(found.st_mode):
        return errno.EINVAL
    if flags & os.O_PATH or flags & os.O_ACCMODE == os.O_WRONLY:
        return errno.EBADF
    return 0 if found.st_dev == cache_device else errno.EXDEV


class Do(Enum):
    """The kinds of orders."""

    START = auto()
    """Start a worker."""
    GO = auto()
    """Have it serve as soon as it is prepared."""
    RELOAD = auto()
    """Have it read its settings again."""
    LEAVE = auto()
    """Have it end, and leave its requests to the next one."""
    STOP = auto()
    """Have it unmount and end."""
    KILL = auto()
    REFUSE = auto()
    """Tell the active worker that there will be no upgrade, and why."""
    EXIT = auto()
    """Take away the mount if it is still there, and end."""


class Order(NamedTuple):
    """One order of a supervision, about the worker `generation`."""

    do: Do
    generation: int = 0
    said: str = ""
    status: int = 0
    """The exit status of the supervisor."""


class _Worker:
    """A worker as the supervision knows it."""

    def __init__(self, generation: int, started_at: float) -> None:
        self.generation = generation
        self.heard_at = started_at
        """The time of its last sign of life: at first its start, then GO."""
        self.prepared = False
        self.ready_at: float | None = None
        """The time from which on it has served."""
        self.killed_at: float | None = None
        self.leaving_at: float | None = None
        self.said = ""
        """Why it fails, in its own words."""
        self.cannot_follow = False
        """True if it cannot serve this connection, and no other worker with these settings can."""


class Supervision:
    """The workers of one mount. `standby`: one is kept; `silence_s`: a worker that is silent for so
    long hangs; `resumed`: the last generation of a supervisor that has died, 0 for a new mount."""

    def __init__(self, *, standby: bool, silence_s: float, resumed: int = 0) -> None:
        self._keeps_standby = standby
        self._silence_s = silence_s
        self._generations = resumed
        self._active: _Worker | None = None
        self._standby: _Worker | None = None
        self._standby_at: float | None = None
        """The time at which a standby is started."""
        self._standby_by = 0.0
        """The time beyond which a busy worker does not put that off."""
        self._standby_trouble = ""
        self._upgrading = False
        self._served = resumed > 0
        """True once a worker has served, of an earlier supervisor too."""
        self._stop_by: float | None = None
        self._retry_at: float | None = None
        self._deaths = 0
        """The deaths in a row of workers that were not healthy."""
        self._ticked_at: float | None = None
        self._restarts = 0
        self._upgrades = 0
        self._last_reason = "its supervisor ended" if resumed else ""

    @property
    def account(self) -> dict[str, int | str]:
        """The numbers for `status` (see `TakeoverStatus`)."""
        return {
            "generation": self._active.generation if self._active is not None else 0,
            "restarts": self._restarts,
            "upgrades": self._upgrades,
            "last_reason": self._last_reason,
            "standby": self._describe_standby(),
        }

    @property
    def is_pressed(self) -> bool:
        """True if something is due within a second."""
        active = self._active
        dying = active is not None and (active.killed_at is not None or active.leaving_at is not None)
        is_due = self._standby_at is not None and self._standby_at - (self._ticked_at or 0.0) < 1.0
        return dying or is_due or self._retry_at is not None

    def begin(self, now: float) -> list[Order]:
        return self._succeed(now)

    # --- from the workers ---

    def prepared(self, generation: int, now: float) -> list[Order]:
        """A worker has read its settings, and waits for its turn."""
        worker = self._find(generation)
        if worker is None:
            return []
        worker.prepared, worker.heard_at = True, now
        self._standby_trouble = ""
        if worker is not self._standby or not self._upgrading:
            return []
        self._upgrading = False
        if self._active is None:
            return []
        self._active.leaving_at = now
        return [Order(Do.LEAVE, self._active.generation)]

    def became_ready(self, generation: int, now: float) -> list[Order]:
        """A worker serves, and the mount answers."""
        worker = self._find(generation)
        if worker is not None:
            if self._served:
                self._plan_standby(now + NEXT_STANDBY_DELAY_S)
            else:
                self._plan_standby(now + STANDBY_DELAY_S, patience_s=STANDBY_PATIENCE_S)
            worker.ready_at, self._served = now, True
        return []

    def heard(self, generation: int, now: float, *, busy: bool = False) -> list[Order]:
        """A worker gave a sign of life; `busy`: it has work to do."""
        if (worker := self._find(generation)) is not None:
            worker.heard_at = now
            if busy and self._standby_at is not None:
                self._standby_at = max(self._standby_at, min(now + STANDBY_DELAY_S, self._standby_by))
        return []

    def left(self, generation: int, now: float) -> list[Order]:
        """A worker that was asked to leave has let go of the connection."""
        worker = self._active
        if worker is None or worker.generation != generation or worker.leaving_at is None:
            return []
        return self._follow_one_that_left(now)

    def failed(self, generation: int, said: str, *, cannot_follow: bool = False) -> list[Order]:
        """A worker told why it is about to end."""
        if (worker := self._find(generation)) is not None:
            worker.said, worker.cannot_follow = said, cannot_follow
        return []

    def ended(self, generation: int, now: float, status: int | None, how: str) -> list[Order]:
        """A worker ended: with an exit status, or killed (None); `how`: that in words."""
        worker = self._find(generation)
        if worker is None:
            return []
        reason = worker.said or how
        if worker is self._standby:
            self._standby = None
            self._standby_trouble = reason
            self._plan_standby(now + STANDBY_RETRY_S)
            return self._refuse_upgrade(reason)
        self._active = None
        if self._stop_by is not None or (status == 0 and worker.leaving_at is None):
            return [Order(Do.EXIT)]
        if not self._served or worker.cannot_follow:
            return [Order(Do.EXIT, said=reason, status=status or 1)]
        if worker.leaving_at is not None:
            return self._follow_one_that_left(now)
        return self._replace_dead(now, reason, worker.ready_at)

    def dying(self, generation: int, now: float) -> list[Order]:
        """A worker was killed, and a thread of it still runs: the kernel may hold it."""
        worker = self._find(generation)
        if worker is not None and worker.killed_at is None:
            worker.killed_at = now
        return []

    # --- from outside ---

    def asked_to_stop(self, now: float, within_s: float, status: int) -> list[Order]:
        """The mount is to be taken down; running reads have `within_s`. A start is given up, with the
        exit status `status`."""
        if self._stop_by is not None:
            return []
        self._stop_by = now + within_s + STOP_MARGIN_S
        active = self._active
        if active is None or active.ready_at is None or active.killed_at is not None or active.leaving_at is not None:
            return [Order(Do.EXIT, status=0 if self._served else status)]
        return [*self._drop_standby(), Order(Do.STOP, active.generation)]

    def asked_to_reload(self) -> list[Order]:
        active = self._active
        return [Order(Do.RELOAD, active.generation)] if active is not None and active.ready_at is not None else []

    def reloaded(self, now: float) -> list[Order]:
        """The active worker has other settings now than the standby has read."""
        if self._upgrading:
            return []
        self._plan_standby(now + STANDBY_DELAY_S, patience_s=STANDBY_PATIENCE_S)
        return self._drop_standby()

    def asked_to_upgrade(self, now: float) -> list[Order]:
        """The code that is installed now is to serve."""
        if self._upgrading:
            return [self._refusal("an upgrade is under way")]
        active = self._active
        if active is None or active.ready_at is None or active.leaving_at is not None or self._stop_by:
            return [self._refusal("no worker serves the mount just now")]
        orders = self._drop_standby()
        self._standby_at, self._upgrading = None, True
        self._standby = self._new(now)
        return [*orders, Order(Do.START, self._standby.generation)]

    def connection_gone(self, now: float) -> list[Order]:
        """The mount is gone: a worker notices it and ends, unless it hangs."""
        if self._active is None:
            return [Order(Do.EXIT)]
        gone_by = now + GONE_S
        if self._stop_by is None or self._stop_by > gone_by:
            self._stop_by = gone_by
        return []

    def tick(self, now: float) -> list[Order]:
        """Time has passed; call it once a second, and more often while something is due."""
        self._pardon(now)
        if self._stop_by is not None:
            return [Order(Do.EXIT)] if now >= self._stop_by else []
        orders: list[Order] = []
        for worker in filter(None, (self._standby, self._active)):
            orders += self._judge(worker, now)
        if self._active is None and self._retry_at is not None and now >= self._retry_at:
            orders += self._succeed(now)
        if self._standby is None and self._standby_at is not None and now >= self._standby_at:
            self._standby_at = None
            self._standby = self._new(now)
            orders.append(Order(Do.START, self._standby.generation))
        return orders

    # --- decisions ---

    def _judge(self, worker: _Worker, now: float) -> list[Order]:
        """Kill a worker that hangs, and give up one that does not die."""
        if worker.killed_at is not None:
            return (
                self.ended(worker.generation, now, None, "it was killed") if now >= worker.killed_at + DYING_S else []
            )
        if worker.leaving_at is not None:
            if now < worker.leaving_at + LEAVE_S:
                return []
        elif worker.prepared:
            if worker is self._standby or now < worker.heard_at + self._silence_s:
                return []
            worker.said = f"it gave no sign of life for {self._silence_s:g} s"
        elif now < worker.heard_at + PREPARATION_S:
            return []
        else:
            worker.said = f"it was not prepared within {PREPARATION_S:g} s"
        worker.killed_at = now
        return [Order(Do.KILL, worker.generation)]

    def _pardon(self, now: float) -> None:
        """Count no time in which the supervisor did not run either."""
        if self._ticked_at is not None and now - self._ticked_at > _STALL_S:
            for worker in filter(None, (self._standby, self._active)):
                worker.heard_at += now - self._ticked_at
        self._ticked_at = now

    def _replace_dead(self, now: float, reason: str, ready_at: float | None) -> list[Order]:
        self._restarts += 1
        self._last_reason = reason
        self._deaths = 1 if ready_at is not None and now - ready_at >= _HEALTHY_S else self._deaths + 1
        if self._deaths <= _AT_ONCE:
            return self._succeed(now)
        self._retry_at = now + min(_FIRST_PAUSE_S * 2.0 ** (self._deaths - _AT_ONCE - 1), _LONGEST_PAUSE_S)
        return []

    def _follow_one_that_left(self, now: float) -> list[Order]:
        self._upgrades += 1
        self._deaths = 0
        self._last_reason = "upgrade"
        return self._succeed(now)

    def _succeed(self, now: float) -> list[Order]:
        """Have the standby serve, else a new worker."""
        orders: list[Order] = []
        worker, self._standby = self._standby, None
        if worker is None or worker.killed_at is not None:
            worker = self._new(now)
            orders.append(Order(Do.START, worker.generation))
        elif worker.prepared:
            worker.heard_at = now
        self._active, self._retry_at, self._standby_at, self._upgrading = worker, None, None, False
        return [*orders, Order(Do.GO, worker.generation)]

    def _plan_standby(self, at: float, *, patience_s: float = 0.0) -> None:
        if self._keeps_standby:
            self._standby_at, self._standby_by = at, at + patience_s

    def _drop_standby(self) -> list[Order]:
        worker, self._standby = self._standby, None
        return [Order(Do.KILL, worker.generation)] if worker is not None else []

    def _refuse_upgrade(self, reason: str) -> list[Order]:
        was, self._upgrading = self._upgrading, False
        return [self._refusal(reason)] if was else []

    def _refusal(self, reason: str) -> Order:
        return Order(Do.REFUSE, self._active.generation if self._active is not None else 0, said=reason)

    def _new(self, now: float) -> _Worker:
        self._generations += 1
        return _Worker(self._generations, now)

    def _find(self, generation: int) -> _Worker | None:
        """A worker that counts: others were given up."""
        return next((each for each in (self._active, self._standby) if each and each.generation == generation), None)

    def _describe_standby(self) -> str:
        if self._standby is not None:
            return "ready" if self._standby.prepared else "starting"
        return self._standby_trouble or ("none" if self._keeps_standby else "off")
