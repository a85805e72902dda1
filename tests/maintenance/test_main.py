"""The maintenance process as it is run: what it looks after, what it tells, and how it ends."""

import json
import signal

import aiohttp

from imagefleet.jobs.model import JobState
from imagefleet.store.database import Connection
from imagefleet.store.submissions import submit_job
from tests.support.eventually import eventually
from tests.support.factories import a_job, a_submission, a_worker, age_finished_jobs
from tests.support.fleet import Place, running
from tests.support.rows import attempts_rows, job_row


async def test_a_job_whose_submitter_never_rang_runs_all_the_same(
    place: Place, api: Connection, superuser: Connection
) -> None:
    submission = a_submission()
    await submit_job(api, submission)
    await superuser.execute("UPDATE rings SET due_at = now()")

    async with running(place, "maintenance") as maintenance, running(place, "worker") as worker:
        await maintenance.tells("job.rung")
        await worker.tells("job.completed")
        assert (0, 0) == (await worker.drains(), await maintenance.drains()), maintenance.story()

    assert JobState.COMPLETED == (await job_row(superuser, submission.job_id))["state"]


async def test_a_killed_workers_job_is_rescued_and_finished_by_another(
    place: Place, api: Connection, superuser: Connection
) -> None:
    submission = a_submission(payload={"milliseconds": 60_000})
    patient = {"RESCUE_AFTER": "3", "DISPATCH_INTERVAL_SECONDS": "0.2"}
    async with running(place, "maintenance", environment=patient) as maintenance:
        async with running(place, "worker") as worker:
            await place.submit(api, submission)
            await eventually(lambda: _is_processing(superuser, submission.job_id), within=10)
            worker.signal(signal.SIGKILL)
            assert -signal.SIGKILL == await worker.ends()

        line = await maintenance.tells("worker.rescued", within=20)
        assert 1 == line["retried"]
        await maintenance.drains()

    row = await job_row(superuser, submission.job_id)
    (attempt,) = await attempts_rows(superuser, submission.job_id)
    assert (JobState.FAILED_RETRYABLE, "worker_lost") == (row["state"], row["failure_code"])
    assert (1, 1) == (row["attempts"], row["crashes"])
    assert "rescued" == attempt["outcome"]


async def _is_processing(connection: Connection, job_id: object) -> bool:
    state = await connection.fetchval("SELECT state FROM jobs WHERE id = $1", job_id)
    return bool(state == "processing")


async def test_it_says_how_it_is_and_ends_on_a_signal(place: Place) -> None:
    async with running(place, "maintenance") as maintenance, aiohttp.ClientSession() as http:
        port = maintenance.told("maintenance.started")[0]["health_port"]

        async with http.get(f"http://127.0.0.1:{port}/healthz") as answer:
            assert 200 == answer.status, await answer.text()
        async with http.get(f"http://127.0.0.1:{port}/readyz") as answer:
            found = json.loads(await answer.text())
        async with http.get(f"http://127.0.0.1:{port}/metrics") as answer:
            metrics = await answer.text()

        assert {"database": None, "queues": None, "drain": None} == found["checks"]
        assert 'query_type="look_at_due_rings"' in metrics
        assert 'query_type="rescue"' in metrics
        assert 0 == await maintenance.drains(), maintenance.story()
        assert maintenance.told("maintenance.ended")


async def test_what_is_past_retention_is_pruned_at_once_and_once(
    place: Place, worker: Connection, superuser: Connection
) -> None:
    old = await a_job(worker, superuser, state=JobState.COMPLETED)
    await age_finished_jobs(superuser)
    recent = await a_job(worker, superuser, state=JobState.COMPLETED)

    async with running(place, "maintenance") as one, running(place, "maintenance") as other:
        await eventually(lambda: one.told("job.pruned") or other.told("job.pruned"), within=10)
        await one.drains()
        await other.drains()
        assert 1 == len(one.told("job.pruned") + other.told("job.pruned"))

    left = {row["id"] for row in await superuser.fetch("SELECT id FROM jobs")}
    assert recent.job_id in left
    assert old.job_id not in left


async def test_a_worker_that_never_beat_again_is_told_apart_from_a_living_one(
    place: Place, worker: Connection, superuser: Connection
) -> None:
    silent = await a_worker(worker)
    async with (
        running(place, "maintenance", environment={"RESCUE_AFTER": "4"}) as maintenance,
        running(place, "worker") as living,
    ):
        line = await maintenance.tells("worker.rescued", within=20)
        assert str(silent) == line["worker_id"]
        assert 0 == await living.drains(), living.story()
        await maintenance.drains()
