"""The parts that the repositories of one mount share, and those that each has alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from d7yfs.config.sources import load_settings
from d7yfs.errors import AccessDenied, ConfigError, NotFound
from d7yfs.fetch.dragonfly_task import TaskOptions
from d7yfs.objects import ObjectVersion
from d7yfs.repository.repository import Repository, open_repositories
from tests.origins.memory import MemoryOrigin

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


async def test_the_secret_of_content_ids_is_read_from_its_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_bytes(b"5ecre7" * 4 + b"\n")
    flags = {"cache_dir": tmp_path, "anonymous": True, "proxy": "http://node:4001", "p2p_secret_file": file}
    settings = load_settings(flags, ["s3://127.0.0.1:9/b"], None, {}, None)
    (repository,) = open_repositories(settings)
    assert repository.fetcher.proxy is not None
    assert repository.fetcher.proxy.options.secret == b"5ecre7" * 4
    assert "5ecre7" not in repr(repository.fetcher.proxy.options) + repr(settings.explain())
    await repository.aclose()
    file.chmod(0o644)
    assert any("secret" in each for each in load_settings(flags, ["s3://127.0.0.1:9/b"], None, {}, None).warnings)


@pytest.mark.parametrize("content", [None, b"short\n"])
async def test_a_secret_that_is_none(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_bytes(content)
    flags = {"cache_dir": tmp_path, "anonymous": True, "proxy": "http://node:4001", "p2p_secret_file": file}
    with pytest.raises(ConfigError, match="p2p_secret_file") as caught:
        open_repositories(load_settings(flags, ["s3://127.0.0.1:9/b"], None, {}, None))
    assert "short" not in str(caught.value)


class Locked(MemoryOrigin):
    """A store without the right to list, which does not tell that a key is absent."""

    def __init__(self, *keys: str) -> None:
        super().__init__(*keys, allowed="nothing")

    async def stat(self, key: str) -> ObjectVersion:
        try:
            return await super().stat(key)
        except NotFound:
            raise AccessDenied(key, hint="ask for s3:GetObject") from None


@pytest.mark.parametrize(("prefix", "found"), [("", ""), ("models", "models/"), ("models/a.bin", "models/a.bin")])
async def test_with_exact_names_nothing_is_listed(tmp_path: Path, prefix: str, found: str) -> None:
    origin = Locked("models/a.bin")
    flags = {"cache_dir": tmp_path, "anonymous": True, "region": "us-east-1", "listing": "exact"}
    (repository,) = open_repositories(load_settings(flags, [f"s3://b/{prefix}"], None, {}, None))
    repository.fetcher.origin = origin
    exact = repository
    assert await exact.locate(allow_empty=False) == found
    assert origin.stats == ([prefix] if prefix else [])
    assert origin.calls == len(origin.stats)
    otherwise = replace(exact, config=replace(exact.config, listing="auto"))
    if found.endswith("/") or not found:
        with pytest.raises(AccessDenied) as caught:
            await otherwise.locate(allow_empty=True)
        assert "--listing exact mounts without the right to list" in caught.value.hint
        origin.troubles.append(AccessDenied("no credentials were found"))
        with pytest.raises(AccessDenied) as caught:
            await otherwise.locate(allow_empty=True)
        assert "exact" not in caught.value.hint, "it would not help"
    await repository.aclose()
