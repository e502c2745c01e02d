"""Tries what has failed again: nobody reads from an idle mount, and it would not notice that its store,
its credentials or dfdaemon work again. So a mount that is not ready becomes ready without a reader.

Run by `reporter`, for each repository. Expected failures are noted where they happen.
"""

from __future__ import annotations

import time
from contextlib import suppress

import trio

from d7yfs.errors import D7yfsError
from d7yfs.fetch.transfer import Nowhere, Urgency
from d7yfs.objects import ByteRange
from d7yfs.repository.repository import Repository
from d7yfs.stats.failures import REFUSED, FailureStatus
from d7yfs.tree.lister import Lister
from d7yfs.tree.nodes import Directory
from d7yfs.tree.source import ListingMode

RETRY_S = 15.0
"""Least pause between two failures of which the second is ours."""
_REFUSED_RETRY_S = 60.0
"""The same if the store refuses the credentials: each try looks for new ones."""
_PATIENCE_S = 10.0
"""Longest time for one try."""
_BYTE = ByteRange(0, 1)


async def try_again(repository: Repository, lister: Lister, top: Directory) -> None:
    """Ask for the names of `top` and for a byte of the file that failed last, if it is time."""
    fetcher, failures, now = repository.fetcher, repository.fetcher.failures, time.time()
    is_late = repository.shown.away is not None  # then it is asked for in any case
    with suppress(D7yfsError), trio.move_on_after(_PATIENCE_S):
        # If file data alone fails, an answer about names tells a file that cannot be read from an outage.
        is_due = _is_due(failures.names, now) or _is_due(failures.data, now)
        if is_due and not is_late and lister.mode is not ListingMode.EXACT:
            await lister.list_directory(top).wait()
    version = fetcher.failed_version
    if version is None or not (_is_due(failures.data, now) or _is_due(failures.proxy, now)):
        return
    with suppress(D7yfsError), trio.move_on_after(_PATIENCE_S):
        proxied = fetcher.proxy is not None
        await fetcher.fetch(version, _BYTE, Nowhere(), urgency=Urgency(urgent=False), proxied=proxied)


def _is_due(failing: FailureStatus, now: float) -> bool:
    pause_s = _REFUSED_RETRY_S if failing.kind == REFUSED else RETRY_S
    return failing.last_at is not None and now - failing.last_at >= pause_s
