"""The costs of a peer's processes, read from /proc (proc(5))."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_CLOCK_TICK_S = 1 / os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """Seconds of user and system time of the process and its descendants so far; ended ones count
    with the time left to their parent.
    """
    return sum(sum(times_s) for times_s in _times_s(pid).values())


def busy_s(pid: int) -> dict[int, float]:
    """Seconds of user and system time so far of the process and of each descendant, by pid."""
    return {each: user_s + system_s for each, (user_s, system_s, *_) in _times_s(pid).items()}


def _times_s(pid: int) -> dict[int, list[float]]:
    """User and system time of the process and of each descendant, by pid, and of the ended children of each."""
    found = {}
    for each in tree(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            # The second field is the program's name in parentheses, which may hold spaces.
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            found[each] = [int(ticks) * _CLOCK_TICK_S for ticks in fields[11:15]]
    return found


def peak_rss_bytes(pid: int) -> int:
    """The largest resident memory so far of the process and its descendants, summed (VmHWM in
    /proc/PID/status).
    """
    total = 0
    for each in tree(pid):
        with suppress(FileNotFoundError, ProcessLookupError):
            for line in Path(f"/proc/{each}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    total += int(line.split()[1]) << 10
    return total


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one process: resident, and with shared pages divided among those that have them."""

    rss_bytes: int
    pss_bytes: int


def memory(pid: int) -> Memory:
    """The memory of a process now (/proc/PID/smaps_rollup)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    values = {name: int(value.split()[0]) << 10 for name, _, value in (line.partition(":") for line in lines)}
    return Memory(values["Rss"], values["Pss"])


def tree(pid: int) -> list[int]:
    """The process and its descendants; empty if it has ended."""
    children: list[str] = []
    try:
        for thread in Path(f"/proc/{pid}/task").iterdir():  # a child is that of the thread which started it
            with suppress(FileNotFoundError, ProcessLookupError):
                children += (thread / "children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [pid, *(descendant for child in children for descendant in tree(int(child)))]


def page_cache_bytes() -> int:
    """The size of the host's page cache, with the files in memory (/proc/meminfo)."""
    line = next(each for each in Path("/proc/meminfo").read_text().splitlines() if each.startswith("Cached:"))
    return int(line.split()[1]) << 10


def memory_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def is_mounted(mountpoint: Path) -> bool:
    """True if a file system is mounted there; its daemon is not asked."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4] == str(mountpoint) for line in lines)


def drop_page_cache() -> None:
    """Write back dirty pages, then empty the page cache and the caches of names."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
