"""Preheats: Dragonfly's manager has the daemons of a cluster fetch a model before its hosts read it.

Owns the walk, the batches, and the account. The tasks are those that mounts ask for
(`Repository.find_task`), so that readers find them. Files that mounts fetch from the store alone, and
tasks that no job can make, are counted and left out (`preheat_job` has the reasons).

Memory is bounded: some jobs of some files at a time, and a hundred names of each kind. Files are signed
when their job is created, because signatures last for minutes. The manager goes on with a job that
nobody waits for any more.

Built by `daemon`; `commands` hands `Preheats.report` to the control socket. Trio thread only.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import trio

from d7yfs.config.schema import Config
from d7yfs.control.reload import Reloader
from d7yfs.control.server import REPORT_PERIOD_S, paths_of
from d7yfs.control.warm import Found, outermost, walk
from d7yfs.errors import ConfigError, D7yfsError, ManagerError, Stopped, UsageError
from d7yfs.fetch.dragonfly_manager import DragonflyManager, read_token
from d7yfs.fetch.dragonfly_task import Task
from d7yfs.fetch.preheat_job import FILES_PER_JOB, JobOutcome, JobTerms, make_job, obstacle
from d7yfs.fs.filesystem import Filesystem
from d7yfs.repository.repository import Repository
from d7yfs.stats.preheat import SCOPES, PreheatStatus
from d7yfs.stats.status import as_json, blank
from d7yfs.tree.nodes import File

log = logging.getLogger(__name__)

_JOBS_AT_ONCE = 8
_OPEN_BATCHES = 32
"""Batches that wait for more files: one for each set of terms, of which there are few as a rule."""
_LOOK_PERIOD_S = 3.0
_MISSED_LOOKS = 20
"""Looks in a row that the manager may fail to answer: a minute, for its restart."""
_JOB_TIMEOUT_S = 4200.0
"""The manager gives a job an hour, and notices its end up to five minutes later."""
_NAMED = 100

Batch = list[Found]


class Preheat:
    """One preheat, from `run` to its end."""

    def __init__(
        self,
        paths: tuple[str, ...],
        scope: str,
        filesystem: Filesystem,
        repositories: Mapping[str, Repository],
        config: Config,
    ) -> None:
        self.ended = trio.Event()
        self.refusal: D7yfsError | None = None
        """Why it could not go on."""
        self._status = blank(PreheatStatus, state="running", scope=scope)
        self._paths = paths
        self._filesystem = filesystem
        self._repositories = repositories
        self._config = config
        self._began_at = trio.current_time()
        self._scope = trio.CancelScope()

    async def run(self) -> None:
        """Ask for all files, and wait until they have arrived; `ended` is set at the end in any case."""
        try:
            with self._scope:
                manager = await self._open_manager()
                try:
                    await self._bring_all(manager)
                finally:
                    with trio.CancelScope(shield=True):
                        await manager.aclose()
                self._status.state = "done"
        except* D7yfsError as errors:
            self.refusal = next(each for each in _leaves(errors) if isinstance(each, D7yfsError))
        except* Exception:
            log.exception("preheat: failed unexpectedly")
            self.refusal = Stopped("the preheat failed unexpectedly; see the log")
        finally:
            self.ended.set()

    def stop(self) -> None:
        """Ask for no more; the manager's jobs go on."""
        self._scope.cancel()

    def describe(self) -> PreheatStatus:
        """The account of this preheat now."""
        elapsed_s = round(trio.current_time() - self._began_at, 3)
        counted = self._status
        return replace(
            counted,
            failures={**counted.failures},
            left_out={**counted.left_out},
            hosts={**counted.hosts},
            elapsed_s=elapsed_s,
        )

    async def _open_manager(self) -> DragonflyManager:
        config = self._config
        if not config.dragonfly_manager:
            raise ConfigError(
                "there is no manager of Dragonfly to ask",
                hint="set dragonfly_manager (http://dragonfly-manager:8080) and dragonfly_manager_token_file, then d7yfs reload; "
                "without a manager, d7yfs warm on one host makes the files known to its peers",
            )
        # A file on a file system that hangs must not hold up the mount.
        token = await trio.to_thread.run_sync(read_token, config.dragonfly_manager_token_file, abandon_on_cancel=True)
        return DragonflyManager(config.dragonfly_manager, token)

    async def _bring_all(self, manager: DragonflyManager) -> None:
        send, receive = trio.open_memory_channel[tuple[JobTerms, Batch]](0)
        async with trio.open_nursery() as nursery, send:
            async with receive:
                for _ in range(_JOBS_AT_ONCE):
                    nursery.start_soon(self._work, manager, receive.clone())
            open_batches: dict[JobTerms, Batch] = {}
            async with aclosing(walk(self._filesystem, self._paths, self._fail)) as files:
                async for path, file in files:
                    terms = await self._judge(path, file)
                    if terms is None:
                        continue
                    batch = open_batches.setdefault(terms, [])
                    batch.append((path, file))
                    if len(batch) == FILES_PER_JOB:
                        await send.send((terms, open_batches.pop(terms)))
                    elif len(open_batches) > _OPEN_BATCHES:
                        first = next(iter(open_batches))
                        await send.send((first, open_batches.pop(first)))
            self._status.counted = True
            for terms, batch in open_batches.items():
                await send.send((terms, batch))

    async def _judge(self, path: str, file: File) -> JobTerms | None:
        """The terms of the job that can bring a file; counts the file if there is none."""
        repository = self._repositories[file.repository]
        if not file.size_bytes or repository.is_direct(file.version):
            self._status.files_direct += 1
            return None
        try:
            task = await repository.find_task(file.version)
        except D7yfsError as error:
            self._fail(path, error)
            return None
        if why := self._why_not(repository, task):
            self._leave_out(path, why)
            return None
        assert task is not None
        self._status.files += 1
        self._status.size_bytes += file.size_bytes
        return JobTerms.of(task)

    def _why_not(self, repository: Repository, task: Task | None) -> str:
        if task is not None:
            return obstacle(task, keyed=bool(repository.config.p2p_secret_file))
        if repository.fetcher.tokens.warning:
            return repository.fetcher.tokens.warning
        return "its repository is not read through Dragonfly; mount with --proxy or --dfdaemon-socket"

    async def _work(
        self, manager: DragonflyManager, receive: trio.MemoryReceiveChannel[tuple[JobTerms, Batch]]
    ) -> None:
        async with receive:
            async for terms, batch in receive:
                await self._bring(manager, terms, batch)

    async def _bring(self, manager: DragonflyManager, terms: JobTerms, batch: Batch) -> None:
        """Have one job bring `batch`. Raises ManagerError if it cannot be created."""
        signed: list[tuple[str, File, str]] = []
        for path, file in batch:
            try:
                task = await self._repositories[file.repository].find_task(file.version)
            except D7yfsError as error:
                self._fail(path, error)
                continue
            if task is None or JobTerms.of(task) != terms:
                self._fail(path, Stopped("the way to Dragonfly has changed meanwhile; warm it again"))
            else:
                signed.append((path, file, task.url))
        if not signed:
            return
        number = await manager.create(make_job(terms, [url for _, _, url in signed], self._status.scope))
        self._status.jobs = (*self._status.jobs, number)[:_NAMED]
        log.info("preheat: job %d of Dragonfly's manager brings %d files", number, len(signed))
        try:
            outcome = await self._wait_for(manager, number)
        except ManagerError as error:
            for path, _, _ in signed:
                self._fail(path, error)
            return
        self._account(outcome, signed)

    async def _wait_for(self, manager: DragonflyManager, number: int) -> JobOutcome:
        """The outcome of a job once it has ended. Raises ManagerError."""
        missed = 0
        with trio.move_on_after(_JOB_TIMEOUT_S):
            while True:
                try:
                    outcome = await manager.look_at(number)
                    missed = 0
                    if outcome.has_ended:
                        return outcome
                except ManagerError:
                    missed += 1
                    if missed > _MISSED_LOOKS:
                        raise
                await trio.sleep(_LOOK_PERIOD_S)
        raise ManagerError(f"job {number} has not ended after {_JOB_TIMEOUT_S / 60:.0f} minutes")

    def _account(self, outcome: JobOutcome, signed: Sequence[tuple[str, File, str]]) -> None:
        for path, file, url in signed:
            for host in set(outcome.hosts_of(url)):
                if host in self._status.hosts or len(self._status.hosts) < _NAMED:
                    self._status.hosts[host] = self._status.hosts.get(host, 0) + 1
            if why := outcome.failure_of(url):
                self._fail(path, ManagerError(why))
            else:
                self._status.files_done += 1
                self._status.done_bytes += file.size_bytes

    def _fail(self, path: str, error: D7yfsError) -> None:
        self._status.files_failed += 1
        if len(self._status.failures) < _NAMED:
            self._status.failures[path] = str(error)
        log.warning("preheat: /%s: %s", path, error)

    def _leave_out(self, path: str, why: str) -> None:
        self._status.files_left_out += 1
        if len(self._status.left_out) < _NAMED:
            self._status.left_out[path] = why


def _leaves(group: BaseExceptionGroup[Exception]) -> list[BaseException]:
    found: list[BaseException] = []
    for each in group.exceptions:
        found += _leaves(each) if isinstance(each, BaseExceptionGroup) else [each]
    return found


class Preheats:
    """The preheats of one mount; `nursery` runs them, and cancelling it stops them."""

    def __init__(
        self,
        filesystem: Filesystem,
        repositories: Iterable[Repository],
        reloader: Reloader,
        nursery: trio.Nursery,
    ) -> None:
        """`reloader` has the present settings: the manager may change while the mount runs."""
        self._filesystem = filesystem
        self._repositories = {each.config.name: each for each in repositories}
        self._reloader = reloader
        self._nursery = nursery

    async def report(self, request: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """Preheat the `paths` of `request` at the daemons of its `scope`, and report until the end.

        Closing the report stops the preheat. Raises NotFound, UsageError, ConfigError and ManagerError.
        """
        paths, scope = outermost(paths_of(request, "a preheat")), request.get("scope", SCOPES[0])
        if scope not in SCOPES:
            raise UsageError(f"{scope!r} is no scope", hint=f"allowed: {', '.join(SCOPES)}")
        preheat = Preheat(paths, scope, self._filesystem, self._repositories, self._reloader.settings.config)
        self._nursery.start_soon(preheat.run)
        try:
            while not preheat.ended.is_set():
                with trio.move_on_after(REPORT_PERIOD_S):
                    await preheat.ended.wait()
                if preheat.refusal is not None:
                    raise preheat.refusal
                yield as_json(preheat.describe())
        finally:
            preheat.stop()
