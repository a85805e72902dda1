"""A breaker row: what opens it, who may try, what closes it."""

from functools import partial

import asyncpg
import pytest

from imagefleet.jobs.model import ClaimAnswer, JobId, Verdict
from imagefleet.store.breakers import (
    THRESHOLD,
    force_open,
    report_failures,
    report_success,
    reset_breaker,
)
from imagefleet.store.claims import claim_jobs
from imagefleet.store.submissions import submit_job
from tests.support.database import Database
from tests.support.factories import ALL_LANES, TYPES, a_submission, a_worker, claim_job
from tests.support.races import all_at_once, many_connections
from tests.support.rows import ring_row

BREAKER = "SELECT state, forced, failures, trips FROM circuit_breakers WHERE service = 's3'"
HALF_OPEN = "UPDATE circuit_breakers SET retry_at = now() - interval '1 second'"


async def breaker(connection: asyncpg.Connection) -> dict[str, object]:
    return dict(await connection.fetchrow(BREAKER) or {})


async def a_job_of_s3(worker: asyncpg.Connection) -> JobId:
    return (await submit_job(worker, a_submission(services=("s3",)))).job_id


async def verdict_of(worker: asyncpg.Connection, job_id: JobId) -> Verdict:
    return (await claim_job(worker, job_id, await a_worker(worker))).verdict


async def test_failures_below_the_threshold_are_only_counted(worker: asyncpg.Connection) -> None:
    opened = [await report_failures(worker, "s3", 1) for _ in range(THRESHOLD - 1)]

    assert [False] * (THRESHOLD - 1) == opened
    assert {"state": "closed", "forced": False, "failures": 4, "trips": 0} == await breaker(worker)
    assert Verdict.CLAIMED is await verdict_of(worker, await a_job_of_s3(worker))


@pytest.mark.parametrize("reports", [(THRESHOLD,), (1,) * THRESHOLD, (2, 4)], ids=str)
async def test_the_threshold_opens_it_however_the_failures_came(
    reports: tuple[int, ...], worker: asyncpg.Connection
) -> None:
    opened = [await report_failures(worker, "s3", failures) for failures in reports]

    found = await breaker(worker)
    assert [*[False] * (len(reports) - 1), True] == opened
    assert ("open", sum(reports), 1) == (found["state"], found["failures"], found["trips"])
    assert Verdict.BREAKER is await verdict_of(worker, await a_job_of_s3(worker))


async def test_it_holds_back_only_what_needs_the_service(worker: asyncpg.Connection) -> None:
    await report_failures(worker, "s3", THRESHOLD)
    job = await submit_job(worker, a_submission(services=("cloudfront",)))

    assert Verdict.CLAIMED is await verdict_of(worker, job.job_id)


async def test_a_job_is_told_when_the_service_may_be_tried_again(
    worker: asyncpg.Connection,
) -> None:
    await report_failures(worker, "s3", THRESHOLD)

    answer = await claim_job(worker, await a_job_of_s3(worker), await a_worker(worker))

    retry_at = await worker.fetchval("SELECT retry_at FROM circuit_breakers")
    assert (retry_at, "s3") == (answer.until, answer.why)


async def test_more_failures_of_an_open_one_are_no_second_trip(worker: asyncpg.Connection) -> None:
    await report_failures(worker, "s3", THRESHOLD)

    still_open = await report_failures(worker, "s3", 3)

    assert still_open
    assert {"state": "open", "forced": False, "failures": 8, "trips": 1} == await breaker(worker)


async def test_a_reporter_with_a_higher_threshold_does_not_close_it(
    worker: asyncpg.Connection,
) -> None:
    await report_failures(worker, "s3", THRESHOLD)

    assert await report_failures(worker, "s3", 1, threshold=100)
    assert "open" == (await breaker(worker))["state"]


async def test_a_half_open_one_lets_exactly_one_probe_go_among_many(
    database: Database, worker: asyncpg.Connection, superuser: asyncpg.Connection
) -> None:
    jobs = [await a_job_of_s3(worker) for _ in range(20)]
    worker_id = await a_worker(worker)
    await report_failures(worker, "s3", THRESHOLD)
    await superuser.execute(HALF_OPEN)

    async def claim(connection: asyncpg.Connection, job_id: JobId) -> ClaimAnswer:
        return await claim_job(connection, job_id, worker_id)

    async with many_connections(database, "worker", len(jobs)) as connections:
        answers = await all_at_once(
            [partial(claim, *pair) for pair in zip(connections, jobs, strict=True)]
        )

    verdicts = sorted(answer.verdict for answer in answers)
    assert [Verdict.BREAKER] * 19 + [Verdict.CLAIMED] == verdicts


async def test_a_half_open_one_lets_one_job_of_a_batch_go(
    worker: asyncpg.Connection, superuser: asyncpg.Connection
) -> None:
    jobs = [await a_job_of_s3(worker) for _ in range(5)]
    await report_failures(worker, "s3", THRESHOLD)
    await superuser.execute(HALF_OPEN)

    answers = await claim_jobs(
        worker, jobs, worker_id=await a_worker(worker), lanes=ALL_LANES, types=TYPES
    )

    verdicts = [answer.verdict for answer in answers]
    assert [Verdict.CLAIMED, *[Verdict.BREAKER] * 4] == verdicts


async def test_a_probe_that_is_never_heard_of_again_is_followed_by_another(
    worker: asyncpg.Connection, superuser: asyncpg.Connection
) -> None:
    first, second, third = [await a_job_of_s3(worker) for _ in range(3)]
    await report_failures(worker, "s3", THRESHOLD)
    await superuser.execute(HALF_OPEN)

    verdicts = [await verdict_of(worker, first), await verdict_of(worker, second)]
    await superuser.execute(HALF_OPEN)
    verdicts.append(await verdict_of(worker, third))

    assert [Verdict.CLAIMED, Verdict.BREAKER, Verdict.CLAIMED] == verdicts


async def test_a_success_closes_it(
    worker: asyncpg.Connection, superuser: asyncpg.Connection
) -> None:
    await report_failures(worker, "s3", THRESHOLD)
    await superuser.execute(HALF_OPEN)

    await report_success(worker, "s3")

    assert {"state": "closed", "forced": False, "failures": 0, "trips": 1} == await breaker(worker)
    assert Verdict.CLAIMED is await verdict_of(worker, await a_job_of_s3(worker))


async def test_a_success_that_is_no_probes_does_not_close_it(worker: asyncpg.Connection) -> None:
    await report_failures(worker, "s3", THRESHOLD)

    await report_success(worker, "s3", probe=False)

    assert "open" == (await breaker(worker))["state"]


async def test_a_success_forgets_failures_that_did_not_open_it(worker: asyncpg.Connection) -> None:
    await report_failures(worker, "s3", THRESHOLD - 1)
    await report_success(worker, "s3")

    assert not await report_failures(worker, "s3", 1)
    assert 1 == (await breaker(worker))["failures"]


async def test_a_failed_probe_opens_it_again(
    worker: asyncpg.Connection, superuser: asyncpg.Connection
) -> None:
    await report_failures(worker, "s3", THRESHOLD)
    await superuser.execute(HALF_OPEN)

    reopened = await report_failures(worker, "s3", 1)

    assert reopened
    assert Verdict.BREAKER is await verdict_of(worker, await a_job_of_s3(worker))


async def test_one_that_is_forced_open_hears_no_reports(
    operator: asyncpg.Connection, worker: asyncpg.Connection
) -> None:
    await force_open(operator, "s3", by="ada")

    still_open = await report_failures(worker, "s3", 7)
    await report_success(worker, "s3")

    assert still_open
    assert {"state": "open", "forced": True, "failures": 0, "trips": 1} == await breaker(worker)


async def test_one_that_is_forced_open_lets_no_probe_go(
    operator: asyncpg.Connection, worker: asyncpg.Connection, superuser: asyncpg.Connection
) -> None:
    await force_open(operator, "s3", by="ada")
    await superuser.execute(HALF_OPEN)

    assert Verdict.BREAKER is await verdict_of(worker, await a_job_of_s3(worker))


async def test_forcing_an_open_one_is_no_second_trip(
    operator: asyncpg.Connection, worker: asyncpg.Connection
) -> None:
    await report_failures(worker, "s3", THRESHOLD)

    await force_open(operator, "s3", by="ada")

    found = await breaker(worker)
    assert (True, 1) == (found["forced"], found["trips"])


@pytest.mark.parametrize("forced", [True, False], ids=["forced", "tripped"])
async def test_a_reset_closes_it_for_what_it_held_back_and_writes_no_other_row(
    forced: bool,  # noqa: FBT001 - a column of the table above
    operator: asyncpg.Connection,
    worker: asyncpg.Connection,
) -> None:
    held, other = await a_job_of_s3(worker), (await submit_job(worker, a_submission())).job_id
    await (force_open(operator, "s3", by="ada") if forced else report_failures(worker, "s3", 5))
    await verdict_of(worker, held)
    before = await rings(worker, held, other)

    known = await reset_breaker(operator, "s3", by="ada")

    found = await breaker(worker)
    assert known
    assert [ring["next_at"] for ring in before] == [
        ring["next_at"] for ring in await rings(worker, held, other)
    ]
    assert ("closed", False, 0) == (found["state"], found["forced"], found["failures"])
    assert before[0]["sent_at"] is None, "the dispatcher announces it in its turn"
    assert Verdict.CLAIMED is await verdict_of(worker, held)


async def rings(connection: asyncpg.Connection, *job_ids: JobId) -> list[asyncpg.Record]:
    found = [await ring_row(connection, job_id) for job_id in job_ids]
    return [ring for ring in found if ring is not None]


async def test_a_reset_says_when_there_is_no_such_breaker(operator: asyncpg.Connection) -> None:
    assert not await reset_breaker(operator, "s3", by="ada")


async def test_a_breaker_remembers_who_touched_it_last(
    operator: asyncpg.Connection, worker: asyncpg.Connection
) -> None:
    who = "SELECT updated_by FROM circuit_breakers"
    await report_failures(worker, "s3", 1)
    seen = [await worker.fetchval(who)]
    await force_open(operator, "s3", by="ada")
    seen.append(await worker.fetchval(who))
    await reset_breaker(operator, "s3", by="ben")
    seen.append(await worker.fetchval(who))

    assert ["worker", "ada", "ben"] == seen
