"""Behind PgBouncer in transaction mode, where the next statement may meet another session."""

import asyncio
from datetime import timedelta

import pytest

from imagefleet.errors import Misconfigured
from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.settings.values import Pooler
from imagefleet.store.database import Pool, connect, open_pool
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.leases import Renewal, renew_claims
from imagefleet.store.jobs.submissions import submit_jobs
from imagefleet.store.schema.migrations import migrate
from imagefleet.store.settling import Settled, Settlement, settle_jobs
from tests.support.database import Database
from tests.support.factories import ALL_LANES, TYPES, a_submission, a_worker
from tests.support.poolers import pgbouncer

SESSIONS = 2  # of each role, for clients that are several times as many
CLIENTS = 8
ROUNDS = 3
BATCH = 4
LET_IN = """
SELECT usename::text, count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend'
   AND usename IN ('imagefleet_api', 'imagefleet_worker')
 GROUP BY 1
"""
PREPARED = "SELECT count(*) FROM pg_prepared_statements"


async def from_submit_to_end(api: Pool, worker: Pool) -> None:
    """Some jobs, by statements that those of others come between."""
    async with api.connection() as connection:
        wanted = [a_submission(target="one" if at % 2 else None) for at in range(BATCH)]
        ids = [JobId(each.job_id) for each in wanted]
        await submit_jobs(connection, wanted)
    async with worker.connection() as connection:
        me = await a_worker(connection)
    left = set(ids)
    while left:  # those of the target wait for their elders, which others hold
        async with worker.connection() as connection:
            answers = await claim_jobs(
                connection, [*left], worker_id=me, lanes=ALL_LANES, types=TYPES
            )
        claims = [answer.claim for answer in answers if answer.claim is not None]
        held = [
            Renewal(job_id=one.job_id, claim_no=one.claim_no, renewable_for=timedelta(hours=1))
            for one in claims
        ]
        async with worker.connection() as connection:
            assert (await renew_claims(connection, me, held)).lost == frozenset()
        ends = [Settlement.of(claim, Completed(), RetryPolicy()) for claim in claims]
        async with worker.connection() as connection:
            report = await settle_jobs(connection, me, ends)
        assert {Settled.WRITTEN} >= {receipt.settled for receipt in report.receipts}
        left -= {claim.job_id for claim in claims}


async def all_clients_work(database: Database, pooler: Pooler, *, prepares: bool) -> None:
    async with pgbouncer(database, pool_size=SESSIONS, prepares=prepares) as running:
        urls = (running.url(database, "api"), running.url(database, "worker"))
        async with (
            open_pool(urls[0], process="api", min_size=CLIENTS, pooler=pooler) as api,
            open_pool(
                urls[1], process="worker", min_size=CLIENTS, pooler=pooler, generic_plans=True
            ) as worker,
            asyncio.TaskGroup() as group,
        ):
            for _ in range(CLIENTS):
                group.create_task(several_times(api, worker))
        async with database.connect("superuser") as superuser:
            let_in = {row[0]: row[1] for row in await superuser.fetch(LET_IN)}
            ended = await superuser.fetchval("SELECT count(*) FROM jobs WHERE state = 'completed'")
    assert let_in == {"imagefleet_api": SESSIONS, "imagefleet_worker": SESSIONS}
    assert ended == CLIENTS * ROUNDS * BATCH


async def several_times(api: Pool, worker: Pool) -> None:
    for _ in range(ROUNDS):
        await from_submit_to_end(api, worker)


async def test_many_clients_work_by_two_sessions_of_each_role(database: Database) -> None:
    await all_clients_work(database, "pgbouncer", prepares=False)


async def test_many_clients_prepare_statements_where_the_pooler_keeps_them(
    database: Database,
) -> None:
    await all_clients_work(database, "pgbouncer-prepared", prepares=True)


async def test_nothing_of_one_client_is_left_in_the_session_of_the_next(
    database: Database,
) -> None:
    """No prepared statement, and no setting.

    The driver turns `jit` off where it learns of a type, and back to what the role has it: off.
    """
    async with pgbouncer(database, pool_size=1) as running:
        url = running.url(database, "worker")
        before = await of_the_session(url)
        of_api = running.url(database, "api")
        async with (
            open_pool(url, process="worker", pooler="pgbouncer", generic_plans=True) as worker,
            open_pool(of_api, process="api", pooler="pgbouncer") as api,
        ):
            await from_submit_to_end(api, worker)

        assert await of_the_session(url) == before


async def of_the_session(url: str) -> dict[str, str]:
    async with connect(url, process="test", pooler="pgbouncer") as connection:
        rows = await connection.fetch(
            "SELECT name, setting FROM pg_settings WHERE source = 'session'"
        )
        settings = {row[0]: row[1] for row in rows if (row[0], row[1]) != ("jit", "off")}
        return settings | {"prepared": str(await connection.fetchval(PREPARED))}


async def test_no_session_compiles_what_it_runs(database: Database) -> None:
    """By the role: no client can say so."""
    async with (
        pgbouncer(database, pool_size=1) as running,
        connect(running.url(database, "worker"), process="test", pooler="pgbouncer") as connection,
    ):
        assert await connection.fetchval("SHOW jit") == "off"


async def test_a_process_that_was_not_told_of_the_pooler_does_not_start(
    database: Database,
) -> None:
    async with pgbouncer(database, pool_size=1) as running:
        with pytest.raises(Misconfigured, match="DATABASE_POOLER"):
            async with open_pool(running.url(database, "api"), process="api"):
                pytest.fail("it opened")


async def test_migrations_take_no_session_that_others_share(database: Database) -> None:
    """A lock of the session would stay behind in it, and keep nobody out meanwhile."""
    lenient = {"ignore_startup_parameters": "statement_timeout, jit"}
    async with pgbouncer(database, pool_size=1, more=lenient) as running:
        with pytest.raises(Misconfigured, match="Postgres's own URL"):
            await migrate(running.url(database, "owner"))
        with pytest.raises(Misconfigured, match="Postgres itself"):
            async with pgbouncer(database, pool_size=1) as strict:
                await migrate(strict.url(database, "owner"))

    assert await migrate(database.url("owner"), wait=0) == ()
