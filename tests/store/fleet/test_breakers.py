"""A breaker row: what opens it, who may try, what closes it."""

from datetime import timedelta
from functools import partial

import asyncpg
import pytest

from imagefleet.errors import StoreRejected
from imagefleet.jobs.model import ClaimAnswer, JobId, Verdict
from imagefleet.jobs.policies import BreakerLimits
from imagefleet.store.database import Connection
from imagefleet.store.fleet.breakers import (
    Calls,
    Judgement,
    force_open,
    report_calls,
    report_probe_failed,
    report_probe_worked,
    reset_breaker,
)
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.submissions import submit_job
from tests.support.database import Database
from tests.support.factories import (
    ALL_LANES,
    TYPES,
    a_submission,
    a_worker,
    claim_job,
    open_breaker,
)
from tests.support.races import all_at_once, many_connections
from tests.support.rows import ring_row

BREAKER = """
SELECT state, forced, window_failures, window_successes, trips FROM circuit_breakers
 WHERE service = 's3'
"""
AT_LEAST_FIVE = BreakerLimits(failures=5, listen_for=timedelta(0))
HALF_OPEN = "UPDATE circuit_breakers SET retry_at = now() - interval '1 second'"


async def breaker(connection: Connection) -> dict[str, object]:
    return dict(await connection.fetchrow(BREAKER) or {})


async def a_job_of_s3(worker: Connection) -> JobId:
    return (await submit_job(worker, a_submission(services=("s3",)))).job_id


async def verdict_of(worker: Connection, job_id: JobId) -> Verdict:
    return (await claim_job(worker, job_id, await a_worker(worker))).verdict


async def report(
    connection: Connection, failures: int, successes: int = 0, code: str | None = None
) -> Judgement:
    calls = Calls(service="s3", failures=failures, successes=successes, code=code)
    return await report_calls(connection, calls, AT_LEAST_FIVE)


@pytest.mark.parametrize("reports", [[4], [1, 1, 1, 1]], ids=str)
async def test_fewer_failures_than_the_limit_are_only_counted(
    reports: list[int], worker: Connection
) -> None:
    judged = [await report(worker, failures) for failures in reports]

    assert {Judgement()} == set(judged)
    assert {
        "state": "closed",
        "forced": False,
        "window_failures": 4,
        "window_successes": 0,
        "trips": 0,
    } == await breaker(worker)
    claim = (await claim_job(worker, await a_job_of_s3(worker), await a_worker(worker))).claim
    assert claim is not None
    assert () == claim.watched


@pytest.mark.parametrize("reports", [(5,), (1,) * 5, (2, 4)], ids=str)
async def test_the_limit_opens_it_however_the_failures_came(
    reports: tuple[int, ...], worker: Connection
) -> None:
    held = [(await report(worker, failures)).held_for for failures in reports]

    row = await breaker(worker)
    assert [*[None] * (len(reports) - 1), timedelta(seconds=60)] == held
    assert ("open", sum(reports), 1) == (row["state"], row["window_failures"], row["trips"])
    assert Verdict.BREAKER is await verdict_of(worker, await a_job_of_s3(worker))


async def test_many_successes_keep_it_closed_whoever_tells_of_them(
    worker: Connection,
) -> None:
    await report(worker, 4)
    await report(worker, 0, 50)
    judged = await report(worker, 40)

    assert judged.held_for is None
    assert "closed" == (await breaker(worker))["state"]
    assert (await report(worker, 6)).held_for is not None, "44 failures and 6 of 50 successes"


async def test_while_failures_are_judged_claims_ask_for_successes(
    worker: Connection, superuser: Connection
) -> None:
    judged = await report_calls(worker, Calls(service="s3", failures=5))

    assert Judgement(listening=True) == judged
    claims = [
        (await claim_job(worker, job_id, await a_worker(worker))).claim
        for job_id in (
            await a_job_of_s3(worker),
            (await submit_job(worker, a_submission(services=("other",)))).job_id,
        )
    ]
    assert [("s3",), ()] == [claim.watched for claim in claims if claim is not None]

    await superuser.execute("UPDATE circuit_breakers SET window_ends_at = now()")
    later = (await claim_job(worker, await a_job_of_s3(worker), await a_worker(worker))).claim
    assert later is not None
    assert () == later.watched


async def test_a_report_that_says_nothing_new_writes_nothing(
    worker: Connection, superuser: Connection
) -> None:
    await report_calls(worker, Calls(service="s3", failures=5))
    counted = await superuser.fetchrow("SELECT xmin, * FROM circuit_breakers")
    await report_calls(worker, Calls(service="s3"))
    assert counted == await superuser.fetchrow("SELECT xmin, * FROM circuit_breakers")


async def test_many_that_report_at_once_are_all_counted(
    database: Database, worker: Connection
) -> None:
    async def tell(connection: Connection) -> Judgement:
        return await report_calls(connection, Calls(service="s3", failures=1, successes=2))

    async with many_connections(database, "worker", 20) as connections:
        await all_at_once([partial(tell, connection) for connection in connections])

    row = await breaker(worker)
    assert (20, 40) == (row["window_failures"], row["window_successes"])


async def test_it_remembers_the_last_word_of_a_failure(worker: Connection) -> None:
    for code in ("s3_throttled", "s3_timeout", None):
        await report(worker, 1, code=code)

    assert "s3_timeout" == await worker.fetchval("SELECT last_error_code FROM circuit_breakers")
    with pytest.raises(StoreRejected):
        await report(worker, 1, code="Access key AKIA… is wrong")


async def test_it_holds_back_only_what_needs_the_service(worker: Connection) -> None:
    await open_breaker(worker)
    job = await submit_job(worker, a_submission(services=("cloudfront",)))

    assert Verdict.CLAIMED is await verdict_of(worker, job.job_id)


async def test_a_job_is_told_when_the_service_may_be_tried_again(
    worker: Connection,
) -> None:
    await open_breaker(worker)

    answer = await claim_job(worker, await a_job_of_s3(worker), await a_worker(worker))

    retry_at = await worker.fetchval("SELECT retry_at FROM circuit_breakers")
    assert (retry_at, "s3") == (answer.until, answer.why)


async def test_failures_of_an_open_one_change_nothing(
    worker: Connection, superuser: Connection
) -> None:
    await open_breaker(worker)
    before = await superuser.fetchrow("SELECT xmin, xmax, * FROM circuit_breakers")

    judged = await report(worker, 3)

    assert judged.held_for is not None
    assert timedelta(seconds=50) < judged.held_for <= timedelta(seconds=60)
    assert before == await superuser.fetchrow("SELECT xmin, xmax, * FROM circuit_breakers")


async def test_a_half_open_one_lets_exactly_one_probe_go_among_many(
    database: Database, worker: Connection, superuser: Connection
) -> None:
    jobs = [await a_job_of_s3(worker) for _ in range(20)]
    worker_id = await a_worker(worker)
    await open_breaker(worker)
    await superuser.execute(HALF_OPEN)

    async def claim(connection: Connection, job_id: JobId) -> ClaimAnswer:
        return await claim_job(connection, job_id, worker_id)

    async with many_connections(database, "worker", len(jobs)) as connections:
        answers = await all_at_once(
            [partial(claim, *pair) for pair in zip(connections, jobs, strict=True)]
        )

    verdicts = sorted(answer.verdict for answer in answers)
    assert [Verdict.BREAKER] * 19 + [Verdict.CLAIMED] == verdicts


async def test_a_half_open_one_lets_one_job_of_a_batch_go(
    worker: Connection, superuser: Connection
) -> None:
    jobs = [await a_job_of_s3(worker) for _ in range(5)]
    await open_breaker(worker)
    await superuser.execute(HALF_OPEN)

    answers = await claim_jobs(
        worker, jobs, worker_id=await a_worker(worker), lanes=ALL_LANES, types=TYPES
    )

    verdicts = [answer.verdict for answer in answers]
    assert [Verdict.CLAIMED, *[Verdict.BREAKER] * 4] == verdicts


async def test_a_probe_that_is_never_heard_of_again_is_followed_by_another(
    worker: Connection, superuser: Connection
) -> None:
    first, second, third = [await a_job_of_s3(worker) for _ in range(3)]
    await open_breaker(worker)
    await superuser.execute(HALF_OPEN)

    verdicts = [await verdict_of(worker, first), await verdict_of(worker, second)]
    await superuser.execute(HALF_OPEN)
    verdicts.append(await verdict_of(worker, third))

    assert [Verdict.CLAIMED, Verdict.BREAKER, Verdict.CLAIMED] == verdicts


async def test_a_probe_that_works_closes_it_and_counting_begins_anew(
    worker: Connection, superuser: Connection
) -> None:
    await report(worker, 100)
    await superuser.execute(HALF_OPEN)

    await report_probe_worked(worker, "s3")

    assert (await report(worker, 1)).held_for is None
    row = await breaker(worker)
    assert ("closed", 1, 1) == (row["state"], row["window_failures"], row["trips"])
    assert Verdict.CLAIMED is await verdict_of(worker, await a_job_of_s3(worker))


async def test_a_failed_probe_opens_it_again_and_is_no_second_trip(
    worker: Connection, superuser: Connection
) -> None:
    await open_breaker(worker)
    await superuser.execute(HALF_OPEN)

    judged = await report_probe_failed(worker, "s3", "s3_timeout")

    assert timedelta(seconds=60) == judged.held_for
    assert Verdict.BREAKER is await verdict_of(worker, await a_job_of_s3(worker))
    row = await superuser.fetchrow("SELECT trips, last_error_code FROM circuit_breakers")
    assert (1, "s3_timeout") == tuple(row or ())


async def test_a_probe_that_fails_after_a_reset_is_a_failure_as_others(
    operator: Connection, worker: Connection
) -> None:
    await open_breaker(worker)
    await reset_breaker(operator, "s3", by="ada")

    judged = await report_probe_failed(worker, "s3", "s3_timeout", AT_LEAST_FIVE)

    assert Judgement() == judged
    row = await breaker(worker)
    assert ("closed", 1) == (row["state"], row["window_failures"])


async def test_one_that_is_forced_open_hears_no_reports(
    operator: Connection, worker: Connection
) -> None:
    await force_open(operator, "s3", by="ada")

    judged = [await report(worker, 7), await report_probe_failed(worker, "s3", None)]
    await report_probe_worked(worker, "s3")

    assert [timedelta(seconds=60)] * 2 == [judgement.held_for for judgement in judged]
    row = await breaker(worker)
    assert ("open", True, 0, 1) == (
        row["state"],
        row["forced"],
        row["window_failures"],
        row["trips"],
    )


async def test_one_that_is_forced_open_lets_no_probe_go(
    operator: Connection, worker: Connection, superuser: Connection
) -> None:
    await force_open(operator, "s3", by="ada")
    await superuser.execute(HALF_OPEN)

    assert Verdict.BREAKER is await verdict_of(worker, await a_job_of_s3(worker))


async def test_forcing_an_open_one_is_no_second_trip(
    operator: Connection, worker: Connection
) -> None:
    await open_breaker(worker)

    await force_open(operator, "s3", by="ada")

    row = await breaker(worker)
    assert (True, 1) == (row["forced"], row["trips"])


@pytest.mark.parametrize("forced", [True, False], ids=["forced", "tripped"])
async def test_a_reset_closes_it_for_what_it_held_back_and_writes_no_other_row(
    forced: bool,  # noqa: FBT001 - a column of the table above
    operator: Connection,
    worker: Connection,
) -> None:
    held, other = await a_job_of_s3(worker), (await submit_job(worker, a_submission())).job_id
    await (force_open(operator, "s3", by="ada") if forced else open_breaker(worker))
    await verdict_of(worker, held)
    before = await rings(worker, held, other)

    known = await reset_breaker(operator, "s3", by="ada")

    row = await breaker(worker)
    assert known
    assert [ring["next_at"] for ring in before] == [
        ring["next_at"] for ring in await rings(worker, held, other)
    ]
    assert ("closed", False, 0) == (row["state"], row["forced"], row["window_failures"])
    assert before[0]["sent_at"] is None, "the dispatcher announces it in its turn"
    assert Verdict.CLAIMED is await verdict_of(worker, held)


async def rings(connection: Connection, *job_ids: JobId) -> list[asyncpg.Record]:
    found = [await ring_row(connection, job_id) for job_id in job_ids]
    return [ring for ring in found if ring is not None]


async def test_a_reset_says_when_there_is_no_such_breaker(operator: Connection) -> None:
    assert not await reset_breaker(operator, "s3", by="ada")


async def test_a_breaker_remembers_who_touched_it_last(
    operator: Connection, worker: Connection
) -> None:
    who = "SELECT updated_by FROM circuit_breakers"
    await open_breaker(worker)
    seen = [await worker.fetchval(who)]
    await force_open(operator, "s3", by="ada")
    seen.append(await worker.fetchval(who))
    await reset_breaker(operator, "s3", by="ben")
    seen.append(await worker.fetchval(who))

    assert ["worker", "ada", "ben"] == seen
