"""`imagefleet jobs` in the hands of an operator against a real API and a real Postgres."""

import pytest

from imagefleet.cli.output import ExitCode
from imagefleet.jobs.model import JobId, JobState, TenantId
from imagefleet.store.database import Connection
from tests.cli.conftest import Cli, document, failed
from tests.support.api import Running
from tests.support.factories import a_job, a_submission
from tests.support.rows import job_row


async def test_a_job_is_explained_and_its_attempts_are_listed(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    (job,) = await failed(worker, superuser, 1)

    explained = await operate("jobs", "explain", str(job.job_id))
    attempts = await operate("jobs", "attempts", str(job.job_id))
    whole = await operate("jobs", "show", "--full", "--json", str(job.job_id))

    assert "It is over: failed." in explained.out
    assert "internal_error" in attempts.out
    assert "KeyError" in attempts.out
    assert "KeyError" == document(whole)["failureDetail"]
    assert [ExitCode.DONE, ExitCode.DONE, ExitCode.FAILED] == [
        ended.code for ended in (explained, attempts, whole)
    ]


async def test_jobs_of_other_tenants_are_listed_for_operators(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, submission=a_submission(tenant_id=TenantId("rival")))

    listed = await operate("jobs", "list", "--every-tenant", "--json")
    table = await operate("jobs", "list", "--tenant", "rival")

    assert [str(job.job_id)] == [shown["jobId"] for shown in document(listed)["jobs"]]
    assert str(job.job_id) in table.out


@pytest.mark.parametrize(
    ("verb", "code"), [("cancel", "cancelled"), ("fail", "failed_by_operator")]
)
async def test_orders_to_end_a_job_are_jobs(
    operate: Cli, worker: Connection, superuser: Connection, verb: str, code: str
) -> None:
    job = await a_job(worker, superuser)

    ordered = await operate("jobs", verb, "--json", "--reason", "it blocks", str(job.job_id))

    order = await job_row(superuser, JobId(document(ordered)["jobId"]))
    assert {"job_id": str(job.job_id), "code": code, "reason": "it blocks"} == order["payload"]


async def test_retry_now_says_whether_it_did(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    waiting = await a_job(worker, superuser, state=JobState.FAILED_RETRYABLE, due=False)
    over = await a_job(worker, superuser, state=JobState.COMPLETED)

    verb = ("jobs", "retry-now", "--reason", "x")

    assert "rung" in (await operate(*verb, str(waiting.job_id))).out
    assert "nothing to do" in (await operate(*verb, str(over.job_id))).out


async def test_what_the_api_refuses_ends_with_its_code(
    operate: Cli, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = await operate("jobs", "explain", "0199a5c2-0000-7000-8000-000000000001")
    monkeypatch.setenv("IMAGEFLEET_KEY", running.secrets["acme"])
    forbidden = await operate("queue", "stats")

    assert [ExitCode.REFUSED, ExitCode.REFUSED] == [unknown.code, forbidden.code]
    assert "operate" in forbidden.err


async def test_types_are_listed_and_one_shows_what_it_is_asked(operate: Cli) -> None:
    listed = await operate("jobs", "types")
    noop = await operate("jobs", "types", "noop")
    none = await operate("jobs", "types", "nonsense")

    assert "reprocess_images" in listed.out
    assert "milliseconds, note" in listed.out
    assert '"maximum":60000' in noop.out
    assert (none.code, none.out) == (ExitCode.USAGE, "")
    assert "known are: process_image, " in none.err
