"""Circuit breakers: one row a service, so that the whole fleet learns from a few failures.

Closed, the row counts what workers report of a service that fails now and then; when failures are
a large enough share of it, it opens. While open, jobs that need the service are not handed out;
once `retry_at` has passed it is half open, and the claim lets one probe go at a time. A probe that
succeeds closes it, one that fails opens it again. All that others report of it then changes nothing
and writes nothing.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from asyncpg import Record

from imagefleet.jobs.policies import STANDARD, BreakerLimits, CallWindow
from imagefleet.jobs.shapes.fleet import BreakerView
from imagefleet.store.database import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """What a worker has seen of a service since its last report."""

    service: str
    failures: int = 0
    successes: int = 0
    code: str | None = None
    """The code of the last failure: a word, never a text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What a report is answered."""

    held_for: timedelta | None = None
    """How long jobs that need the service are held back; None: they may run."""
    due: datetime | None = None
    """When a job that is given back because of that should be due; its breaker is asked again."""
    listening: bool = False
    """There are enough failures; others are heard before they are judged."""
    opened_by: CallWindow | None = None
    """This report has opened the breaker: for these calls."""
    reopened: bool = False
    """This was the failure of a probe."""
    last_error: str | None = None
    """Of a breaker that was opened, reopened or closed: the code of the last failure."""


READ_BREAKER: Final = """
SELECT breakers.state, breakers.window_ends_at, breakers.window_failures, breakers.window_successes,
       breakers.judged_from, breakers.last_error_code,
       now() AS now, now() + interval '1 second' AS due,
       CASE WHEN breakers.forced THEN interval '60 seconds'
            ELSE greatest(breakers.retry_at - now(), interval '0') END AS held_for
  FROM circuit_breakers AS breakers
 WHERE breakers.service = $1
"""

LOCK_BREAKER: Final = f"""
{READ_BREAKER}
   FOR UPDATE
"""

ADD_BREAKER: Final = """
INSERT INTO circuit_breakers (service) VALUES ($1) ON CONFLICT (service) DO NOTHING
"""

COUNT_CALLS: Final = """
UPDATE circuit_breakers
   SET window_ends_at = $2, window_failures = $3, window_successes = $4, judged_from = $5,
       last_failure_at = CASE WHEN $6 THEN now() ELSE last_failure_at END,
       last_error_code = coalesce($7, last_error_code),
       updated_by = 'worker', updated_at = now()
 WHERE service = $1
"""

TRIP_BREAKER: Final = """
UPDATE circuit_breakers
   SET state = 'open', trips = trips + 1, opened_at = now(), retry_at = now() + $2,
       window_ends_at = NULL, judged_from = NULL, updated_by = 'worker', updated_at = now()
 WHERE service = $1
"""


async def report_calls(
    connection: Connection, calls: Calls, limits: BreakerLimits = STANDARD
) -> Judgement:
    """Add what a worker counted; whether the service's jobs are held back now."""
    row = await connection.fetchrow(READ_BREAKER, calls.service)
    if row is not None and row["state"] == "open":
        return _held(row)
    async with connection.transaction():
        row = await connection.fetchrow(LOCK_BREAKER, calls.service)
        if row is None:
            await connection.execute(ADD_BREAKER, calls.service)
            row = await connection.fetchrow(LOCK_BREAKER, calls.service)
        assert row is not None  # noqa: S101 - nobody may delete one
        if row["state"] == "open":
            return _held(row)
        return await _count(connection, calls, limits, row)


async def _count(
    connection: Connection, calls: Calls, limits: BreakerLimits, row: Record
) -> Judgement:
    before = CallWindow(
        ends_at=row["window_ends_at"],
        failures=row["window_failures"],
        successes=row["window_successes"],
        judged_from=row["judged_from"],
    )
    after = before.counting(calls.failures, calls.successes, limits, row["now"])
    if after != before:
        await connection.execute(
            COUNT_CALLS,
            calls.service,
            after.ends_at,
            after.failures,
            after.successes,
            after.judged_from,
            calls.failures > 0,
            calls.code,
        )
    if not after.trips(limits, row["now"]):
        return Judgement(listening=after.is_listening(row["now"]))
    await connection.execute(TRIP_BREAKER, calls.service, limits.open_for)
    return Judgement(
        held_for=limits.open_for,
        due=row["due"],
        opened_by=after,
        last_error=calls.code or row["last_error_code"],
    )


def _held(row: Record) -> Judgement:
    return Judgement(held_for=row["held_for"], due=row["due"])


CLOSE_BREAKER: Final = """
UPDATE circuit_breakers
   SET state = 'closed', failures = 0, opened_at = NULL, retry_at = NULL,
       window_ends_at = NULL, window_failures = 0, window_successes = 0, judged_from = NULL,
       updated_by = 'worker', updated_at = now()
 WHERE service = $1 AND state = 'open' AND NOT forced
RETURNING last_error_code
"""


async def report_probe_worked(connection: Connection, service: str) -> Judgement | None:
    """The one job that might try the service got what it needed; None: that has closed nothing."""
    row = await connection.fetchrow(CLOSE_BREAKER, service)
    return None if row is None else Judgement(last_error=row["last_error_code"])


REOPEN_BREAKER: Final = """
UPDATE circuit_breakers
   SET retry_at = now() + $2, last_failure_at = now(),
       last_error_code = coalesce($3, last_error_code),
       updated_by = 'worker', updated_at = now()
 WHERE service = $1 AND state = 'open' AND NOT forced
RETURNING now() + interval '1 second' AS due
"""


async def report_probe_failed(
    connection: Connection, service: str, code: str | None, limits: BreakerLimits = STANDARD
) -> Judgement:
    """It did not; where an operator has reset the breaker meanwhile, it is a failure as others."""
    row = await connection.fetchrow(REOPEN_BREAKER, service, limits.open_for, code)
    if row is not None:
        return Judgement(held_for=limits.open_for, due=row["due"], reopened=True, last_error=code)
    return await report_calls(connection, Calls(service=service, failures=1, code=code), limits)


HOLD_BREAKER: Final = """
SELECT breakers.service FROM circuit_breakers AS breakers WHERE breakers.service = $1 FOR UPDATE
"""


async def hold_breaker(connection: Connection, service: str) -> BreakerView | None:
    """The breaker as it stands until the end of the transaction; None: there is none."""
    await connection.execute(HOLD_BREAKER, service)
    return await find_breaker(connection, service)


async def find_breaker(connection: Connection, service: str) -> BreakerView | None:
    """The breaker as it is now; None: there is none."""
    return next(
        (breaker for breaker in await list_breakers(connection) if breaker.service == service), None
    )


FORCE_OPEN: Final = """
INSERT INTO circuit_breakers AS breaker (service, state, forced, trips, opened_at, retry_at,
                                         updated_by)
VALUES ($1, 'open', true, 1, now(), now(), $2)
    ON CONFLICT (service) DO UPDATE
       SET state = 'open', forced = true, trips = breaker.trips + (breaker.state = 'closed')::int,
           opened_at = coalesce(breaker.opened_at, now()), retry_at = now(),
           updated_by = $2, updated_at = now()
"""


async def force_open(connection: Connection, service: str, *, by: str) -> None:
    """An operator holds back everything that needs the service, until a reset."""
    await connection.execute(FORCE_OPEN, service, by)


RESET_BREAKER: Final = """
UPDATE circuit_breakers
   SET state = 'closed', forced = false, failures = 0, opened_at = NULL, retry_at = NULL,
       window_ends_at = NULL, window_failures = 0, window_successes = 0, judged_from = NULL,
       updated_by = $2, updated_at = now()
 WHERE service = $1
RETURNING service
"""


async def reset_breaker(connection: Connection, service: str, *, by: str) -> bool:
    """An operator closes the breaker; what it held back is announced. False: no such breaker."""
    return await connection.fetchrow(RESET_BREAKER, service, by) is not None


LIST_BREAKERS: Final = """
SELECT breakers.service,
       CASE WHEN breakers.state = 'closed' THEN 'closed'
            WHEN breakers.forced OR breakers.retry_at > now() THEN 'open'
            ELSE 'half_open' END AS state,
       breakers.forced,
       CASE WHEN counted.shown THEN breakers.window_failures ELSE 0 END AS failures,
       CASE WHEN counted.shown THEN breakers.window_successes ELSE 0 END AS successes,
       breakers.trips, breakers.opened_at,
       CASE WHEN NOT breakers.forced THEN breakers.retry_at END AS retry_at,
       breakers.last_failure_at, breakers.last_error_code, breakers.updated_by, breakers.updated_at
  FROM circuit_breakers AS breakers
 CROSS JOIN LATERAL (
     SELECT breakers.state = 'open' OR breakers.window_ends_at > now() AS shown
 ) AS counted
 ORDER BY breakers.service
"""


async def list_breakers(connection: Connection) -> list[BreakerView]:
    """Every service that was ever reported or forced."""
    return [BreakerView.of(row) for row in await connection.fetch(LIST_BREAKERS)]
