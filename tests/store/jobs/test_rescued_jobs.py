"""What becomes of the jobs of a worker that was lost, and who tells of it."""

import asyncio
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from imagefleet.errors import Unavailable
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import CancelCode, JobId, JobState, Lane
from imagefleet.maintenance.rescuer import LONGEST_GAP, RESCUE_AFTER, Rescuer
from imagefleet.store.database import Connection, connect
from imagefleet.store.jobs.rescue import Rescue, look_at_workers, rescue_worker
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.settling import Settled
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.conftest import OpenConnection
from tests.support.database import Database, driver_of
from tests.support.factories import (
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    claim_job,
    hold_job,
    make_due,
    settle_job,
)
from tests.support.races import wait_until_blocked
from tests.support.rows import attempts_rows, job_row, ring_row, running_job
from tests.support.wires import a_wire

NOBODY: list[Rescue] = []


def a_rescuer(
    *, rescue_after: timedelta = RESCUE_AFTER, longest_gap: timedelta = LONGEST_GAP
) -> Rescuer:
    return Rescuer(MaintenanceMetrics(()), rescue_after=rescue_after, longest_gap=longest_gap)


async def lose(
    worker: Connection, maintenance: Connection, superuser: Connection, job_id: JobId
) -> MadeJob:
    """The job is claimed by a worker that dies with it."""
    await make_due(superuser, job_id)
    job = await hold_job(worker, job_id)
    living = {seen.worker_id: seen for seen in await look_at_workers(maintenance)}
    assert await rescue_worker(maintenance, living[job.worker_id]) is not None
    return job


async def test_the_second_loss_leads_to_quarantine_and_the_third_to_poison(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    submitted = await submit_job(worker, a_submission())
    seen = []

    for _ in range(3):
        await lose(worker, maintenance, superuser, submitted.job_id)
        row, ring = (
            await job_row(worker, submitted.job_id),
            await ring_row(worker, submitted.job_id),
        )
        seen.append((row["state"], row["lane"], row["failure_code"], ring and ring["lane"]))

    assert seen == [
        ("failed_retryable", "fast", "worker_lost", "fast"),
        ("failed_retryable", "quarantine", "worker_lost", "quarantine"),
        ("failed", "quarantine", "poison", None),
    ]
    assert [end["outcome"] for end in await attempts_rows(worker, submitted.job_id)] == [
        "rescued"
    ] * 3
    letters = await superuser.fetch("SELECT job_id, reason FROM dead_letters")
    assert [tuple(letter) for letter in letters] == [(submitted.job_id, "poison")]


async def test_a_suspect_is_not_blamed_for_a_worker_that_held_anything_else(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    """Again and again: its attempts do not run out by it either."""
    suspect = await submit_job(worker, a_submission(lane=Lane.QUARANTINE, max_attempts=2))
    for _ in range(4):
        me = await a_worker(worker)
        neighbour = (await submit_job(worker, a_submission())).job_id
        for job_id in (suspect.job_id, neighbour):
            await make_due(superuser, job_id)
            assert (await claim_job(worker, job_id, me)).claim is not None
        (seen,) = [one for one in await look_at_workers(maintenance) if one.worker_id == me]

        rescue = await rescue_worker(maintenance, seen)

        assert rescue is not None
        assert ({suspect.job_id, neighbour}, ()) == (set(rescue.retried), rescue.failed)
    row = await job_row(worker, suspect.job_id)
    assert ("failed_retryable", "quarantine", 4) == (row["state"], row["lane"], row["crashes"])
    assert "with 1 other jobs" in row["failure_detail"]

    await lose(worker, maintenance, superuser, suspect.job_id)

    assert "poison" == (await job_row(worker, suspect.job_id))["failure_code"]


async def test_a_lost_worker_alone_fails_no_job_though_its_attempts_are_used_up(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    submitted = await submit_job(worker, a_submission(max_attempts=1))

    await lose(worker, maintenance, superuser, submitted.job_id)

    row = await job_row(worker, submitted.job_id)
    assert (row["state"], row["attempts"], row["crashes"]) == ("failed_retryable", 0, 1)
    (ended,) = await attempts_rows(worker, submitted.job_id)
    assert not ended["charged"]
    await lose(worker, maintenance, superuser, submitted.job_id)
    again = await job_row(worker, submitted.job_id)
    assert (again["state"], again["attempts"], again["lane"]) == (
        "failed_retryable",
        0,
        Lane.QUARANTINE,
    )


async def test_a_flagged_job_of_a_silent_worker_ends_as_what_it_was_flagged_for(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING, flag=CancelCode.CANCELLED)
    (seen,) = await look_at_workers(maintenance)

    rescue = await rescue_worker(maintenance, seen)

    assert rescue is not None
    assert rescue.failed == (job.job_id,)
    row = await job_row(worker, job.job_id)
    assert (row["state"], row["failure_code"]) == ("failed", "cancelled")


async def test_a_rescue_frees_the_target_and_rings_whom_it_is_for(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    job = await a_job(
        worker,
        superuser,
        state=JobState.PROCESSING,
        flag=CancelCode.CANCELLED,
        submission=a_submission(target="photo"),
    )
    younger = await submit_job(worker, a_submission(target="photo"))
    (seen,) = await look_at_workers(maintenance)

    rescue = await rescue_worker(maintenance, seen)

    assert rescue is not None
    assert [ring.job_id for ring in rescue.rings] == [younger.job_id]
    assert await running_job(worker, "photo") is None
    assert (await claim_job(worker, younger.job_id, await a_worker(worker))).claim is not None
    assert (await settle_job(worker, job, Completed())).settled is Settled.LOST


async def test_a_rescue_whose_answer_is_lost_is_told_once_and_by_who_did_it(
    database: Database,
    worker: OpenConnection,
    maintenance: OpenConnection,
    superuser: OpenConnection,
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    metrics = MaintenanceMetrics({"noop"})
    rescuer = Rescuer(
        metrics, rescue_after=timedelta(microseconds=1), longest_gap=timedelta(hours=1)
    )
    another = a_rescuer()
    with capture_logs() as lines:
        async with (
            a_wire(database.url("maintenance")) as wire,
            connect(wire.url, process="test-maintenance") as session,
        ):
            assert NOBODY == await rescuer.run_once(session)
            wire.cut_after = b"COMMIT"
            with pytest.raises(Unavailable):
                await rescuer.run_once(session)
        assert wire.cut.is_set()
        assert ["rescued"] == [row["outcome"] for row in await attempts_rows(worker, job.job_id)]
        assert [] == [line for line in lines if "outcome" in line]
        assert NOBODY == await another.run_once(maintenance)
        for _ in range(3):
            assert NOBODY == await rescuer.run_once(maintenance)

    (told,) = [line for line in lines if "outcome" in line]
    assert ("job.rescued", "worker_lost", "failed_retryable", str(job.job_id)) == (
        told["event"],
        told["why"],
        told["state"],
        told["job_id"],
    )
    assert b'job_attempts_total{outcome="rescued"} 1.0' in metrics.exposition()


async def test_a_rescue_that_never_arrived_is_told_by_the_next_one_alone(
    database: Database,
    worker: OpenConnection,
    maintenance: OpenConnection,
    superuser: OpenConnection,
) -> None:
    await a_job(worker, superuser, state=JobState.PROCESSING)
    rescuer = a_rescuer(rescue_after=timedelta(microseconds=1), longest_gap=timedelta(hours=1))
    with capture_logs() as lines:
        async with database.connect("maintenance") as doomed:
            await rescuer.run_once(doomed)
            holder = driver_of(
                superuser
            ).transaction()  # the rescue waits for this, and is cut off there
            await holder.start()
            await superuser.execute("LOCK TABLE attempts")

            async def be_cut_off() -> None:
                with pytest.raises(Unavailable):
                    await rescuer.run_once(doomed)

            async with asyncio.TaskGroup() as group:
                group.create_task(be_cut_off())
                await wait_until_blocked(worker, superuser, doomed)
                doomed.terminate()
            await holder.rollback()
        condemned = 0
        for _ in range(4):
            condemned += len(await rescuer.run_once(maintenance))

    assert 1 == condemned
    assert ["rescued"] == [line["outcome"] for line in lines if "outcome" in line]
