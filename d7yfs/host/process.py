"""The daemon's process as the kernel treats it: open files, core dumps, the killer of
processes; and its garbage collector.

Called by `daemon` when a mount begins.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
from pathlib import Path

from d7yfs.host import libc

OOM_SCORE_ADJ = -800
"""The same as in the systemd unit; proc_pid_oom_score_adj(5)."""

_GARBAGE_THRESHOLD = 5000
"""New objects between two collections; Python's default is 700, and a page of a listing makes
7,000."""

_TURN_S = 0.001
"""For how long a thread may keep the interpreter while another one waits; Python's default is 5 ms."""

_PR_SET_DUMPABLE = 4  # linux/prctl.h


def prepare() -> None:
    """Prepare this process for being a daemon."""
    raise_descriptor_limit()
    forbid_core_dumps()
    ask_to_be_spared()
    shorten_turns()


def raise_descriptor_limit() -> int:
    """Raise the soft limit on open files to the hard one, which needs no privilege; the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        _warn("the limit on open files stays at %d: %s", soft, error)
        return soft
    return hard


def descriptor_limit() -> int:
    """The limit on the open files of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 20


def processors(own: Path = Path("/proc/self/cgroup"), groups: Path = Path("/sys/fs/cgroup")) -> int:
    """The processors that this process can keep busy: those that it may run on, or fewer where a
    control group has a quota (cpu.max, of version 2)."""
    count = len(os.sched_getaffinity(0))
    with contextlib.suppress(OSError):
        _, found, path = own.read_text().rpartition("0::/")
        group = groups / path.strip()
        for each in (group, *group.parents) if found else ():
            with contextlib.suppress(OSError, ValueError):  # the topmost has none, and "max" is no number
                quota, period = map(int, (each / "cpu.max").read_text().split())
                count = min(count, quota // period)
            if each == groups:
                break
    return max(1, count)


def state_of(pid: int) -> str:
    """The state of a process, one letter (proc_pid_stat(5), field 3): T if it is stopped, Z once it has
    ended. Empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def forbid_core_dumps() -> None:
    """Have the kernel write no image of this process, whose memory holds keys, and let no other
    process of its user read that memory (PR_SET_DUMPABLE in prctl(2)). Children cannot dump
    either."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        libc.call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
    except OSError as error:
        _warn("core dumps cannot be forbidden: %s", error.strerror)


def ask_to_be_spared(path: Path = Path("/proc/self/oom_score_adj")) -> None:
    """Ask the kernel to kill this process late when memory is short: every reader of the mount
    depends on it.

    A value that systemd, the kubelet or choom(1) has set is kept.
    """
    with contextlib.suppress(OSError):
        if path.read_text().strip() == "0":
            path.write_text(str(OOM_SCORE_ADJ))


def _warn(message: str, *values: object) -> None:
    import logging  # only here: the supervisor is small without

    logging.getLogger(__name__).warning(message, *values)


def shorten_turns() -> None:
    """Have threads hand over the interpreter sooner: a reader's request waits for a turn of the threads
    that read a listing's pages or keep names."""
    sys.setswitchinterval(_TURN_S)


def pause_collector() -> None:
    """Collect no garbage until `spare_collector`: a start leaves hardly any, and the collector would
    walk all that is imported again and again."""
    gc.disable()


def spare_collector() -> None:
    """Keep the garbage collector from walking the objects of start-up, and each page of a listing
    while it is read.

    Otherwise a collection blocks all requests for 70 ms now and then, and takes a third of the time
    of a large listing.
    """
    gc.freeze()
    gc.set_threshold(_GARBAGE_THRESHOLD)
    gc.enable()
