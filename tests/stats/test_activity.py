"""Rates, from two accounts of a mount."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from d7yfs.stats.activity import BUSIEST, Totals, measure, rates_between
from d7yfs.stats.status import MountStatus, parse

SNAPSHOT: dict[str, Any] = json.loads((Path(__file__).parents[1] / "control" / "snapshot.json").read_text())
LLM: dict[str, Any] = SNAPSHOT["repositories"][0]
MODEL: dict[str, Any] = LLM["models"]["a"]
NOTHING: dict[str, Any] = dict.fromkeys(LLM["traffic"], 0) | {"direct_bytes_by_reason": {}}


def account(
    uptime_s: float,
    traffic: dict[str, int] | None = None,
    models: dict[str, dict[str, int]] | None = None,
    *,
    started_at: float = 5.0,
    opens: int = 0,
) -> MountStatus:
    """A mount of one repository, with these counters."""
    none = {name: 0 for name, value in MODEL.items() if isinstance(value, int)}
    shown = {name: MODEL | none | counted for name, counted in (models or {}).items()}
    repository = LLM | {"name": "llm", "traffic": NOTHING | (traffic or {}), "models": shown}
    changes = {
        "started_at": started_at,
        "uptime_s": uptime_s,
        "repositories": [repository],
        "fuse": SNAPSHOT["fuse"] | {"passthrough_opens": opens},
    }
    return parse(MountStatus, SNAPSHOT | changes)


def looks(*accounts: MountStatus) -> list[Totals]:
    return [Totals.of(each) for each in accounts]


def test_rates_by_way() -> None:
    (before,) = looks(account(10.0, {"cache_bytes": 100}, opens=3))
    after = account(
        12.0,
        {
            "cache_bytes": 300,
            "proxy_bytes": 20,
            "local_peer_bytes": 2,
            "remote_peer_bytes": 4,
            "back_to_source_bytes": 8,
            "direct_bytes": 10,
        },
        opens=6,
    )
    found = measure(after, before)
    assert (found.over_s, found.cache_bytes_s, found.p2p_bytes_s, found.store_bytes_s) == (2.0, 100.0, 13.0, 9.0)
    assert found.passthrough_opens_s == 1.5


def test_the_rates_of_each_interval() -> None:
    sizes = (0, 10, 10, 40)
    seen = looks(*(account(float(number), {"direct_bytes": size}) for number, size in enumerate(sizes)))
    assert rates_between(seen, "store") == [10, 0, 30]
    assert rates_between(seen, "p2p") == [0, 0, 0]
    assert rates_between(seen[:1], "store") == []


def test_the_counters_of_two_daemons_make_no_rate() -> None:
    """A worker that follows another begins at zero. Neither may a clock that is set back make one."""
    old, new, back = looks(
        account(100.0, {"cache_bytes": 10**12}),
        account(1.0, {"cache_bytes": 50}, started_at=106.0),
        account(90.0, {"cache_bytes": 2 * 10**12}),
    )
    assert rates_between([old, new], "cache") == [0]
    assert rates_between([old, back], "cache") == [0]
    found = measure(account(1.0, {"cache_bytes": 50}, {"m": {"read_bytes": 9}}, started_at=106.0), old)
    assert (found.over_s, found.cache_bytes_s, found.models) == (0.0, 0.0, ())


def test_the_models_with_most_bytes() -> None:
    before = account(0.0, {}, {"idle": {"read_bytes": 10}, "read": {"read_bytes": 10, "cache_bytes": 9}})
    after = account(
        2.0,
        {},
        {
            "idle": {"read_bytes": 10},
            "read": {"read_bytes": 30, "cache_bytes": 29, "size_bytes": 7, "cached_bytes": 5},
            "fetched": {"proxy_bytes": 40, "direct_bytes": 20},
        },
    )
    (old,) = looks(before)
    first, second = measure(after, old).models
    assert (first.repository, first.model, first.read_bytes_s, first.fetched_bytes_s) == ("llm", "fetched", 0, 30)
    assert (second.model, second.read_bytes_s, second.fetched_bytes_s) == ("read", 10, 0)
    assert (second.size_bytes, second.cached_bytes) == (7, 5)
    assert measure(after, Totals.of(after), models_before=old).models == (first, second), "over another time"
    many = account(2.0, {}, {f"m{number}": {"read_bytes": number} for number in range(BUSIEST + 5)})
    assert measure(many, replace(old, models={})).models[0].model == f"m{BUSIEST + 4}"
    assert len(measure(many, old).models) == BUSIEST
