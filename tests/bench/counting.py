"""What a job costs others: requests to SQS, statements and round trips to Postgres, each counted.

The whole fleet runs (API, maintenance, one worker), and all it says to SQS goes through a proxy
that counts. Postgres counts by itself what a role of ours sends (pg_stat_statements): one call is
one round trip, `BEGIN` and `COMMIT` among them, which are no statements of a job. Preparing what a
connection has not yet said before is not counted. Beats, looks and samples of those seconds are.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import aiohttp
from aiohttp import web

from imagefleet.aws.queue import LONGEST_WAIT
from imagefleet.jobs.model import Lane
from tests.bench import posting
from tests.bench.ground import Ground, until_over
from tests.bench.processes import started, unlimited_key
from tests.bench.rounds import Asked, Figure, Measured, Row, Sides
from tests.support.aws import forwarding, operation_of
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


UNSENT: Final = "SELECT count(*) FROM rings WHERE sent_at IS NULL"
POLL: Final = 1  # second, of those that are counted; the settings that ship wait LONGEST_WAIT
POLLS: Final = 3  # of each lane
DAY: Final = 86_400  # seconds
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


class Heard(NamedTuple):
    """A request to SQS."""

    operation: str
    queue: str
    waits: int
    """Seconds, of a receive."""


@asynccontextmanager
async def overheard(ground: Ground) -> AsyncIterator[tuple[Place, list[Heard]]]:
    """A place whose processes speak to SQS by a proxy, and what they say, in order."""
    heard: list[Heard] = []

    async def hear(request: web.Request) -> web.StreamResponse:
        if (operation := operation_of(request)) in OPERATIONS:
            said = json.loads(await request.read())
            heard.append(Heard(operation, said["QueueUrl"], said.get("WaitTimeSeconds", 0)))
        raise NotImplementedError

    async with (
        forwarding(ground.emulator.url, instead=hear) as proxy,
        ground.place(by_way_of=proxy.url) as place,
    ):
        yield place, heard


async def of_a_job(
    ground: Ground, jobs: int, name: str, environment: Mapping[str, str], *, ahead: bool
) -> Measured:
    """Of each of so many jobs, from the submit to the deleted message.

    `ahead`: every message is sent before the worker comes. Then there is always more than a receive
    may bring, and how busy the machine is changes nothing. Else the whole fleet runs meanwhile.
    """
    async with overheard(ground) as (place, heard), AsyncExitStack() as fleet:
        database = place.database
        await count_calls(database)
        key = await unlimited_key(database)
        api = await fleet.enter_async_context(started(place, "api", ground.folder))
        if ahead:  # and nobody gives turns: all is rung at once
            await submit(api.url, key, jobs)
            await _all_sent(database)
        else:
            await fleet.enter_async_context(started(place, "maintenance", ground.folder))
        await fleet.enter_async_context(started(place, "worker", ground.folder, environment))
        if not ahead:
            await submit(api.url, key, jobs)
        await until_over(database)
        await _emptied(ground, place)
        calls = await calls_of(database.server, "worker", database.name)
        await fleet.aclose()
        queue = place.applied.queue_urls[Lane.FAST.value]
        requests = sum(said.queue == queue for said in heard)
        assert requests > 0, f"nobody asked SQS: {heard}"
        return {
            **{f"{share}, {name}": of for share, of in (await hot_shares(database)).items()},
            f"requests, {name}": requests / jobs,
            f"statements, {name}": calls.statements / jobs,
            f"round trips, {name}": calls.trips / jobs,
        }


async def _all_sent(database: Database) -> None:
    async with database.connect("owner") as owner:

        async def nothing_waits() -> bool:
            return bool(await owner.fetchval(UNSENT) == 0)

        await eventually(nothing_waits, within=60)


async def of_an_idle_worker(ground: Ground) -> Measured:
    """Receives a day: one poll a lane after the other, and what is asked without waiting."""
    async with overheard(ground) as (place, heard):
        general = Heard("ReceiveMessage", place.applied.queue_urls[Lane.GENERAL.value], POLL)
        waits = {"RECEIVE_WAIT_SECONDS": str(POLL)}
        async with started(place, "worker", ground.folder, waits):
            await eventually(lambda: heard.count(general) > POLLS, within=60)
        last = [at for at, said in enumerate(heard) if said == general][POLLS]
        looks = sum(said.waits == 0 for said in heard[:last]) / POLLS
        assert {said.waits for said in heard} <= {0, POLL}
        return {"receives, idle": (len(Lane) + looks) * DAY / LONGEST_WAIT.total_seconds()}


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
    few = max(1, jobs // 5)
    yield {
        AHEAD: partial(of_a_job, ground, jobs, AHEAD, {}, ahead=True),
        "one slot": partial(of_a_job, ground, few, "one slot", ONE_SLOT, ahead=True),
        AT_WORK: partial(of_a_job, ground, jobs, AT_WORK, {}, ahead=False),
        "POST": partial(of_a_post, ground, jobs),
        "idle": partial(of_an_idle_worker, ground),
    }


def _of_a_job(unit: str, name: str, at_most: float | None = None) -> Figure:
    return Figure(title=f"{unit} a job, {name}", unit="", ours=f"{unit}, {name}", at_most=at_most)


AHEAD: Final = "default slots"
AT_WORK: Final = "default slots, while they are submitted"
ROW: Final = Row(
    name="counts",
    about="SQS requests, statements and round trips a job, counted",
    figures=[
        _of_a_job("requests", AHEAD, 0.33),
        _of_a_job("statements", AHEAD, 0.3),
        _of_a_job("round trips", AHEAD),
        _of_a_job("requests", "one slot"),
        _of_a_job("statements", "one slot"),
        _of_a_job("round trips", "one slot", 2.5),
        _of_a_job("requests", AT_WORK, 0.33),
        _of_a_job("statements", AT_WORK, 0.3),
        _of_a_job("round trips", AT_WORK),
        *(
            Figure(
                title=f"HOT share of updates of {table}, {AT_WORK}",
                unit="",
                ours=f"HOT, {table}, {AT_WORK}",
            )
            for table in ("jobs", "rings")
        ),
        Figure(
            title="round trips a POST /v1/jobs, 64 connections",
            unit="",
            ours="round trips, POST",
            at_most=1,
        ),
        Figure(
            title="receives of an idle worker a day",
            unit="",
            ours="receives, idle",
            at_most=(len(Lane) + 1) * DAY / LONGEST_WAIT.total_seconds(),
        ),
    ],
    open=sides,
    jobs=2_000,
)
