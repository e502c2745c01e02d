"""What of settings that were read again can take effect in a running mount, and what waits for the next one. Pure.

Live are the log's level, times to live of listings, limits, and credentials. Everything else is built into the mount when it begins. Called
by `reloading`; `daemon` does what is found here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from d7yfs.config.schema import OPTIONS, Config, Option, RepositoryConfig
from d7yfs.config.sources import Settings

Model = TypeVar("Model", Config, RepositoryConfig)

LIVE = frozenset(
    {
        "log_level",
        "metadata_ttl",
        "negative_ttl",
        "cache_size",
        "cache_min_free",
        "memory_buffer",
        "max_connections",
        "max_inodes",
        "metrics_per_model",
        "shutdown_timeout",
        "listing_limit",
    }
)
"""Options that a running mount heeds; of those that each repository has for itself, `listing_limit`."""

_CREDENTIALS = frozenset({"profile", "credentials_file", "anonymous"})
"""Which credentials are used is no option that is built in: see `Changes.credentials`."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What has changed."""

    live: Mapping[str, str]
    """Options that take effect now, with their new values in words; those of a named repository as `NAME.listing_limit`."""
    later: tuple[str, ...]
    """Settings that take effect at the next mount, likewise."""
    credentials: tuple[str, ...]
    """Repositories, by name, whose credentials come from elsewhere now, or are others."""
    settings: Settings
    """What holds from now on."""


def changes(old: Settings, new: Settings) -> Changes:
    """What `new` changes in a mount that runs with `old`."""
    live: dict[str, str] = {}
    later: list[str] = []
    provenance = dict(old.provenance)

    def take(before: Model, after: Model, options: Iterable[Option], prefix: str = "") -> Model:
        """`before` with what of `after` is live; notes what has changed."""
        values: dict[str, object] = {}
        for option in options:
            value, name = getattr(after, option.field), f"{prefix}{option.name}"
            if getattr(before, option.field) == value:
                continue
            if option.name in LIVE:
                live[name] = option.kind.show(value)
                values[option.field] = value
                provenance[name] = new.provenance.get(name, "default")
            else:
                later.append(name)
        return before.model_copy(update=values)

    config = take(old.config, new.config, (option for option in OPTIONS.values() if not option.per_repository))
    if old.config.mountpoint != new.config.mountpoint:
        later.append("mountpoint")
    known = {each.name: each for each in new.config.repositories}
    if known.keys() == {each.name for each in old.config.repositories}:
        repositories = []
        for each in old.config.repositories:
            prefix = f"{each.name}." if each.name else ""
            if each.url != known[each.name].url:
                later.append(f"{prefix}url")
            options = (
                option for option in OPTIONS.values() if option.per_repository and option.name not in _CREDENTIALS
            )
            repositories.append(take(each, known[each.name], options, prefix))
        config = config.model_copy(update={"repositories": tuple(repositories)})
    else:
        later.append("repositories")
    later += [name for name in ("headers", "filter") if getattr(old, name) != getattr(new, name)]
    both = old.credentials.keys() & new.credentials.keys()
    credentials = tuple(
        name for name in old.credentials if name in both and old.credentials[name] != new.credentials[name]
    )
    return Changes(
        live,
        tuple(later),
        credentials,
        replace(
            old,
            config=config,
            credentials={**old.credentials, **{name: new.credentials[name] for name in credentials}},
            provenance=provenance,
            warnings=new.warnings,
        ),
    )
