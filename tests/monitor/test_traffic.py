"""What an operator is told about where the bytes come from."""

from __future__ import annotations

import pytest

from d7yfs.monitor.traffic import JUDGED_BYTES, Traffic, warning

MUCH = JUDGED_BYTES + 1


@pytest.mark.parametrize(
    "traffic",
    [
        Traffic(),
        Traffic(cache_bytes=MUCH),
        Traffic(direct_bytes=JUDGED_BYTES),
        Traffic(direct_bytes=MUCH, proxy_bytes=1),
        Traffic(back_to_source_bytes=MUCH, remote_peer_bytes=1),
        Traffic(back_to_source_bytes=MUCH, local_peer_bytes=1),
    ],
)
def test_nothing_is_wrong(traffic: Traffic) -> None:
    assert warning("llm", traffic) == ""


def test_every_byte_straight_from_the_store() -> None:
    traffic = Traffic(direct_bytes=MUCH, direct_bytes_by_reason={"small file": 1, "proxy down": MUCH - 1})
    assert warning("llm", traffic).startswith(
        "llm: P2P is configured but every byte comes from the source (most of it: proxy down)"
    )


def test_every_byte_fetched_from_the_store_by_dfdaemon() -> None:
    traffic = Traffic(back_to_source_bytes=MUCH, direct_bytes=5, direct_bytes_by_reason={"small file": 5})
    assert warning("llm", traffic).startswith("llm: P2P is configured but every byte comes from the source:")


def test_totals() -> None:
    traffic = Traffic(1, 2, 3, 4, 5, 6)
    assert (traffic.p2p_bytes, traffic.fetched_bytes) == (9, 20)
