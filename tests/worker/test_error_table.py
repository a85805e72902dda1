"""What goes wrong, what it comes to, what the producer sees and what operators see.

The rows are in tests/worker/mishaps.py; docs/failures.md is held to them.
"""

from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from imagefleet.aws.objects import Objects
from imagefleet.jobs.lifecycle import FAILURE_SENTENCES
from imagefleet.jobs.model import CancelCode, JobId
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.store.database import Connection
from tests.support.api import Running
from tests.support.bench import Bench
from tests.support.fixtures import (
    applied,
    aws_credentials,
    originals,
    running,
    secrets,
    serve,
)
from tests.support.rows import job_row
from tests.worker.mishaps import MISHAPS, SECRET, Mishap, Scene

__all__ = ["applied", "aws_credentials", "originals", "running", "secrets", "serve"]

PAGE = (Path(__file__).parents[2] / "docs" / "failures.md").read_text(encoding="utf-8")
HEADING = "| what goes wrong |"

ALWAYS_SHOWN = {"jobId", "jobType", "status", "createdAt", "updatedAt", "links"}
INTERNAL = ("Traceback", 'File "', "worker", "claim", "signal", "attempts", "crashes", "lane")
DUE_WHILE_HELD = timedelta(seconds=1)  # its breaker decides; this is when it is asked


@pytest.fixture
async def scene(
    bench: Bench,
    superuser: Connection,
    maintenance: Connection,
    operator: Connection,
    originals: Objects,
    tmp_path: Path,
) -> AsyncIterator[Scene]:
    async with bench.equipment.renderer:
        yield Scene(
            bench=bench,
            superuser=superuser,
            maintenance=maintenance,
            operator=operator,
            originals=originals,
            folder=tmp_path,
        )


@pytest.mark.parametrize("row", MISHAPS, ids=lambda row: row.what)
async def test_each_mishap_is_told_to_producers_and_operators_as_it_should_be(
    row: Mishap, scene: Scene, running: Running
) -> None:
    job_id = await row.how(scene)

    async with running.client("acme") as producer, running.client("operator") as operating:
        answer = await producer.get(f"/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        await shows_the_producer(row, answer, scene, job_id)
        await shows_the_operator(row, operating, job_id)


async def shows_the_producer(
    row: Mishap, answer: httpx.Response, scene: Scene, job_id: JobId
) -> None:
    """Status, code, sentence and when it goes on: these, and nothing else."""
    shown: dict[str, Any] = answer.json()
    expected = set(ALWAYS_SHOWN)
    expected |= {"failure"} if row.code else set()
    expected |= {"nextAttemptAt"} if row.status == "failed_retryable" else set()
    expected |= {"finishedAt"} if row.status == "failed" else set()
    assert expected == set(shown)
    assert row.status == shown["status"]
    if row.code:
        sentence = row.says or FAILURE_SENTENCES[row.code]
        assert {"code": row.code, "message": sentence} == shown["failure"]
    if row.status == "failed_retryable":
        waits = datetime.fromisoformat(shown["nextAttemptAt"]) - datetime.fromisoformat(
            shown["updatedAt"]
        )
        least, most = await expected_wait(row, scene, job_id)
        assert least <= waits <= most

    told = answer.text.replace(FAILURE_SENTENCES.get(row.code or "", ""), "")
    told = told.replace(f'"code":"{row.code}"', "")
    for secret in (SECRET, "hunter2", str(scene.bench.worker_id), *INTERNAL):
        assert secret not in told


async def expected_wait(row: Mishap, scene: Scene, job_id: JobId) -> tuple[timedelta, timedelta]:
    match row.again:
        case "after its backoff":
            charged = (await job_row(scene.superuser, job_id))["attempts"]
            return RetryPolicy().delay(charged, 0), RetryPolicy().delay(charged, 1)
        case "within seconds":
            return timedelta(0), timedelta(seconds=5)
        case "with the breaker":
            return timedelta(0), DUE_WHILE_HELD
        case _:
            return timedelta(0), timedelta(0)


async def shows_the_operator(row: Mishap, operating: httpx.AsyncClient, job_id: JobId) -> None:
    """How the attempt ended, with the detail; the letter, if there is one; what it waits for."""
    whole = (await operating.get(f"/v1/operator/jobs/{job_id}")).json()
    attempts = (await operating.get(f"/v1/operator/jobs/{job_id}/attempts")).json()["attempts"]
    explained = (await operating.get(f"/v1/operator/jobs/{job_id}/explain")).json()
    letter = await operating.get(f"/v1/operator/dead-letters/{job_id}")

    ended = attempts[-1]
    assert (row.ends, row.why, row.charged) == (ended["outcome"], ended["why"], ended["charged"])
    assert row.lane == whole["lane"]
    if row.detail is not None:
        assert row.detail in ended["detail"]
        assert row.detail in whole["failureDetail"]
    assert explained["verdict"] in VERDICTS[row.again]
    assert (200 if row.letter else 404) == letter.status_code, letter.text
    if row.letter:
        buried = letter.json()
        assert (row.code, whole["failureMessage"]) == (buried["reason"], buried["message"])
        assert (row.detail or "") in (buried.get("detail") or "")
        assert str(job_id) == buried["snapshot"]["id"]


VERDICTS = {
    "never": {"finished"},
    "after its backoff": {"not_due"},
    "within seconds": {"not_due", "claimed"},
    "with the breaker": {"not_due", "breaker"},
    "at once": {"claimed"},
    "it runs": {"busy"},
}


async def test_a_bug_is_told_to_operators_with_its_traceback(scene: Scene) -> None:
    (row,) = [row for row in MISHAPS if row.what == "there is a bug in its handler"]
    job_id = await row.how(scene)

    excerpt = await scene.superuser.fetchval(
        "SELECT log_excerpt FROM attempts WHERE job_id = $1", job_id
    )
    assert "Traceback" in excerpt
    assert "ValueError" in excerpt


def test_every_failure_code_is_in_the_table() -> None:
    assert set(FAILURE_SENTENCES) == {row.code for row in MISHAPS if row.code} - {"upside_down"}
    assert set(CancelCode) <= {row.code for row in MISHAPS}


def test_the_page_says_what_the_table_says() -> None:
    lines = PAGE.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(HEADING)) + 2
    documented = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        documented.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])

    assert [as_documented(row) for row in MISHAPS] == documented


def as_documented(row: Mishap) -> list[str]:
    return [
        row.what,
        row.ends,
        "yes" if row.charged else "no",
        row.status,
        row.code or "none",
        row.again,
        row.why,
        "yes" if row.letter else "no",
    ]
