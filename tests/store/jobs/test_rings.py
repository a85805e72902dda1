"""Ring rows: null `sent_at` means that no message exists, and whatever lets one go says so."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from imagefleet.jobs.lifecycle import Outcome, Released
from imagefleet.jobs.model import CancelCode, JobId, Lane, PauseScope, Ring, Verdict
from imagefleet.store.database import Connection
from imagefleet.store.fleet.breakers import force_open
from imagefleet.store.fleet.pauses import Pause, pause, resume
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.rings import (
    URGENT,
    confirm_rings,
    forget_lost,
    ring_heads,
    ring_now,
    rings_for,
)
from imagefleet.store.jobs.submissions import submit_job, submit_jobs
from tests.conftest import OpenConnection
from tests.support.database import driver_of
from tests.support.factories import (
    ALL_LANES,
    TENANT,
    UNAVAILABLE,
    MadeJob,
    a_submission,
    a_worker,
    claim_job,
    expire_lock,
    settle_job,
)
from tests.support.races import meanwhile
from tests.support.rows import job_row, ring_row, the_ring

TARGET = "image:7"
HOUR = timedelta(hours=1)


async def submitted(api: Connection, **wishes: object) -> Ring:
    """A job that was accepted and may be rung at once."""
    submission = a_submission(**wishes)  # type: ignore[arg-type] # its own names
    (ring,) = rings_for([(submission, await submit_job(api, submission))])
    return ring


async def announced(api: Connection, **wishes: object) -> JobId:
    ring = await submitted(api, **wishes)
    await confirm_rings(api, [ring])
    return ring.job_id


async def is_sent(connection: Connection, job_id: JobId) -> bool:
    row = await the_ring(connection, job_id)
    return row["sent_at"] is not None


async def sent_ago(
    superuser: Connection, job_id: JobId, span: timedelta, *, sends: int = 1
) -> None:
    await superuser.execute(
        "UPDATE rings SET sent_at = now() - $2::interval, sends = $3 WHERE job_id = $1",
        job_id,
        span,
        sends,
    )


async def test_a_new_job_has_no_message_until_its_send_is_confirmed(api: OpenConnection) -> None:
    ring = await submitted(api)
    assert not await is_sent(api, ring.job_id)

    await confirm_rings(api, [ring])

    row = await the_ring(api, ring.job_id)
    assert (row["sent_at"] is not None, row["sends"]) == (True, 1)
    assert (row["tenant_id"], row["type"], row["next_at"]) == (TENANT, "noop", ring.next_at)


async def test_a_job_whose_time_has_not_come_is_not_rung_by_who_submits_it(
    api: OpenConnection,
) -> None:
    later = datetime.now(UTC) + HOUR
    submission = a_submission(run_at=later)

    answer = await submit_job(api, submission)

    assert rings_for([(submission, answer)]) == ()
    row = await the_ring(api, submission.job_id)
    assert row["next_at"] == later


async def test_where_a_lane_shows_room_a_new_job_is_left_for_a_moment_to_who_submits_it(
    api: OpenConnection, superuser: OpenConnection
) -> None:
    """Else the dispatcher would send what is being sent, and take it that somebody waits."""
    await superuser.execute("UPDATE lanes SET room = 9, looked_at = now() WHERE lane = 'fast'")
    shown, full = await submitted(api), await submitted(api, lane=Lane.GENERAL)

    rows = [await ring_row(api, ring.job_id) for ring in (shown, full)]

    assert [row["next_in"] > timedelta(0) for row in rows if row is not None] == [True, False]


DEFERRED = {
    Verdict.NOT_DUE: "jobs.run_at = rings.next_at",
    Verdict.TARGET_BUSY: "rings.next_at = 'infinity'",
    Verdict.PAUSED: "rings.next_at BETWEEN now() AND now() + interval '1 second'",
    Verdict.BREAKER: "rings.next_at BETWEEN now() AND now() + interval '1 second'",
    Verdict.UNROUTABLE: "rings.next_at BETWEEN now() AND now() + interval '1 second'",
    Verdict.ELSEWHERE: "rings.next_at <= now()",
}


async def deferred(
    verdict: Verdict,
    api: Connection,
    worker: Connection,
    operator: Connection,
    su: Connection,
    *,
    sent: bool = False,
) -> tuple[Ring, Verdict]:
    """A job whose message came, `sent` or not yet confirmed, and the verdict that let it go."""
    me = await a_worker(worker)
    if verdict is Verdict.TARGET_BUSY:
        first = await submitted(api, target=TARGET)
        await claim_job(worker, first.job_id, me)
        submission = a_submission(target=TARGET)
        answer = await submit_job(api, submission)
        ring = replace(
            first, job_id=submission.job_id, next_at=answer.created_at - timedelta(seconds=1)
        )
        await su.execute(
            "UPDATE rings SET next_at = $2 WHERE job_id = $1", ring.job_id, ring.next_at
        )
    else:
        ring = await submitted(api, services=("s3",))
    if verdict is Verdict.NOT_DUE:
        await su.execute(
            "UPDATE jobs SET run_at = now() + interval '1 hour' WHERE id = $1", ring.job_id
        )
    elif verdict is Verdict.PAUSED:
        await pause(operator, Pause(scope=PauseScope.TYPE, name="noop"), by="tests", reason="why")
    elif verdict is Verdict.BREAKER:
        await force_open(operator, "s3", by="tests")
    elif verdict is Verdict.ELSEWHERE:
        await su.execute("UPDATE jobs SET lane = 'general' WHERE id = $1", ring.job_id)
    if sent:
        await su.execute(
            "UPDATE rings SET sent_at = now(), sends = 1 WHERE job_id = $1", ring.job_id
        )
    lanes = [Lane.FAST] if verdict is Verdict.ELSEWHERE else list(ALL_LANES)
    types = ["other"] if verdict is Verdict.UNROUTABLE else ["noop"]
    (answer_,) = await claim_jobs(worker, [ring.job_id], worker_id=me, lanes=lanes, types=types)
    return ring, answer_.verdict


@pytest.mark.parametrize("verdict", DEFERRED)
async def test_a_verdict_that_deletes_the_message_says_that_none_exists(
    verdict: Verdict,
    api: OpenConnection,
    worker: OpenConnection,
    operator: OpenConnection,
    superuser: OpenConnection,
) -> None:
    ring, answered = await deferred(verdict, api, worker, operator, superuser, sent=True)

    assert answered is verdict
    assert not await is_sent(api, ring.job_id)
    assert await api.fetchval(
        f"SELECT {DEFERRED[verdict]} FROM rings JOIN jobs ON id = job_id WHERE job_id = $1",  # noqa: S608 - of the table above
        ring.job_id,
    )


@pytest.mark.parametrize("verdict", DEFERRED)
async def test_a_confirmation_that_comes_after_the_deferral_marks_nothing(
    verdict: Verdict,
    api: OpenConnection,
    worker: OpenConnection,
    operator: OpenConnection,
    superuser: OpenConnection,
) -> None:
    """The message was received and deleted before its sender told Postgres that it was sent."""
    ring, _ = await deferred(verdict, api, worker, operator, superuser)

    await confirm_rings(api, [ring])

    assert not await is_sent(api, ring.job_id)


async def test_a_ring_that_moves_while_a_confirmation_waits_for_it_is_left_alone(
    api: OpenConnection, superuser: OpenConnection, maintenance: OpenConnection
) -> None:
    ring = await submitted(api)
    transaction = driver_of(superuser).transaction()
    await transaction.start()
    await superuser.execute("UPDATE rings SET next_at = now() + interval '1 second'")

    async with meanwhile(maintenance, superuser, api, confirm_rings(api, [ring])):
        await transaction.commit()

    assert not await is_sent(api, ring.job_id)


@pytest.mark.parametrize("outcome", [UNAVAILABLE, Released(why="drain")], ids=["retry", "release"])
async def test_what_comes_back_from_a_worker_has_no_message(
    api: OpenConnection, worker: OpenConnection, outcome: Outcome
) -> None:
    job_id = await announced(api)
    me = await a_worker(worker)
    await claim_job(worker, job_id, me)

    await settle_job(worker, MadeJob(job_id=job_id, claim_no=1, worker_id=me), outcome)

    row = await the_ring(worker, job_id)
    assert (row["sent_at"], row["sends"], row["next_at"]) == (
        None,
        0,
        (await job_row(worker, job_id))["run_at"],
    )


async def test_a_flagged_job_is_rung_anew_and_before_everything_that_is_held(
    api: OpenConnection, worker: OpenConnection
) -> None:
    job_id = await announced(api, priority=0)

    _, rings = await cancel_job(worker, job_id, code=CancelCode.CANCELLED, detail=None)

    assert [ring.job_id for ring in rings] == [job_id]
    row = await the_ring(worker, job_id)
    assert (row["sent_at"], row["priority"]) == (None, URGENT)


async def test_retry_now_rings_what_was_announced_already(
    api: OpenConnection, operator: OpenConnection
) -> None:
    job_id = await announced(api)

    (ring,) = await ring_now(operator, job_id) or ()

    assert not await is_sent(operator, job_id)
    await confirm_rings(operator, [ring])
    assert await is_sent(operator, job_id)


NEVER = None


@pytest.mark.parametrize(
    ("sends", "sent", "silent", "heard", "lost"),
    [
        (1, 6, 0.5, NEVER, True),
        (1, 4, 0.5, NEVER, False),
        (1, 6, 3, NEVER, False),
        (2, 9, 0.5, NEVER, False),
        (2, 11, 0.5, NEVER, True),
        (8, 600, 0.5, NEVER, False),
        (8, 650, 0.5, NEVER, True),
        (1, 29, NEVER, 0.5, False),
        (1, 31, NEVER, 0.5, True),
        (2, 55, NEVER, 0.5, False),
        (2, 62, NEVER, 0.5, True),
        (1, 29, 20, 0.5, True),
        (1, 41_000, NEVER, NEVER, False),
        (1, 43_300, NEVER, NEVER, True),
        (8, 43_300, NEVER, NEVER, True),
    ],
)
async def test_a_message_is_lost_when_silence_or_a_later_one_says_so(
    api: OpenConnection,
    superuser: OpenConnection,
    maintenance: OpenConnection,
    sends: int,
    sent: float,
    silent: float | None,
    heard: float | None,
    lost: bool,  # noqa: FBT001
) -> None:
    """All in seconds ago: five of silence, thirty behind one that was heard, doubled each time."""
    job_id = await announced(api)
    await sent_ago(superuser, job_id, timedelta(seconds=sent), sends=sends)
    now = await superuser.fetchval("SELECT now()")

    found = await forget_lost(
        maintenance,
        Lane.FAST,
        silent=None if silent is None else now - timedelta(seconds=silent),
        heard=None if heard is None else now - timedelta(seconds=heard),
        limit=10,
    )

    assert found == int(lost)
    row = await the_ring(api, job_id)
    assert (row["sent_at"] is None, row["sends"]) == (lost, sends)


async def test_what_was_lost_is_due_anew_and_a_confirmation_from_before_marks_nothing(
    api: OpenConnection, superuser: OpenConnection, maintenance: OpenConnection
) -> None:
    ring = await submitted(api)
    await confirm_rings(api, [ring])
    await sent_ago(superuser, ring.job_id, HOUR)
    now = datetime.now(UTC)

    assert await forget_lost(maintenance, Lane.FAST, silent=now, heard=None, limit=10) == 1

    await confirm_rings(api, [ring])
    assert not await is_sent(api, ring.job_id)


async def test_another_lane_s_silence_says_nothing(
    api: OpenConnection, superuser: OpenConnection, maintenance: OpenConnection
) -> None:
    job_id = await announced(api)
    await sent_ago(superuser, job_id, HOUR)
    now = datetime.now(UTC)

    assert await forget_lost(maintenance, Lane.GENERAL, silent=now, heard=now, limit=10) == 0


async def parked(connection: Connection) -> set[JobId]:
    rows = await connection.fetch("SELECT job_id FROM rings WHERE next_at = 'infinity'")
    return {row["job_id"] for row in rows}


async def test_resuming_a_target_rings_its_head_and_leaves_the_others_parked(
    api: OpenConnection, operator: OpenConnection
) -> None:
    what = Pause(scope=PauseScope.TARGET, name=TARGET, tenant_id=TENANT)
    await pause(operator, what, by="tests", reason="why")
    jobs = [a_submission(target=TARGET) for _ in range(3)]
    await submit_jobs(api, jobs)
    assert await parked(api) == {job.job_id for job in jobs}

    assert await resume(operator, what)

    assert await parked(api) == {job.job_id for job in jobs[1:]}
    assert not await resume(operator, what)


async def test_a_head_that_was_forgotten_is_found_by_walking_what_is_parked(
    api: OpenConnection,
    worker: OpenConnection,
    superuser: OpenConnection,
    maintenance: OpenConnection,
) -> None:
    """Of one free target, one that runs, and one that is paused."""
    free = [a_submission(target="free") for _ in range(3)]
    runs = [a_submission(target="runs") for _ in range(2)]
    held = [a_submission(target="held") for _ in range(2)]
    await submit_jobs(api, [*free, *runs, *held])
    await claim_job(worker, runs[0].job_id, await a_worker(worker))
    await superuser.execute(
        "INSERT INTO pauses (scope, tenant_id, name, paused_by, reason)"
        " VALUES ('target', $1, 'held', 'tests', 'why')",
        TENANT,
    )
    await superuser.execute("UPDATE rings SET next_at = 'infinity', sent_at = NULL")

    pages, last, rung = 0, JobId(UUID(int=0)), 0
    while True:
        page = await ring_heads(maintenance, last, limit=2)
        pages, rung = pages + 1, rung + page.rung
        if page.last is None or page.looked_at < 2:
            break
        last = page.last

    assert (rung, pages >= 3) == (1, True)
    others = {job.job_id for job in [*free[1:], *runs[1:], *held]}
    assert await parked(api) == others


async def test_an_exhausted_job_rings_the_next_of_its_target_though_that_was_sent_before(
    api: OpenConnection, worker: OpenConnection, superuser: OpenConnection
) -> None:
    first, second = (a_submission(target=TARGET, max_attempts=1) for _ in range(2))
    await submit_jobs(api, [first, second])
    me = await a_worker(worker)
    await claim_job(worker, first.job_id, me)
    await sent_ago(superuser, second.job_id, timedelta(seconds=1))
    await expire_lock(superuser, first.job_id)

    answer = await claim_job(worker, first.job_id, me)

    assert answer.verdict is Verdict.EXHAUSTED
    row = await the_ring(api, second.job_id)
    assert (row["sent_at"], row["next_in"] <= timedelta(0)) == (None, True)
