"""One layer of the configuration: option values with their source, read from raw values."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d7yfs.config.schema import Option
from d7yfs.config.url import redact
from d7yfs.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a setting, and the source that set it."""

    value: Any
    """Of the type of the option's field."""
    where: str
    """In words for people: a flag, a variable, a file."""


Layer = Mapping[str, Value]
"""Values by option name."""

Found = tuple[Value, Layer]
"""Credentials, and the options that the same source gives with them."""


def parse_value(option: Option, raw: object, where: str, key: str, base: Path) -> Value:
    """Read one value of a layer; `where` names the layer, and `key` the setting in it unless
    `where` says it already.

    A relative path is relative to `base`: the working directory, or the folder of the file that
    holds it. Raises ConfigError.
    """
    try:
        value = option.kind.parse(raw)
    except ValueError as error:
        shown = redact(raw) if isinstance(raw, str) else raw
        label = f"{where}: {key} =" if key else where
        raise ConfigError(f"{label} {shown!r} {error}") from None
    return Value(base / value if isinstance(value, Path) else value, where)


def first(name: str, layers: Iterable[Layer]) -> Value | None:
    """The value of the highest layer that has one; `layers` come highest first."""
    return next((layer[name] for layer in layers if name in layer), None)


def spellings(options: Collection[Option]) -> dict[str, str]:
    """The right spelling for each that people try: `no_fallback` (the flag) is `fallback=false`."""
    right = {option.name: option.name for option in options}
    off = {option.off_flag[2:].replace("-", "_"): f"{option.name}=false" for option in options if option.off_flag}
    return right | off


def suggestion(wrong: str, known: Mapping[str, str]) -> str:
    """A hint: the known spelling nearest to `wrong`, else all allowed ones."""
    close = difflib.get_close_matches(wrong, known, 1)
    return f"did you mean {known[close[0]]}?" if close else f"allowed: {', '.join(k for k in known if known[k] == k)}"
