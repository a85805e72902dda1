"""A worker's sessions with Postgres: two that all its work shares, and that of its beat."""

from uuid import uuid4

import pytest

from imagefleet.store.database import Connection
from imagefleet.store.jobs.submissions import submit_jobs
from tests.support.factories import a_submission
from tests.support.fleet import Place, inside

AT_ONCE = 8
SESSIONS = """
SELECT application_name, count(*) AS sessions FROM pg_stat_activity
 WHERE datname = current_database() AND usename = 'imagefleet_worker'
 GROUP BY application_name
"""


async def sessions_of_workers(superuser: Connection) -> dict[str, int]:
    rows = await superuser.fetch(SESSIONS)
    return {row["application_name"]: row["sessions"] for row in rows}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [({}, 2), ({"DATABASE_POOL_MAX": "1"}, 1), ({"DATABASE_POOL_MIN": "3"}, 3)],
)
async def test_what_is_asked_at_once_takes_turns(
    place: Place,
    api: Connection,
    superuser: Connection,
    environment: dict[str, str],
    expected: int,
) -> None:
    """Each of these jobs asks Postgres itself, while others are claimed and settled."""
    cancels = [
        a_submission(type="cancel_job", payload={"job_id": str(uuid4())}) for _ in range(AT_ONCE)
    ]
    await submit_jobs(api, cancels)
    await place.ring_all(cancels)
    async with inside(place, "worker", environment=environment) as worker:
        await worker.tells("job.completed", times=AT_ONCE)

        expected_sessions = {"imagefleet-worker": expected, "imagefleet-worker-beat": 1}
        assert expected_sessions == await sessions_of_workers(superuser)
