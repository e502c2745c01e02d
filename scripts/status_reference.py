"""Writes the reference of `d7yfs status --json`, docs/status.md and docs/status.schema.json, from
the types of the account.

`python scripts/status_reference.py` writes both. With `--check` it names the files that are out of
date, and exits 1. A field's docstring is its description. In the page, text outside the marked
blocks is written by hand.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from d7yfs.stats.activity import ActivityStatus
from d7yfs.stats.preheat import PreheatStatus
from d7yfs.stats.repository_status import RepositoryStatus
from d7yfs.stats.status import (
    CacheStatus,
    FuseStatus,
    HealthStatus,
    MountStatus,
    RefreshStatus,
    ReloadStatus,
    TreeStatus,
    WarmUpStatus,
    key_of,
)

DOCS = Path(__file__).parents[1] / "docs"
SECTIONS = {
    "A mount": MountStatus,
    "repositories": RepositoryStatus,
    "cache": CacheStatus,
    "tree": TreeStatus,
    "fuse": FuseStatus,
}
"""The parts of the first block, each with its own heading."""
ANSWERS = {
    "health": HealthStatus,
    "refresh": RefreshStatus,
    "reload": ReloadStatus,
    "top": ActivityStatus,
    "warm": WarmUpStatus,
    "warm-cluster": PreheatStatus,
}
"""The parts that other commands print, as blocks under headings of the page."""
SIMPLE = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def descriptions(kind: type) -> dict[str, str]:
    """The docstrings of a part's fields."""
    (tree,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            found[statement.target.id] = " ".join(str(following.value.value).split())
    return found


def part_in(hint: Any) -> type | None:
    """The part that a field holds, alone or in a container, or None."""
    if isinstance(hint, type) and is_dataclass(hint):
        return hint
    return next((part for each in get_args(hint) if (part := part_in(each))), None)


def table(kind: type, *before: str) -> list[str]:
    """The fields of a part, one in a row, after those of the command's answer."""
    described = descriptions(kind)
    rows = [f"| `{name}` | |" for name in before]
    for each in fields(kind):
        text = described.get(each.name, "").replace("|", "\\|")
        rows.append(f"| `{key_of(each.name)}` | {text} |".replace("|  |", "| |"))
    return ["| field | |", "|---|---|", *rows, ""]


def section(kind: type, path: str = "") -> Iterator[str]:
    """The table of a part, and the tables of its parts without their own section."""
    yield from table(kind)
    for name, hint in get_type_hints(kind).items():
        part = part_in(hint)
        if part is not None and part not in (*SECTIONS.values(), *ANSWERS.values()):
            yield from (f"### `{path}{key_of(name)}`", "", inspect.getdoc(part) or "", "")
            yield from section(part, f"{path}{key_of(name)}.")


def page(text: str) -> str:
    """The page with its blocks generated again."""
    lines = [line for name, kind in SECTIONS.items() for line in (f"## {name}", "", *section(kind))]
    blocks = {"status": lines} | {name: table(kind, "schema", "mountpoint") for name, kind in ANSWERS.items()}
    for name, block in blocks.items():
        begin, end = f"<!-- {name}: written by `make reference` -->", f"<!-- end of {name} -->"
        body = "\n".join([begin, "", *block, end])
        text, count = re.subn(
            f"{re.escape(begin)}.*?{re.escape(end)}", lambda _, body=body: body, text, flags=re.DOTALL
        )
        assert count == 1, f"{begin} … {end}: {count} times"
    return text


def schema_of(hint: Any) -> dict[str, Any]:
    """The JSON schema of a field."""
    arguments = get_args(hint)
    if isinstance(hint, type) and is_dataclass(hint):
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if get_origin(hint) in (tuple, list):
        return {"type": "array", "items": schema_of(arguments[0])}
    if get_origin(hint) in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1])}
    if arguments:
        return {"anyOf": [schema_of(each) for each in arguments]}
    return {"type": SIMPLE[hint]}


def definitions(kind: type, known: dict[str, Any]) -> None:
    """Add the JSON schema of a part, and of the parts in it, to `known`."""
    hints, described = get_type_hints(kind), descriptions(kind)
    optional = {each.name for each in fields(kind) if each.metadata.get("omitted")}
    properties = {}
    known[kind.__name__] = {
        "type": "object",
        "description": " ".join((inspect.getdoc(kind) or "").split()),
        "required": [key_of(name) for name in hints if name not in optional],
        "properties": properties,
    }
    for name, hint in hints.items():
        there = schema_of(get_args(hint)[0] if name in optional else hint)
        properties[key_of(name)] = there | ({"description": described[name]} if name in described else {})
        if (part := part_in(hint)) is not None and part.__name__ not in known:
            definitions(part, known)


def schema() -> str:
    """The JSON schema of the output of `d7yfs status --json`."""
    known: dict[str, Any] = {}
    definitions(MountStatus, known)
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "d7yfs status --json",
        "description": "One object for each mount. Fields may be added without notice; see docs/status.md.",
        "type": "array",
        "items": {"$ref": "#/$defs/MountStatus"},
        "$defs": known,
    }
    return json.dumps(whole, indent=2) + "\n"


def main(arguments: list[str]) -> int:
    """Write both files, or with `--check` compare them. Returns the exit status."""
    files = {DOCS / "status.md": page((DOCS / "status.md").read_text()), DOCS / "status.schema.json": schema()}
    stale = [path for path, text in files.items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if "--check" in arguments:
            print(f"{path} is out of date: run `make reference`")
        else:
            path.write_text(files[path])
    return 1 if stale and "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
