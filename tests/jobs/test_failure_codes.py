"""Every code with which a job can fail has a sentence, whoever raises it and wherever."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from imagefleet.jobs.lifecycle import FAILURE_SENTENCES
from imagefleet.jobs.model import CancelCode
from tests.support.sources import parsed

PACKAGE = Path(__file__).parents[2] / "services" / "imagefleet"
RUN_BY_WORKERS = ("aws", "imaging", "jobs", "store", "worker")

# By name: what makes a failure of a job, and where in the call its code is.
RAISED = {"InputRejected", "rejected", "_retry", "failure_sentence"}  # the first argument
DECIDED = {"Retry", "Failed"}  # `code`
OF_THE_PAYLOAD = {"RequestRejected"}  # of requests too, so only where payloads are read

# Of statements: what they write as a code, be it one of several.
WRITTEN = re.compile(r"(?<![}.])\b(?:failure|cancel)_code (= [^,]*),")
LITERAL = re.compile(r"(?:=|THEN|ELSE) '(\w+)'")

NO_FAILURE_OF_A_JOB = {"unreadable"}  # of a message: whose job it is, nobody can tell


def calls(*packages: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call by name."""
    for package in packages:
        for file in sorted((PACKAGE / package).rglob("*.py")):
            for node in ast.walk(parsed(file)):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    yield node.func.id, node


def in_statements() -> set[str]:
    """Literals of SQL, which no call shows."""
    texts = [file.read_text(encoding="utf-8") for file in (PACKAGE / "store").rglob("*.py")]
    written = [expression for text in texts for expression in WRITTEN.findall(text)]
    return {found for expression in written for found in LITERAL.findall(expression)}


def first(call: ast.Call) -> str | None:
    return text(call.args[0]) if call.args else None


def code(call: ast.Call) -> str | None:
    return next((text(given.value) for given in call.keywords if given.arg == "code"), None)


def text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def codes() -> set[str]:
    """What is written down as a code; what is handed on was written down elsewhere."""
    found = {first(call) for name, call in calls(*RUN_BY_WORKERS) if name in RAISED}
    found |= {code(call) for name, call in calls(*RUN_BY_WORKERS) if name in DECIDED}
    found |= {first(call) for name, call in calls("jobs", "worker") if name in OF_THE_PAYLOAD}
    found |= {code.value for code in CancelCode} | in_statements()
    return {one for one in found if one is not None} - NO_FAILURE_OF_A_JOB


def test_every_code_that_a_job_can_fail_with_has_a_sentence() -> None:
    assert codes() <= set(FAILURE_SENTENCES), "FAILURE_SENTENCES lacks a code"


def test_every_sentence_belongs_to_a_code_that_something_produces() -> None:
    assert set(FAILURE_SENTENCES) == codes()


def test_codes_that_only_a_statement_writes_are_found() -> None:
    assert {"attempts_exhausted", "image_deleted"} == in_statements()
