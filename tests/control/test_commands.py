"""The account of a mount as JSON: `snapshot.json` is the promise of docs/status.md, taken before its fields had types."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import trio
from trio.testing import MockClock

from d7yfs import daemon
from d7yfs.cache.cache import Cache
from d7yfs.cache.directory import CacheDirectory
from d7yfs.config.sources import load_settings
from d7yfs.control.warm import WarmUp
from d7yfs.errors import NotFound, OriginUnavailable
from d7yfs.host.launch import Readiness
from d7yfs.movers.pool import MoverPool
from d7yfs.objects import ObjectVersion
from d7yfs.repository.latecomer import Latecomer
from d7yfs.repository.repository import open_repositories
from d7yfs.repository.tree_keeper import TreeKeepers
from d7yfs.supervisor.link import Role

PROMISE = Path(__file__).with_name("snapshot.json")
TOML = """
mountpoint = "/mnt/models"
[repositories.llm]
url = "s3://b/llm"
region = "eu-1"
anonymous = true
proxy = "http://127.0.0.1:9,http://127.0.0.1:10"
dfdaemon_socket = "/run/d.sock"
[repositories.vision]
url = "s3://c"
region = "eu-1"
anonymous = true
"""
VERSION = ObjectVersion("llm/a/weights", 10, '"v"', 1)
OWN = ("pid", "version", "started_at", "uptime_s", "rss_bytes", "log", "log_level")
"""Fields that differ from process to process."""


async def told(directory: Path, nursery: trio.Nursery) -> dict[str, Any]:
    """The account, after some use, of a mount of two repositories of which one is away."""
    file = directory / "c.toml"
    file.write_text(f'cache_dir = "{directory}"\n{TOML}')
    settings = load_settings({}, (), None, {}, file)
    llm, vision = repositories = open_repositories(settings)
    cache = Cache(
        CacheDirectory(directory, size_limit_bytes=1 << 30, min_free_bytes=0),
        memory_buffer_bytes=1 << 20,
        read_timeout_s=60,
    )
    late = [Latecomer(vision, OriginUnavailable("s3://c does not answer"), allow_empty=False)]
    placed = [(llm, "llm/"), (vision, "")]
    mount = daemon._Mount(
        nursery,
        settings,
        Path("/mnt/models"),
        placed,
        late,
        cache,
        lambda: settings,
        Role(Readiness({}), no_takeover="--takeover off"),
        MoverPool(3),
        None,
        TreeKeepers({}),
    )
    use: Any = mount
    fetcher = llm.fetcher
    fetcher.counters.direct_requests = 3
    counted = fetcher.models.of(VERSION.key)
    counted.proxy_bytes = 7
    counted.direct_bytes = 300 << 20
    fetcher.counters.direct_bytes_by_reason["fallback"] = 300 << 20
    fetcher.counters.count_retry(NotFound("gone"))
    assert llm.handover is not None
    llm.handover.counters.checked_pieces = 1
    counted.count_piece(9, "remote_peer")
    with fetcher.journal.fill("s3://b/llm/a/weights", VERSION, route="socket", task_id="1234") as fill:
        fill.fetched_bytes = 10
        await trio.sleep(2)
    with fetcher.journal.fill("s3://b/llm/b", VERSION, route="origin", task_id=""):
        counted.opens = 2
        counted.read_bytes = 12
        filesystem = use._filesystem
        filesystem.fullness["llm"].opened(VERSION, trio.current_time(), whole=False)
        cache.in_use = lambda: [(llm.origin.identity, VERSION, 5)]  # type: ignore[method-assign]
        use._invalidator.counters.known = 4
        counters = use._engine.guard.counters
        counters.calls["read"] = 1
        counters.observe("read", 0.02)
        counters.passthrough, counters.passthrough_opens = True, 3
        use._reporter.listens_on = "127.0.0.1:7717"
        await use._reloader.reload()
        use._commands.warm_ups._running[1] = WarmUp(1, ("llm",), filesystem, background=True)
        answer: dict[str, Any] = await use._commands._status({})
    for repository in repositories:
        await repository.aclose()
    return answer


async def test_the_account_is_what_was_promised(tmp_path: Path, nursery: trio.Nursery, mock_clock: MockClock) -> None:
    mock_clock.autojump_threshold = 0
    answer = await told(tmp_path, nursery)
    for name in OWN:
        answer[name] = type(answer[name])()
    away = answer["repositories"][1]
    away["unlisted_s"] = away["failures"]["names"]["since"] = away["failures"]["names"]["last_at"] = 0.0
    for problem in answer["problems"]:
        problem["since"] = 0.0
    assert answer["cache"]["free_bytes"] > 0
    answer["cache"]["free_bytes"] = 0
    answer["settings"] = {"cache_size": answer["settings"]["cache_size"]}
    answer["cache"]["used_bytes"] = answer["last_reload"]["at"] = answer["warm_ups"][0]["room_bytes"] = 0
    text = json.dumps(answer, indent=2).replace(str(tmp_path), "/c") + "\n"
    assert text == PROMISE.read_text()
