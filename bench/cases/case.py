"""The parts of a case: the work of its readers, the figures it yields, and their goals."""

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
    """The goal of a figure of `d7yfs`: `factor` × that of `peer` in `metric`.

    `peer` may be "best" (of the competitors that ran) or "constant" (the factor itself). `metric`
    is the figure to compare with, as "case.metric"; empty for the goal's own.
    """

    factor: float
    peer: str
    metric: str = ""


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of the table; all its goals have to be met."""

    name: str
    unit: str
    better: Literal["higher", "lower"]
    goals: Sequence[Goal] = ()


@dataclass(frozen=True, slots=True)
class Download:
    """A download of whole files by curl in place of a mount's reader, with the figure it yields."""

    keys: Callable[[Sizes], Sequence[str]]
    parallel: int
    figure: Callable[[Sizes, float], Figures]


@dataclass(slots=True)
class Run:
    """The turn of one peer in one case: a new mount on an empty cache, with an empty page cache."""

    directory: Path
    data: Path
    sizes: Sizes
    store: Store
    mount: Mount
    limit_s: float
    """Seconds for one timed piece of work; a reader that cannot stop itself is killed a little
    later.
    """
    payload_bytes: int = 0
    """Bytes that the readers got in the cold part, the base of CPU seconds per GiB; 0 if that
    figure means nothing.
    """

    def do(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function` in a child process. Raises ReadError."""
        return in_child(self.limit_s + 5, function, *args, **kwargs)

    def remount(self) -> None:
        """Unmount and mount with the same cache, and an empty page cache once mounted.

        Nothing comes between that and the reader. A virtual machine's host takes back idle memory
        within seconds, and reads into memory that it has to give again take several times as long.
        """
        self.mount.unmount()
        self.mount.mount()
        self.mount.settle()
        drop_page_cache()

    def counters(self) -> Counters:
        return self.store.counters()


@dataclass(frozen=True, slots=True)
class Case:
    """A benchmark case: `cold` is measured with its costs, `then` runs after it on the same mount.

    The costs are processor time, requests and bytes.
    """

    name: str
    title: str
    metrics: Sequence[Metric]
    cold: Callable[[Run], Figures]
    then: Callable[[Run], Figures] = lambda _: {}
    verified: Callable[[Sizes], Sequence[str]] = lambda _: ()
    """Keys that are compared with their source afterwards, in the first round."""
    profile: Profile = LOOPBACK
    bucket: str = BUCKET
    """The mounted bucket; a peer that lists a repository whole lists all of it."""
    download: Download | None = None
    references: bool = True
    """True if peers that read a copy instead of the store take part."""
    only: Sequence[str] = ()
    """The peers that take part; all if empty."""
    once: bool = False
    """True if the first round is enough."""
