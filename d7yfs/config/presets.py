"""The settings that a model server needs, by its name: the values of `--for`. Pure.

They are the lowest layer: whatever else names a setting wins. docs/decisions.md says why each has
its value.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from d7yfs.config.layers import Layer, parse_value
from d7yfs.config.schema import ANY_SERVER, OPTIONS

PRESETS: Mapping[str, Mapping[str, str]] = {
    ANY_SERVER: {},
    "triton": {"revalidate_on_open": "config.pbtxt"},
    "torchserve": {"revalidate_on_open": "*.mar,*.tar.gz,*.tgz,MANIFEST.json", "open_wait": "1s"},
    "vllm": {"revalidate_on_open": "config.json", "open_wait": "1s", "noexec": "true"},
}
"""Values as they are written, by option."""


def preset_layer(server: str) -> Layer:
    """The settings for `server`."""
    return {
        name: parse_value(OPTIONS[name], text, f"--for {server}", "", Path("/"))
        for name, text in PRESETS[server].items()
    }
