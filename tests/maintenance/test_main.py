"""The maintenance process as it is run: what it looks after, what it tells, and how it ends."""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from imagefleet.errors import Unavailable
from imagefleet.jobs.model import JobId, JobState, Lane
from imagefleet.maintenance import main as maintenance_main
from imagefleet.store.database import Connection
from imagefleet.store.jobs.submissions import submit_job
from tests.support.eventually import eventually
from tests.support.factories import a_job, a_submission, a_worker, age_finished_jobs
from tests.support.fleet import Place, inside, running
from tests.support.rows import attempts_rows, job_row
from tests.support.wires import Wire, a_wire

IMPATIENT = {"RESCUE_AFTER": "1"}


@pytest.fixture(autouse=True)
def quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same watch in a tenth of the time."""
    monkeypatch.setattr(maintenance_main, "RESCUE_EVERY", maintenance_main.RESCUE_EVERY / 10)


async def test_a_job_whose_submitter_never_rang_runs_all_the_same(
    place: Place, api: Connection, superuser: Connection
) -> None:
    submission = a_submission()
    await submit_job(api, submission)

    async with inside(place, "worker") as worker, running(place, "maintenance") as maintenance:
        await maintenance.tells("job.rung")
        await worker.tells("job.completed")
        assert 0 == await maintenance.drains(), maintenance.story()
        assert maintenance.told("maintenance.ended")

    assert JobState.COMPLETED == (await job_row(superuser, submission.job_id))["state"]


async def test_a_killed_workers_job_is_rescued_and_the_living_are_left_alone(
    place: Place, api: Connection, superuser: Connection
) -> None:
    submission = a_submission(payload={"milliseconds": 60_000})
    async with running(place, "worker") as killed:
        await place.submit(api, submission)
        await eventually(lambda: is_processing(superuser, submission.job_id), within=10)
        killed.signal(signal.SIGKILL)
        assert -signal.SIGKILL == await killed.ends()
    depth = await (await place.queue(Lane.FAST)).depth()
    assert (0, 1) == (depth.visible, depth.in_flight), "its message waits for its time"

    only_images = {"WORKER_JOB_TYPES": "process_image"}
    async with (
        running(place, "worker", environment=only_images) as living,
        inside(place, "maintenance", environment={"RESCUE_AFTER": "5"}) as maintenance,
    ):
        line = await maintenance.tells("worker.rescued", within=20)
        assert 1 == line["retried"]
        assert 0 == await living.drains(), living.story()

    row = await job_row(superuser, submission.job_id)
    (attempt,) = await attempts_rows(superuser, submission.job_id)
    assert (JobState.FAILED_RETRYABLE, "worker_lost") == (row["state"], row["failure_code"])
    assert (1, 1) == (row["attempts"], row["crashes"])
    assert "rescued" == attempt["outcome"]


async def is_processing(connection: Connection, job_id: JobId) -> bool:
    return bool("processing" == (await job_row(connection, job_id))["state"])


@asynccontextmanager
async def rescued_unheard(place: Place, superuser: Connection) -> AsyncIterator[tuple[Wire, JobId]]:
    """A wire to Postgres that loses the answer to the rescue of a job."""
    job = await a_job(superuser, superuser, state=JobState.PROCESSING)
    async with a_wire(place.database.url("maintenance")) as wire:
        wire.once_after, wire.cut_after = b"dead_why = 'silent'", b"COMMIT"
        yield wire, job.job_id


async def is_rescued(connection: Connection, job_id: JobId) -> bool:
    return ["rescued"] == [row["outcome"] for row in await attempts_rows(connection, job_id)]


async def test_what_it_rescued_unheard_is_told_once_postgres_is_back(
    place: Place, superuser: Connection
) -> None:
    """It was told to end meanwhile, and asked more than once in vain."""
    async with rescued_unheard(place, superuser) as (wire, job_id):
        given = {**IMPATIENT, "DATABASE_URL": wire.url}
        async with running(place, "maintenance", environment=given) as maintenance:
            await eventually(lambda: is_rescued(superuser, job_id), within=10)
            maintenance.signal(signal.SIGTERM)
            await maintenance.tells("process.draining")
            before = wire.lost
            await eventually(lambda: wire.lost > before + 10, within=15)
            assert [] == maintenance.told("job.rescued")
            wire.mend()
            assert 0 == await maintenance.ends(), maintenance.story()

    (line,) = maintenance.told("job.rescued")
    assert str(job_id) == line["job_id"]
    assert [] == maintenance.told("ends.untold")


async def test_who_never_learns_what_it_rescued_says_so_and_fails(
    place: Place, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance_main, "ANSWERED_WITHIN", timedelta(seconds=1))
    async with rescued_unheard(place, superuser) as (wire, job_id):
        given = {**IMPATIENT, "DATABASE_URL": wire.url}
        with pytest.raises(Unavailable, match="ends_untold") as failed:
            async with inside(place, "maintenance", environment=given) as maintenance:
                await eventually(lambda: is_rescued(superuser, job_id), within=10)

    assert "1 at most" == failed.value.detail
    assert [1] == [line["at_most"] for line in maintenance.told("ends.untold")]
    assert [] == maintenance.told("job.rescued")


async def test_it_says_how_it_is(place: Place, worker: Connection) -> None:
    await a_worker(worker)
    async with inside(place, "maintenance", environment=IMPATIENT) as maintenance:
        await maintenance.tells("worker.rescued")
        alive, vitals = await maintenance.ask("/healthz")
        ready, readiness = await maintenance.ask("/readyz")

        assert (200, 200) == (alive, ready), vitals + readiness
        assert {"dispatcher", "pruner"} <= set(json.loads(vitals)["checks"])
        assert {"database", "queues", "drain"} == set(json.loads(readiness)["checks"])
        for query in ("look_at_lanes", "rescue", "prune_jobs"):
            count = await maintenance.counted(
                f'db_query_duration_seconds_count{{query_type="{query}"}}'
            )
            assert count, query


async def test_a_dispatcher_with_nothing_due_costs_no_request_to_sqs(place: Place) -> None:
    eager = {"DISPATCH_INTERVAL_SECONDS": "0.1"}
    async with inside(place, "maintenance", environment=eager) as maintenance:

        async def has_looked_often() -> bool:
            looks = 'db_query_duration_seconds_count{query_type="look_at_lanes"}'
            return bool(10 <= await maintenance.counted(looks))

        await eventually(has_looked_often, within=5)
        # The sampler has asked for the depth of each lane: once, as its interval is ten seconds.
        for operation, most in (("GetQueueAttributes", len(Lane)), ("SendMessageBatch", 0)):
            series = f'sqs_requests_total{{operation="{operation}"}}'
            assert most >= await maintenance.counted(series), operation


async def test_what_is_past_retention_is_pruned_by_one_of_several(
    place: Place, worker: Connection, superuser: Connection
) -> None:
    old = await a_job(worker, superuser, state=JobState.COMPLETED)
    await age_finished_jobs(superuser)
    recent = await a_job(worker, superuser, state=JobState.COMPLETED)

    async with inside(place, "maintenance") as first, inside(place, "maintenance") as other:
        await eventually(lambda: first.told("job.pruned") or other.told("job.pruned"), within=10)

    assert 1 == len(first.told("job.pruned") + other.told("job.pruned"))
    left = {row["id"] for row in await superuser.fetch("SELECT id FROM jobs")}
    assert recent.job_id in left
    assert old.job_id not in left
