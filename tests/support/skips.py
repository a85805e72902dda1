"""A pytest plugin: no test is left out in silence.

At the end of a run every skipped or expectedly failing test is printed with its reason, and a
test without a row in tests/SKIPS.md fails the run. Under xdist the controller counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

REGISTER = Path("tests/SKIPS.md")
COLUMNS = ("test", "reason", "when it runs")


@dataclass(frozen=True)
class LeftOut:
    """A test that did not run to a verdict, and why."""

    test: str
    reason: str
    listed: bool


@dataclass(frozen=True)
class Row:
    """A line of the register; in `pattern` a `*` stands for anything, all else for itself."""

    pattern: str
    reason: str
    when_it_runs: str

    def covers(self, test: str) -> bool:
        expression = ".*".join(re.escape(part) for part in self.pattern.split("*"))
        return re.fullmatch(expression, test) is not None


class UnreadableRegisterError(Exception):
    """A table row of tests/SKIPS.md does not have its three cells filled."""


def read_register(path: Path) -> tuple[Row, ...]:
    """Rows of the register's table; a missing file lists nothing."""
    if not path.exists():
        return ()
    lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    table = [
        tuple(cell.strip().strip("`") for cell in line.strip("|").split("|"))
        for line in lines
        if line.startswith("|")
    ]
    rows = []
    for cells in table[2:]:  # the heading and the line under it
        if len(cells) != len(COLUMNS) or not all(cells):
            message = f"{path}: want {COLUMNS}, got {cells}"
            raise UnreadableRegisterError(message)
        rows.append(Row(*cells))
    return tuple(rows)


def reason_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """What the author gave as reason, however pytest wrapped it."""
    expected_failure = getattr(report, "wasxfail", None)
    if expected_failure is not None:
        return f"xfail: {expected_failure.removeprefix('reason: ') or 'no reason given'}"
    # A skip's longrepr is (file, line, message).
    message = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return f"skip: {message.removeprefix('Skipped: ')}"


class SkipRegister:
    """Collects what was left out and compares it with the register."""

    def __init__(self, rows: tuple[Row, ...]) -> None:
        self.rows = rows
        self.left_out: dict[str, LeftOut] = {}

    @property
    def unlisted(self) -> list[LeftOut]:
        return [entry for entry in self.left_out.values() if not entry.listed]

    def note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped:
            return
        listed = any(row.covers(report.nodeid) for row in self.rows)
        self.left_out[report.nodeid] = LeftOut(report.nodeid, reason_of(report), listed)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A module that skips itself as a whole has no test to report."""
        self.note(report)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.unlisted and session.exitstatus in {
            pytest.ExitCode.OK,
            pytest.ExitCode.NO_TESTS_COLLECTED,
        }:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.left_out:
            return
        terminalreporter.section("left out")
        for entry in sorted(self.left_out.values(), key=lambda entry: entry.test):
            terminalreporter.line(f"{entry.test}  ({entry.reason})")
        if self.unlisted:
            terminalreporter.line(
                f"FAILED: no row in {REGISTER} for {', '.join(e.test for e in self.unlisted)}",
                red=True,
            )


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # an xdist worker: its controller hears every report
        return
    config.pluginmanager.register(SkipRegister(read_register(config.rootpath / REGISTER)))
