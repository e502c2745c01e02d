"""Prints, at the end of a run, the results of the contract suite (tests/contract/): provider ×
case.

`make test` loads it. A case's parameters are one cell: `FAILED` if any failed, `n/a` if the store
supports none of them. Each has a note with the reason. The suite's conftest assigns tests to cases.
Reports carry the case as user properties, so that they may come from pytest-xdist's processes.
Those hand over their deselected tests when they end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

_CASE = "contract case"
_INABILITY = "contract inability"
_DESELECTED = "contract deselected"
_FAILED, _OK, _SKIPPED, _NA = "FAILED", "ok", "skipped", "n/a"


def note_case(item: pytest.Item, row: str) -> None:
    """Show `item`, a test function, in the table's column `row`."""
    assert isinstance(item, pytest.Function)
    item.user_properties.append((_CASE, (row, item.path.stem, item.location[1], item.originalname)))


def note_inability(properties: list[tuple[str, object]], reason: str) -> None:
    """Note in the table what the store cannot do: a whole case that is not run, or some input of
    one that is.
    """
    properties.append((_INABILITY, reason))


Case = tuple[str, int, str]
"""Module, line and function of the test, which also give the order."""


class Table:
    """A table of outcomes by row and case; each cell shows the worst."""

    def __init__(self) -> None:
        self._cells: dict[Case, dict[str, list[str]]] = {}
        self._reasons: dict[tuple[str, Case], list[str]] = {}
        self._rows: list[str] = []
        """The rows of which at least one case ran."""

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, properties: Iterable[tuple[str, object]], outcome: str) -> None:
        """Add one outcome of a case; ignored without the properties of `note_case`."""
        found: dict[str, list[object]] = {}
        for name, value in properties:
            found.setdefault(name, []).append(value)
        for where in found.get(_CASE, []):
            assert isinstance(where, (tuple, list))
            row, module, line, function = where
            case = (str(module), int(line), str(function))
            if row not in self._rows and outcome != _NA:
                self._rows.append(row)
            self._cells.setdefault(case, {}).setdefault(row, []).append(outcome)
            known = self._reasons.setdefault((row, case), [])
            known += [str(reason) for reason in found.get(_INABILITY, []) if reason not in known]

    def lines(self) -> Iterator[str]:
        """The lines of the table, then the notes."""
        notes: list[str] = []
        width = max(len(_words(function)) for _, _, function in self._cells) + 4
        widths = [max(len(row), 12) for row in self._rows]
        yield _columns("", width, self._rows, widths)
        section = ""
        for case in sorted(self._cells):
            if case[0] != section:
                section = case[0]
                yield _words(section)
            shown = [self._shown(row, case, notes) for row in self._rows]
            yield _columns(f"  {_words(case[2])}", width, shown, widths)
        for number, note in enumerate(notes, 1):
            yield f"[{number}] {note}"

    def _shown(self, row: str, case: Case, notes: list[str]) -> str:
        outcomes = self._cells[case].get(row, [])
        worst = next((each for each in (_FAILED, _SKIPPED, _OK, _NA) if each in outcomes), "-")
        numbers = []
        for reason in self._reasons.get((row, case), []):
            if reason not in notes:
                notes.append(reason)
            numbers.append(notes.index(reason) + 1)
        return " ".join([worst, *(f"[{number}]" for number in numbers)])


class ContractTable:
    """A plugin that fills a `Table` from pytest's reports."""

    def __init__(self) -> None:
        self._table = Table()
        self._deselected: list[list[tuple[str, object]]] = []

    def pytest_deselected(self, items: Iterable[pytest.Item]) -> None:
        self._add_deselected(
            item.user_properties for item in items if any(name == _INABILITY for name, _ in item.user_properties)
        )

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_DESELECTED] = self._deselected

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._add_deselected(getattr(node, "workeroutput", {}).get(_DESELECTED, ()))

    def _add_deselected(self, cases: Iterable[list[tuple[str, object]]]) -> None:
        for properties in cases:
            self._deselected.append(properties)
            self._table.add(properties, _NA)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._table.add(report.user_properties, _FAILED)
        elif report.skipped:
            self._table.add(report.user_properties, _SKIPPED)
        elif report.when == "call":
            self._table.add(report.user_properties, _OK)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._table:
            terminalreporter.section("contract: provider × case")
            for line in self._table.lines():
                terminalreporter.line(line)


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(ContractTable())


def _columns(head: str, width: int, cells: Iterable[str], widths: Iterable[int]) -> str:
    padded = (f"{cell:{size}}" for cell, size in zip(cells, widths, strict=True))
    return f"{head:{width}}{'  '.join(padded)}".rstrip()


def _words(name: str) -> str:
    return name.removeprefix("test_").replace("_", " ")
