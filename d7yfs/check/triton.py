"""The part of the dry run that is about Triton: models whose config.pbtxt still asks for
Dragonfly's repository agent.

With a mount that agent fails. Triton without it refuses such a model; Triton with it hands the
agent a local path, which it cannot fetch. Reads a bounded number of small files that end in .pbtxt,
as the mount would.

Called by `check`.
"""

from __future__ import annotations

from collections.abc import Iterable

import trio

from d7yfs.check.findings import Finding, count, failed, ok, warning
from d7yfs.errors import ConfigError, D7yfsError, ReadTimeout
from d7yfs.objects import ByteRange, ObjectVersion
from d7yfs.repository.repository import Repository
from d7yfs.servers.triton_config import agents_blocks, removals

_PROBE = "triton"
_MAX_FILES = 500
_MAX_FILE_BYTES = 256 << 10
_READERS = 8
_SUFFIX = ".pbtxt"
"""Ending of config.pbtxt, and of each configs/NAME.pbtxt for --model-config-name."""


async def check_triton(repository: Repository, objects: Iterable[ObjectVersion], *, complete: bool) -> list[Finding]:
    """One finding per model that asks for the agent, by these objects: the repository's first ones,
    or all if `complete`. None without model configurations."""
    configs = [each for each in objects if each.key.endswith(_SUFFIX) and _readable(each)]
    if not configs:
        return []
    some = configs[:_MAX_FILES]
    findings = await _read_all(repository, some)
    if not findings:
        read = count(len(some), "model configuration", "model configurations")
        said = f"{repository.config.url}: {read}, none asks for Dragonfly's repository agent"
        findings.append(ok(_PROBE, said))
    if not complete or len(some) < len(configs):
        said = f"{repository.config.url}: only the first {len(some)} model configurations were read"
        findings.append(warning(_PROBE, said, "for the others, check the URL of a directory further down"))
    return findings


def _readable(version: ObjectVersion) -> bool:
    return 0 < version.size_bytes <= _MAX_FILE_BYTES and not version.archived


async def _read_all(repository: Repository, versions: list[ObjectVersion]) -> list[Finding]:
    """Findings in the order of the keys."""
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
        return [warning(_PROBE, f"{name}: {error.message}", "Triton will not accept it either")]
    except D7yfsError as error:
        return [failed(_PROBE, error)]
    if not advice:
        return []
    said = (
        f"{name}: asks for Dragonfly's repository agent; Triton without the agent refuses the model, and with it the agent "
        "cannot fetch from a directory"
    )
    return [warning(_PROBE, said, f"remove {'; '.join(advice)}; see docs/migration.md")]


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
    """A sink that keeps the bytes in memory."""

    def __init__(self, size_bytes: int) -> None:
        self.data = bytearray(size_bytes)

    async def write(self, offset: int, data: memoryview) -> None:
        self.data[offset : offset + len(data)] = data

    def retract(self, wanted: ByteRange) -> int:
        """Nothing is kept: the bytes are written again."""
        return wanted.start
