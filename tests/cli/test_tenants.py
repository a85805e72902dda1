"""`imagefleet tenants` against a real API and a real Postgres."""

from imagefleet.cli.output import ExitCode
from imagefleet.jobs.model import Verdict
from imagefleet.store.database import Connection
from tests.cli.conftest import Cli, document
from tests.support.factories import a_job, claim_job


async def test_a_tenant_is_paused_and_resumed_by_its_own_verbs(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser)

    paused = await operate("tenants", "pause", "acme", "--type", "noop", "--reason", "x")
    held = await claim_job(worker, job.job_id, job.worker_id)
    listed = await operate("tenants", "list")
    resumed = await operate("tenants", "resume", "acme", "--type", "noop", "--reason", "x")

    assert "tenant acme, type noop is paused, 0 still running" in paused.out, paused.err
    assert Verdict.PAUSED is held.verdict
    assert "noop" in listed.out
    assert "tenant acme, type noop is resumed" in resumed.out
    again = await operate("tenants", "resume", "acme", "--reason", "x")
    assert ExitCode.REFUSED == again.code
    unknown = await operate("tenants", "pause", "nobody", "--reason", "x")
    assert ExitCode.REFUSED == unknown.code


async def test_a_tenant_is_limited_and_shown_with_its_defaults(operate: Cli) -> None:
    limited = document(
        await operate(
            *("tenants", "limit", "acme", "--set", "open_jobs=5000", "--set", "uploads=2"),
            *("--reason", "a pilot", "--json"),
        )
    )
    shown = await operate("tenants", "show", "acme")
    undone = document(
        await operate(
            *("tenants", "limit", "acme", "--reset", "open_jobs", "--reason", "x", "--json")
        )
    )

    values = {limit["name"]: limit.get("value") for limit in limited["limits"]}
    assert (5000, 2, 1) == (values["open_jobs"], values["uploads"], values["weight"])
    for word in ("5000", "1000000", "a pilot", "open_jobs", "failedRetryable"):
        assert word in shown.out
    assert 1_000_000 == undone["maxOpenJobs"]
    wrong = await operate("tenants", "limit", "acme", "--set", "speed=1", "--reason", "x")
    assert ExitCode.REFUSED == wrong.code


async def test_what_a_tenant_has_is_counted_and_then_cancelled_by_one_job(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    for _ in range(2):
        await a_job(worker, superuser)
    chosen = ("tenants", "cancel", "acme", "--type", "noop", "--reason", "x")

    dry = await operate(*chosen, "--dry-run")
    none = document(
        await operate(*chosen, "--before", "2020-01-01T00:00:00Z", "--dry-run", "--json")
    )
    before = await superuser.fetchval("SELECT count(*) FROM jobs WHERE type = 'cancel_jobs'")
    ordered = await operate(*chosen, "--yes")

    assert "2 open jobs would be cancelled" in dry.out
    assert {"jobs": 0, "jobsIsAtLeast": False} == none
    assert 0 == before
    job_id = await superuser.fetchval("SELECT id FROM jobs WHERE type = 'cancel_jobs'")
    assert f"2 open jobs are cancelled by job {job_id}" in ordered.out
