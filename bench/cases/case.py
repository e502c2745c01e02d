"""What a case is: something that readers do, the figures it yields, and the goals these are held to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar

from bench.catalog import BUCKET
from bench.children import in_child
from bench.dataset import Sizes
from bench.peers import Mount
from bench.processes import drop_page_cache
from bench.store import LOOPBACK, Counters, Profile, Store

P = ParamSpec("P")
T = TypeVar("T")

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Goal:
    """`d7yfs`'s figure against `factor` × that of `peer` in `metric`.

    `peer` may be "best" (of the competitors that ran) or "constant" (the factor itself). `metric` is the figure compared with, as
    "case.metric"; empty for the goal's own.
    """

    factor: float
    peer: str
    metric: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table. All its goals have to be met."""

    name: str
    unit: str
    better: Literal["higher", "lower"]
    goals: Sequence[Goal] = ()


@dataclass(frozen=True, slots=True)
class Download:
    """Whole files that curl fetches in place of a mount's reader; the figure it yields."""

    keys: Callable[[Sizes], Sequence[str]]
    parallel: int
    figure: Callable[[Sizes, float], Figures]


@dataclass(slots=True)
class Run:
    """One peer's turn in one case: mounted afresh on an empty cache, with an empty page cache."""

    directory: Path
    data: Path
    sizes: Sizes
    store: Store
    mount: Mount
    limit_s: float
    """What one timed piece of work may take; those that cannot stop themselves are ended a little later."""
    payload_bytes: int = 0
    """What the readers got in the cold part: the base of CPU seconds per GiB; 0 where that says nothing."""

    def do(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In a child. Raises ReadError."""
        return in_child(self.limit_s + 5, function, *args, **kwargs)

    def remount(self) -> None:
        """Unmount and mount with the same cache; the page cache is empty then."""
        self.mount.unmount()
        drop_page_cache()
        self.mount.mount()

    def counters(self) -> Counters:
        return self.store.counters()


@dataclass(frozen=True, slots=True)
class Case:
    """`cold` is what the costs are measured over (processor time, requests, bytes); `then` comes after it, on the same mount."""

    name: str
    title: str
    metrics: Sequence[Metric]
    cold: Callable[[Run], Figures]
    then: Callable[[Run], Figures] = lambda _: {}
    verified: Callable[[Sizes], Sequence[str]] = lambda _: ()
    """Keys that are compared with their source afterwards, in the first round."""
    profile: Profile = LOOPBACK
    bucket: str = BUCKET
    """What is mounted; all of it is listed by who lists a repository whole."""
    download: Download | None = None
    references: bool = True
    """Whether peers that read past the store take part."""
