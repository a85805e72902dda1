"""A whole fleet whose way to Postgres is a PgBouncer with few sessions."""

import signal
from contextlib import AsyncExitStack

import httpx
import pytest

from imagefleet.store.database import Connection
from imagefleet.store.fleet.keys import create_key
from tests.support.api import ACME, JPEG
from tests.support.eventually import eventually
from tests.support.fleet import Place, Process, running
from tests.support.http import a_jpeg
from tests.support.poolers import Pooler, pgbouncer

SESSIONS = 2  # of each role
SERVING = {"LISTEN_PORT": "0", "LISTEN_HOST": "127.0.0.1", "PUBLIC_BASE_URL": "http://127.0.0.1"}
PATIENCE = 40.0
OPEN = "SELECT count(*) FROM jobs WHERE finished_at IS NULL"
LET_IN = """
SELECT usename::text AS role, count(*) AS sessions FROM pg_stat_activity
 WHERE datname = current_database() AND usename LIKE 'imagefleet%'
   AND usename <> 'imagefleet_admin' GROUP BY 1
"""


def by_way_of(pooler: Pooler, place: Place, process: Process) -> dict[str, str]:
    more = {"maintenance": {"RESCUE_AFTER": "5"}, "api": SERVING}.get(process, {})
    return {
        "DATABASE_URL": pooler.url(place.database, process),
        "DATABASE_POOLER": "pgbouncer",
        **more,
    }


@pytest.mark.timeout(120)
async def test_a_fleet_works_and_rescues_by_few_sessions(
    place: Place, admin: Connection, superuser: Connection
) -> None:
    key = await create_key(admin, ACME, name="of tests", scopes=["submit", "read"])
    async with pgbouncer(place.database, pool_size=SESSIONS) as pooler, AsyncExitStack() as stack:
        api, lost, maintenance = [
            await stack.enter_async_context(
                running(
                    place, process, started=False, environment=by_way_of(pooler, place, process)
                )
            )
            for process in ("api", "worker", "maintenance")
        ]
        port = (await api.tells("http.listening"))["port"]
        await lost.tells("worker.started")
        client = await stack.enter_async_context(
            httpx.AsyncClient(
                base_url=f"http://127.0.0.1:{port}", headers={"Authorization": f"Bearer {key}"}
            )
        )

        async def submit(path: str, **body: object) -> None:
            answer = await client.post(path, **body)  # type: ignore[arg-type] # of httpx
            assert 202 == answer.status_code, answer.text

        async def nothing_is_open() -> bool:
            return bool(0 == await superuser.fetchval(OPEN))

        await submit("/v1/images", content=a_jpeg(), headers=JPEG)
        for _ in range(20):
            await submit("/v1/jobs", json={"jobType": "noop"})
        await eventually(nothing_is_open, within=PATIENCE)

        await submit("/v1/jobs", json={"jobType": "noop", "payload": {"milliseconds": 60_000}})
        await eventually(lambda: is_held(superuser), within=PATIENCE)
        await eventually(lambda: has_beaten(superuser), within=PATIENCE)
        lost.signal(signal.SIGKILL)
        await eventually(lambda: was_rescued(superuser), within=PATIENCE)

        let_in = {row["role"]: row["sessions"] for row in await superuser.fetch(LET_IN)}
        states = {row[0] for row in await superuser.fetch("SELECT DISTINCT state FROM jobs")}
    assert [*lost.told("beat.failed"), *maintenance.told("rescuer.failed")] == []
    assert {*let_in} == {"imagefleet_api", "imagefleet_worker", "imagefleet_maintenance"}
    assert max(let_in.values()) <= SESSIONS
    assert states == {"completed", "failed_retryable"}


async def has_beaten(superuser: Connection) -> bool:
    return bool(await superuser.fetchval("SELECT max(beats) > 1 FROM workers"))


async def is_held(superuser: Connection) -> bool:
    return bool(
        await superuser.fetchval("SELECT EXISTS (SELECT FROM jobs WHERE locked_by IS NOT NULL)")
    )


async def was_rescued(superuser: Connection) -> bool:
    return bool(
        await superuser.fetchval("SELECT EXISTS (SELECT FROM attempts WHERE outcome = 'rescued')")
    )
