"""The doorbell with a million rows in place: what a look reads, who is next, and how soon.

Rows, looks and order are judged; so are the few spans that are promised in seconds. Other times are
told only.
"""

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final
from uuid import UUID, uuid4

from imagefleet.jobs.model import JobId, Lane, PauseScope, TenantId, parse_message
from imagefleet.maintenance.dispatcher import Dispatcher
from imagefleet.store.database import Connection, Pool
from imagefleet.store.fleet.breakers import force_open, reset_breaker
from imagefleet.store.fleet.pauses import (
    Pause,
    pause,
    resume,
)
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.faults.crowding import FLOOD, another_tenant, claimed_in_between
from tests.support.database import (
    Database,
    copied_database,
    driver_of,
    migrated_template,
    own_server,
)
from tests.support.factories import a_submission, a_worker
from tests.support.queues import FakeQueue
from tests.support.stack import Stack, running_stack

LOOKS: Final = 2  # until a newcomer is announced
ROWS_OF_A_LOOK: Final = 40_000  # one for each level, twice; whatever stands in them
ANSWERS_WITHIN: Final = 0.1  # seconds: pause, resume and reset
OTHER_WITHIN: Final = 5.0  # seconds, behind a flood
RECOVERED_WITHIN: Final = 120.0  # seconds after a purge
SUBMITTED: Final = 20_000
SHARES: Final = 200  # messages beyond the window that the APIs may have sent

# As accepted long ago: by a superuser, with triggers off. What is announced was so an hour ago, and
# nobody has told of any silence since.
CROWD: Final = """
SET LOCAL session_replication_role = replica;
INSERT INTO tenants (id, name) SELECT 'crowd-' || n, 'crowd' FROM generate_series(1, {tenants}) n;
INSERT INTO jobs (id, tenant_id, type, lane, correlation_id, created_by, services)
SELECT gen_random_uuid(), tenant.id, tenant.type, 'general', tenant.kind, 'crowd', tenant.services
  FROM (SELECT 'flood' AS id, 'noop' AS type, 'announced' AS kind, '{{}}'::text[] AS services, 1,
               generate_series(1, {announced})
        UNION ALL
        SELECT 'flood', 'process_image', 'paused', '{{s3}}', 1, generate_series(1, {paused})
        UNION ALL
        SELECT 'flood', 'noop', 'waits', '{{}}', 1, generate_series(1, {waiting})
        UNION ALL
        SELECT 'crowd-' || n, 'noop', 'waits', '{{}}', n, generate_series(1, 10)
          FROM generate_series(1, {tenants}) AS n) AS tenant (id, type, kind, services);
INSERT INTO rings (job_id, lane, tenant_id, type, priority, next_at, sent_at, sends)
SELECT jobs.id, jobs.lane, jobs.tenant_id, jobs.type, jobs.priority, now(),
       CASE jobs.correlation_id WHEN 'announced' THEN now() - interval '1 hour' END,
       CASE jobs.correlation_id WHEN 'announced' THEN 8 ELSE 0 END
  FROM jobs;
"""
# What the table and its indexes gave to statements so far, by Postgres' own account.
ROWS_READ: Final = """
SELECT coalesce(sum(idx_tup_read), 0)::bigint
       + (SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = 'rings')
  FROM pg_stat_user_indexes WHERE relname = 'rings'
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crowd:
    """How many rows stand in the way."""

    announced: int
    paused: int
    waiting: int
    tenants: int


FULL: Final = Crowd(announced=1_000_000, paused=1_000_000, waiting=200_000, tenants=10_000)


@dataclass
class Scaled:
    """What the run has to say."""

    told: list[tuple[str, str]] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def figures(self) -> list[tuple[str, str]]:
        return self.told

    def wrong(self) -> list[str]:
        return self.faults

    def judge(self, name: str, value: float, most: float, unit: str = "") -> None:
        shown = f"{value:.3g}" if isinstance(value, float) else str(value)
        self.told.append((name, f"{shown}{unit} (at most {most:g})"))
        if value > most:
            self.faults.append(f"{name}: {shown}{unit}, and at most {most:g} is promised")

    def tell(self, name: str, value: str) -> None:
        self.told.append((name, value))


async def scale(crowd: Crowd = FULL) -> Scaled:
    scaled = Scaled()
    await in_a_crowd(scaled, crowd)
    async with running_stack() as stack:
        await behind_a_flood(stack, scaled)
    async with running_stack() as stack:
        await after_many_submits(stack, scaled)
    async with running_stack() as stack:
        await after_a_purge(stack, scaled)
    return scaled


async def in_a_crowd(scaled: Scaled, crowd: Crowd) -> None:
    with own_server() as server:
        async with (
            migrated_template(server) as template,
            copied_database(server, template) as database,
            database.connect("superuser") as superuser,
        ):
            begun = time.monotonic()
            await superuser.execute("SET statement_timeout = 0")
            async with superuser.transaction():
                await driver_of(superuser).execute(CROWD.format(**_numbers(crowd)), timeout=1200)
            await driver_of(superuser).execute("VACUUM ANALYZE", timeout=600)
            rings = await driver_of(superuser).fetchval("SELECT count(*) FROM rings", timeout=60)
            scaled.tell("rows in place", f"{rings:,} in {time.monotonic() - begun:.0f} s")
            await _look_on(scaled, database, superuser)


def _numbers(crowd: Crowd) -> dict[str, int]:
    return {name: getattr(crowd, name) for name in Crowd.__dataclass_fields__}


async def _look_on(scaled: Scaled, database: Database, superuser: Connection) -> None:
    queues = {lane: FakeQueue(lane.value) for lane in Lane}
    paused = Pause(scope=PauseScope.TYPE, name="process_image")
    async with (
        database.pool("maintenance", max_size=1) as pool,
        database.connect("operator") as operator,
        database.connect("worker") as worker,
        database.connect("api") as api,
    ):
        await a_worker(worker)
        dispatcher = Dispatcher(
            pool,
            {lane: queue.as_queue() for lane, queue in queues.items()},
            uuid4(),
            MaintenanceMetrics(()),
            batch=1000,
            idle_interval=timedelta(0),
        )
        for name, act in (
            ("pause", pause(operator, paused, by="scale", reason="why")),
            ("resume", resume(operator, paused)),
            ("pause again", pause(operator, paused, by="scale", reason="why")),
            ("force a breaker open", force_open(operator, "s3", by="scale")),
            ("reset a breaker", reset_breaker(operator, "s3", by="scale")),
        ):
            scaled.judge(name, await _seconds(act), ANSWERS_WITHIN, " s")
        looks: list[float] = []
        most_rows = 0
        for number in range(5):
            await _make_room(superuser)
            newcomer = await _newcomer(api, number)
            look = 0
            while look <= LOOKS and newcomer not in _rung(queues[Lane.GENERAL]):
                look += 1
                before = await _rows_read(superuser, pool)
                looks.append(await _seconds(dispatcher.run_once()))
                most_rows = max(most_rows, await _rows_read(superuser, pool) - before)
            scaled.judge(f"looks until newcomer {number + 1}", look, LOOKS)
        scaled.judge("ring rows read by a look", most_rows, ROWS_OF_A_LOOK)
        scaled.tell("a look took", f"{min(looks) * 1000:.0f} to {max(looks) * 1000:.0f} ms")
        held = {job for queue in queues.values() for job in _rung(queue)}
        of_paused = await superuser.fetchval(
            "SELECT count(*) FROM jobs WHERE id = ANY ($1) AND correlation_id = 'paused'", [*held]
        )
        scaled.judge("paused jobs that were announced", of_paused, 0)


async def _make_room(superuser: Connection) -> None:
    """As if somebody had claimed what was announced a moment ago."""
    await driver_of(superuser).execute(
        "DELETE FROM rings WHERE sent_at > now() - interval '10 minutes'", timeout=60
    )


async def _newcomer(api: Connection, number: int) -> JobId:
    job = a_submission(tenant_id=TenantId(f"newcomer-{number}"), lane=Lane.GENERAL, priority=900)
    await submit_job(api, job)
    await api.execute("UPDATE rings SET next_at = now() WHERE job_id = $1", job.job_id)
    return job.job_id


def _rung(queue: FakeQueue) -> set[JobId]:
    return {parse_message(message.body).job_id for message in queue.sent}


async def _rows_read(superuser: Connection, pool: Pool) -> int:
    """Once every session has told what it read."""
    async with pool.connection() as connection:  # the only one that it has
        await connection.execute("SELECT pg_stat_force_next_flush()")
    await superuser.execute("SELECT pg_stat_force_next_flush()")
    await superuser.execute("SELECT pg_stat_clear_snapshot()")
    rows: int = await superuser.fetchval(ROWS_READ)
    return rows


async def _seconds(act: Awaitable[object]) -> float:
    begun = time.monotonic()
    await act
    return time.monotonic() - begun


async def behind_a_flood(stack: Stack, scaled: Scaled) -> None:
    """800 jobs of 1.5 s of one tenant on one default worker, and a job of 1 ms of another."""
    spans: list[float] = []
    between = 0
    async with stack.producer() as producer, another_tenant(stack) as other:
        await producer.submit_many(FLOOD, {"milliseconds": 1500})
        for _ in range(8):
            answer = await other.submit("noop", {"milliseconds": 1})
            job_id = answer.json()["jobId"]
            await other.ended(job_id, within=60)
            async with stack.database() as owner:
                spans.append(
                    await owner.fetchval(
                        "SELECT extract(epoch FROM finished_at - created_at)::float8"
                        "  FROM jobs WHERE id = $1",
                        UUID(job_id),
                    )
                )
                between = max(between, await claimed_in_between(owner, job_id))
        async with stack.database() as owner:
            left = await owner.fetchval("SELECT count(*) FROM rings")
    scaled.judge("another's job behind 800 of 1.5 s", max(spans), OTHER_WITHIN, " s")
    scaled.tell("jobs of the flood claimed before it", f"{between} at most")
    if left < FLOOD / 4:
        scaled.faults.append(f"the flood was over too soon: {left} left")


async def after_many_submits(stack: Stack, scaled: Scaled) -> None:
    """SQS holds the window and the APIs' shares of it, however much waits."""
    most, windows = 0, 0
    async with stack.producer() as producer, stack.database() as owner:
        for _ in range(SUBMITTED // 1000):
            await producer.submit_many(1000, {"milliseconds": 300})
            most = max(most, await asyncio.to_thread(messages_of, stack))
            windows = max(windows, await owner.fetchval("SELECT max(window_size) FROM lanes"))
        left = await owner.fetchval("SELECT count(*) FROM rings")
    scaled.judge(f"messages after {SUBMITTED:,} submits", most, windows + SHARES)
    scaled.tell("of them waited in Postgres", f"{left:,}")


async def after_a_purge(stack: Stack, scaled: Scaled) -> None:
    """Every message of a busy lane is gone; it goes on hearing of new jobs."""
    async with stack.producer() as producer, stack.database() as owner:
        await producer.submit_many(200, {"milliseconds": 400})
        lost: list[UUID] = []
        while not lost:
            await asyncio.to_thread(purge, stack)
            rows = await owner.fetch("SELECT job_id FROM rings WHERE sent_at IS NOT NULL")
            lost = [row["job_id"] for row in rows]
        begun = time.monotonic()
        while await owner.fetchval(UNHEARD, lost):
            if time.monotonic() - begun > 2 * RECOVERED_WITHIN:
                break
            await producer.submit_many(2, {"milliseconds": 10})
            await asyncio.sleep(0.5)
    scaled.tell("jobs announced when all was purged", str(len(lost)))
    scaled.judge("all of them heard after", time.monotonic() - begun, RECOVERED_WITHIN, " s")


UNHEARD: Final = """
SELECT count(*) FROM jobs WHERE id = ANY ($1) AND finished_at IS NULL
"""


def messages_of(stack: Stack) -> int:
    """All that SQS holds for the lanes, whether somebody has received it or not."""
    sqs, urls = stack.place.client("sqs"), stack.place.queue_urls
    asked = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    return sum(
        int(count)
        for lane in Lane
        for count in sqs.get_queue_attributes(QueueUrl=urls[lane], AttributeNames=asked)[
            "Attributes"
        ].values()
    )


def purge(stack: Stack) -> None:
    sqs = stack.place.client("sqs")
    for lane in Lane:
        sqs.purge_queue(QueueUrl=stack.place.queue_urls[lane])
