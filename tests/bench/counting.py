"""What a job costs others: requests to SQS, statements and round trips to Postgres, each counted.

The whole fleet runs (API, maintenance, one worker), and all it says to SQS goes through a proxy
that counts. Postgres counts by itself what a role of ours sends (pg_stat_statements): one call is
one round trip, `BEGIN` and `COMMIT` among them, which are no statements of a job. Preparing what a
connection has not yet said before is not counted. Beats, looks and samples of those seconds are.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

import aiohttp

from imagefleet.jobs.model import Lane
from tests.bench import posting
from tests.bench.ground import Ground, until_over
from tests.bench.processes import started, unlimited_key
from tests.bench.rounds import Asked, Figure, Measured, Row, Sides
from tests.support.aws import forwarding
from tests.support.database import Database, Server
from tests.support.eventually import eventually
from tests.support.fleet import Place

ONE_SLOT: Final = {"WORKER_FAST_SLOTS": "1", "WORKER_GENERAL_SLOTS": "0"}
AT_ONCE: Final = 4  # batches on their way to the API
TRACK: Final = "ALTER DATABASE {name} SET pg_stat_statements.track = 'top'"
CALLS: Final = """
SELECT coalesce(sum(said.calls), 0)::bigint AS trips,
       coalesce(sum(said.calls) FILTER (WHERE said.query !~* '^(begin|start|commit|rollback)'),
                0)::bigint AS statements,
       coalesce(sum(said.shared_blks_hit + said.shared_blks_read), 0)::bigint AS buffers
  FROM pg_stat_statements AS said
  JOIN pg_roles ON pg_roles.oid = said.userid
  JOIN pg_database ON pg_database.oid = said.dbid
 WHERE pg_roles.rolname = $1 AND pg_database.datname = $2
"""


@dataclass(frozen=True, slots=True)
class Calls:
    """What a role has said to a database so far."""

    trips: int
    statements: int
    buffers: int
    """Pages that its statements looked at."""

    def since(self, earlier: "Calls") -> "Calls":
        return Calls(
            self.trips - earlier.trips,
            self.statements - earlier.statements,
            self.buffers - earlier.buffers,
        )


async def count_calls(database: Database) -> None:
    """Let Postgres count from now on, for connections that are made from now on."""
    async with database.server.admin() as admin:
        await admin.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        await admin.execute(TRACK.format(name=database.name))


async def calls_of(server: Server, role: str, database: str) -> Calls:
    async with server.admin() as admin:
        row = await admin.fetchrow(CALLS, f"imagefleet_{role}", database)
    assert row is not None
    return Calls(**dict(row))


HOT: Final = """
SELECT relname, n_tup_hot_upd::float8 / greatest(n_tup_upd, 1) AS share
  FROM pg_stat_user_tables
 WHERE relname IN ('jobs', 'rings') AND n_tup_upd > 0
"""


async def hot_shares(database: Database) -> Measured:
    """Of the updates of a table, those that touched no index; sessions that ended have told all."""
    async with database.connect("superuser") as superuser:
        rows = await superuser.fetch(HOT)
    return {f"HOT, {row['relname']}": row["share"] for row in rows}


async def of_a_job(
    ground: Ground, jobs: int, name: str, environment: Mapping[str, str]
) -> Measured:
    """Of each of so many jobs, from the submit to the deleted message."""
    async with (
        forwarding(ground.emulator.url) as counting,
        ground.place(by_way_of=counting.url) as place,
    ):
        database = place.database
        await count_calls(database)
        key = await unlimited_key(database)
        async with (
            started(place, "maintenance", ground.folder),
            started(place, "api", ground.folder) as api,
            started(place, "worker", ground.folder, environment),
        ):
            requests = counting.requests.copy()
            calls = await calls_of(database.server, "worker", database.name)
            await submit(api.url, key, jobs)
            await until_over(database)
            await _emptied(ground, place)
            requests = counting.requests - requests
            calls = (await calls_of(database.server, "worker", database.name)).since(calls)
        shares = await hot_shares(database)
        there = sum(count for name, count in requests.items() if name in OPERATIONS)
        assert there > 0, f"nobody asked SQS: {requests}"
        return {
            **{f"{table}, {name}": share for table, share in shares.items()},
            f"requests, {name}": there / jobs,
            f"statements, {name}": calls.statements / jobs,
            f"round trips, {name}": calls.trips / jobs,
        }


OPERATIONS: Final = (
    *("SendMessageBatch", "ReceiveMessage", "DeleteMessageBatch", "ChangeMessageVisibilityBatch"),
    *("SendMessage", "DeleteMessage", "ChangeMessageVisibility"),
)


async def submit(url: str, key: str, jobs: int) -> None:
    """As a producer does that has many: a hundred to a request, some requests at a time."""
    sizes = iter([100] * (jobs // 100) + [jobs % 100] * (jobs % 100 > 0))
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {key}"}) as http:

        async def send() -> None:
            for size in sizes:
                body = {"jobs": [posting.JOB] * size}
                async with http.post(f"{url}/v1/jobs:batch", json=body) as answer:
                    assert answer.status == 200, await answer.text()

        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(send())


async def _emptied(ground: Ground, place: Place) -> None:
    """Until the last message is deleted; asked without the proxy, which would count it."""
    async with ground.session_of(place) as session:
        queue = await session.queue(place.applied.queue_urls[Lane.FAST.value])

        async def nothing_left() -> bool:
            depth = await queue.depth()
            assert depth.visible + depth.in_flight == 0, depth
            return True

        await eventually(nothing_left, within=30)


async def of_a_post(ground: Ground, jobs: int) -> Measured:
    """Of each of so many submits, by as many connections as `post` has."""
    async with ground.place() as place:
        database = place.database
        await count_calls(database)
        key = await unlimited_key(database)
        async with (
            started(place, "maintenance", ground.folder),
            started(place, "api", ground.folder) as api,
        ):
            port = int(api.url.rpartition(":")[2])
            await posting.asked(posting.ONE, port, key, posting.CONNECTIONS)
            calls = await calls_of(database.server, "api", database.name)
            await posting.asked(posting.ONE, port, key, jobs)
            calls = (await calls_of(database.server, "api", database.name)).since(calls)
        return {"round trips, POST": calls.trips / jobs}


@asynccontextmanager
async def sides(ground: Ground, asked: Asked) -> AsyncIterator[Sides]:
    jobs = asked.jobs_of(ROW)
    yield {
        "default slots": partial(of_a_job, ground, jobs, "default slots", {}),
        "one slot": partial(of_a_job, ground, max(1, jobs // 5), "one slot", ONE_SLOT),
        "POST": partial(of_a_post, ground, jobs),
    }


ROW: Final = Row(
    name="counts",
    about="SQS requests, statements and round trips a job, counted",
    figures=[
        Figure(
            title="SQS requests a job, default slots",
            unit="",
            ours="requests, default slots",
            at_most=0.33,
        ),
        Figure(
            title="statements a job, default slots",
            unit="",
            ours="statements, default slots",
            at_most=0.3,
        ),
        Figure(
            title="round trips a job, default slots", unit="", ours="round trips, default slots"
        ),
        Figure(
            title="HOT share of updates of jobs, default slots",
            unit="",
            ours="HOT, jobs, default slots",
        ),
        Figure(
            title="HOT share of updates of rings, default slots",
            unit="",
            ours="HOT, rings, default slots",
        ),
        Figure(title="SQS requests a job, one slot", unit="", ours="requests, one slot"),
        Figure(title="statements a job, one slot", unit="", ours="statements, one slot"),
        Figure(
            title="round trips a job, one slot",
            unit="",
            ours="round trips, one slot",
            at_most=2.5,
        ),
        Figure(
            title="round trips a POST /v1/jobs, 64 connections",
            unit="",
            ours="round trips, POST",
            at_most=1,
        ),
    ],
    open=sides,
    jobs=2_000,
)
