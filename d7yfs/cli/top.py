"""`d7yfs top`: the activity of mounts, live.

Each mount is asked by a thread of its own, so a daemon that does not answer costs its own rows only.
`draw` decides what is shown; it is a pure function of what was seen.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from d7yfs.cli import daemons, end_with, report
from d7yfs.cli.as_json import print_line, print_list
from d7yfs.cli.daemons import UntouchedPath
from d7yfs.cli.status import describe_movers, describe_warm_up
from d7yfs.config.kinds import parse_duration
from d7yfs.control import control_socket
from d7yfs.errors import MountError, UsageError
from d7yfs.monitor.problems import show_span
from d7yfs.objects import printable
from d7yfs.stats.activity import WAYS, ActivityStatus, ModelActivity, Totals, measure, rates_between
from d7yfs.stats.status import MountStatus, RequestStatus, as_json, parse
from d7yfs.stats.words import show_count, show_size_roughly

SLOW_S = 0.5
"""Requests that have waited for less are counted, and not shown one by one."""
_STUCK_S = 10.0
_LOOKS_S = 60.0
"""The time that sparklines and the rates of models cover."""
_PATIENCE_S = 5.0
_LEAST_INTERVAL_S = 0.2
_FIRST_LOOK_S = 0.3
_BRIEF = -1
_MOST = (10, 5, 3, 1, 0, _BRIEF)
"""Models, and slow requests, of a mount that are shown: less where the screen is low. In brief a mount has
one line beside its problems, and those with problems come first."""
_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
_NAMES = {"cache": "cache", "p2p": "P2P", "store": "store"}
_LABEL = 9
"""Columns of the labels at the left."""


@click.command()
@click.argument("mountpoints", nargs=-1, type=UntouchedPath(), metavar="[DIR]...")
@click.option("--interval", metavar="TIME", default="2s", show_default=True, help="Time between two looks.")
@click.option("--once", is_flag=True, help="Show one picture, with the rates of one interval, and end.")
@click.option(
    "--json",
    "as_json_lines",
    is_flag=True,
    help="Print JSON: with --once a list with one object per mount, else one object per mount and interval, each on a line.",
)
def top(mountpoints: tuple[Path, ...], interval: str, once: bool, as_json_lines: bool) -> None:
    """Show live what mounts do, all of yours or those at DIR: what is wrong, bytes per second by way (cache, P2P,
    store), slow requests and readers that wait, models with most bytes, the cache, movers.

    Files that the kernel reads by itself (passthrough) make no requests: their opens are counted, their
    bytes cannot be. Ctrl-C ends it. Where the output is no terminal, it is one picture after the other.
    With --once the exit status is 1 if a mount does not answer.
    """
    try:
        interval_s = parse_duration(interval)
    except ValueError as error:
        raise UsageError(f"--interval {interval!r} {error}") from None
    if interval_s < _LEAST_INTERVAL_S:
        raise UsageError(f"--interval {interval!r} is too short", hint=f"{_LEAST_INTERVAL_S:g}s is the shortest")
    console = Console(soft_wrap=True, highlight=False)
    if once:
        seen = _look_twice(mountpoints, interval_s)
        if as_json_lines:
            print_list(row for each in seen if (row := each.as_row) is not None)
        else:
            _print(console, seen, interval_s)
        end_with([each.failure for each in seen if each.failure is not None])
        return
    with suppress(KeyboardInterrupt):
        if as_json_lines:
            _follow(mountpoints, interval_s, _print_lines)
        elif console.is_terminal and not console.is_dumb_terminal:
            with Live(console=console, screen=True, auto_refresh=False) as live:
                _follow(
                    mountpoints, interval_s, lambda seen: live.update(_screen(console, seen, interval_s), refresh=True)
                )
        else:
            _follow(mountpoints, interval_s, lambda seen: _print(console, seen, interval_s))


# --- what was seen ---


@dataclass(frozen=True, slots=True)
class SeenMount:
    """One mount as it was seen last: its account and the looks of the last minute, or why there is none."""

    name: str
    other_uid: int | None = None
    """The user whose mount it is, if that is another one, whom alone it answers."""
    account: MountStatus | None = None
    looks: tuple[Totals, ...] = ()
    failure: MountError | None = None

    def after(self, account: MountStatus) -> SeenMount:
        """The mount after another look. A daemon that began anew has looks of its own."""
        now = Totals.of(account)
        kept = [each for each in self.looks if now.span_since(each) <= _LOOKS_S]
        return replace(self, account=account, looks=(*kept, now), failure=None)

    @property
    def is_in_trouble(self) -> bool:
        """True if it does not answer, or has a problem."""
        return self.failure is not None or bool(self.account and self.account.problems)

    @property
    def activity(self) -> ActivityStatus | None:
        """The rates since the look before, those of models over all looks; None before the second."""
        if self.failure is not None or self.account is None or len(self.looks) < 2:
            return None
        return measure(self.account, self.looks[-2], self.looks[0])

    @property
    def as_row(self) -> dict[str, Any] | None:
        """The same for programs: all its rates are since the look before."""
        if self.activity is None or self.account is None:
            return None
        return {"mountpoint": self.account.mountpoint, **as_json(measure(self.account, self.looks[-2]))}


class MountWatcher:
    """A thread that looks at one mount, `rounds` times at most: a count of rounds ends with the first failure."""

    def __init__(self, path: Path, name: str, interval_s: float, rounds: float = math.inf) -> None:
        self.seen = SeenMount(name)
        self._path = path
        self._interval_s = interval_s
        self._rounds = rounds
        self._is_left = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """Look no more. Waits for nothing."""
        self._is_left.set()

    def wait(self) -> SeenMount:
        """Wait for the last round."""
        self._thread.join()
        return self.seen

    def _run(self) -> None:
        for number in itertools.count():
            if number >= self._rounds or (number and self._is_left.wait(self._interval_s)):
                return
            try:
                with daemons.naming(self.seen.name):
                    answer = control_socket.ask(self._path, "status", timeout_s=_PATIENCE_S)
                self.seen = self.seen.after(parse(MountStatus, answer))
            except MountError as error:
                self.seen = replace(self.seen, failure=error)
                if math.isfinite(self._rounds):
                    return


def _find(mountpoints: Sequence[Path]) -> dict[Path, str]:
    if not mountpoints:
        return daemons.find(None)
    return {path: name for point in mountpoints for path, name in daemons.find(point).items()}


def _others(mountpoints: Sequence[Path]) -> list[SeenMount]:
    """The mounts of other users, for root, who asks for all mounts."""
    if mountpoints or os.geteuid() or control_socket.RUNTIME_VARIABLE in os.environ:
        return []
    return [SeenMount(str(each.point), each.owner) for each in daemons.mounts_of_others()]


def _look_twice(mountpoints: Sequence[Path], interval_s: float) -> list[SeenMount]:
    watchers = [MountWatcher(path, name, interval_s, rounds=2) for path, name in _find(mountpoints).items()]
    return sorted([each.wait() for each in watchers] + _others(mountpoints), key=_order)


def _follow(mountpoints: Sequence[Path], interval_s: float, show: Callable[[list[SeenMount]], None]) -> None:
    """Show what is seen, again and again; mounts come and go."""
    watchers: dict[Path, MountWatcher] = {}
    pause_s = min(interval_s, _FIRST_LOOK_S)
    while True:
        found = _find(mountpoints)
        for path in watchers.keys() - found.keys():
            watchers.pop(path).leave()
        for path, name in found.items():
            if path not in watchers:
                watchers[path] = MountWatcher(path, name, interval_s)
        time.sleep(pause_s)
        show(sorted([each.seen for each in watchers.values()] + _others(mountpoints), key=_order))
        pause_s = interval_s


def _order(seen: SeenMount) -> str:
    return seen.account.mountpoint if seen.account is not None else seen.name


# --- how it is shown ---


@dataclass(frozen=True, slots=True)
class PictureLine:
    """A line of the picture. It is cut at the edge of the screen unless it `wraps`."""

    text: str
    style: str = ""
    wraps: bool = False

    def rows(self, width: int) -> int:
        """The rows of the screen that it takes."""
        return max(1, math.ceil(len(self.text) / width)) if self.wraps else 1


def draw(seen: Sequence[SeenMount], width: int, height: float = math.inf, bars: str = _BARS) -> list[PictureLine]:
    """The picture of all mounts: problems first, and of models and requests as many as there is room for."""
    for most in _MOST:
        if most == _BRIEF:
            seen = sorted(seen, key=lambda each: not each.is_in_trouble)
        lines = [line for each in seen for line in _draw_mount(each, width, most, bars)]
        if sum(each.rows(width) for each in lines) <= height:
            break
    return lines or [PictureLine("nothing is mounted")]


def _draw_mount(seen: SeenMount, width: int, most: int, bars: str) -> Iterator[PictureLine]:
    if seen.other_uid is not None:
        yield PictureLine(f"{seen.name}: a mount of uid {seen.other_uid}, whom alone it answers")
        return
    if seen.failure is not None:
        hint = f"; {seen.failure.hint}" if seen.failure.hint else ""
        yield PictureLine(f"{_order(seen)}: {seen.failure.message}{hint}", "bold red", wraps=True)
        return
    account, activity = seen.account, seen.activity
    if account is None:
        yield PictureLine(f"{seen.name}: asked, and has not answered yet")
        return
    for problem in account.problems:
        yield PictureLine(f"{account.mountpoint}: {problem.line}", "bold red", wraps=True)
    if most == _BRIEF:
        yield PictureLine(f"{account.mountpoint}  {_in_brief(activity)}")
        return
    where = ", ".join(each.url for each in account.repositories)
    yield PictureLine(f"{account.mountpoint}  {where}, up {timedelta(seconds=int(account.uptime_s))}", "bold")
    if activity is None:
        yield _labelled("rates", "with the next look")
        return
    yield from _draw_rates(seen.looks, activity, width, bars)
    yield from _draw_waiting(activity, most)
    if activity.models and most:
        yield _labelled("models", f"{'read':>10}  {'fetched':>10}  cached")
        yield from map(_draw_model, activity.models[:most])
    for warm_up in account.warm_ups:
        yield _labelled("warm-up", describe_warm_up(warm_up))
    used, limit = activity.cache_used_bytes, activity.cache_limit_bytes
    share = used / limit if limit else 0.0
    filled = f"{show_size_roughly(used)} of {show_size_roughly(limit)}, {share:.0%}"
    yield _labelled("disk", f"[{'#' * round(20 * min(share, 1)):-<20}] {filled}")
    if activity.movers.processes or activity.movers.lost:
        yield _labelled("movers", describe_movers(activity.movers))


def _in_brief(activity: ActivityStatus | None) -> str:
    if activity is None:
        return "rates with the next look"
    rates = {way: getattr(activity, f"{way}_bytes_s") for way in WAYS}
    said = ", ".join(f"{_NAMES[way]} {show_size_roughly(rate)}/s" for way, rate in rates.items())
    return f"{said}, {show_count(activity.in_flight, 'request')} waiting"


def _draw_rates(looks: Sequence[Totals], activity: ActivityStatus, width: int, bars: str) -> Iterator[PictureLine]:
    """The rates by way, each with its sparkline; all have one scale."""
    rates = {way: rates_between(looks, way) for way in WAYS}
    highest = max(itertools.chain.from_iterable(rates.values()))
    for way in WAYS:
        rate = f"{show_size_roughly(rates[way][-1]):>8}/s"
        line = sparkline(rates[way][-max(1, width - _LABEL - 12) :], highest, bars) if len(looks) > 2 else ""
        yield _labelled(_NAMES[way], f"{rate}  {line}".rstrip())
    if activity.passthrough:
        opens = f"{activity.passthrough_opens_s:.3g}"
        yield _labelled("kernel", f"{opens:>8}/s  opens of files that it reads by itself: bytes unknown")


def _draw_waiting(activity: ActivityStatus, most: int) -> Iterator[PictureLine]:
    if not activity.in_flight:
        return
    readers = sorted(activity.waiting_reads.items(), key=lambda pair: -pair[1])
    by_user = ", ".join(f"{count} of uid {uid}" for uid, count in readers)
    said = show_count(activity.in_flight, "request")
    yield _labelled("waiting", f"{said}; reads: {by_user}" if by_user else said)
    for each in [each for each in activity.oldest_requests if each.waited_s >= SLOW_S][:most]:
        yield PictureLine(_draw_request(each), "yellow" if each.waited_s >= _STUCK_S else "")


def _draw_request(request: RequestStatus) -> str:
    waited = f"{request.waited_s:.1f} s" if request.waited_s < 100 else show_span(request.waited_s)
    return f"{'':{_LABEL}}{waited:>8}    {request.operation} {request.path}"


def _draw_model(model: ModelActivity) -> PictureLine:
    read, fetched = (f"{show_size_roughly(each)}/s" for each in (model.read_bytes_s, model.fetched_bytes_s))
    cached = f"{show_size_roughly(model.cached_bytes)} of {show_size_roughly(model.size_bytes)}"
    name = "/".join(filter(None, (model.repository, model.model)))
    return PictureLine(f"{'':{_LABEL}}{read:>10}  {fetched:>10}  {cached:<22}{name}")


def _labelled(label: str, text: str) -> PictureLine:
    return PictureLine(f" {label:<{_LABEL - 1}}{text}")


def sparkline(values: Sequence[float], highest: float, bars: str = _BARS) -> str:
    """A bar for each value, of which `highest` is the full height; the lowest bar for nothing."""
    last = len(bars) - 1
    return "".join(bars[math.ceil(value / highest * last) if highest > 0 else 0] for value in values)


# --- printing ---


def _lines(console: Console, seen: Sequence[SeenMount], interval_s: float, height: float) -> Iterator[Text]:
    bars = _ASCII_BARS if console.options.ascii_only else _BARS
    title = f"d7yfs top, {time.strftime('%H:%M:%S')}, {show_count(len(seen), 'mount')}, every {interval_s:g} s"
    for line in (PictureLine(title), *draw(seen, console.width, height - 1, bars)):
        # Names come from the store.
        yield Text(
            printable(line.text), line.style, no_wrap=not line.wraps, overflow="fold" if line.wraps else "ellipsis"
        )


def _screen(console: Console, seen: Sequence[SeenMount], interval_s: float) -> Group:
    return Group(*_lines(console, seen, interval_s, console.height))


def _print(console: Console, seen: Sequence[SeenMount], interval_s: float) -> None:
    """Print a picture, with whole lines; and a blank one, which tells it from the next."""
    for line in _lines(console, seen, interval_s, math.inf):
        console.print(line)
    console.print()


def _print_lines(seen: Sequence[SeenMount]) -> None:
    for each in seen:
        if each.failure is not None:
            report(each.failure)
        elif (row := each.as_row) is not None:
            print_line(row)
