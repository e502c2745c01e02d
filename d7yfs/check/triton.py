"""The part of the dry run that is about Triton: the models that it would refuse, and why.

Reads a bounded number of small files that end in .pbtxt, as the mount would. Pure modules judge them:
`model_directory`, `model_config`, `model_rules`, `ensembles`, `model_repositories`.

Of Dragonfly's repository agent: with a mount that agent fails. Triton without it refuses a model that
asks for it; Triton with it hands the agent a local path, which it cannot fetch.

Called by `check`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import trio

from d7yfs.check.findings import Finding, count, failed, ok, warning
from d7yfs.check.model_config import Message, read_config
from d7yfs.check.model_directory import find_models
from d7yfs.check.model_repositories import PROBE, ModelRepositories
from d7yfs.check.sample import Sample
from d7yfs.errors import ConfigError, D7yfsError, ReadTimeout
from d7yfs.objects import ByteRange, ObjectVersion
from d7yfs.repository.repository import Repository
from d7yfs.servers.agentless_config import without_agent
from d7yfs.servers.triton_config import agents_blocks, removals

_MAX_FILES = 500
_MAX_FILE_BYTES = 256 << 10
_READERS = 8
_SUFFIX = ".pbtxt"
"""Ending of config.pbtxt, and of each configs/NAME.pbtxt for --model-config-name."""


@dataclass(slots=True)
class _ConfigFile:
    """A configuration as it was read."""

    findings: list[Finding] = field(default_factory=list)
    config: Message | None = None
    """None if it could not be read."""


async def check_triton(repository: Repository, sample: Sample, prefix: str, models: ModelRepositories) -> list[Finding]:
    """The findings on the model configurations under `prefix`; none without any. Its models are added to
    `models`, which has the findings on them."""
    configs = [each for each in sample.objects if each.key.endswith(_SUFFIX) and _readable(each)]
    directories = [each for each in find_models(sample.tree, prefix) if sample.knows(each.prefix)]
    read = await _read_all(repository, configs[:_MAX_FILES])
    is_part = not sample.is_complete or len(read) < len(configs)
    models.has_all = models.has_all and not is_part
    for each in directories:
        where = f"{repository.origin.url}/{each.prefix}"
        file = _ConfigFile(config=Message()) if each.config is None else read.get(each.config.key, _ConfigFile())
        models.add(where, each, file.config, is_refused=bool(file.findings))
    if not configs:
        return []
    url, findings = repository.config.url, [finding for file in read.values() for finding in file.findings]
    if not findings:
        number = count(len(read), "model configuration", "model configurations")
        findings.append(ok(PROBE, f"{url}: {number}, none asks for Dragonfly's repository agent"))
    if is_part:
        said = f"{url}: only the first {len(read)} model configurations were read"
        findings.append(warning(PROBE, said, "for the others, check the URL of a directory further down"))
    return findings


def _readable(version: ObjectVersion) -> bool:
    return 0 < version.size_bytes <= _MAX_FILE_BYTES and not version.archived


async def _read_all(repository: Repository, versions: list[ObjectVersion]) -> dict[str, _ConfigFile]:
    """The configurations by key, in the order of the versions."""
    files = {version.key: _ConfigFile() for version in versions}
    limiter = trio.CapacityLimiter(_READERS)

    async def look(version: ObjectVersion) -> None:
        async with limiter:
            files[version.key] = await _look(repository, version)

    async with trio.open_nursery() as nursery:
        for version in versions:
            nursery.start_soon(look, version)
    return files


async def _look(repository: Repository, version: ObjectVersion) -> _ConfigFile:
    name = repository.fetcher.name(version)
    file = _ConfigFile()
    try:
        data = await _read(repository, version)
        if repository.config.hide_agents:
            data = without_agent(data)
        text = data.decode(errors="replace")
        advice = removals(agents_blocks(text.removeprefix("\ufeff")))
        if advice:
            said = (
                f"{name}: asks for Dragonfly's repository agent; Triton without the agent refuses the model, and with it "
                "the agent cannot fetch from a directory"
            )
            file.findings.append(warning(PROBE, said, f"remove {'; '.join(advice)}; see docs/migration.md"))
        file.config = read_config(text)
    except ConfigError as error:
        file.findings.append(
            warning(PROBE, f"{name}: {error.message}", "Triton would refuse the model: correct that line")
        )
    except D7yfsError as error:
        file.findings.append(failed(PROBE, error))
    return file


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
