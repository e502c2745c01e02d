"""The account of one preheat: what a daemon tells of `d7yfs warm --cluster`. Pure."""

from __future__ import annotations

from dataclasses import dataclass

SCOPES = ("single_seed_peer", "all_seed_peers", "all_peers")
"""The daemons that may fetch each file, in the manager's words: one seed, all seeds, all that are no seeds."""


@dataclass(slots=True, kw_only=True)
class PreheatStatus:
    """One preheat of a cluster: its files, and what Dragonfly's manager says of them."""

    state: str
    """`running`, and in the end `done`."""
    scope: str
    """The daemons that fetch each file: `single_seed_peer`, `all_seed_peers` or `all_peers`."""
    counted: bool
    """True once all files are counted."""
    files: int
    """Files that the manager was asked for, or will be."""
    size_bytes: int
    """Size of these."""
    files_done: int
    """Files that arrived."""
    done_bytes: int
    """Size of these."""
    files_failed: int
    """Files that did not arrive wherever they were to, and directories that could not be listed."""
    failures: dict[str, str]
    """Why, by path: the first hundred."""
    files_direct: int
    """Files that mounts fetch from the store: small ones, and those for which `--p2p` says never."""
    files_left_out: int
    """Files for which the manager cannot be asked."""
    left_out: dict[str, str]
    """Why, by path: the first hundred."""
    hosts: dict[str, int]
    """Files that arrived, by the name of dfdaemon's host: the first hundred hosts."""
    jobs: tuple[int, ...]
    """Numbers of the jobs, as the manager's console shows them: the first hundred."""
    elapsed_s: float
