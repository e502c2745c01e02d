"""Tables of numbers as families of metrics. Used by the collectors of this package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

Status: TypeAlias = Mapping[str, Any]
"""What `d7yfs status --json` shows of one mount (docs/status.md), or a part of it."""

Repositories: TypeAlias = Mapping[str, Status]
"""By the label that they have."""

Kind: TypeAlias = type[CounterMetricFamily] | type[GaugeMetricFamily]


def named(repositories: Iterable[Status]) -> Repositories:
    """By name; by URL where a repository is the root of the mount."""
    return {each["name"] or each["url"]: each for each in repositories}


def plain(kind: Kind, prefix: str, texts: Mapping[str, str], numbers: Status) -> Iterator[Metric]:
    """One family without labels for each field of `texts`, called as the field is."""
    for field, text in texts.items():
        yield kind(prefix + field.removesuffix("_total"), text, numbers[field])


def by_repository(
    kind: Kind, name: str, text: str, repositories: Repositories, value: Callable[[Status], float | None]
) -> Metric:
    """One value for each repository that has one."""
    family = kind(name, text, labels=["repository"])
    for label, repository in repositories.items():
        if (number := value(repository)) is not None:
            family.add_metric([label], number)
    return family


def fields_by_repository(
    kind: Kind, section: str, texts: Mapping[str, tuple[str, str]], repositories: Repositories
) -> Iterator[Metric]:
    """One family for each field of `texts` (name and text) in a section of the repositories; none for those that are null."""
    for field, (name, text) in texts.items():
        yield by_repository(kind, name, text, repositories, _field(section, field))


def _field(section: str, field: str) -> Callable[[Status], float | None]:
    return lambda each: each[section][field]


def kinds_by_repository(
    kind: Kind, name: str, text: str, label: str, repositories: Repositories, values: Callable[[Status], Status]
) -> Metric:
    """One value for each repository and each key of what `values` gives, which is the label."""
    family = kind(name, text, labels=["repository", label])
    for repository, each in repositories.items():
        for key, number in values(each).items():
            family.add_metric([repository, key], number)
    return family
