"""One d7yfs without FUSE: all from `Filesystem` down, as `d7yfs.daemon` builds it, and a way to
kill it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import trio

from d7yfs.cache.cache import Cache
from d7yfs.cache.filler import Filler
from d7yfs.cache.version import CachedVersion
from d7yfs.control.refresh import Refreshes
from d7yfs.fetch.fetcher import Fetcher
from d7yfs.fetch.transport import Transport
from d7yfs.fill.direct import DirectFiller
from d7yfs.fs.backend import RepositoryBackend
from d7yfs.fs.filesystem import Filesystem
from d7yfs.fuse.notices import Invalidator
from d7yfs.tree.tree import Tree, TreeRoot
from tests.cache.doubles import OpenedDirectory, PromptDisk, few_descriptors
from tests.fetch.doubles import FakeOrigin
from tests.fs.kernel import Kernel
from tests.reference.faults import SILENCE_S
from tests.reference.listed import METADATA_TTL_S
from tests.reference.program import Setup
from tests.reference.store import IDENTITY, READ_TIMEOUT_S, Store

NEGATIVE_TTL_S = 5.0


class _Notices(Invalidator):
    """Notices that reach the kernel at once."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(lambda _directory, _names: 0)
        self._kernel = kernel

    def changed(self, directory: int, names: Iterable[str]) -> None:
        self._kernel.drop(directory, names)


class Daemon:
    """A daemon that a nursery starts by `run`; `filesystem` and `cache` are there from then on."""

    def __init__(self, path: Path, store: Store, setup: Setup) -> None:
        self.dead = False
        self.revalidates = setup.revalidates
        self.kernel = Kernel()
        self.filesystem: Filesystem
        self.refreshes: Refreshes
        self.cache: Cache
        self.nursery: trio.Nursery
        self._directory = OpenedDirectory(path, setup.cache_bytes)
        self._store = store
        self._setup = setup
        self._gone = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        self._directory.prepare()
        self._directory.join()
        self.cache = Cache(
            self._directory,
            memory_buffer_bytes=self._setup.memory_bytes,
            read_timeout_s=READ_TIMEOUT_S,
            disk=PromptDisk(),
            descriptors=few_descriptors(),
        )
        transport = Transport(first_byte_timeout_s=SILENCE_S, idle_timeout_s=SILENCE_S)
        fetcher = Fetcher(
            FakeOrigin(self._store),
            transport,
            proxy=None,
            read_timeout_s=READ_TIMEOUT_S,
            max_connections=self._setup.max_connections,
        )
        tree = Tree(
            [TreeRoot("", "")],
            metadata_ttl_s=METADATA_TTL_S,
            negative_ttl_s=NEGATIVE_TTL_S,
            created_ns=1,
            max_entries=self._setup.max_inodes,
        )
        try:
            async with trio.open_nursery() as self.nursery:

                def new_filler(target: CachedVersion) -> Filler:
                    return DirectFiller(target, fetcher, self.nursery)

                source = RepositoryBackend(
                    "s3://models",
                    IDENTITY,
                    self._store.listed,
                    new_filler,
                    listing=self._setup.listing,
                    listing_limit=self._setup.listing_limit,
                    revalidates=(lambda _: True) if self.revalidates else None,
                )
                self.filesystem = Filesystem(tree, {"": source}, self.cache, self.nursery, changed=self.kernel.changed)
                self.kernel.filesystem = self.filesystem
                refreshers = self.filesystem.refreshers
                self.refreshes = Refreshes(tree, refreshers, _Notices(self.kernel))
                if self._setup.refreshing:
                    self.nursery.start_soon(refreshers[""].run)
                self.nursery.start_soon(self.cache.room.run)
                task_status.started()
                await trio.sleep_forever()
        finally:
            await transport.aclose()
            self._directory.leave()
            self._gone.set()

    async def stop(self) -> None:
        """End in an orderly way."""
        self.nursery.cancel_scope.cancel()
        await self._gone.wait()

    async def kill(self) -> None:
        """Do what a SIGKILL does: descriptors and locks are gone at once, and nothing more
        reaches the disk."""
        self.dead = True
        self._directory.bury()
        await self.stop()

    def fill_disk(self, *, full: bool) -> None:
        self._directory.min_free_bytes = 1 << 62 if full else 0

    def break_disk(self, refuses: str) -> None:
        """Fail every read, or write, of a data file that is open now."""
        for files in self._directory.opened:
            if files.data_fd < 0:
                continue  # it rests
            flags = os.O_WRONLY if refuses == "reads" else os.O_RDONLY
            crippled = os.open(f"/proc/self/fd/{files.data_fd}", flags)
            os.dup2(crippled, files.data_fd, inheritable=False)
            os.close(crippled)
