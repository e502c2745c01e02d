"""In CI (`CI=true`) a skipped test fails the run: CI has all that a test needs, so a skip hides a
broken set-up.

`make test` loads it. Elsewhere skips are only reported (`-ra`), so that the suite works without
root or /dev/fuse.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

_UNCOLLECTED = "skipped while collecting"
ALLOWED: frozenset[str] = frozenset()
"""Node ids that may be skipped in CI, each with a comment that gives the reason."""


class NoSkips:
    """A plugin that collects skips while the tests run and fails the run at the end."""

    def __init__(self) -> None:
        self.skipped: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        expected_failure = hasattr(report, "wasxfail")
        if report.skipped and not expected_failure:
            self._note(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report.nodeid)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Take the skips of a pytest-xdist process while collecting: its tests were reported here,
        these skips were not.
        """
        for nodeid in getattr(node, "workeroutput", {}).get(_UNCOLLECTED, ()):
            self._note(nodeid)

    def _note(self, nodeid: str) -> None:
        if nodeid not in ALLOWED and nodeid not in self.skipped:
            self.skipped.append(nodeid)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[_UNCOLLECTED] = self.skipped
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
