"""docs/status.md and its JSON schema are what the types of the account say; an account survives its way over the socket."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from d7yfs.errors import MountError
from d7yfs.stats.repository_status import FetchedStatus, ListingStatus
from d7yfs.stats.status import MountStatus, as_json, blank, parse
from tests.monitor.test_metrics import SNAPSHOT, STATUS

ROOT = Path(__file__).parents[2]


def test_the_reference_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "status_reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_reference_is_readable() -> None:
    page = (ROOT / "docs" / "status.md").read_text()
    for block in re.findall(r"<!-- \w+: written by.*?<!-- end", page, re.DOTALL):
        for row in re.findall(r"^\|.*\|$", block, re.MULTILINE):
            assert all(len(cell) <= 122 for cell in row.split("|")), row


def test_the_schema_has_every_field_of_an_account() -> None:
    schema = json.loads((ROOT / "docs" / "status.schema.json").read_text())

    def check(value: Any, described: dict[str, Any]) -> None:
        if "anyOf" in described:
            described = described["anyOf"][value is None]
        if "$ref" in described:
            described = schema["$defs"][described["$ref"].rpartition("/")[2]]
        kinds: dict[str, Any] = {
            "object": dict,
            "array": list,
            "string": str,
            "integer": int,
            "number": (int, float),
            "boolean": bool,
        }
        assert value is None if described["type"] == "null" else isinstance(value, kinds[described["type"]])
        if isinstance(value, dict):
            properties = described.get("properties", {})
            assert set(described.get("required", ())) <= value.keys()
            for key, below in value.items():
                check(below, properties[key] if properties else described["additionalProperties"])
        elif isinstance(value, list):
            for each in value:
                check(each, described["items"])

    check([SNAPSHOT, STATUS], schema)


def test_an_account_comes_back_as_it_was() -> None:
    account = parse(MountStatus, SNAPSHOT)
    assert json.dumps(as_json(account)) == json.dumps(SNAPSHOT)


def test_fields_of_a_newer_daemon_are_ignored() -> None:
    newer = SNAPSHOT | {"moon": 1, "cache": SNAPSHOT["cache"] | {"tides": [1]}}
    assert parse(MountStatus, newer) == parse(MountStatus, SNAPSHOT)


def test_fields_that_an_older_daemon_lacks() -> None:
    older = {name: value for name, value in SNAPSHOT.items() if name not in ("metrics", "last_reload")}
    account = parse(MountStatus, older)
    assert (account.metrics.error, account.last_reload) == ("known to newer daemons only", None)
    with pytest.raises(MountError, match="lacks 'rss_bytes' of MountStatus"):
        parse(MountStatus, {name: value for name, value in SNAPSHOT.items() if name != "rss_bytes"})


def test_a_part_before_anything_was_counted() -> None:
    counted, another = blank(FetchedStatus, unbound=1), blank(FetchedStatus)
    counted.count_direct(3, "small")
    assert (counted.unbound, counted.proxy_requests, counted.direct_bytes_by_reason) == (1, 0, {"small": 3})
    assert another.direct_bytes_by_reason == {}, "each has its own"
    listing = blank(ListingStatus)
    assert (listing.answered_s, listing.last_scan.pages, listing.reason) == (None, 0, "")
    empty = blank(MountStatus)
    assert parse(MountStatus, as_json(empty)) == empty
