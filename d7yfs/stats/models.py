"""Counters by model; a model is a top-level directory of a repository. Pure.

Bounded: the first `limit` models that are touched have counters of their own, all others share one,
so that a bucket with a thousand directories makes no thousand time series. `read_bytes` are those
of readers, the others those that came; neither is a sum of the other.

One `Models` per repository, built by `repository`; the file system, the fetcher and the hand-over
count, `status` shows.
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import reduce

from d7yfs.stats.repository_status import ModelStatus
from d7yfs.stats.status import blank

OTHER = "other"
"""The label of all models beyond the limit."""

TOP = "."
"""The label of files in no directory, and of a repository that is a single object."""


class Models:
    """The counters of one repository's models, by name."""

    def __init__(self, prefix: str = "", *, limit: int = 0) -> None:
        """`prefix`: the repository's place in its bucket, without a slash at its end."""
        self._above = f"{prefix}/" if prefix else ""
        self.limit = limit
        """May change: models that have counters of their own keep them."""
        self._models: dict[str, ModelStatus] = {}
        self._other = blank(ModelStatus)

    def holds(self, key: str) -> bool:
        """True if the object lies in this repository."""
        return f"{key}/".startswith(self._above)

    def name_of(self, key: str) -> str:
        """The model of an object, even if it has no counters of its own."""
        first, slash, _ = key[len(self._above) :].partition("/")
        return first if slash and first else TOP

    def of(self, key: str) -> ModelStatus:
        """The counters of an object's model."""
        name = self.name_of(key)
        model = self._models.get(name)
        if model is not None:
            return model
        if len(self._models) >= self.limit:
            return self._other
        model = self._models[name] = blank(ModelStatus)
        return model

    @property
    def total(self) -> ModelStatus:
        """The sum over all models: what the repository has been asked for, and what it took."""
        return reduce(_sum, self._models.values(), self._other)

    def label_of(self, key: str) -> str:
        """The name under which `all` shows an object's model."""
        name = self.name_of(key)
        return name if name in self._models else OTHER

    def all(self) -> dict[str, ModelStatus]:
        """The models that were touched, by name: copies. A directory named `OTHER` shares its counters."""
        shown = {name: replace(model) for name, model in self._models.items()}
        if self._other != blank(ModelStatus):
            shown[OTHER] = _sum(shown.get(OTHER, blank(ModelStatus)), self._other)
        return shown


def _sum(one: ModelStatus, another: ModelStatus) -> ModelStatus:
    total = replace(one)
    for each in fields(total):
        if added := getattr(another, each.name):
            setattr(total, each.name, (getattr(one, each.name) or 0) + added)
    return total
