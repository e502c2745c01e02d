"""One layer of the configuration: option values with the place they come from, and how a raw value becomes one."""

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
    """A setting and who set it."""

    value: Any
    """Of the type of the option's field."""
    where: str
    """In words for people: a flag, a variable, a file."""


Layer = Mapping[str, Value]
"""Values by option name."""


def parse_value(option: Option, raw: object, where: str, key: str, base: Path) -> Value:
    """Read what a layer holds; `where` names the layer and `key` the setting in it, where the layer's name does not say it.

    `base` is what a relative path is relative to: the working directory, or the folder of the file that holds it.
    Raises ConfigError.
    """
    try:
        value = option.kind.parse(raw)
    except ValueError as error:
        shown = redact(raw) if isinstance(raw, str) else raw
        label = f"{where}: {key} =" if key else where
        raise ConfigError(f"{label} {shown!r} {error}") from None
    return Value(base / value if isinstance(value, Path) else value, where)


def first(name: str, layers: Iterable[Layer]) -> Value | None:
    """The value of the highest layer that has one; layers come highest first."""
    return next((layer[name] for layer in layers if name in layer), None)


def spellings(options: Collection[Option]) -> dict[str, str]:
    """What people write for each option, and what they should: `no_fallback` (they know the flag) is `fallback=false`."""
    right = {option.name: option.name for option in options}
    off = {option.off_flag[2:].replace("-", "_"): f"{option.name}=false" for option in options if option.off_flag}
    return right | off


def suggestion(wrong: str, known: Mapping[str, str]) -> str:
    """A hint: the known spelling nearest to `wrong`, or else all that are allowed."""
    close = difflib.get_close_matches(wrong, known, 1)
    return f"did you mean {known[close[0]]}?" if close else f"allowed: {', '.join(k for k in known if known[k] == k)}"
