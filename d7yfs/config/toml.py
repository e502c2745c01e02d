"""The TOML file: options by name, the repositories, the mount point. Unknown keys and wrong values
are errors.

    source = "s3://models/triton"         # one repository, or a table for each:
    mountpoint = "/mnt/models"
    cache_size = "200GiB"

    [repositories.llm]                    # a top-level directory; options that may differ between repositories
    url = "s3://a/x"
    region = "eu-central-1"

Keys may be written with `_` or `-`. Relative paths are relative to the file's folder.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from d7yfs.config.layers import Layer, Value, parse_value, spellings, suggestion
from d7yfs.config.schema import OPTIONS
from d7yfs.config.settings_file import read_text
from d7yfs.config.url import RepositoryUrl, redact
from d7yfs.errors import ConfigError

_OTHER_KEYS = ("source", "mountpoint", "repositories")


@dataclass(frozen=True, slots=True)
class Source:
    """A repository to mount, as one layer names it."""

    name: str
    """Name of its top-level directory; empty when it is the root."""
    url: RepositoryUrl
    where: str
    layer: Layer = field(default_factory=dict)
    """Options of this repository's own table."""


@dataclass(frozen=True, slots=True)
class TomlFile:
    """The content of one file; all empty for no file."""

    layer: Layer
    sources: tuple[Source, ...]
    mountpoint: Value | None


def read_toml(path: Path) -> TomlFile:
    """Parse and validate the file. Raises ConfigError: the file, the key, what is allowed."""
    try:
        content = tomllib.loads(read_text(path, "--config"))
    except tomllib.TOMLDecodeError as error:
        raise _malformed(path, str(error)) from None
    except (RecursionError, ValueError):
        raise ConfigError(f"{path}: is nested too deep, or a number is too long") from None
    content = _normal_keys(content, str(path))
    known = spellings(OPTIONS.values()) | {other: other for other in _OTHER_KEYS}
    layer = _read_options(path, str(path), content, known)
    mountpoint = content.get("mountpoint")
    if mountpoint is not None and (not isinstance(mountpoint, str) or not mountpoint):
        raise ConfigError(f"{path}: mountpoint is not a path; allowed: a path in quotes")
    place = Value(path.parent / mountpoint, str(path)) if mountpoint else None
    return TomlFile(layer, tuple(_toml_sources(path, content)), place)


def _toml_sources(path: Path, content: Mapping[str, object]) -> Iterable[Source]:
    tables = content.get("repositories", {})
    if not isinstance(tables, dict):
        raise ConfigError(f"{path}: repositories has the wrong type; allowed: tables [repositories.NAME]")
    if "source" in content:
        if tables:
            raise ConfigError(f"{path}: both source and [repositories] are given", hint="keep one of them")
        yield Source("", _toml_url(f"{path}: source", content["source"]), str(path))
    for name, raw in tables.items():
        where = f"{path}: [repositories.{name}]"
        check_name(name, where)
        if not isinstance(raw, dict):
            raise ConfigError(f'{where} has the wrong type; allowed: a table with url = "s3://…"')
        table = _normal_keys(raw, where)
        if "url" not in table:
            raise ConfigError(f"{where} has no url", hint='write url = "s3://bucket/prefix"')
        url = _toml_url(f"{where} url", table["url"])
        known = {"url": "url"} | spellings([option for option in OPTIONS.values() if option.per_repository])
        if misplaced := next((key for key in table if key in OPTIONS and key not in known), ""):
            raise ConfigError(
                f"{where}: {misplaced} applies to the whole mount", hint="write it before the first [table]"
            )
        yield Source(name, url, where, _read_options(path, where, table, known))


def _read_options(path: Path, where: str, table: Mapping[str, object], known: Mapping[str, str]) -> Layer:
    """The options in a table. Raises ConfigError for a key that is not `known` in its right
    spelling."""
    for key in table:
        if known.get(key) != key:
            raise ConfigError(f"{where}: unknown key {key!r}", hint=suggestion(key, known))
    return {
        key: parse_value(OPTIONS[key], raw, where, key, path.parent) for key, raw in table.items() if key in OPTIONS
    }


def _toml_url(where: str, raw: object) -> RepositoryUrl:
    if not isinstance(raw, str):
        raise ConfigError(f'{where} has the wrong type; allowed: a URL in quotes such as "s3://bucket/prefix"')
    try:
        return RepositoryUrl.parse(raw)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.message}", hint=error.hint) from None


def _normal_keys(table: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The table with each `cache-size` spelled `cache_size`."""
    normal: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name in normal:
            raise ConfigError(f"{where}: {name} is given twice, once as {key}", hint="keep one of them")
        normal[name] = value
    return normal


def _malformed(path: Path, message: str) -> ConfigError:
    place = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if not place:
        return ConfigError(f"{path}: not valid TOML: {message}")
    line, column = place.groups()
    if line is None:
        lines = path.read_text(errors="replace").split("\n")
        line, column = len(lines), len(lines[-1]) + 1
    return ConfigError(f"{path}:{line}:{column}: not valid TOML: {message[: place.start()]}")


def check_name(name: str, where: str) -> None:
    """Refuse a repository name that cannot be a directory. Raises ConfigError."""
    if (
        not name
        or name in (".", "..")
        or "/" in name
        or not name.isprintable()
        or len(name.encode(errors="replace")) > 255
    ):
        raise ConfigError(
            f"{where}: {redact(name)!r} cannot be a directory",
            hint="allowed: one path component of at most 255 bytes, without / and control characters",
        )
