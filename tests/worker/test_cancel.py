"""Cancelling ends a job wherever it is: asked for at the API, done by a worker, answered truly.

The API and the command line as they are called, a worker's own main, real queues; no process of
maintenance, which nothing here may need.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

import httpx
import pytest

from imagefleet.api.http.connections import Server
from imagefleet.api.main import main as api_main
from imagefleet.jobs.lifecycle import failure_sentence
from imagefleet.jobs.model import JobId, JobState, Lane, PauseScope, Submission
from imagefleet.runtime import Drain
from imagefleet.settings import ApiSettings, load
from imagefleet.store.database import Connection
from imagefleet.store.fleet.breakers import force_open
from imagefleet.store.fleet.keys import create_key
from imagefleet.store.fleet.pauses import (
    Pause,
    pause,
)
from imagefleet.store.jobs.submissions import submit_job
from tests.support.children import alive, children_of
from tests.support.eventually import eventually
from tests.support.factories import TENANT, a_job, a_submission
from tests.support.fleet import SERVICES, Place, Running, inside, running
from tests.support.images import quadrants, saved
from tests.support.rows import attempts_rows, job_row, ring_row
from tests.support.stack import PLUGIN

QUEUED, PROCESSING, COMPLETED, FAILED_RETRYABLE, FAILED = JobState
TARGET = "photo"
FOR_EVER = {"milliseconds": 60_000}  # a handler that is run is not promptly over
SERVING = {"LISTEN_PORT": "0", "LISTEN_HOST": "127.0.0.1", "PUBLIC_BASE_URL": "http://127.0.0.1"}
PROMPTLY = 10.0  # seconds; two cores may have much else to do
STARTS_WITHIN = 30.0  # a process of its own, likewise
BEATS = 2

# A picture whose last bytes tell the planted decoder to compute and never to look up.
SPINNING = saved(quadrants(40, 25)) + b"poison:spin"
PLANTED = {
    "PYTHONPATH": os.pathsep.join(map(str, (PLUGIN, SERVICES, SERVICES.parent))),
    "IMAGEFLEET_FAULTS": json.dumps({"poison": True}),
}

# How often the holder had beaten when the flag was set, and when the job ended.
COUNT_BEATS = """
CREATE TABLE beats_then (job_id uuid, flagged bigint, ended bigint);
CREATE FUNCTION count_beats() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
    IF NEW.cancel_requested_at IS DISTINCT FROM OLD.cancel_requested_at THEN
        INSERT INTO beats_then (job_id, flagged)
        SELECT NEW.id, workers.beats FROM workers WHERE workers.id = OLD.locked_by;
    END IF;
    IF OLD.state = 'processing' AND NEW.state <> 'processing' THEN
        UPDATE beats_then SET ended = workers.beats FROM workers
         WHERE beats_then.job_id = NEW.id AND workers.id = OLD.locked_by;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER beats_are_counted AFTER UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION count_beats();
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Api:
    url: str
    producer: httpx.AsyncClient
    operators_key: str

    async def upload(self, picture: bytes) -> JobId:
        jpeg = {"Content-Type": "image/jpeg"}
        answer = await self.producer.post("/v1/images", content=picture, headers=jpeg)
        assert 202 == answer.status_code, answer.text
        return JobId(UUID(answer.json()["jobId"]))

    async def cancel(self, job_id: JobId) -> JobId:
        """The job that is asked for by it."""
        answer = await self.producer.post(f"/v1/jobs/{job_id}/cancel")
        assert 202 == answer.status_code, answer.text
        return JobId(UUID(answer.json()["jobId"]))

    async def fail(self, job_id: JobId) -> JobId:
        """The same by an operator at a terminal."""
        verb = ("jobs", "fail", str(job_id), "--reason", "it blocks")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "imagefleet", *verb),
            env={
                **os.environ,  # noqa: TID251 - as from a terminal
                "PYTHONPATH": str(SERVICES),
                "IMAGEFLEET_URL": self.url,
                "IMAGEFLEET_KEY": self.operators_key,
            },
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(30):
            out, err = await process.communicate()
        assert 0 == process.returncode, err.decode()
        return JobId(UUID(out.decode().split()[-1]))


@asynccontextmanager
async def serving(place: Place) -> AsyncIterator[Server]:
    """The API's own main on the queues of this place."""
    operators = {"OPERATOR_DATABASE_URL": place.database.url("operator")}
    settings = load(ApiSettings, {**place.environment("api"), **SERVING, **operators})
    drain = Drain()
    listening: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
    async with asyncio.TaskGroup() as group:
        process = group.create_task(api_main(settings, drain, listening=listening.set_result))
        process.add_done_callback(lambda _: listening.cancel())
        try:
            yield await listening
        finally:
            drain.request("the test is over")


@pytest.fixture
async def http(place: Place, admin: Connection) -> AsyncIterator[Api]:
    async def a_key(*scopes: str) -> str:
        return await create_key(admin, TENANT, name="tests", scopes=scopes, expires_in=None)

    headers = {"Authorization": f"Bearer {await a_key('submit', 'read')}"}
    async with serving(place) as server:
        url = f"http://127.0.0.1:{server.port}"
        async with httpx.AsyncClient(base_url=url, headers=headers, timeout=30) as producer:
            yield Api(url=url, producer=producer, operators_key=await a_key("operate"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    place: Place
    fake: Connection
    """Of workers that only claim; the one that runs is asked by nobody."""
    superuser: Connection

    async def made(self, state: JobState = QUEUED, *, due: bool = True, **fields: object) -> JobId:
        submission = self.wanted(**fields)
        job = await a_job(self.fake, self.superuser, state=state, due=due, submission=submission)
        return job.job_id

    def wanted(self, **fields: object) -> Submission:
        return a_submission(**{"target": TARGET, "payload": FOR_EVER, **fields})  # type: ignore[arg-type]


How = Callable[[Scene], Awaitable[JobId]]


async def behind_another(scene: Scene) -> JobId:
    await scene.made(PROCESSING)
    return await scene.made()


async def paused(scene: Scene) -> JobId:
    await pause(scene.superuser, Pause(scope=PauseScope.ALL), by="tests", reason="a test")
    return await scene.made()


async def not_due(scene: Scene) -> JobId:
    submission = scene.wanted(run_at=datetime.now(UTC) + timedelta(hours=1))
    return (await submit_job(scene.fake, submission)).job_id


async def behind_a_breaker(scene: Scene) -> JobId:
    await force_open(scene.superuser, "s3", by="tests")
    return await scene.made(services=("s3",))


async def at_work(scene: Scene) -> JobId:
    """In the hands of the worker that runs."""
    submission = scene.wanted()
    await scene.place.submit(scene.fake, submission)

    async def begun() -> bool:
        return bool("processing" == (await job_row(scene.superuser, submission.job_id))["state"])

    await eventually(begun, within=PROMPTLY)
    return submission.job_id


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Where a job is when somebody wants its end, and what it has cost when it is over."""

    how: How
    attempts: int = 0
    claimed_to_be_settled: bool = True
    before: tuple[str, ...] = field(default=())
    """How its earlier attempts ended."""


OPEN: dict[str, Case] = {
    "queued": Case(how=lambda s: s.made()),
    "blocked by its target": Case(how=behind_another),
    "paused": Case(how=paused),
    "not due": Case(how=not_due),
    "behind a breaker": Case(how=behind_a_breaker),
    "retryable": Case(
        how=lambda s: s.made(FAILED_RETRYABLE, due=False), attempts=1, before=("retried",)
    ),
    "unroutable": Case(how=lambda s: s.made(type="unheard-of")),
    "processing": Case(how=at_work, attempts=1, claimed_to_be_settled=False),
}


@pytest.mark.parametrize("where", OPEN)
async def test_an_open_job_is_ended_whatever_holds_it_back(
    where: str, place: Place, http: Api, worker: Connection, superuser: Connection
) -> None:
    case = OPEN[where]
    async with inside(place, "worker") as runs:
        job_id = await case.how(Scene(place=place, fake=worker, superuser=superuser))
        target = await targets_row(superuser)
        order = await http.cancel(job_id)
        await has_failed(superuser, job_id, "cancelled")
        await eventually(lambda: nothing_left(place), within=PROMPTLY)
        settled = await runs.counted('claim_verdict_total{verdict="cancelled"}')
        assert int(case.claimed_to_be_settled) == settled
        assert not runs.drain.requested, "the worker goes on"

    await has_answered(superuser, order, "requested")
    await ended_without_its_handler(superuser, job_id, case)
    assert 0 == await letters(superuser, job_id)
    if case.claimed_to_be_settled:
        assert target == await targets_row(superuser), "it did not take its target"
    else:
        running_job, runs_so_far = await targets_row(superuser)
        assert (None, target[1]) == (running_job, runs_so_far), "its target is free"


@pytest.mark.parametrize("state", [COMPLETED, FAILED])
async def test_a_job_that_is_over_stays_as_it_is(
    state: JobState, place: Place, http: Api, worker: Connection, superuser: Connection
) -> None:
    job_id = (await a_job(worker, superuser, state=state)).job_id
    before = await job_row(superuser, job_id), await letters(superuser, job_id)
    async with inside(place, "worker"):
        answer = await http.producer.post(f"/v1/jobs/{job_id}/cancel")
        # One that ended after the API had looked is answered by the order's own end.
        order = a_submission(type="cancel_job", payload={"job_id": str(job_id)})
        await submit_job(worker, order)
        await place.ring(order)
        await has_answered(superuser, order.job_id, "already_finished")
        await eventually(lambda: nothing_left(place), within=PROMPTLY)

    assert (200, state) == (answer.status_code, answer.json()["status"])
    assert before == (await job_row(superuser, job_id), await letters(superuser, job_id))


@pytest.mark.parametrize("where", ["not due", "processing"])
async def test_an_operator_fails_a_job_by_the_same_road_under_a_code_of_its_own(
    where: str, place: Place, http: Api, worker: Connection, superuser: Connection
) -> None:
    case = OPEN[where]
    async with inside(place, "worker"):
        job_id = await case.how(Scene(place=place, fake=worker, superuser=superuser))
        order = await http.fail(job_id)
        await has_failed(superuser, job_id, "failed_by_operator")

    await has_answered(superuser, order, "requested")
    await ended_without_its_handler(superuser, job_id, case, "failed_by_operator")
    assert "it blocks" == (await job_row(superuser, job_id))["cancel_detail"]
    assert 1 == await letters(superuser, job_id), "this one is for somebody to look at"


async def test_a_worker_survives_to_run_the_next_job_of_its_own_types(
    place: Place, http: Api, worker: Connection, superuser: Connection
) -> None:
    """Of a job it does not know it writes the end, and no more than that."""
    async with inside(place, "worker") as runs:
        unknown = a_submission(type="unheard-of")
        await submit_job(worker, unknown)
        await http.cancel(unknown.job_id)
        await has_failed(superuser, unknown.job_id, "cancelled")
        known = a_submission()
        await place.submit(worker, known)
        await eventually(lambda: completed(superuser, known.job_id), within=PROMPTLY)
        # Counted like any other, under a name that no stranger chose.
        counted = 'job_processed_total{job_type="other",status="failed"}'
        assert 1 == await runs.counted(counted)


async def test_a_child_at_work_is_gone_within_two_beats(
    place: Place, http: Api, superuser: Connection
) -> None:
    await superuser.execute(COUNT_BEATS)
    async with running(place, "worker", started=False, environment=PLANTED) as runs:
        await runs.tells("worker.started", within=STARTS_WITHIN)
        job_id = await http.upload(SPINNING)
        child = await eventually(lambda: child_of(runs), within=PROMPTLY)
        order = await http.cancel(job_id)
        await has_failed(superuser, job_id, "cancelled")

        assert not alive(child)
        assert 0 == await runs.drains(), runs.story()
    beats = await superuser.fetchval(
        "SELECT ended - flagged FROM beats_then WHERE job_id = $1", job_id
    )
    assert 1 <= beats <= BEATS
    await has_answered(superuser, order, "requested")


def child_of(runs: Running) -> int | None:
    """What the worker's zygote has forked."""
    grandchildren = [pid for each in children_of(runs.process.pid) for pid in children_of(each)]
    return grandchildren[0] if grandchildren else None


async def has_failed(superuser: Connection, job_id: JobId, code: str) -> None:
    async def failed() -> bool:
        row = await job_row(superuser, job_id)
        assert ("failed", code) == (row["state"], row["failure_code"])
        assert failure_sentence(code) == row["failure_message"]
        return True

    await eventually(failed, within=PROMPTLY)


async def has_answered(superuser: Connection, order: JobId, reason: str) -> None:
    async def answered() -> bool:
        row = await job_row(superuser, order)
        assert ("completed", reason) == (row["state"], row["result_reason"])
        return True

    await eventually(answered, within=PROMPTLY)


async def completed(superuser: Connection, job_id: JobId) -> bool:
    return bool("completed" == (await job_row(superuser, job_id))["state"])


async def ended_without_its_handler(
    superuser: Connection, job_id: JobId, case: Case, code: str = "cancelled"
) -> None:
    row, rows = await job_row(superuser, job_id), await attempts_rows(superuser, job_id)
    assert case.attempts == row["attempts"]
    assert await ring_row(superuser, job_id) is None
    assert [*case.before, "failed"] == [row["outcome"] for row in rows]
    last = rows[-1]
    assert (code, not case.claimed_to_be_settled) == (last["why"], last["charged"])
    instead = "flagged" if case.claimed_to_be_settled else "cancelled"
    assert f"instead of: {instead}" == last["detail"]


async def targets_row(superuser: Connection) -> tuple[object, int]:
    row = await superuser.fetchrow(
        "SELECT running_job, runs FROM targets WHERE target = $1", TARGET
    )
    assert row is not None
    return row["running_job"], row["runs"]


async def letters(superuser: Connection, job_id: JobId) -> int:
    count: int = await superuser.fetchval(
        "SELECT count(*) FROM dead_letters WHERE job_id = $1", job_id
    )
    return count


async def nothing_left(place: Place) -> bool:
    """Of messages: each was for a job that is over."""
    depth = await (await place.queue(Lane.FAST)).depth()
    return (0, 0) == (depth.visible, depth.in_flight)
