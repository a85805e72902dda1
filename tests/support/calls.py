"""A plugin: what processes of the product call in AWS is heard in every run, and judged at its end.

A call that the role of its process may not make fails the run, whichever tests were asked for.
Where all were, and all passed, a right that nothing needed fails it as well.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Final

import pytest

from imagefleet.aws import session
from tests.faults.plugin import calls
from tests.faults.plugin.calls import FILE, Call
from tests.support.rights import Table

TO_DO: Final = "infra/aws/modules/identity/README.md says what is to be done."


class Judge:
    """Reads at the end what all processes of this run have told."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._said: list[str] = []

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        table, told = Table.read(), heard_in(self._file)
        self._said = table.refused(told)
        passed = session.exitstatus == pytest.ExitCode.OK
        if passed and is_whole(session.config):
            self._said += [f"{name}: {what} not heard" for name, what in table.idle(told).items()]
        if passed and self._said:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._said:
            terminalreporter.section("rights in AWS")
            for line in self._said:
                terminalreporter.line(f"FAILED: {line}", red=True)
            terminalreporter.line(TO_DO)


def heard_in(file: Path) -> set[Call]:
    lines = file.read_text().splitlines() if file.exists() else []
    return {Call(*json.loads(line)) for line in lines}


def is_whole(config: pytest.Config) -> bool:
    """Whether nobody asked for less than every test."""
    chosen = ("collectonly", "deselect", "ignore", "ignore_glob", "keyword", "lf", "markexpr")
    less = any(config.getoption(name, default=None) for name in chosen)
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not less


def pytest_configure(config: pytest.Config) -> None:
    environment = os.environ  # noqa: TID251 - of every process of this run
    if not hasattr(config, "workerinput"):  # the one process that ends last
        if FILE not in environment:  # whoever names a file wants to keep it
            folder = tempfile.TemporaryDirectory(prefix="imagefleet-calls-")
            config.add_cleanup(folder.cleanup)
            environment[FILE] = str(Path(folder.name) / "calls")
        config.pluginmanager.register(Judge(Path(environment[FILE])))
    calls.LISTENING.append(calls.writing_to(environment[FILE]))
    calls.listen(session)
