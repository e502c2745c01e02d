"""Asks the store if a version is gone that a reply calls gone: a gateway's word is no proof."""

from __future__ import annotations

import trio
from cachetools import TTLCache

from d7yfs.errors import AccessDenied, D7yfsError, NotFound, OriginUnavailable, VersionGone
from d7yfs.fetch import dragonfly_task
from d7yfs.objects import ObjectVersion
from d7yfs.origins.origin import Origin

_GONE_MAX = 1024
_GONE_S = 1.0
"""Seconds: one question answers all parts of a version that fail together. Soon after, the same
content may have been uploaded again."""


class GoneVersions:
    """The versions of one repository that the store said were not current, a moment ago."""

    def __init__(self) -> None:
        self._known: TTLCache[tuple[str, str, int], bool] = TTLCache(_GONE_MAX, _GONE_S, timer=trio.current_time)
        """Identities of versions."""

    async def confirm(self, gone: VersionGone, version: ObjectVersion, origin: Origin) -> D7yfsError:
        """Return `gone` if the store itself says that the version is no longer current, else a
        transient error.

        A 404 page or another ETag may come from a gateway in the store's place, and under mmap the
        error ends the reader. A version that the URL pins by an id of its own has no second
        witness: `stat` speaks of the current one.
        """
        try:
            request = await origin.read_request(version, presigned=False)
            if not version.validator.isdecimal() and dragonfly_task.names_version(request.url):
                return gone
            if version.identity in self._known or not version.is_stored_as(await origin.stat(version.key)):
                self._known[version.identity] = True
                return gone
        except (NotFound, VersionGone, AccessDenied):
            self._known[version.identity] = True
            return gone
        except D7yfsError as error:
            return OriginUnavailable(f"{gone.message}; the store cannot be asked whether that is so: {error.message}")
        return OriginUnavailable(f"{gone.message}; but the store still shows this version as the current one")
