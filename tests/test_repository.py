"""How the repositories of one mount are put together: what they share, and what is each one's own."""

from __future__ import annotations

import json
from pathlib import Path

from d7yfs.config.sources import load_settings
from d7yfs.fetch.dragonfly import TaskOptions
from d7yfs.repository import Repository, open_repositories

TOML = """
anonymous = true
region = "us-east-1"
proxy = "http://node:4001,http://service:4001"

[repositories.models]
url = "s3://models"
p2p_tag = "m"
p2p_application = "triton"
p2p_priority = 3
p2p_piece_length = "8MiB"

[repositories.data]
url = "s3://data"
proxy = "service:4001"
fallback = false

[repositories.plain]
url = "s3://plain"
proxy = "none"
"""


def opened(tmp_path: Path) -> list[Repository]:
    toml, agent = tmp_path / "config.toml", tmp_path / "agent.json"
    toml.write_text(TOML)
    agent.write_text(json.dumps({"proxy": "http://agent:1", "header": {"X-Team": "5ecre7"}, "filter": ["a&b"]}))
    environ = {"TRITON_DRAGONFLY_CONFIG_PATH": str(agent)}
    return open_repositories(load_settings({"cache_dir": tmp_path}, [], None, environ, toml))


async def test_proxies_are_shared_and_what_they_are_told_is_not(tmp_path: Path) -> None:
    models, data, plain = opened(tmp_path)
    assert plain.fetcher.proxy is None
    one, other = models.fetcher.proxy, data.fetcher.proxy
    assert one is not None
    assert other is not None
    assert [proxy.url for proxy in one.all] == ["http://node:4001", "http://service:4001"]
    assert (one.required, other.required) == (False, True)
    assert other.all == one.all[1:]
    assert one.limits is other.limits
    headers = {"X-Team": "5ecre7"}
    assert one.options == TaskOptions("m", "triton", 3, 8 << 20, ("a", "b"), headers)
    assert other.options == TaskOptions(filter=("a", "b"), headers=headers)
    for repository in (models, data, plain):
        await repository.aclose()
