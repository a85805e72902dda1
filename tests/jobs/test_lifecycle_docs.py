"""docs/lifecycle.md says what the code does."""

import re
from datetime import timedelta
from pathlib import Path

from imagefleet.jobs.lifecycle import FAILURE_SENTENCES, TRANSITIONS, ResultReason, Role
from imagefleet.jobs.model import TERMINAL, JobState
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.telemetry.metrics import END_EVENTS

PAGE = (Path(__file__).parents[2] / "docs" / "lifecycle.md").read_text(encoding="utf-8")
SECOND = timedelta(seconds=1)


def table(first_cell: str) -> list[tuple[str, ...]]:
    """Return the rows of the table whose heading begins with this cell, without back-ticks."""
    lines = PAGE.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(f"| {first_cell} |"))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(tuple(cell.strip().replace("`", "") for cell in line.strip("|").split("|")))
    return rows


def test_the_diagram_shows_exactly_the_edges_there_are() -> None:
    (diagram,) = re.findall(r"```mermaid\nstateDiagram-v2\n(.*?)```", PAGE, re.DOTALL)
    drawn = [tuple(line.split(" --> ")) for line in diagram.split("\n    ") if line.strip()]
    drawn = [(source.strip(), target.strip()) for source, target in drawn]
    edges = [(edge.source or "[*]", edge.target) for edge in TRANSITIONS]
    ends = [(state, "[*]") for state in JobState if state in TERMINAL]

    assert sorted([*edges, *ends]) == sorted(drawn)


def test_the_table_of_edges_is_the_one_in_the_code() -> None:
    edges = [
        (
            edge.source or "(new)",
            edge.target,
            ", ".join(actor for actor in Role if actor in edge.by),
            edge.when,
        )
        for edge in TRANSITIONS
    ]

    assert edges == table("from")


def test_every_state_is_explained_and_ends_are_named() -> None:
    explained = {name: terminal for name, _, terminal in table("state")}

    assert {state: "yes" if state in TERMINAL else "no" for state in JobState} == explained


def test_the_backoff_table_is_what_the_standard_policy_does() -> None:
    policy = RetryPolicy()
    rows = table("after attempt")

    for n, (attempt, least, most) in enumerate(rows, start=1):
        assert str(n) == attempt.removesuffix(" and later")
        assert policy.delay(n, 0) == int(least.removesuffix(" s")) * SECOND
        assert policy.delay(n, 1) == int(most.removesuffix(" s")) * SECOND
    assert policy.delay(len(rows), 0) == policy.cap


def test_every_failure_code_has_its_sentence() -> None:
    assert list(FAILURE_SENTENCES.items()) == table("code")


def test_every_reason_for_completion_is_named() -> None:
    (row,) = [row for row in table("outcome") if row[0] == "completed"]

    assert all(reason in row[1] for reason in ResultReason)


def test_the_table_of_ends_names_every_outcome_its_line_and_what_the_job_is_then() -> None:
    rows = table("`outcome` in row, count and line")

    assert END_EVENTS == {outcome.partition(" ")[0]: line for outcome, line, _, _ in rows}
    found = {word for _, _, status, _ in rows for word in re.findall(r"[a-z_]+", status)}
    states = {JobState.COMPLETED, JobState.FAILED_RETRYABLE, JobState.FAILED, JobState.PROCESSING}
    assert states == found & set(JobState)
