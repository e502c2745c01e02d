"""The account of the sources of bytes, for an operator."""

from __future__ import annotations

import pytest

from d7yfs.monitor.account import JUDGED_BYTES, judge_traffic
from d7yfs.stats.repository_status import TrafficStatus

MUCH = JUDGED_BYTES + 1


@pytest.mark.parametrize(
    "traffic",
    [
        TrafficStatus(),
        TrafficStatus(cache_bytes=MUCH),
        TrafficStatus(direct_bytes=JUDGED_BYTES),
        TrafficStatus(direct_bytes=MUCH, proxy_bytes=1),
        TrafficStatus(back_to_source_bytes=MUCH, remote_peer_bytes=1),
        TrafficStatus(back_to_source_bytes=MUCH, local_peer_bytes=1),
    ],
)
def test_nothing_is_wrong(traffic: TrafficStatus) -> None:
    assert judge_traffic("llm", traffic) == ""


def test_every_byte_straight_from_the_store() -> None:
    traffic = TrafficStatus(direct_bytes=MUCH, direct_bytes_by_reason={"small file": 1, "proxy down": MUCH - 1})
    assert judge_traffic("llm", traffic).startswith(
        "llm: P2P is configured but every byte comes from the source (most of it: proxy down)"
    )


def test_every_byte_fetched_from_the_store_by_dfdaemon() -> None:
    traffic = TrafficStatus(back_to_source_bytes=MUCH, direct_bytes=5, direct_bytes_by_reason={"small file": 5})
    assert judge_traffic("llm", traffic).startswith("llm: P2P is configured but every byte comes from the source:")


def test_totals() -> None:
    traffic = TrafficStatus(
        cache_bytes=1,
        proxy_bytes=2,
        local_peer_bytes=3,
        remote_peer_bytes=4,
        back_to_source_bytes=5,
        direct_bytes=6,
    )
    assert (traffic.p2p_bytes, traffic.fetched_bytes) == (9, 20)
