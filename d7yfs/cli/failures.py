"""Expected failures on their way out: of trio, whose nurseries wrap what ends them in exception groups, and of commands with several."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from d7yfs.cli import report
from d7yfs.errors import D7yfsError


@contextmanager
def ungrouped() -> Iterator[None]:
    """Raise the first D7yfsError inside an exception group as itself; anything unexpected stays as it is."""
    try:
        yield
    except BaseExceptionGroup as group:
        expected, other = group.split(D7yfsError)
        if expected is None or other is not None:
            raise
        raise _leaf(expected) from None


def end_with(failures: Sequence[D7yfsError]) -> None:
    """Tell of each on stderr, and end with the worst exit status; of none: go on."""
    if failures:
        raise SystemExit(max(report(each) for each in failures))


def _leaf(group: BaseExceptionGroup[D7yfsError]) -> D7yfsError:
    first = group.exceptions[0]
    return _leaf(first) if isinstance(first, BaseExceptionGroup) else first
