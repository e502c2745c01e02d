"""`d7yfs check` of a running mount, in its daemon: what is said of its repositories is found with the
mount's own settings, credentials and connections, and no secret leaves it.

Registered by `commands`. Trio thread only.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import asdict

import trio

from d7yfs.config.sources import Settings
from d7yfs.control.control_socket import Reply
from d7yfs.control.server import REPORT_PERIOD_S
from d7yfs.errors import MountError
from d7yfs.repository.repository import Repository

log = logging.getLogger(__name__)


async def report_check(
    nursery: trio.Nursery, repositories: Sequence[Repository], settings: Settings
) -> AsyncGenerator[Reply, None]:
    """Report each `finding`, and in `waits` what a store keeps waiting. Ends when the client leaves.
    Raises MountError if its code is not installed any more."""
    try:
        from d7yfs.check.dry_run import check_running  # only here: a mount is small without
    except ImportError:
        raise MountError(
            "other code than the mount's is installed now", hint="d7yfs upgrade puts it in place"
        ) from None

    said: deque[Reply] = deque()
    ended, scope = trio.Event(), trio.CancelScope()

    async def look(repository: Repository) -> None:
        def wait(text: str) -> None:
            said.append({"waits": text})

        async with aclosing(check_running(repository, settings, wait)) as findings:
            async for finding in findings:
                said.append({"finding": {**asdict(finding), "verdict": finding.verdict.value}})

    async def look_at_all() -> None:
        with scope:
            for repository in repositories:
                try:
                    await look(repository)
                except Exception:  # a bug here must not end the mount
                    log.exception("control: the check of %s failed unexpectedly", repository.config.url)
                    said.append({"waits": f"{repository.config.url}: the check failed unexpectedly; see the log"})
        ended.set()

    nursery.start_soon(look_at_all)
    try:
        while not ended.is_set() or said:
            with trio.move_on_after(REPORT_PERIOD_S):
                await ended.wait()
            while said:
                yield said.popleft()
            if not ended.is_set():
                yield {"state": "running"}
        yield {"state": "done"}
    finally:
        scope.cancel()
