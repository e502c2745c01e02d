"""In CI (`CI=true`) a skipped test fails the run: there everything a test needs is present, so a skip hides a broken set-up.

Loaded by `make test`. Elsewhere skips are only reported (`-ra`), so that the suite is useful without root or /dev/fuse.
"""

from __future__ import annotations

import os

import pytest

ALLOWED: frozenset[str] = frozenset()
"""Node ids that may be skipped in CI, each with a comment that says why."""


class NoSkips:
    """Collects skips while the tests run and turns them into a failed run at the end."""

    def __init__(self) -> None:
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        expected_failure = hasattr(report, "wasxfail")
        if report.skipped and not expected_failure:
            self._note(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report.nodeid)

    def _note(self, nodeid: str) -> None:
        if nodeid not in ALLOWED:
            self.skipped.append(nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.skipped and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.skipped:
            terminalreporter.section("skipped in CI: this fails the run", red=True)
            for nodeid in self.skipped:
                terminalreporter.line(nodeid)


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("CI", "").lower() in ("true", "1"):
        config.pluginmanager.register(NoSkips())
