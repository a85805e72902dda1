"""What saves a job though nobody looks after it: its lock's age, and the worker's own clock.

No process of maintenance runs here. Workers are real, and so are their ends.
"""

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from urllib.parse import urlsplit
from uuid import uuid4

from imagefleet.jobs.model import JobId, JobState, JsonObject, Lane, Submission
from imagefleet.settings import MaintenanceSettings, load
from imagefleet.store.database import Connection
from imagefleet.worker.lease import BEAT_EVERY, STOP_AFTER
from tests.support.children import alive, children_of
from tests.support.eventually import eventually
from tests.support.factories import a_submission, expire_lock
from tests.support.fleet import SERVICES, Inside, Place, Running, inside, running
from tests.support.images import quadrants, saved
from tests.support.rows import attempts_rows, job_row
from tests.support.stack import PLUGIN
from tests.support.wires import Gate, gate_before

STARTS_WITHIN = 30.0  # seconds; two cores may have much else to do
HOLDS = timedelta(seconds=5)
A_WHILE: JsonObject = {"milliseconds": 1500}
ONE_SLOT = {"WORKER_FAST_SLOTS": "1", "WORKER_GENERAL_SLOTS": "0"}

# A picture whose last bytes tell the planted decoder to compute and never to look up.
SPINNING = saved(quadrants(40, 25)) + b"poison:spin"
PLANTED = {
    "PYTHONPATH": os.pathsep.join(map(str, (PLUGIN, SERVICES, SERVICES.parent))),
    "IMAGEFLEET_FAULTS": json.dumps({"poison": True}),
}

AGE_OF_BEAT = "SELECT clock_timestamp() - max(beat_at) FROM workers"
NEARLY_EXPIRE_LOCK = """
UPDATE jobs SET locked_at = locked_at - fleet.lock_timeout + interval '30 seconds',
                claimed_at = claimed_at - fleet.lock_timeout + interval '30 seconds'
  FROM fleet WHERE jobs.id = $1
"""


@asynccontextmanager
async def a_worker_killed_at_work(
    place: Place, api: Connection, superuser: Connection
) -> AsyncIterator[Submission]:
    """Its job, which stays `processing`, and whose message stays invisible for long.

    It has no slot left: a receive of its own, still on its way, would take what comes next.
    """
    submission = a_submission(target="photo", payload=A_WHILE)
    async with running(place, "worker", started=False, environment=ONE_SLOT) as worker:
        await worker.tells("worker.started", within=STARTS_WITHIN)
        await place.submit(api, submission)
        await eventually(lambda: is_in(superuser, submission.job_id, "processing"), within=10)
        worker.signal(signal.SIGKILL)
        assert -signal.SIGKILL == await worker.ends()
        yield submission


async def is_in(connection: Connection, job_id: JobId, state: str) -> bool:
    stands = (await job_row(connection, job_id))["state"]
    assert state == stands
    return True


async def verdicts(worker: Inside, verdict: str) -> float:
    return await worker.counted(f'claim_verdict_total{{verdict="{verdict}"}}')


async def was_taken_over(superuser: Connection, job_id: JobId) -> None:
    row, (first, second) = await job_row(superuser, job_id), await attempts_rows(superuser, job_id)
    assert (JobState.COMPLETED, 2, 2, 1) == (
        row["state"],
        row["claim_no"],
        row["attempts"],
        row["crashes"],
    )
    assert ("taken_over", "lock_expired") == (first["outcome"], first["why"])
    assert ("completed", "done") == (second["outcome"], second["why"])
    assert first["worker_id"] != second["worker_id"]


async def test_a_lock_of_ten_minutes_is_taken_over_and_a_younger_one_is_not(
    place: Place, api: Connection, superuser: Connection
) -> None:
    assert timedelta(minutes=10) == await superuser.fetchval("SELECT lock_timeout FROM fleet")
    async with a_worker_killed_at_work(place, api, superuser) as submission:
        await superuser.execute(NEARLY_EXPIRE_LOCK, submission.job_id)
        async with inside(place, "worker") as other:
            await place.ring(submission)
            await eventually(lambda: verdicts(other, "busy"), within=10)
            assert 1 == (await job_row(superuser, submission.job_id))["claim_no"]

            await expire_lock(superuser, submission.job_id)
            await place.ring(submission)
            await eventually(lambda: is_in(superuser, submission.job_id, "completed"), within=15)

    await was_taken_over(superuser, submission.job_id)


async def test_a_message_that_was_told_to_wait_comes_back_when_the_lock_can_have_expired(
    place: Place, api: Connection, superuser: Connection
) -> None:
    """By itself: nobody rings, and nobody makes it visible."""
    async with (
        a_worker_killed_at_work(place, api, superuser) as submission,
        inside(place, "worker") as other,
    ):
        # As if it had been killed now: however long the other one took to start.
        await superuser.execute("UPDATE fleet SET lock_timeout = $1", HOLDS)
        await superuser.execute("UPDATE jobs SET locked_at = now()")
        # The killed one's own message is invisible for minutes; this is the other of two.
        await place.ring(submission)
        await eventually(lambda: verdicts(other, "busy"), within=10)
        depth = await (await place.queue(Lane.FAST)).depth()
        assert (0, 2) == (depth.visible, depth.in_flight)
        await eventually(lambda: is_in(superuser, submission.job_id, "completed"), within=20)

    await was_taken_over(superuser, submission.job_id)


@asynccontextmanager
async def a_wire_of_the_worker(place: Place) -> AsyncIterator[tuple[Gate, dict[str, str]]]:
    """Between a worker and Postgres, and the setting that leads it there."""
    parts = urlsplit(place.database.url("worker"))
    async with gate_before(parts.hostname or "", parts.port or 0) as gate:
        login = parts.netloc.rpartition("@")[0]
        url = parts._replace(netloc=f"{login}@127.0.0.1:{gate.port}").geturl()
        yield gate, {**PLANTED, "DATABASE_URL": url}


def child_of(worker: Running) -> int | None:
    """What the worker's zygote has forked."""
    zygotes = children_of(worker.process.pid)
    return next((pid for zygote in zygotes for pid in children_of(zygote)), None)


async def test_a_worker_that_cannot_beat_stops_its_children_while_they_are_its_own(
    place: Place, api: Connection, superuser: Connection
) -> None:
    """Postgres is silent: no error tells the worker, and nothing it had asked ever returns."""
    patience = load(MaintenanceSettings, place.environment("maintenance")).maintenance.rescue_after
    async with (
        a_wire_of_the_worker(place) as (gate, environment),
        running(place, "worker", started=False, environment=environment) as worker,
    ):
        await worker.tells("worker.started", within=STARTS_WITHIN)
        job = await place.upload(api, uuid4(), SPINNING)
        child = await eventually(lambda: child_of(worker), within=10)
        gate.silence()
        await eventually(lambda: not alive(child), within=STOP_AFTER + 8)

        silent_for = await superuser.fetchval(AGE_OF_BEAT)
        assert timedelta(seconds=STOP_AFTER - BEAT_EVERY) < silent_for < patience
        row = await job_row(superuser, job.job_id)
        assert ("processing", 1) == (row["state"], row["claim_no"]), "it is still this worker's"

        gate.open()
        await eventually(lambda: was_given_back(superuser, job.job_id), within=15)
        worker.signal(signal.SIGKILL)  # it would begin the same picture again


async def was_given_back(superuser: Connection, job_id: JobId) -> bool:
    rows = await attempts_rows(superuser, job_id)
    assert rows, "nothing is written yet"
    first = rows[0]
    assert ("released", "beat_lost", False) == (first["outcome"], first["why"], first["charged"])
    return True
