"""Applies a mutation to a copy of the tree and runs the tests that must notice it.

The copy lies in a temporary folder and comes first on PYTHONPATH, so that the interpreter of this
checkout, with everything it has installed, imports the product from there.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import cache_from_source
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Literal

from tests.mutations.mutation import ROOT, Mutation

COPIED: Final = ("infra", "migrations", "pyproject.toml", "services", "tests")
TESTS_FAILED: Final = 1  # pytest's exit code; others say that it could not even run
WITHIN: Final = 180.0  # seconds for the tests of one mutation; each has its own timeout, too

# A mutation that does not even parse proves nothing about a test that is red.
NONSENSE: Final = re.compile(
    r"^(?:E|\s*\|) .*\b(SyntaxError|NameError|ImportError|PostgresSyntaxError|AmbiguousColumnError"
    r"|Undefined\w+Error|GroupingError|DatatypeMismatchError|IndeterminateDatatypeError"
    r"|InvalidColumnReferenceError|42(601|703|P01|P18|702|803|804))\b",
    re.MULTILINE,
)

Colour = Literal["green", "red", "unborn"]


class Verdict(StrEnum):
    """What came of a mutation; only the first is good."""

    CAUGHT = "caught"
    SURVIVED = "SURVIVED"
    """A test that is named stayed green."""
    NONSENSE = "NONSENSE"
    """The tests could not run, or Postgres or Python could not read it."""
    LOST = "LOST"
    """Its text does not stand exactly once in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A verdict, and what there is to say about it."""

    verdict: Verdict
    why: str = ""
    """Of what is caught: what the first red test complained of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a run of pytest came to."""

    exit_code: int
    cases: Mapping[str, Colour]
    """By name, with parameters; `unborn` if its fixtures failed, and so nothing was tried."""
    complaints: Mapping[str, str]
    """What those that are not green said first."""
    nonsense: str | None
    output: str

    def of(self, test: str) -> set[Colour]:
        """The colours of a test, of all its parameters where the name has none."""
        return {
            colour
            for name, colour in self.cases.items()
            if name == test or name.startswith(f"{test}[")
        }


class Copy:
    """A copy of the tree that is changed and restored, one mutation at a time."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def try_(self, mutation: Mutation) -> Trial:
        """Apply it, run its tests, undo it."""
        times = mutation.occurrences(self.root)
        if times != 1:
            why = f"its text stands {times} times in {mutation.path}"
            return Trial(verdict=Verdict.LOST, why=why)
        try:
            with self._mutated(mutation):
                told = self.run(mutation.tests, within=WITHIN)
        except subprocess.TimeoutExpired:
            return Trial(verdict=Verdict.NONSENSE, why=f"no answer within {WITHIN:.0f} s")
        return judge(mutation, told)

    def run(self, tests: Sequence[str], *, within: float | None = None) -> Told:
        """Run these tests on the copy as it is now."""
        report = self.root / "report.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--no-header"]
        command += ["-p", "no:cacheprovider", "-p", "no:randomly", f"--junit-xml={report}", *tests]
        exit_code, output = self._execute(command, within)
        cases, faults = _read(report) if report.exists() else ({}, {})
        nonsense = next(
            (found for text in faults.values() if (found := NONSENSE.search(text))), None
        )
        return Told(
            exit_code=exit_code,
            cases=cases,
            complaints={name: _first_words(text) for name, text in faults.items()},
            nonsense=None if nonsense is None else nonsense[0],
            output=output,
        )

    def _execute(self, command: Sequence[str], within: float | None) -> tuple[int, str]:
        outside = os.environ.items()  # noqa: TID251 - handed on, but for what a pytest around us set
        environment = {name: value for name, value in outside if not name.startswith("PYTEST_")}
        environment["PYTHONPATH"] = str(self.root / "services")
        running = subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = running.communicate(timeout=within)
        except BaseException:
            running.send_signal(signal.SIGINT)  # it ends its own Postgres
            try:
                running.communicate(timeout=20)
            finally:
                running.kill()
            raise
        return running.returncode, output

    @contextmanager
    def _mutated(self, mutation: Mutation) -> Iterator[None]:
        file = self.root / mutation.path
        before = file.read_text()
        _write(file, mutation.applied(before))
        try:
            yield
        finally:
            _write(file, before)


@contextmanager
def a_copy() -> Iterator[Copy]:
    """The tree as it is now, uncommitted changes and all."""
    with TemporaryDirectory(prefix="imagefleet-mutations-") as folder:
        for name in COPIED:
            source, copy = ROOT / name, Path(folder, name)
            if source.is_dir():
                shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, copy)
        yield Copy(Path(folder))


def judge(mutation: Mutation, told: Told) -> Trial:
    """Whether each of its tests was red, and for what it says."""
    missed = [test for test in mutation.tests if "red" not in told.of(test)]
    if told.nonsense is not None:
        return Trial(verdict=Verdict.NONSENSE, why=told.nonsense)
    if any("unborn" in told.of(test) or not told.of(test) for test in mutation.tests):
        return Trial(verdict=Verdict.NONSENSE, why=f"the tests did not run:\n{told.output}")
    if missed:
        return Trial(verdict=Verdict.SURVIVED, why=f"green: {', '.join(missed)}")
    if told.exit_code != TESTS_FAILED:
        return Trial(verdict=Verdict.NONSENSE, why=f"pytest ended with {told.exit_code}")
    return Trial(verdict=Verdict.CAUGHT, why=next(iter(told.complaints.values())))


def _write(file: Path, text: str) -> None:
    file.write_text(text)
    if file.suffix == ".py":
        # Python knows a stale compilation by size and second: too coarse for two quick changes.
        Path(cache_from_source(str(file))).unlink(missing_ok=True)


def _first_words(text: str) -> str:
    """Of a plain failure its first line, of a group of tasks the last of its innermost."""
    lines = [line for line in text.splitlines() if line.startswith("E ")]
    lines = lines or [line for line in reversed(text.splitlines()) if line.strip(" |+-")]
    return lines[0].strip("E |+-")[:120] if lines else ""


def _read(report: Path) -> tuple[dict[str, Colour], dict[str, str]]:
    """The colours of all that ran, and the whole texts of what went wrong."""
    cases: dict[str, Colour] = {}
    faults: dict[str, str] = {}
    for case in ET.parse(report).iter("testcase"):  # noqa: S314 - written by pytest a moment ago
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        cases.setdefault(name, "green")
        for fault in (*case.iter("failure"), *case.iter("error")):
            set_up = fault.tag == "error" and "on setup" in fault.get("message", "")
            cases[name] = "unborn" if set_up else "red"
            faults[name] = faults.get(name, "") + (fault.text or "")
    return cases, faults
