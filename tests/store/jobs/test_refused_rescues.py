"""Rescue beside rows that nobody can write: they hold up no other job, and no other worker."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
from structlog.testing import capture_logs

from imagefleet.errors import Unavailable
from imagefleet.jobs.model import JobId, JsonObject, Verdict, WorkerId
from imagefleet.maintenance.rescuer import Rescuer
from imagefleet.store.database import Connection
from imagefleet.store.jobs import rescue as upkeep
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.rescue import look_at_workers, rescue_worker
from imagefleet.store.jobs.submissions import submit_job, submit_jobs
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.conftest import OpenConnection
from tests.support.factories import (
    ALL_LANES,
    TYPES,
    a_submission,
    a_worker,
    claim_job,
    expire_lock,
)
from tests.support.rows import attempts_rows, job_row, ring_row, running_job

# A job says in its payload with which failures it cannot be written, and as what that is refused.
REFUSE = """
CREATE FUNCTION refuse_ending() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'refused' USING ERRCODE = NEW.payload ->> 'as';
END
$$;
CREATE TRIGGER endings_are_refused BEFORE UPDATE ON jobs FOR EACH ROW
WHEN (NEW.state <> 'processing' AND NEW.payload -> 'refuses' ? NEW.failure_code)
EXECUTE FUNCTION refuse_ending();
"""


async def held_by(
    worker: Connection, payloads: Sequence[JsonObject], *, about: str = "photo"
) -> tuple[WorkerId, list[JobId]]:
    """A worker that holds a job for each payload, every one with a target of its own."""
    me = await a_worker(worker)
    wanted = [a_submission(payload=one, target=f"{about}-{n}") for n, one in enumerate(payloads)]
    await submit_jobs(worker, wanted)
    ids = [job.job_id for job in wanted]
    await claim_jobs(worker, ids, worker_id=me, lanes=ALL_LANES, types=TYPES)
    return me, ids


async def three_workers(worker: Connection) -> dict[WorkerId, list[JobId]]:
    return dict([await held_by(worker, [{}, {}], about=about) for about in ("cat", "dog", "owl")])


async def states(connection: Connection, job_ids: Sequence[JobId]) -> list[str]:
    return [(await job_row(connection, job_id))["state"] for job_id in job_ids]


@pytest.mark.parametrize("sqlstate", ["23514", "IF001"], ids=["a value", "a transition"])
async def test_a_job_that_is_refused_its_retry_fails_alone(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection, sqlstate: str
) -> None:
    await superuser.execute(REFUSE)
    payloads: list[JsonObject] = [{}, {}, {"refuses": ["worker_lost"], "as": sqlstate}, {}, {}]
    _, ids = await held_by(worker, payloads)
    younger = await submit_job(worker, a_submission(target="photo-2"))
    (seen,) = await look_at_workers(maintenance)

    rescue = await rescue_worker(maintenance, seen)

    assert rescue is not None
    others = [job_id for job_id in ids if job_id != ids[2]]
    assert (sorted(rescue.retried), rescue.failed) == (sorted(others), (ids[2],))
    assert await states(worker, others) == ["failed_retryable"] * 4
    row, (ended,) = await job_row(worker, ids[2]), await attempts_rows(worker, ids[2])
    assert (row["state"], row["failure_code"]) == ("failed", "settle_rejected")
    assert row["failure_detail"] in {"store_rejected", "illegal_transition"}
    assert (ended["outcome"], ended["why"]) == ("rescued", "settle_rejected")
    assert await superuser.fetchval("SELECT job_id FROM dead_letters") == ids[2]
    assert await running_job(worker, "photo-2") is None
    assert younger.job_id in {ring.job_id for ring in rescue.rings}


async def test_a_job_that_cannot_even_fail_is_told_of_and_left_to_its_lock(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    await superuser.execute(REFUSE)
    stubborn = {"refuses": ["worker_lost", "settle_rejected"], "as": "23514"}
    me, ids = await held_by(worker, [{}, stubborn, {}])
    (seen,) = await look_at_workers(maintenance)

    with capture_logs() as lines:
        rescue = await rescue_worker(maintenance, seen)

    assert rescue is not None
    assert (sorted(rescue.retried), rescue.failed) == (sorted([ids[0], ids[2]]), ())
    row = await job_row(worker, ids[1])
    assert (row["state"], row["locked_by"], row["claim_no"]) == ("processing", me, 1)
    told = [line for line in lines if line["event"] == "rescue.refused"]
    assert [(line["job_id"], line["claim_no"]) for line in told] == [(str(ids[1]), 1)]
    assert await look_at_workers(maintenance) == []
    await expire_lock(superuser, ids[1])
    heir = await claim_job(worker, ids[1], await a_worker(worker))
    assert heir.verdict is Verdict.CLAIMED


def impatient() -> Rescuer:
    """Condemns whom it has seen twice without a beat."""
    return Rescuer(MaintenanceMetrics(()), rescue_after=timedelta(microseconds=1))


async def test_a_worker_whose_rows_somebody_sits_on_holds_up_no_other_and_is_rescued_later(
    worker: OpenConnection,
    maintenance: OpenConnection,
    superuser: OpenConnection,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upkeep, "WAIT_BRIEFLY", upkeep.WAIT_BRIEFLY.replace("2s", "10ms"))
    held = await three_workers(worker)
    first = min(held)
    rescuer = impatient()
    await rescuer.run_once(maintenance)

    async with superuser.transaction():
        await superuser.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", held[first][0])
        with capture_logs() as lines:
            beside = await rescuer.run_once(maintenance)
    # Those were rescued, and are told of, whatever became of the rest of this look.
    told = {line["job_id"] for line in lines if line["event"] == "job.rescued"}
    assert {str(job_id) for name, ids in held.items() if name != first for job_id in ids} == told
    afterwards = await rescuer.run_once(maintenance)  # its watch was kept, and it is still silent

    assert [len(rescue.retried) for rescue in beside] == [2, 2]
    assert [len(rescue.retried) for rescue in afterwards] == [2]
    assert (
        await states(worker, [job_id for ids in held.values() for job_id in ids])
        == ["failed_retryable"] * 6
    )


async def test_a_worker_whose_rows_nobody_understands_holds_up_no_other_and_is_rescued_later(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    """Of a release to come, say, in the middle of its rollout."""
    await superuser.execute("ALTER TABLE jobs DROP CONSTRAINT jobs_lane_is_known")
    held = await three_workers(worker)
    strange = held[min(held)][0]
    await superuser.execute("UPDATE jobs SET lane = 'express' WHERE id = $1", strange)
    rescuer = impatient()
    await rescuer.run_once(maintenance)

    with capture_logs() as lines:
        beside = await rescuer.run_once(maintenance)
    await superuser.execute("UPDATE jobs SET lane = 'fast' WHERE id = $1", strange)
    afterwards = await rescuer.run_once(maintenance)

    assert (len(beside), len(afterwards)) == (2, 1)
    assert [line["worker_id"] for line in lines if line["event"] == "worker.not_rescued"] == [
        str(min(held))
    ]


async def test_a_rescue_amid_an_outage_starts_every_watch_anew(
    worker: OpenConnection, maintenance: OpenConnection, superuser: OpenConnection
) -> None:
    """Time passed in which nobody could beat."""
    _, (job_id,) = await held_by(worker, [{}])
    rescuer = impatient()
    await rescuer.run_once(maintenance)

    await maintenance.execute("SET statement_timeout = '50ms'")
    async with superuser.transaction():
        await superuser.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", job_id)
        with pytest.raises(Unavailable):
            await rescuer.run_once(maintenance)
    await maintenance.execute("RESET statement_timeout")
    first_look = await rescuer.run_once(maintenance)
    second_look = await rescuer.run_once(maintenance)

    assert (len(first_look), len(second_look)) == (0, 1)
    assert await ring_row(worker, job_id) is not None
