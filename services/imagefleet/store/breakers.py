"""Circuit breakers: one row a service, so that the whole fleet learns from a few failures.

Closed counts failures; at the threshold it opens. While open, jobs that need the service are not
handed out; once `retry_at` has passed it is half open, and the claim lets one probe go at a time. A
success closes it, a failure opens it again.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from imagefleet.store.database import Connection, translated

THRESHOLD: Final = 5
OPEN_FOR: Final = timedelta(seconds=60)

REPORT_FAILURES: Final = """
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


async def report_failures(
    connection: Connection,
    service: str,
    failures: int,
    *,
    threshold: int = THRESHOLD,
    open_for: timedelta = OPEN_FOR,
) -> bool:
    """Add what a worker counted since its last report; True when the breaker is open now."""
    with translated():
        opened: bool | None = await connection.fetchval(
            REPORT_FAILURES, service, failures, threshold, open_for
        )
    return opened is not False  # no row: an operator forced it open, and reports do not count


OPEN_UNTIL: Final = """
SELECT CASE WHEN forced THEN now() + interval '60 seconds' ELSE retry_at END AS until
  FROM circuit_breakers
 WHERE service = $1 AND state = 'open' AND (forced OR retry_at > now())
"""


async def open_until(connection: Connection, service: str) -> datetime | None:
    """When jobs that need the service are worth another try; None: they may run."""
    with translated():
        until: datetime | None = await connection.fetchval(OPEN_UNTIL, service)
    return until


REPORT_SUCCESS: Final = """
UPDATE circuit_breakers
   SET state = 'closed', failures = 0, opened_at = NULL, retry_at = NULL,
       updated_by = 'worker', updated_at = now()
 WHERE service = $1 AND NOT forced
   AND ((state = 'open' AND $2) OR (state = 'closed' AND failures > 0))
"""


async def report_success(connection: Connection, service: str, *, probe: bool = True) -> None:
    """A call went through: forget the failures. Only a probe closes a breaker that is open."""
    with translated():
        await connection.execute(REPORT_SUCCESS, service, probe)


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
    with translated():
        await connection.execute(FORCE_OPEN, service, by)


RESET_BREAKER: Final = """
UPDATE circuit_breakers
   SET state = 'closed', forced = false, failures = 0, opened_at = NULL, retry_at = NULL,
       updated_by = $2, updated_at = now()
 WHERE service = $1
RETURNING service
"""


async def reset_breaker(connection: Connection, service: str, *, by: str) -> bool:
    """An operator closes the breaker; what it held back is announced. False: no such breaker."""
    with translated():
        return await connection.fetchrow(RESET_BREAKER, service, by) is not None


LIST_BREAKERS: Final = """
SELECT breakers.service,
       CASE WHEN breakers.state = 'closed' THEN 'closed'
            WHEN breakers.forced OR breakers.retry_at > now() THEN 'open'
            ELSE 'half_open' END AS state,
       breakers.forced, breakers.failures, breakers.trips, breakers.opened_at,
       CASE WHEN NOT breakers.forced THEN breakers.retry_at END AS retry_at,
       breakers.last_failure_at, breakers.updated_by, breakers.updated_at
  FROM circuit_breakers AS breakers
 ORDER BY breakers.service
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """One service's breaker: closed, open, or half open; a forced one waits for its reset."""

    service: str
    state: str
    forced: bool
    failures: int
    trips: int
    opened_at: datetime | None
    retry_at: datetime | None
    last_failure_at: datetime | None
    updated_by: str
    updated_at: datetime


async def list_breakers(connection: Connection) -> list[Breaker]:
    """Every service that was ever reported or forced."""
    with translated():
        rows = await connection.fetch(LIST_BREAKERS)
    return [Breaker(**dict(row)) for row in rows]
