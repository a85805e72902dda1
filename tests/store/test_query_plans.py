"""No statement reads through the backlog or the history, and none does so once its plan is generic.

What counts is rows and pages touched in a real execution, never time: with a quarter of a million
jobs at hand, whatever reads through them is orders of magnitude beyond these bounds.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import islice
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from imagefleet.jobs.lifecycle import Completed
from imagefleet.jobs.model import JobId, JobState, Lane, TenantId, WorkerId
from imagefleet.jobs.retry import RetryPolicy
from imagefleet.store.claims import claim_jobs
from imagefleet.store.control import Pause, PauseScope, pause, resume, ring_now
from imagefleet.store.database import Connection
from imagefleet.store.leases import Hold, renew_claims, report_progress
from imagefleet.store.reports import (
    JobFilter,
    explain_job,
    get_job,
    get_operator_job,
    list_attempts,
    list_jobs,
)
from imagefleet.store.rings import confirm_rings, take_due_rings
from imagefleet.store.settlements import Settlement, settle_jobs
from imagefleet.store.submissions import submit_jobs
from imagefleet.store.upkeep import (
    look_at_workers,
    prune_jobs,
    rescue_worker,
    sample_depths,
)
from tests.support.database import Database, Server, copied_database
from tests.support.factories import ALL_LANES, TENANT, TYPES, a_submission
from tests.support.roles import Role, login

HISTORY: Final = 200_000
QUEUED: Final = 50_000
PROCESSING: Final = 300
WORKERS: Final = 30

# The number n makes an id that sorts by n, as the ids of real jobs sort by age.
ID = """
CREATE FUNCTION id_of(n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex(1700000000000 + n), 12, '0') || '7' || substr(md5(n::text), 1, 3)
            || '8' || substr(md5(n::text), 4, 15))::uuid
$$
"""
# Two thirds of all jobs are about one of 5,000 images; `image:hot` has 20,000 finished ones and
# `image:deep` 3,000 that wait. One tenant has most of everything.
LOAD = f"""
SET LOCAL session_replication_role = replica;
INSERT INTO workers (id, host, pid, version, lanes, types, slots)
SELECT id_of(n), 'h', 1, '0', '{{fast,general,quarantine}}',
       '{{noop,process_image,delete_image,cancel_job}}', 8
  FROM generate_series(1, {WORKERS}) AS n;

INSERT INTO jobs (id, tenant_id, type, state, lane, target, target_seq, claim_no, attempts,
                  correlation_id, parent_job_id, created_by, finished_at, result_reason,
                  failure_code, failure_message, created_at, payload)
SELECT id_of(n), CASE n % 10 WHEN 0 THEN 'tenant-' || n % 50 ELSE 'acme' END,
       CASE WHEN n % 40000 = 7 THEN 'rare' WHEN n % 3 = 0 THEN 'noop' ELSE 'process_image' END,
       CASE n % 20 WHEN 1 THEN 'failed' ELSE 'completed' END, 'general',
       CASE WHEN n % 10 = 3 THEN 'image:hot' WHEN n % 3 > 0 THEN 'image:' || n % 5000 END,
       CASE WHEN n % 10 = 3 OR n % 3 > 0 THEN n END, 1, 1,
       'request-' || n / 4, CASE WHEN n % 100 = 5 THEN id_of(n - n % 1000) END, 'load',
       now() - interval '28 days' * (1 - n::float / {HISTORY})
             - CASE WHEN n <= 500 THEN interval '5 days' ELSE interval '0' END,
       CASE n % 20 WHEN 1 THEN NULL ELSE 'done' END,
       CASE n % 20 WHEN 1 THEN 'corrupt' END, CASE n % 20 WHEN 1 THEN 'It is damaged.' END,
       now() - interval '28 days', '{{}}'
  FROM generate_series(1, {HISTORY}) AS n;

INSERT INTO jobs (id, tenant_id, type, lane, priority, run_at, target, target_seq, correlation_id,
                  created_by, services)
SELECT id_of(n), CASE n % 10 WHEN 0 THEN 'tenant-' || n % 50 ELSE 'acme' END,
       CASE n % 3 WHEN 0 THEN 'noop' ELSE 'process_image' END,
       (ARRAY['fast', 'general', 'quarantine'])[1 + n % 3], (ARRAY[10, 50, 100, 100, 200])[1 + n % 5],
       CASE WHEN n % 7 = 0 THEN now() + interval '1 day' ELSE now() END,
       CASE WHEN n % 17 = 3 THEN 'image:deep' WHEN n % 3 > 0 THEN 'image:' || n % 5000 END,
       CASE WHEN n % 17 = 3 OR n % 3 > 0 THEN n END, 'request-' || n / 4, 'load',
       CASE n % 3 WHEN 0 THEN '{{}}'::text[] ELSE '{{s3}}' END
  FROM generate_series({HISTORY} + 1, {HISTORY} + {QUEUED}) AS n;

INSERT INTO jobs (id, tenant_id, type, state, lane, target, target_seq, claim_no, attempts,
                  locked_by, locked_at, claimed_at, correlation_id, created_by)
SELECT id_of(n), 'acme', 'process_image', 'processing', 'general', 'image:run-' || n, 1, 1, 1,
       id_of(1 + n % {WORKERS}), now() - interval '4 minutes', now() - interval '4 minutes',
       'request-' || n / 4, 'load'
  FROM generate_series({HISTORY} + {QUEUED} + 1, {HISTORY} + {QUEUED} + {PROCESSING}) AS n;

-- The general lane is all due, the quarantine is not at all, of the fast lane a hundred are.
INSERT INTO rings (job_id, lane, priority, due_at, rings)
SELECT jobs.id, jobs.lane, jobs.priority,
       CASE WHEN jobs.lane = 'general' OR jobs.lane = 'fast' AND hashtext(jobs.id::text) % 170 = 0
            THEN now() - interval '1 minute' ELSE now() + interval '2 hours' END,
       CASE WHEN jobs.lane = 'general' THEN (jobs.target_seq % 50 > 0)::int ELSE 1 END
  FROM jobs WHERE jobs.state = 'queued';

INSERT INTO targets (tenant_id, target, next_seq, running_job)
SELECT jobs.tenant_id, jobs.target, max(jobs.target_seq) + 1,
       (array_agg(jobs.id) FILTER (WHERE jobs.state = 'processing'))[1]
  FROM jobs WHERE jobs.target IS NOT NULL GROUP BY jobs.tenant_id, jobs.target;

INSERT INTO attempts (job_id, claim_no, tenant_id, type, lane, worker_id, claimed_at, duration,
                      queue_time, charged, outcome, why)
SELECT jobs.id, 1, jobs.tenant_id, jobs.type, jobs.lane, jobs.parent_job_id, jobs.created_at,
       '1 s', '1 s', true, 'completed', 'done'
  FROM jobs WHERE jobs.parent_job_id IS NOT NULL;

INSERT INTO dead_letters (job_id, tenant_id, type, reason, fingerprint, message, snapshot, died_at,
                          acknowledged_at, acknowledged_by)
SELECT jobs.id, jobs.tenant_id, jobs.type, 'corrupt', md5(jobs.type), 'It is damaged.', '{{}}',
       jobs.finished_at, CASE WHEN jobs.target_seq % 40 = 1 THEN now() END,
       CASE WHEN jobs.target_seq % 40 = 1 THEN 'load' END
  FROM jobs WHERE jobs.state = 'failed';
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def loaded(postgres: Server, template: str) -> AsyncIterator[Database]:
    """A fleet with a long past and a large backlog; what a test changes in it, it undoes."""
    async with copied_database(postgres, template) as database:
        async with database.connect("superuser") as superuser:
            await superuser.execute("SET statement_timeout = 0")
            await superuser.execute(ID)
            async with superuser.transaction():
                await superuser.execute(LOAD, timeout=60)
            await superuser.execute("VACUUM ANALYZE", timeout=60)
        yield database


def id_of(n: int) -> JobId:
    """The same as the function of that name in the database."""
    digest = hashlib.md5(str(n).encode(), usedforsecurity=False).hexdigest()
    return JobId(UUID(f"{1700000000000 + n:012x}7{digest[:3]}8{digest[3:18]}"))


def queued(wanted: Callable[[int], bool], *, first: int = HISTORY + 1) -> Iterator[JobId]:
    """Ids of waiting jobs that are due, oldest first."""
    numbers = range(first, HISTORY + QUEUED + 1)
    return (id_of(n) for n in numbers if n % 7 and n % 10 and wanted(n))


WITHOUT_TARGET = list(islice(queued(lambda n: n % 3 == 0 and n % 17 != 3), 10))
WITH_TARGETS = list(islice(queued(lambda n: n % 3 > 0 and n % 17 != 3), 10))
OF_THE_DEEP_TARGET = list(islice(queued(lambda n: n % 17 == 3), 10))
LATE_OF_THE_DEEP_TARGET = next(queued(lambda n: n % 17 == 3, first=HISTORY + QUEUED - 200))
A_WORKER = WorkerId(id_of(1))
HELD = [id_of(n) for n in range(HISTORY + QUEUED + 1, HISTORY + QUEUED + PROCESSING + 1)]
HELD_BY_A_WORKER = HELD[WORKERS - 1 - (HISTORY + QUEUED) % WORKERS :: WORKERS]
HOLDS = [
    Hold(job_id=job_id, claim_no=1, renewable_for=timedelta(hours=1))
    for job_id in HELD_BY_A_WORKER
]

SCANS = frozenset(
    {
        "Seq Scan",
        "Index Scan",
        "Index Only Scan",
        "Bitmap Heap Scan",
        "Bitmap Index Scan",
        "Tid Scan",
        "Sample Scan",
    }
)
REMOVED = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
Node: TypeAlias = dict[str, Any]


@dataclass
class Work:
    """What the statements of one call touched, as Postgres itself counted it."""

    plans: list[Node] = field(default_factory=list)

    def listen(self, _connection: object, message: asyncpg.PostgresLogMessage) -> None:
        _, _, plan = str(message.message).partition(" plan:")  # type: ignore[attr-defined]
        if plan and "pg_type" not in plan:  # the driver learns about types, once a connection
            self.plans.append(json.loads(plan))

    @property
    def rows(self) -> int:
        return round(sum(rows_touched(plan["Plan"]) for plan in self.plans))

    @property
    def pages(self) -> int:
        """Of indexes too: rows that an index was read through for are counted nowhere else."""
        roots = [plan["Plan"] for plan in self.plans]
        return sum(root["Shared Hit Blocks"] + root["Shared Read Blocks"] for root in roots)


def rows_touched(node: Node) -> float:
    below = sum(rows_touched(child) for child in node.get("Plans", []))
    if node["Node Type"] not in SCANS:
        return below
    found = node["Actual Rows"] + sum(node.get(removed, 0) for removed in REMOVED)
    return float(below + found * node["Actual Loops"])


PlanMode: TypeAlias = Literal["force_custom_plan", "force_generic_plan"]
AUTO_EXPLAIN = """
LOAD 'auto_explain';
SET auto_explain.log_min_duration = 0;
SET auto_explain.log_analyze = on;
SET auto_explain.log_buffers = on;
SET auto_explain.log_timing = off;
SET auto_explain.log_format = json;
SET client_min_messages = log;
"""


@asynccontextmanager
async def watched(
    database: Database, role: Role, mode: PlanMode
) -> AsyncIterator[tuple[asyncpg.Connection, Work]]:
    """A connection of this role that tells of every statement what it cost; all is undone."""
    async with database.connect("superuser") as connection:
        await connection.execute(AUTO_EXPLAIN)
        await connection.execute(f"SET plan_cache_mode = {mode}")
        await connection.execute(f"SET ROLE {login(role)}")
        work = Work()
        undo = connection.transaction()
        await undo.start()
        connection.add_log_listener(work.listen)
        try:
            yield connection, work
            await connection.execute("RESET ROLE")  # ends the last statement, which tells its plan
            await asyncio.sleep(0)  # listeners are called by the loop, in their turn
        finally:
            connection.remove_log_listener(work.listen)
            await undo.rollback()


async def claim(connection: Connection, job_ids: Sequence[JobId]) -> None:
    await claim_jobs(connection, job_ids, worker_id=A_WORKER, lanes=ALL_LANES, types=TYPES)


async def settle(connection: Connection, job_ids: Sequence[JobId]) -> None:
    await settle_jobs(
        connection,
        A_WORKER,
        [
            Settlement(job_id=job_id, claim_no=1, outcome=Completed(), policy=RetryPolicy())
            for job_id in job_ids
        ],
    )


async def claim_and_settle_of_a_deep_target(connection: Connection) -> None:
    await claim(connection, OF_THE_DEEP_TARGET)
    await settle(connection, OF_THE_DEEP_TARGET)


async def rescue(connection: Connection) -> None:
    seen = await look_at_workers(connection)
    rescued = await rescue_worker(connection, seen[0])
    assert rescued is not None
    assert PROCESSING // WORKERS == len(rescued.retried)


async def submit(connection: Connection) -> None:
    await submit_jobs(
        connection,
        [
            a_submission(
                target="image:deep",
                idempotency_key=f"key-{n}",
                dedup_key=f"key-{n}",
                replay_of=id_of(n * 20 + 1),
            )
            for n in range(10)
        ],
    )


def lists(filters: JobFilter, before: int | None = None) -> Callable[[Connection], Awaitable[object]]:
    async def list_them(connection: Connection) -> None:
        page = None if before is None else id_of(before)
        await list_jobs(connection, TENANT, filters, before=page, limit=50)

    return list_them


@dataclass(frozen=True)
class Case:
    run: Callable[[Connection], Awaitable[object]]
    by: Role
    rows: int
    pages: int


CASES = {
    "claim of 10 without targets": Case(lambda c: claim(c, WITHOUT_TARGET), "worker", 100, 1000),
    "claim of 10 targets": Case(lambda c: claim(c, WITH_TARGETS), "worker", 100, 1000),
    "claim of 10 of one deep target": Case(lambda c: claim(c, OF_THE_DEEP_TARGET), "worker", 100, 1000),
    "claim late in a deep target": Case(lambda c: claim(c, [LATE_OF_THE_DEEP_TARGET]), "worker", 100, 1000),
    "settle": Case(lambda c: settle(c, HELD_BY_A_WORKER), "worker", 100, 1000),
    "settle of a deep target": Case(claim_and_settle_of_a_deep_target, "worker", 100, 1000),
    "beat": Case(lambda c: renew_claims(c, A_WORKER, HOLDS), "worker", 100, 1000),
    "progress": Case(lambda c: report_progress(c, HOLDS[0], done=1, total=2, cursor=None), "worker", 100, 1000),
    "rescue": Case(rescue, "maintenance", 100, 1000),
    "submit": Case(submit, "api", 100, 1000),
    "dispatch, all due": Case(lambda c: take_due_rings(c, Lane.GENERAL, limit=100, repeats=True), "maintenance", 400, 1000),
    "dispatch, all due, no repeats": Case(lambda c: take_due_rings(c, Lane.GENERAL, limit=100, repeats=False), "maintenance", 400, 1000),
    "dispatch, few due": Case(lambda c: take_due_rings(c, Lane.FAST, limit=100, repeats=True), "maintenance", 400, 1000),
    "dispatch, none due": Case(lambda c: take_due_rings(c, Lane.QUARANTINE, limit=100, repeats=True), "maintenance", 400, 1000),
    "explain late in a deep target": Case(lambda c: explain_job(c, LATE_OF_THE_DEEP_TARGET), "operator", 100, 1000),
    "explain": Case(lambda c: explain_job(c, WITH_TARGETS[0]), "operator", 100, 1000),
    "get": Case(lambda c: get_job(c, WITH_TARGETS[0], TENANT), "api", 100, 1000),
    "operator get": Case(lambda c: get_operator_job(c, WITH_TARGETS[0]), "operator", 100, 1000),
    "attempts": Case(lambda c: list_attempts(c, WITH_TARGETS[0]), "operator", 100, 1000),
    "ring now": Case(lambda c: ring_now(c, WITH_TARGETS[0]), "operator", 100, 1000),
    "resume target": Case(lambda c: resume_one(c, "image:7"), "operator", 100, 1000),
    "prune": Case(lambda c: prune_jobs(c, limit=100), "maintenance", 100, 1000),
    "sample": Case(sample_depths, "maintenance", 100, 1000),
    "list all": Case(lists(JobFilter()), "api", 60, 200),
    "list all deep": Case(lists(JobFilter(), 100_000), "api", 60, 200),
    "list state": Case(lists(JobFilter(state=JobState.FAILED)), "api", 60, 200),
    "list state deep": Case(lists(JobFilter(state=JobState.FAILED), 50_000), "api", 60, 200),
    "list state rare": Case(lists(JobFilter(state=JobState.FAILED_RETRYABLE)), "api", 60, 200),
    "list type": Case(lists(JobFilter(type="noop")), "api", 60, 200),
    "list type deep": Case(lists(JobFilter(type="noop"), 50_000), "api", 60, 200),
    "list type rare": Case(lists(JobFilter(type="rare")), "api", 60, 200),
    "list type and state": Case(lists(JobFilter(type="noop", state=JobState.FAILED), 50_000), "api", 60, 200),
    "list corr": Case(lists(JobFilter(correlation_id="request-77")), "api", 60, 200),
    "list target hot": Case(lists(JobFilter(target="image:hot")), "api", 60, 200),
    "list target hot deep": Case(lists(JobFilter(target="image:hot"), 50_000), "api", 60, 200),
    "list target unknown": Case(lists(JobFilter(target="image:nope")), "api", 60, 200),
    "list children": Case(lists(JobFilter(parent_job_id=id_of(5000))), "api", 60, 200),
}

async def resume_one(connection, name):
    await pause(connection, Pause(scope=PauseScope.TARGET, name=name, tenant_id=TENANT), by="x", reason="x")
    await resume(connection, Pause(scope=PauseScope.TARGET, name=name, tenant_id=TENANT))

@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", CASES)
async def test_x(name: str, mode: PlanMode, loaded: Database) -> None:
    case = CASES[name]

    async with watched(loaded, case.by, mode) as (connection, work):
        await case.run(connection)

    print(f"{name:35} {mode:20} stm {len(work.plans)} rows {work.rows} pages {work.pages}")
    if work.rows > 400:
        print(json.dumps([p for p in work.plans if rows_touched(p["Plan"]) > 400])[:0])
