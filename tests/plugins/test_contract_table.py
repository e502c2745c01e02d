"""The table at the end of a run of the contract suite."""

from __future__ import annotations

from tests.plugins.contract_table import Table, note_inability

Properties = list[tuple[str, object]]


def case(row: str, name: str, *reasons: str, line: int = 1) -> Properties:
    properties: Properties = [("contract case", (row, "test_faults", line, f"test_{name}"))]
    for reason in reasons:
        note_inability(properties, reason)
    return properties


def test_the_worst_outcome_of_a_case_is_shown() -> None:
    table = Table()
    for outcome in ("ok", "FAILED", "ok"):
        table.add(case("s3", "busy"), outcome)
    table.add(case("gs", "busy"), "ok")
    table.add(case("gs", "other"), "ok")
    _, section, busy, other = table.lines()
    assert section == "faults"
    assert busy.split() == ["busy", "FAILED", "ok"]
    assert other.split() == ["other", "-", "ok"]


def test_reasons_are_notes_each_given_once() -> None:
    table = Table()
    table.add(case("gs", "busy", "has no clock"), "n/a")
    table.add(case("gs", "skewed", "has no clock", line=2), "n/a")
    table.add(case("gs", "names", "cannot store 'a\\b'", line=3), "ok")
    lines = list(table.lines())
    assert [line.split()[1:] for line in lines[2:5]] == [["n/a", "[1]"], ["n/a", "[1]"], ["ok", "[2]"]]
    assert lines[5:] == ["[1] has no clock", "[2] cannot store 'a\\b'"]


def test_cases_stand_in_the_order_of_their_lines() -> None:
    table = Table()
    table.add(case("gs", "second", "why", line=20), "n/a")
    table.add(case("not-run", "second", "why", line=20), "n/a")
    table.add(case("gs", "first", line=3), "ok")
    assert [line.split()[0] for line in table.lines()] == ["gs", "faults", "first", "second", "[1]"]


def test_other_tests_are_no_cases() -> None:
    table = Table()
    table.add([("something", 1)], "FAILED")
    assert not table
