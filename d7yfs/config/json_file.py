"""Typed access to one JSON file whose format another program defines.

Every failure is a ConfigError that names the file and the key, never a value: these files hold
secrets. An unknown key is a warning, a wrong type an error; a key that is null is absent, as for the
programs that own the formats. Called by the readers of each format
(`triton`, `torchserve`).
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from d7yfs.config.settings_file import exposure, read_file
from d7yfs.config.url import redact
from d7yfs.errors import ConfigError

_STRING = r'"(?:\\.|[^"\\])*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*")
_TRAILING_COMMA = re.compile(rf"{_STRING}|,(?=\s*[}}\]])")


@dataclass(frozen=True, slots=True)
class JsonFile:
    """One JSON file, and the warnings collected while it is read."""

    path: Path
    warnings: list[str] = field(default_factory=list)

    def load(self, *, relaxed: bool = False) -> Mapping[str, object]:
        """The object in the file; `relaxed` allows `//` and trailing commas. Raises ConfigError."""
        if risk := exposure(self.path, secret=True):
            self.warnings.append(risk)
        try:
            text = read_file(self.path).decode("utf-8-sig")
        except OSError as error:
            raise self.error(
                f"cannot be read: {error.strerror}", "make it readable, or unset the setting that names it"
            ) from None
        except UnicodeDecodeError:
            raise self.error("is not UTF-8") from None
        try:
            root = json.loads(_strict(text) if relaxed else text, object_pairs_hook=self._require_unique_keys)
        except json.JSONDecodeError as error:
            place = f"{self.path}:{error.lineno}:{error.colno}"
            raise ConfigError(
                f"{place}: not valid JSON: {error.msg}", hint="line and column numbers start at 1"
            ) from None
        except (RecursionError, ValueError):
            raise self.error("is no JSON that can be read: nested too deep or a number too long") from None
        return self.require_object(root, "the file")

    def require_object(self, value: object, where: str) -> Mapping[str, object]:
        """`value`, which must be an object. Raises ConfigError."""
        if not isinstance(value, dict):
            raise self.error(f"{where} has the wrong type", "allowed: an object {…}")
        return value

    def require_text(self, value: object, where: str, *, allowed: str = "text in quotes") -> str:
        """`value`, which must be text. Raises ConfigError."""
        if not isinstance(value, str):
            raise self.error(f"{where} has the wrong type", f"allowed: {allowed}")
        return value

    def warn(self, message: str) -> None:
        """Note something unusual that does no harm."""
        self.warnings.append(f"{self.path}: {message}")

    def warn_unknown(
        self, content: Mapping[str, object], known: tuple[str, ...], where: str, *, what: str = "key"
    ) -> list[str]:
        """Warn of each key of `content` that the format does not know, and name the nearest that it does.
        Returns the warnings, without the file's name.
        """
        lines = []
        for key in content:
            if key not in known:
                close = difflib.get_close_matches(key.lower(), known, 1)
                meant = f'did you mean "{close[0]}"?' if close else f"known: {', '.join(known)}"
                lines.append(f'unknown {what} "{redact(key)}" in {where} is ignored; {meant}')
                self.warn(lines[-1])
        return lines

    def error(self, what: str, hint: str = "") -> ConfigError:
        """An error about this file."""
        return ConfigError(f"{self.path}: {what}", hint=hint)

    def _require_unique_keys(self, pairs: list[tuple[str, object]]) -> dict[str, object]:
        content = dict(pairs)
        if len(content) < len(pairs):
            keys = [key for key, _ in pairs]
            twice = next(key for key in keys if keys.count(key) > 1)
            raise self.error(f'key "{redact(twice)}" appears twice in one object', "keep one of them")
        return {key: value for key, value in content.items() if value is not None}


def _strict(text: str) -> str:
    """`text` with spaces for comments and trailing commas, which keeps positions right."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        return found if found.startswith('"') else " " * len(found)

    return _TRAILING_COMMA.sub(blank, _COMMENT.sub(blank, text))
