"""Processes of version 0.1 beside these, on the new schema: a rollout has both for a while.

Their statements are kept here as they were. They count five failures in a row, whatever else goes
well, and know nothing of windows.
"""

from datetime import timedelta

from imagefleet.jobs.policies import BreakerLimits
from imagefleet.store.database import Connection
from imagefleet.store.fleet.breakers import (
    Calls,
    Judgement,
    list_breakers,
    report_calls,
    report_probe_worked,
    reset_breaker,
)
from tests.support.factories import open_breaker

REPORT_FAILURES = """
INSERT INTO circuit_breakers AS breaker (service, state, failures, trips, opened_at, retry_at,
                                         last_failure_at)
SELECT $1, CASE WHEN $2::integer >= $3::integer THEN 'open' ELSE 'closed' END, $2,
       ($2 >= $3)::integer, CASE WHEN $2 >= $3 THEN now() END,
       CASE WHEN $2 >= $3 THEN now() + $4::interval END, now()
    ON CONFLICT (service) DO UPDATE
       SET failures = breaker.failures + excluded.failures,
           -- An open one stays open, whatever threshold this reporter goes by.
           state = CASE WHEN breaker.state = 'open' OR breaker.failures + excluded.failures >= $3
                        THEN 'open' ELSE 'closed' END,
           trips = breaker.trips + (breaker.state = 'closed'
                                    AND breaker.failures + excluded.failures >= $3)::integer,
           opened_at = CASE WHEN breaker.state = 'open' THEN breaker.opened_at
                            WHEN breaker.failures + excluded.failures >= $3 THEN now() END,
           retry_at = CASE WHEN breaker.state = 'open'
                                OR breaker.failures + excluded.failures >= $3
                           THEN now() + $4::interval END,
           last_failure_at = now(), updated_by = 'worker', updated_at = now()
     WHERE NOT breaker.forced
RETURNING state = 'open' AS open
"""
OPEN_UNTIL = """
SELECT CASE WHEN forced THEN now() + interval '60 seconds' ELSE retry_at END AS until
  FROM circuit_breakers
 WHERE service = $1 AND state = 'open' AND (forced OR retry_at > now())
"""
REPORT_SUCCESS = """
UPDATE circuit_breakers
   SET state = 'closed', failures = 0, opened_at = NULL, retry_at = NULL,
       updated_by = 'worker', updated_at = now()
 WHERE service = $1 AND NOT forced
   AND ((state = 'open' AND $2) OR (state = 'closed' AND failures > 0))
"""
FORCE_OPEN = """
INSERT INTO circuit_breakers AS breaker (service, state, forced, trips, opened_at, retry_at,
                                         updated_by)
VALUES ($1, 'open', true, 1, now(), now(), $2)
    ON CONFLICT (service) DO UPDATE
       SET state = 'open', forced = true, trips = breaker.trips + (breaker.state = 'closed')::int,
           opened_at = coalesce(breaker.opened_at, now()), retry_at = now(),
           updated_by = $2, updated_at = now()
"""
RESET_BREAKER = """
UPDATE circuit_breakers
   SET state = 'closed', forced = false, failures = 0, opened_at = NULL, retry_at = NULL,
       updated_by = $2, updated_at = now()
 WHERE service = $1
RETURNING service
"""

MINUTE = timedelta(minutes=1)
AT_LEAST_FIVE = BreakerLimits(failures=5, listen_for=timedelta(0))


async def old_failures(worker: Connection, failures: int) -> bool:
    opened: bool | None = await worker.fetchval(REPORT_FAILURES, "s3", failures, 5, MINUTE)
    return opened is not False


async def test_an_old_worker_opens_a_breaker_for_all_and_a_new_one_closes_it(
    worker: Connection,
) -> None:
    assert [False, True] == [await old_failures(worker, 4), await old_failures(worker, 1)]

    assert (await report_calls(worker, Calls(service="s3", failures=1))).held_for is not None
    await report_probe_worked(worker, "s3")

    assert await worker.fetchval(OPEN_UNTIL, "s3") is None
    assert not await old_failures(worker, 4)


async def test_a_new_worker_opens_a_breaker_for_all_and_an_old_one_closes_it(
    worker: Connection,
) -> None:
    judged = await report_calls(worker, Calls(service="s3", failures=100), AT_LEAST_FIVE)
    assert MINUTE == judged.held_for

    assert await worker.fetchval(OPEN_UNTIL, "s3") is not None
    assert await old_failures(worker, 1), "it is open, and he hears of it"
    await worker.execute(REPORT_SUCCESS, "s3", True)  # noqa: FBT003 - a parameter of the statement

    assert Judgement() == await report_calls(worker, Calls(service="s3", failures=1), AT_LEAST_FIVE)
    (shown,) = await list_breakers(worker)
    assert ("closed", 1, 1) == (shown.state, shown.failures, shown.trips)


async def test_neither_counts_what_the_other_has_counted(worker: Connection) -> None:
    await report_calls(worker, Calls(service="s3", failures=40, successes=1000))

    assert not await old_failures(worker, 4)
    judged = await report_calls(worker, Calls(service="s3", failures=1), AT_LEAST_FIVE)

    assert judged.held_for is None
    (shown,) = await list_breakers(worker)
    assert (41, 1000) == (shown.failures, shown.successes)


async def test_an_old_success_forgets_none_of_a_new_workers_failures(
    worker: Connection,
) -> None:
    await report_calls(worker, Calls(service="s3", failures=4))
    await worker.execute(REPORT_SUCCESS, "s3", False)  # noqa: FBT003 - a parameter of the statement

    judged = await report_calls(worker, Calls(service="s3", failures=1), AT_LEAST_FIVE)

    assert MINUTE == judged.held_for


async def test_an_old_api_forces_and_resets_what_new_workers_use(
    operator: Connection, worker: Connection
) -> None:
    await open_breaker(worker)
    await operator.execute(FORCE_OPEN, "s3", "ada")
    held = await report_calls(worker, Calls(service="s3", failures=1))
    await operator.execute(RESET_BREAKER, "s3", "ada")
    free = await report_calls(worker, Calls(service="s3", failures=1), AT_LEAST_FIVE)
    assert await reset_breaker(operator, "s3", by="ben")

    assert (MINUTE, Judgement()) == (held.held_for, free)
