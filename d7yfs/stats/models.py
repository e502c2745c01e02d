"""What each model of a repository has been asked for and what it took; a model is a top-level directory of the repository. Pure.

Bounded: the first `limit` models that are touched have counters of their own, all others share one, so that a bucket with a thousand
directories makes no thousand time series. `read` counts for readers, the ways for bytes that came; neither is a sum of the other.

One `Models` per repository, built by `repository`; the file system, the fetcher and the hand-over count, `status` shows.
"""

from __future__ import annotations

from dataclasses import dataclass

OTHER = "other"
"""All models beyond the limit."""

TOP = "."
"""Files that lie in no directory, and all of a repository that is a single object."""


@dataclass(slots=True)
class Model:
    """Since start."""

    opens: int = 0
    read_bytes: int = 0
    """Given to readers."""
    cache_bytes: int = 0
    """Of these, what was there before they asked, read ahead included."""
    proxy_bytes: int = 0
    local_peer_bytes: int = 0
    remote_peer_bytes: int = 0
    back_to_source_bytes: int = 0
    direct_bytes: int = 0
    fills: int = 0
    """Files that were brought whole in one go."""
    fill_s: float = 0.0
    """What these took, added up."""

    def count_piece(self, size_bytes: int, traffic: str) -> None:
        """A piece was handed over by dfdaemon, which had it from `traffic`."""
        if traffic == "source":
            self.back_to_source_bytes += size_bytes
        elif traffic == "remote_peer":
            self.remote_peer_bytes += size_bytes
        elif traffic == "local_peer":
            self.local_peer_bytes += size_bytes


class Models:
    """Those of one repository, by name."""

    def __init__(self, prefix: str = "", *, limit: int = 0) -> None:
        """`prefix`: where in the bucket the repository lies, without a slash at its end."""
        self._above = f"{prefix}/" if prefix else ""
        self.limit = limit
        """May change: what has counters of its own keeps them."""
        self._models: dict[str, Model] = {}
        self._other = Model()

    def holds(self, key: str) -> bool:
        """Whether the object lies in this repository."""
        return f"{key}/".startswith(self._above)

    def name_of(self, key: str) -> str:
        """The model that an object belongs to, whether it has counters of its own or not."""
        first, slash, _ = key[len(self._above) :].partition("/")
        return first if slash and first else TOP

    def of(self, key: str) -> Model:
        """The counters that an object counts for."""
        name = self.name_of(key)
        model = self._models.get(name)
        if model is not None:
            return model
        if len(self._models) >= self.limit:
            return self._other
        model = self._models[name] = Model()
        return model

    def label_of(self, key: str) -> str:
        """Under which name `all` shows an object's model."""
        name = self.name_of(key)
        return name if name in self._models else OTHER

    def all(self) -> dict[str, Model]:
        """Those that were touched, by name; `OTHER` is what the limit left no room for. A directory of that name shares its counters."""
        shown = dict(self._models)
        if self._other != Model():
            shown[OTHER] = self._other if OTHER not in shown else _sum(shown[OTHER], self._other)
        return shown


def _sum(one: Model, another: Model) -> Model:
    names = Model.__slots__
    return Model(**{name: getattr(one, name) + getattr(another, name) for name in names})
