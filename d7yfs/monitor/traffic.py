"""Where one repository's bytes have come from, as an operator asks it, and what looks wrong about that. Pure.

dfdaemon tells the source of each piece over its socket only. What comes through its proxy may come from peers or from the store: dfdaemon's
own metrics (`dragonfly_client_download_traffic`) know.

Called by `status`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

JUDGED_BYTES = 256 << 20
"""Less than this says nothing: small files and headers come straight from the store in any case."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes since start, by where they came from."""

    cache_bytes: int = 0
    """Given to readers and there before they asked, read ahead included."""
    proxy_bytes: int = 0
    local_peer_bytes: int = 0
    """By dfdaemon's socket, from its own store."""
    remote_peer_bytes: int = 0
    """By dfdaemon's socket, from other hosts."""
    back_to_source_bytes: int = 0
    """By dfdaemon's socket, fetched by it from the store."""
    direct_bytes: int = 0
    direct_bytes_by_reason: Mapping[str, int] = field(default_factory=dict)

    @property
    def p2p_bytes(self) -> int:
        """What peers have, or may have, brought."""
        return self.proxy_bytes + self.local_peer_bytes + self.remote_peer_bytes

    @property
    def fetched_bytes(self) -> int:
        """All that was not in the cache."""
        return self.p2p_bytes + self.back_to_source_bytes + self.direct_bytes


def warning(name: str, traffic: Traffic) -> str:
    """What is wrong with the traffic of repository `name`, which is to be fetched through Dragonfly; empty when nothing is."""
    if traffic.fetched_bytes <= JUDGED_BYTES or traffic.p2p_bytes:
        return ""
    reasons = sorted(traffic.direct_bytes_by_reason.items(), key=lambda pair: -pair[1])
    why = f" (most of it: {reasons[0][0]})" if reasons and not traffic.back_to_source_bytes else ""
    return (
        f"{name}: P2P is configured but every byte comes from the source{why}: see whether dfdaemon runs, knows its scheduler and has "
        "peers; d7yfs check tries it"
    )
