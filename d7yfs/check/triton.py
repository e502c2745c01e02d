"""The part of the dry run that is about Triton: models whose config.pbtxt still asks for Dragonfly's repository agent.

With a mount that agent has no place: Triton without it refuses such a model, and with it the agent is handed a local path, which it cannot
fetch. Reads only small files that end in .pbtxt, and only so many, the way that the mount would read them.

Called by `check`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

import trio

from d7yfs.check.findings import Finding, Verdict, failed
from d7yfs.errors import ConfigError, D7yfsError, ReadTimeout
from d7yfs.objects import ByteRange, ObjectVersion
from d7yfs.origins.survey import list_all
from d7yfs.repository.repository import Repository
from d7yfs.servers.triton_config import agents_blocks, removals

_PROBE = "triton"
_PAGES = 20
_MAX_FILES = 500
_MAX_FILE_BYTES = 256 << 10
_READERS = 8
_SUFFIX = ".pbtxt"
"""Of config.pbtxt, and of the configs/NAME.pbtxt that --model-config-name chooses from."""


@dataclass(frozen=True, slots=True)
class _Configs:
    found: list[ObjectVersion]
    whole: bool
    """Whether the whole repository was looked through."""


async def check_triton(repository: Repository, prefix: str) -> AsyncGenerator[Finding, None]:
    """One finding per model that asks for the agent; nothing of a repository without model configurations."""
    if prefix and not prefix.endswith("/"):
        return
    try:
        configs = await _find(repository, prefix)
    except D7yfsError as error:
        yield failed(_PROBE, error)
        return
    if not configs.found:
        return
    findings = await _read_all(repository, configs.found)
    for finding in findings:
        yield finding
    if not findings:
        said = f"{repository.config.url}: {len(configs.found)} model configurations, none asks for Dragonfly's repository agent"
        yield Finding(_PROBE, Verdict.OK, said)
    if not configs.whole:
        said = f"{repository.config.url}: only the first {len(configs.found)} model configurations were looked at"
        yield Finding(_PROBE, Verdict.WARNING, said, "check the URL of a directory further down for the others")


async def _find(repository: Repository, prefix: str) -> _Configs:
    found: list[ObjectVersion] = []
    count = 0
    async with aclosing(list_all(repository.origin, prefix, delimiter="")) as pages:
        async for page in pages:
            if count == _PAGES or len(found) >= _MAX_FILES:
                return _Configs(found, whole=False)
            found += [each for each in page.objects if each.key.endswith(_SUFFIX) and _readable(each)]
            count += 1
    return _Configs(found[:_MAX_FILES], whole=len(found) <= _MAX_FILES)


def _readable(version: ObjectVersion) -> bool:
    return 0 < version.size_bytes <= _MAX_FILE_BYTES and not version.archived


async def _read_all(repository: Repository, versions: list[ObjectVersion]) -> list[Finding]:
    """In the order of the keys."""
    findings: list[list[Finding]] = [[] for _ in versions]
    limiter = trio.CapacityLimiter(_READERS)

    async def look(number: int) -> None:
        async with limiter:
            findings[number] = await _look(repository, versions[number])

    async with trio.open_nursery() as nursery:
        for number in range(len(versions)):
            nursery.start_soon(look, number)
    return [finding for each in findings for finding in each]


async def _look(repository: Repository, version: ObjectVersion) -> list[Finding]:
    name = repository.fetcher.name(version)
    try:
        text = (await _read(repository, version)).decode("utf-8-sig", errors="replace")
        advice = removals(agents_blocks(text))
    except ConfigError as error:
        return [Finding(_PROBE, Verdict.WARNING, f"{name}: {error.message}", "Triton will not read it either")]
    except D7yfsError as error:
        return [failed(_PROBE, error)]
    if not advice:
        return []
    said = (
        f"{name}: asks for Dragonfly's repository agent; Triton without the agent refuses the model, and with it the agent "
        "cannot fetch from a directory"
    )
    return [Finding(_PROBE, Verdict.WARNING, said, f"remove {'; '.join(advice)}; see docs/migration.md")]


async def _read(repository: Repository, version: ObjectVersion) -> bytes:
    """Raises what the fetcher raises, and ReadTimeout."""
    buffer = _Buffer(version.size_bytes)
    try:
        with trio.fail_after(repository.fetcher.read_timeout_s):
            await repository.fetcher.fetch(version, ByteRange(0, version.size_bytes), buffer)
    except trio.TooSlowError:
        name = repository.fetcher.name(version)
        raise ReadTimeout(f"{name}: not read within {repository.fetcher.read_timeout_s:g} s") from None
    return bytes(buffer.data)


class _Buffer:
    """A sink in memory."""

    def __init__(self, size_bytes: int) -> None:
        self.data = bytearray(size_bytes)

    async def write(self, offset: int, data: memoryview) -> None:
        self.data[offset : offset + len(data)] = data

    def retract(self, wanted: ByteRange) -> int:
        """They are written again."""
        return wanted.start
