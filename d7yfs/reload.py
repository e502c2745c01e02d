"""What of settings that were read again can take effect in a running mount, and what waits for the next one. Pure.

Live are the log's level, times to live of listings, limits of the cache and of connections, and credentials. Everything else is built into
the mount when it begins. Called by `daemon` on SIGHUP, which does what is found here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from d7yfs.config.schema import OPTIONS, Config
from d7yfs.config.sources import Settings

LIVE = frozenset(
    {
        "log_level",
        "metadata_ttl",
        "negative_ttl",
        "cache_size",
        "cache_min_free",
        "memory_buffer",
        "max_connections",
        "shutdown_timeout",
    }
)
"""Options that a running mount heeds."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What has changed."""

    live: Mapping[str, str]
    """Options that take effect now, with their new values in words."""
    later: tuple[str, ...]
    """Settings that take effect at the next mount."""
    credentials: tuple[str, ...]
    """Repositories, by name, whose credentials come from elsewhere now, or are others."""
    settings: Settings
    """What holds from now on."""


def changes(old: Settings, new: Settings) -> Changes:
    """What `new` changes in a mount that runs with `old`."""
    live: dict[str, str] = {}
    later: list[str] = []
    values: dict[str, object] = {}
    provenance = dict(old.provenance)
    for option in OPTIONS.values():
        if option.per_repository:
            continue
        before, after = getattr(old.config, option.field), getattr(new.config, option.field)
        if before == after:
            continue
        if option.name in LIVE:
            live[option.name] = option.kind.show(after)
            values[option.field] = after
            provenance[option.name] = new.provenance.get(option.name, "default")
        else:
            later.append(option.name)
    if old.config.mountpoint != new.config.mountpoint:
        later.append("mountpoint")
    later += _repositories(old.config, new.config)
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
            config=old.config.model_copy(update=values),
            credentials={**old.credentials, **{name: new.credentials[name] for name in credentials}},
            provenance=provenance,
            warnings=new.warnings,
        ),
    )


def _repositories(old: Config, new: Config) -> list[str]:
    before, after = ({each.name: each for each in config.repositories} for config in (old, new))
    if before.keys() != after.keys():
        return ["repositories"]
    # Which credentials are used is no option that is built in: see `Changes.credentials`.
    credentials = {"profile", "credentials_file", "anonymous"}
    return [
        f"{name}.{field}".lstrip(".")
        for name, repository in before.items()
        for field in type(repository).model_fields
        if field not in credentials and getattr(repository, field) != getattr(after[name], field)
    ]
