"""What one repository has fetched since start, in plain numbers for `status` and metrics. Counted by the fetcher."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Counters:
    """Bytes are those of bodies, as they were handed on."""

    direct_requests: int = 0
    direct_bytes: int = 0
    direct_bytes_by_reason: dict[str, int] = field(default_factory=dict)
    """Why they did not come through a proxy; together `direct_bytes`."""
    proxy_requests: int = 0
    proxy_bytes: int = 0
    unbound: int = 0
    """Replies of a proxy that were not used because they were not provably this version's."""
    resigned: int = 0
    retries: dict[str, int] = field(default_factory=dict)
    """Retries by the class of the error that caused them."""

    def count_retry(self, error: Exception) -> None:
        """A request is repeated because of `error`."""
        kind = type(error).__name__
        self.retries[kind] = self.retries.get(kind, 0) + 1

    def count_direct(self, received_bytes: int, reason: str) -> None:
        """`received_bytes` have come straight from the origin."""
        self.direct_bytes += received_bytes
        self.direct_bytes_by_reason[reason] = self.direct_bytes_by_reason.get(reason, 0) + received_bytes
