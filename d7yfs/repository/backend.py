"""A repository as the file system needs it: its names, its bytes, and who may read them.

Called by `daemon`, once for each repository.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from d7yfs.cache.cache import Cache
from d7yfs.config.schema import Config
from d7yfs.fill.verification import Verifier
from d7yfs.fs.backend import RepositoryBackend
from d7yfs.fs.rights import Rights
from d7yfs.objects import ObjectVersion
from d7yfs.origins.origin import SESSION
from d7yfs.repository.repository import Repository
from d7yfs.tree.source import ListingMode


def make_backend(
    repository: Repository,
    config: Config,
    cache: Cache,
    nursery: trio.Nursery,
    forget_pages: Callable[[ObjectVersion], Awaitable[None]],
) -> RepositoryBackend:
    """The backend of `repository`; `forget_pages` has the kernel drop its pages of a version."""
    full = config.verify == "full"
    required = repository.config.p2p_verify == "required"
    verifier = Verifier(repository.fetcher, nursery, full=full, required=required, forget_pages=forget_pages)
    repository.fetcher.on_retracted = lambda version: nursery.start_soon(forget_pages, version)
    rights = None
    if config.cache_trust == "credentials":
        rights = Rights(
            repository.prove,
            lambda: repository.origin.principal,
            cache.digest,
            is_session=lambda principal: principal.startswith(SESSION),
        )
        repository.fetcher.on_granted = rights.grant
    verifies = config.verify != "off" or required
    return RepositoryBackend(
        repository.origin.url,
        repository.origin.identity,
        repository.shown,
        repository.make_fillers(nursery, verifier if verifies else None),
        fills_blank=repository.fetcher.proxy is None and repository.handover is None,
        listing=ListingMode(repository.config.listing),
        listing_limit=repository.config.listing_limit,
        published=repository.publication,
        revalidates=revalidated.match if (revalidated := repository.config.revalidate_on_open) else None,
        route=repository.route,
        admit=verifier.admit if verifies else None,
        task_id=repository.task_id,
        expected_s=repository.fetcher.bandwidth.expected_s,
        rights=rights,
        models=repository.fetcher.models,
        failures=repository.fetcher.failures,
    )
