"""Why a job does not run: every reason there is, by the route and by the command line.

Each names what can be acted upon: the job, the pause and whose it is, the worker, the lanes.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias
from uuid import UUID, uuid4

import httpx
import pytest

from imagefleet.jobs.lifecycle import Failed, Released
from imagefleet.jobs.model import CancelCode, JobId, JobState, Lane, PauseScope, TenantId, WorkerId
from imagefleet.store.database import Connection
from imagefleet.store.fleet.breakers import force_open
from imagefleet.store.fleet.pauses import Pause, pause
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.submissions import submit_job
from tests.cli.conftest import Cli
from tests.support.factories import (
    MadeJob,
    a_job,
    a_submission,
    a_worker,
    announce,
    claim_job,
    open_breaker,
    settle_job,
)
from tests.support.http import is_problem

QUEUED, PROCESSING, COMPLETED, FAILED_RETRYABLE, FAILED = JobState
IMAGE = "image:1"
RIVAL = TenantId("rival")
MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC")


@dataclass(frozen=True, slots=True)
class Waiting:
    """A job, and by name the ids that its explanation has to mention."""

    job_id: JobId
    named: dict[str, object] = field(default_factory=dict)


Make: TypeAlias = Callable[[Connection, Connection], Awaitable[Waiting]]


def made(state: JobState = QUEUED, **how: Any) -> Make:  # noqa: ANN401 - as `a_job` has them
    async def make(worker: Connection, superuser: Connection) -> Waiting:
        job = await a_job(worker, superuser, state=state, **how)
        return Waiting(job.job_id, {"worker": job.worker_id})

    return make


async def given_back(worker: Connection, superuser: Connection) -> Waiting:
    job = await a_job(worker, superuser, state=PROCESSING)
    later = datetime.now(UTC) + timedelta(hours=1)
    await settle_job(worker, job, Released(why="breaker:s3", run_at=later))
    return Waiting(job.job_id)


def given_back_for_memory(before: timedelta) -> Make:
    async def make(worker: Connection, superuser: Connection) -> Waiting:
        job = await a_job(worker, superuser, state=PROCESSING)
        due = datetime.now(UTC) + before
        await settle_job(worker, job, Released(why="memory", run_at=due))
        return Waiting(job.job_id)

    return make


async def too_large(worker: Connection, superuser: Connection) -> Waiting:
    job = await a_job(worker, superuser, state=PROCESSING)
    sentence = "The image needs 900 MiB of memory, and no worker has more than 768."
    await settle_job(worker, job, Failed(code="memory", message=sentence))
    return Waiting(job.job_id)


def behind(state: JobState, **how: Any) -> Make:  # noqa: ANN401 - as `a_job` has them
    async def make(worker: Connection, superuser: Connection) -> Waiting:
        target = a_submission(target=IMAGE)
        first = await a_job(worker, superuser, state=state, submission=target, **how)
        second = await a_job(worker, superuser, submission=a_submission(target=IMAGE))
        return Waiting(second.job_id, {"first": first.job_id, "worker": first.worker_id})

    return make


async def announced(worker: Connection, superuser: Connection) -> Waiting:
    job = await a_job(worker, superuser)
    await announce(worker, job.job_id)
    return Waiting(job.job_id)


async def behind_one_that_was_flagged_since(worker: Connection, superuser: Connection) -> Waiting:
    first = await a_job(worker, superuser, submission=a_submission(target=IMAGE))
    second = a_submission(target=IMAGE)
    await submit_job(worker, second)
    await cancel_job(worker, first.job_id, code=CancelCode.CANCELLED, detail=None)
    await superuser.execute("DELETE FROM workers WHERE id <> $1", first.worker_id)
    return Waiting(second.job_id)


def paused(*pauses: Pause) -> Make:
    async def make(worker: Connection, superuser: Connection) -> Waiting:
        for number, what in enumerate(pauses):
            await pause(superuser, what, by=f"person {number}", reason="a bad day")
        return Waiting(
            (await a_job(worker, superuser, submission=a_submission(target=IMAGE))).job_id
        )

    return make


def with_services(trouble: Callable[[Connection], Awaitable[object]]) -> Make:
    async def make(worker: Connection, superuser: Connection) -> Waiting:
        await trouble(superuser)
        job = await a_job(worker, superuser, submission=a_submission(services=("s3",)))
        return Waiting(job.job_id)

    return make


async def busy(worker: Connection, holder: WorkerId, lane: Lane, count: int) -> None:
    for _ in range(count):
        submission = a_submission(lane=lane)
        await submit_job(worker, submission)
        answer = await claim_job(worker, submission.job_id, holder)
        assert answer.claim is not None


def at_two_workers(lane: Lane, **held: int) -> Make:
    """The job waits in the lane; each of two workers holds so many jobs of each lane."""

    async def make(worker: Connection, _: Connection) -> Waiting:
        for _number in range(2):
            holder = await a_worker(worker)
            for name, count in held.items():
                await busy(worker, holder, Lane(name), count)
        submission = a_submission(lane=lane)
        await submit_job(worker, submission)
        return Waiting(submission.job_id)

    return make


async def full_but_for_one_that_drains(worker: Connection, superuser: Connection) -> Waiting:
    await busy(worker, await a_worker(worker, lanes=(Lane.FAST,)), Lane.FAST, 3)
    job = await a_job(worker, superuser)
    await superuser.execute(
        "UPDATE workers SET draining_since = now() WHERE id = $1", job.worker_id
    )
    return Waiting(job.job_id)


def when_all_workers_are(change: str, make: Make) -> Make:
    async def made_first(worker: Connection, superuser: Connection) -> Waiting:
        waiting = await make(worker, superuser)
        await superuser.execute(f"UPDATE workers SET {change}")  # noqa: S608 - said below
        return waiting

    return made_first


async def without_both_in_one(worker: Connection, superuser: Connection) -> Waiting:
    job = await a_job(worker, superuser)
    await superuser.execute("UPDATE workers SET dead_at = now(), dead_why = 'stopped'")
    await a_worker(worker, lanes=(Lane.FAST,), types=("process_image",))
    await a_worker(worker, lanes=(Lane.GENERAL,), types=("noop",))
    return Waiting(job.job_id)


def expired_under(trouble: Callable[[Connection], Awaitable[object]]) -> Make:
    async def make(worker: Connection, superuser: Connection) -> Waiting:
        submission = a_submission(services=("s3",))
        job: MadeJob = await a_job(
            worker, superuser, state=PROCESSING, lock_expired=True, submission=submission
        )
        await trouble(superuser)
        return Waiting(job.job_id, {"worker": job.worker_id})

    return make


TARGET = Pause(scope=PauseScope.TARGET, name=IMAGE, tenant_id="acme")
TYPE = Pause(scope=PauseScope.TYPE, name="noop")
LANE = Pause(scope=PauseScope.LANE, name="fast")
OF_TENANT = Pause(scope=PauseScope.TENANT, tenant_id="acme")
ALL = Pause(scope=PauseScope.ALL)
GENERAL_ONLY = "lanes = '{general}', slots = '{5}'"

# How to make it wait, the word for it, and the sentence: T is a time, {…} the id of that name.
REASONS: dict[str, tuple[Make, str, str]] = {
    "completed": (made(COMPLETED), "finished", "It is over: completed. It ended at T with done."),
    "memory": (
        too_large,
        "finished",
        (
            "It is over: failed. It ended at T with memory. "
            "The image needs 900 MiB of memory, and no worker has more than 768. {buried}"
        ),
    ),
    "failed": (
        made(FAILED),
        "finished",
        "It is over: failed. It ended at T with corrupt. {buried}",
    ),
    "not due": (made(due=False), "not_due", "It is not due before T."),
    "backoff": (
        made(FAILED_RETRYABLE, due=False),
        "not_due",
        "1 of 5 attempts did not work; the next one is due at T.",
    ),
    "given back": (given_back, "not_due", "It was given back, and is due again at T."),
    "needs another worker's memory": (
        given_back_for_memory(timedelta(hours=1)),
        "not_due",
        (
            "Its picture needs more memory than the worker gives that had it last: it waits for "
            "one that gives as much, and is due again at T."
        ),
    ),
    "needs another worker's memory, and is due": (
        given_back_for_memory(timedelta(hours=-1)),
        "ready",
        (
            "Nothing holds it back: 0 of 8 slots for its lane are busy at 1 worker; it takes its "
            "turn to be announced since T. Its picture needs more memory than the worker gives "
            "that had it last: it waits for one that gives as much."
        ),
    ),
    "behind one that runs": (
        behind(PROCESSING),
        "target_busy",
        "Job {first} comes first on its target image:1: worker {worker} is at work on it.",
    ),
    "behind one in backoff": (
        behind(FAILED_RETRYABLE, due=False),
        "target_busy",
        "Job {first} comes first on its target image:1: it is tried again at T.",
    ),
    "behind one that waits": (
        behind(QUEUED),
        "target_busy",
        "Job {first} comes first on its target image:1: it waits itself.",
    ),
    "target paused": (
        paused(replace(TARGET, tenant_id=RIVAL), TARGET),
        "target_paused",
        (
            "The target image:1 of acme is paused since T by person 1, until somebody lifts it: "
            "a bad day"
        ),
    ),
    "type paused": (
        paused(TYPE),
        "type_paused",
        "The type noop is paused since T by person 0, until somebody lifts it: a bad day",
    ),
    "tenant paused": (
        paused(Pause(scope=PauseScope.TENANT, tenant_id=RIVAL), OF_TENANT),
        "tenant_paused",
        "The tenant acme is paused since T by person 1, until somebody lifts it: a bad day",
    ),
    "type of a tenant paused": (
        paused(replace(OF_TENANT, name="reprocess_images"), replace(OF_TENANT, name="noop")),
        "tenant_paused",
        (
            "The type noop of the tenant acme is paused since T by person 1, until somebody lifts "
            "it: a bad day"
        ),
    ),
    "lane paused": (
        paused(LANE, Pause(scope=PauseScope.LANE, name="general")),
        "lane_paused",
        "The lane fast is paused since T by person 0, until somebody lifts it: a bad day",
    ),
    "all paused": (
        paused(ALL),
        "all_paused",
        "Everything is paused since T by person 0, until somebody lifts it: a bad day",
    ),
    "paused twice": (
        paused(TYPE, ALL),
        "all_paused",
        (
            "Everything is paused since T by person 1, until somebody lifts it: a bad day Also: "
            "The type noop is paused since T by person 0, until somebody lifts it: a bad day"
        ),
    ),
    "breaker": (
        with_services(open_breaker),
        "breaker_open",
        "The circuit breaker of s3 is open until T.",
    ),
    "forced breaker": (
        with_services(lambda c: force_open(c, "s3", by="somebody")),
        "breaker_open",
        "The circuit breaker of s3 was forced open by somebody, until it is reset.",
    ),
    "general saturated": (
        at_two_workers(Lane.GENERAL, general=5),
        "lane_saturated",
        "Every general slot is taken (10 of 10 at 2 workers).",
    ),
    "general saturated by fast": (
        at_two_workers(Lane.GENERAL, general=3, fast=5),
        "lane_saturated",
        "Every general slot is taken (10 of 10 at 2 workers), 4 of them by jobs of the lane fast.",
    ),
    "fast saturated": (
        at_two_workers(Lane.FAST, general=5, fast=3),
        "lane_saturated",
        (
            "Every fast slot is taken (16 of 16 at 2 workers); 6 are its own, 10 general ones "
            "serve it too."
        ),
    ),
    "quarantine saturated": (
        at_two_workers(Lane.QUARANTINE, quarantine=1),
        "lane_saturated",
        (
            "Every quarantine slot is taken (2 of 2 at 2 workers); a worker runs one suspect at a "
            "time."
        ),
    ),
    "fast alone saturated": (
        full_but_for_one_that_drains,
        "lane_saturated",
        "Every fast slot is taken (3 of 3 at 1 worker).",
    ),
    "general is full and fast is not": (
        at_two_workers(Lane.FAST, general=5),
        "ready",
        (
            "Nothing holds it back: 10 of 16 slots for its lane are busy at 2 workers; it takes "
            "its turn to be announced since T."
        ),
    ),
    "fast is full and general is not": (
        at_two_workers(Lane.GENERAL, fast=3),
        "ready",
        (
            "Nothing holds it back: 0 of 10 slots for its lane are busy at 2 workers; it takes "
            "its turn to be announced since T."
        ),
    ),
    "no lane": (
        when_all_workers_are(GENERAL_ONLY, made()),
        "no_worker_for_lane",
        "No living worker takes anything from the lane fast; lanes that are taken: general.",
    ),
    "no worker": (
        when_all_workers_are("dead_at = now(), dead_why = 'stopped'", made()),
        "no_worker_for_lane",
        "No living worker takes anything from the lane fast; there is none at all.",
    ),
    "no type": (
        when_all_workers_are("types = '{process_image}'", made()),
        "no_worker_for_type",
        "No living worker takes jobs of the type noop; types that are taken: process_image.",
    ),
    "no worker of both": (
        without_both_in_one,
        "no_worker_for_lane_and_type",
        (
            "No living worker takes jobs of the type noop from the lane fast, though some take the "
            "type and some the lane."
        ),
    ),
    "held": (
        made(PROCESSING),
        "lease_held",
        (
            "Worker {worker} (process 1 on tests, last beat 0 s ago) holds it by claim 1; its "
            "lease ends at T unless renewed."
        ),
    ),
    "held and flagged": (
        made(PROCESSING, flag=CancelCode.CANCELLED),
        "lease_held",
        (
            "Worker {worker} (process 1 on tests, last beat 0 s ago) holds it by claim 1; its "
            "lease ends at T unless renewed. It was asked to stop at T (cancelled); its worker is "
            "told with the next beat."
        ),
    ),
    "held too long, no lane": (
        when_all_workers_are(GENERAL_ONLY, made(PROCESSING, lock_expired=True)),
        "lease_expired",
        (
            "Its lease by worker {worker} (process 1 on tests, last beat 0 s ago) has expired, and "
            "nobody may take it over. No living worker takes anything from the lane fast; lanes "
            "that are taken: general."
        ),
    ),
    "held too long, paused": (
        expired_under(lambda c: pause(c, TYPE, by="somebody", reason="a bad day")),
        "lease_expired",
        (
            "Its lease by worker {worker} (process 1 on tests, last beat 0 s ago) has expired, and "
            "nobody may take it over. The type noop is paused since T by somebody, until somebody "
            "lifts it: a bad day"
        ),
    ),
    "held too long, breaker": (
        expired_under(lambda c: force_open(c, "s3", by="somebody")),
        "lease_expired",
        (
            "Its lease by worker {worker} (process 1 on tests, last beat 0 s ago) has expired, and "
            "nobody may take it over. The circuit breaker of s3 was forced open by somebody, until "
            "it is reset."
        ),
    ),
    "flagged": (
        made(flag=CancelCode.CANCELLED),
        "cancelled",
        "It was asked to stop at T (cancelled); whoever claims it next ends it.",
    ),
    "flagged, no lane": (
        when_all_workers_are(GENERAL_ONLY, made(flag=CancelCode.CANCELLED)),
        "cancelled",
        (
            "It was asked to stop at T (cancelled); whoever claims it next ends it. No living "
            "worker takes anything from the lane fast; lanes that are taken: general."
        ),
    ),
    "exhausted": (
        made(PROCESSING, lock_expired=True, submission=a_submission(max_attempts=1)),
        "exhausted",
        "Its lease has expired and no attempts are left (1 of 1); the next claim fails it.",
    ),
    "ready": (
        made(),
        "ready",
        (
            "Nothing holds it back: 0 of 8 slots for its lane are busy at 1 worker; it takes its "
            "turn to be announced since T."
        ),
    ),
    "ready and announced": (
        announced,
        "ready",
        (
            "Nothing holds it back: 0 of 8 slots for its lane are busy at 1 worker; it was "
            "announced at T and waits to be received."
        ),
    ),
    "ready at a target, parked still": (
        behind_one_that_was_flagged_since,
        "ready",
        (
            "Nothing holds it back: 0 of 8 slots for its lane are busy at 1 worker; it stands "
            "first at its target, and is announced within seconds."
        ),
    ),
}


@pytest.mark.parametrize("name", REASONS)
async def test_the_route_and_the_command_line_say_why_in_the_same_words(
    name: str,
    operating: httpx.AsyncClient,
    operate: Cli,
    worker: Connection,
    superuser: Connection,
) -> None:
    make, reason, sentence = REASONS[name]
    waiting = await make(worker, superuser)
    # What is made above took a moment, on a machine that does more than this.
    await superuser.execute("UPDATE workers SET beat_at = now() + interval '5 s'")

    answer = await operating.get(f"/v1/operator/jobs/{waiting.job_id}/explain")
    typed = await operate("jobs", "explain", str(waiting.job_id))

    assert answer.status_code == 200, answer.text
    explained = answer.json()
    letter = await superuser.fetchval("SELECT id FROM dead_letters")
    buried = (
        "Its dead letter waits for somebody: "
        f"`imagefleet dlq replay --reason mended {letter}` runs it again."
    )
    sentence = sentence.format(**waiting.named, buried=buried)
    assert (reason, sentence) == (
        explained["reason"],
        MOMENT.sub("T", explained["sentence"]),
    )
    said, _, facts = typed.out.partition("\n")
    assert sentence == MOMENT.sub("T", said)
    assert reason in facts


async def test_a_lease_ends_when_its_lock_can_expire(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=PROCESSING)

    explained = (await operating.get(f"/v1/operator/jobs/{job.job_id}/explain")).json()

    until = datetime.fromisoformat(explained["until"])
    assert timedelta(minutes=9) < until - datetime.now(UTC) < timedelta(minutes=11)
    assert str(job.worker_id) == explained["lockedBy"]


async def test_a_job_that_is_not_there_is_not_explained(
    operating: httpx.AsyncClient, operate: Cli
) -> None:
    nobody = UUID(str(uuid4()))

    is_problem(await operating.get(f"/v1/operator/jobs/{nobody}/explain"), 404, "not_found")
    typed = await operate("jobs", "explain", str(nobody))
    assert "not_found" in typed.err or "no such" in typed.err.lower()


async def test_of_a_failed_job_it_names_the_letter_and_what_became_of_it(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=FAILED)
    path = f"/v1/operator/jobs/{job.job_id}/explain"

    waits = (await operating.get(path)).json()
    replayed = await operating.post(
        "/v1/operator/dead-letters:replay",
        json={"ids": [waits["letter"]["id"]], "reason": "mended"},
    )
    dealt_with = (await operating.get(path)).json()

    assert f"imagefleet dlq replay --reason mended {waits['letter']['id']}" == waits["replay"]
    assert f"/v1/operator/dead-letters/{waits['letter']['id']}" == waits["links"]["letter"]
    again = replayed.json()["replays"][0]["replayedAs"]
    assert again == dealt_with["letter"]["replayedAs"]
    assert dealt_with["sentence"].endswith(f"Job {again} replays it.")
    assert "replay" not in dealt_with
    whole = (await operating.get(f"/v1/operator/jobs/{job.job_id}")).json()
    assert (waits["letter"]["id"], again) == (whole["letterId"], whole["replayedAs"])


async def test_of_an_acknowledged_one_it_says_who_did_that(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=FAILED)
    await operating.post(
        "/v1/operator/dead-letters:acknowledge", json={"filter": {}, "note": "known"}
    )

    explained = (await operating.get(f"/v1/operator/jobs/{job.job_id}/explain")).json()

    assert "Its dead letter was acknowledged by " in explained["sentence"]
    assert "replay" not in explained


async def test_of_a_waiting_job_it_leads_to_what_it_waits_for(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    waiting = await behind(PROCESSING)(worker, superuser)
    first = waiting.named["first"]
    await pause(superuser, TYPE, by="somebody", reason="a bad day")
    path = f"/v1/operator/jobs/{waiting.job_id}/explain"

    held = (await operating.get(path)).json()
    await superuser.execute("DELETE FROM pauses")
    behind_it = (await operating.get(path)).json()

    assert "/v1/operator/pauses" == held["links"]["pauses"]
    assert f"/v1/operator/jobs/{first}" == behind_it["links"]["first"]
    neighbours = [(each["jobId"], each["status"]) for each in behind_it["neighbours"]]
    assert [(str(first), "processing"), (str(waiting.job_id), "queued")] == neighbours
    found = await operating.get(behind_it["links"]["target"])
    assert {str(first), str(waiting.job_id)} == {job["jobId"] for job in found.json()["jobs"]}
    assert 200 == (await operating.get(behind_it["links"]["lane"])).status_code


async def test_a_whole_job_names_those_that_it_made(
    operating: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    parent = await a_job(worker, superuser, state=COMPLETED)
    children = [
        await a_job(
            worker, superuser, submission=replace(a_submission(), parent_job_id=parent.job_id)
        )
        for _ in range(2)
    ]

    whole = (await operating.get(f"/v1/operator/jobs/{parent.job_id}")).json()

    assert [str(job.job_id) for job in reversed(children)] == [
        child["jobId"] for child in whole["children"]
    ]
