"""`imagefleet jobs submit` against a real API and a real Postgres."""

import asyncio

import pytest

from imagefleet.cli.output import ExitCode
from imagefleet.jobs.model import JobId
from imagefleet.store.database import Connection
from tests.cli.conftest import BUG, Cli, document
from tests.support.api import Running
from tests.support.eventually import eventually
from tests.support.factories import settle_job
from tests.support.http import claimed
from tests.support.rows import job_row


async def test_all_that_a_job_can_be_told_is_typed_kept_and_listed(
    operate: Cli, running: Running, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_operator, as_producer = running.secrets["operator"], running.secrets["acme"]
    monkeypatch.setenv("IMAGEFLEET_KEY", as_producer)
    parent = document(await operate("jobs", "submit", "noop", "--json"))["jobId"]
    told = (
        *("--payload", '{"note": "typed"}', "--priority", "30", "--run-at", "2090-01-01T06:00"),
        *("--dedup-key", "nightly", "--correlation-id", "order-7", "--parent", parent),
        *("--max-attempts", "2", "--idempotency-key", "mine", "--json"),
    )

    child = document(await operate("jobs", "submit", "noop", *told))["jobId"]
    again = document(await operate("jobs", "submit", "noop", *told))["jobId"]
    children = document(await operate("jobs", "list", "--json", "--parent", parent))["jobs"]
    related = document(await operate("jobs", "list", "--json", "--correlation-id", "order-7"))
    monkeypatch.setenv("IMAGEFLEET_KEY", as_operator)
    overseen = ("jobs", "list", "--tenant", "acme", "--parent", parent)
    (seen,) = document(await operate(*overseen, "--json"))["jobs"]
    table = (await operate(*overseen)).out

    row = await job_row(superuser, JobId(child))
    told_apart = ("priority", "dedup_key", "correlation_id", "max_attempts", "idempotency_key")
    assert [30, "nightly", "order-7", 2, "mine"] == [row[name] for name in told_apart]
    assert ({"note": "typed"}, parent) == (row["payload"], str(row["parent_job_id"]))
    assert f"{row['run_at']:%Y-%m-%d %H:%M %Z}" == "2090-01-01 06:00 UTC"
    assert [again] * 3 == [child, children[0]["jobId"], related["jobs"][0]["jobId"]]
    assert (30, "nightly", "order-7", parent) == (
        seen["priority"],
        seen["dedupKey"],
        seen["correlationId"],
        seen["parentJobId"],
    )
    assert "2090-01-01 06:00:00" in table


async def test_a_submitted_job_can_be_waited_for(
    operate: Cli,
    running: Running,
    worker: Connection,
    superuser: Connection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("IMAGEFLEET_KEY", running.secrets["acme"])

    async def fail_it() -> None:
        async def submitted() -> JobId | None:
            job_id: JobId | None = await superuser.fetchval("SELECT id FROM jobs")
            return job_id

        await settle_job(worker, await claimed(worker, await eventually(submitted, within=20)), BUG)

    ended, _ = await asyncio.gather(
        operate("jobs", "submit", "noop", "--wait", "--within", "20"), fail_it()
    )

    assert ExitCode.FAILED == ended.code
    assert "is failed" in ended.out
    assert "Something went wrong." in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ("noop", "--payload", "[1]"),
        ("noop", "--payload", "{"),
        ("noop", "--payload", "@/nowhere/at/all"),
        ("noop", "--run-at", "tomorrow"),
    ],
)
async def test_what_is_no_job_is_not_even_sent(operate: Cli, arguments: tuple[str, ...]) -> None:
    assert ExitCode.USAGE == (await operate("jobs", "submit", *arguments)).code
