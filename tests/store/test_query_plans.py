"""No statement reads through the backlog or the history, and none does so once its plan is generic.

What counts is rows and pages touched in a real execution, never time: with a quarter of a million
jobs at hand, whatever reads through them is orders of magnitude beyond these bounds.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from imagefleet.jobs.bulk import CancelWalk as Cancelling
from imagefleet.jobs.bulk import SetWalk
from imagefleet.jobs.images import Bucket, OutputKey
from imagefleet.jobs.kinds import CancelJobs, ReprocessImages, image_target
from imagefleet.jobs.lifecycle import Completed, Outcome, Released
from imagefleet.jobs.model import Claim, JobId, JobState, Lane, PauseScope, Ring, TenantId, WorkerId
from imagefleet.jobs.policies import RetryPolicy
from imagefleet.maintenance.pruner import Prune
from imagefleet.store.database import Connection
from imagefleet.store.edge.batches import (
    Accepted,
    accept_batch,
    begin_send,
    complete_batch,
    list_accepted,
    list_unsent,
)
from imagefleet.store.edge.invalidations import BatchLimits, commit_batch, look_at_owed
from imagefleet.store.edge.reports import (
    find_flusher,
    list_batches,
    prune_batches,
    read_month,
    sample_invalidations,
)
from imagefleet.store.fleet.audit import MOST_LOOKED_AT, AuditFilter, list_audit
from imagefleet.store.fleet.breakers import force_open, reset_breaker
from imagefleet.store.fleet.keys import digest_of, seek_keys
from imagefleet.store.fleet.ledger import (
    fold_entries,
    fold_ledger,
    read_ledger,
    sample_depths,
    sample_oldest,
)
from imagefleet.store.fleet.live_settings import read_live
from imagefleet.store.fleet.pauses import Pause, list_pauses, pause, resume
from imagefleet.store.fleet.proofs import COUNT_PAGE, FIND_HOUR, READ_HOUR
from imagefleet.store.fleet.statistics import (
    list_failures,
    list_stuck,
    load_of_lanes,
    read_queue_health,
    read_throughput,
    room_for_job,
    sample_behind,
)
from imagefleet.store.fleet.tenants import get_tenant, list_tenants, rank_tenants, set_limits
from imagefleet.store.fleet.workers import list_workers
from imagefleet.store.images.emptying import darken_without_edge, flag_void, list_to_empty_again
from imagefleet.store.images.images import list_images
from imagefleet.store.images.pruning import prune_images, prune_revisions, prune_uploads
from imagefleet.store.images.reads import find_current, find_original
from imagefleet.store.images.reprocessing import submit_page
from imagefleet.store.images.superseded import (
    Superseded,
    count_superseded,
    list_superseded,
    record_swept,
)
from imagefleet.store.images.sweeping import (
    forget_uploads,
    judge_originals,
    judge_outputs,
    list_named,
    list_sweep_runs,
    read_walk,
)
from imagefleet.store.images.tombstones import LIST_VOID, MOST_CANCELLED
from imagefleet.store.images.uploads import create_upload
from imagefleet.store.jobs.admissions import list_parents, list_standing
from imagefleet.store.jobs.cancelling import PAGE as CANCELLED
from imagefleet.store.jobs.cancelling import count_chosen, count_walk, flag_page
from imagefleet.store.jobs.claims import claim_jobs
from imagefleet.store.jobs.dispatching import (
    FIRST_PLACE,
    count_announced,
    find_levels,
    hold_lanes,
    look_at_fleet,
    look_at_holds,
    look_at_types,
    publish_room,
    take_rings,
)
from imagefleet.store.jobs.explanations import explain_job
from imagefleet.store.jobs.inspection import get_operator_job, list_attempts, oversee_jobs
from imagefleet.store.jobs.leases import Renewal, renew_claims, report_progress
from imagefleet.store.jobs.pruning import (
    LOCK_IDLE_TARGETS,
    PRUNE_TARGETS,
    count_prunable,
    prune_jobs,
    prune_strays,
)
from imagefleet.store.jobs.reports import JobFilter, find_types, get_job, list_jobs
from imagefleet.store.jobs.rescue import (
    look_at_workers,
    rescue_worker,
)
from imagefleet.store.jobs.rings import (
    adopt_rings,
    confirm_rings,
    expect_messages,
    find_expired,
    forget_lost,
    read_rooms,
    ring_heads,
    ring_now,
)
from imagefleet.store.jobs.submissions import submit_jobs
from imagefleet.store.letters.letters import (
    LetterFilter,
    get_dead_letter,
    group_dead_letters,
    list_dead_letters,
)
from imagefleet.store.settling import Settled, Settlement, settle_jobs
from tests.support.database import Database, Server, copied_database, driver_of
from tests.support.factories import (
    ALL_LANES,
    CORRUPT,
    TENANT,
    TYPES,
    UNAVAILABLE,
    a_submission,
)
from tests.support.roles import Role, login

HISTORY: Final = 200_000
QUEUED: Final = 50_000
PROCESSING: Final = 300
LETTERS: Final = HISTORY // 20
IMAGES: Final = 50_000
HOT: Final = 11
DEEP: Final = 12
HOT_OPEN: Final = sum(
    n % 3 > 0 and n % 5000 == 4909 for n in range(HISTORY + 1, HISTORY + QUEUED + 1)
)
SHOWN: Final = 5_000
MANY: Final = 60_000
CROWD: Final = 2_000
TOLD: Final = 10_000
OLDEST: Final = TOLD - 500  # those beyond are past retention
GONE: Final = 900_000  # ids beyond this are of deleted images
PAGE: Final = 50
WORKERS: Final = 30
HOURS: Final = 700
LONG_AGO: Final = datetime(2020, 1, 1, tzinfo=UTC)

# The number n makes an id that sorts by n, as the ids of real jobs sort by age.
ID = """
CREATE FUNCTION id_of(n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex(1700000000000 + n), 12, '0') || '7' || substr(md5(n::text), 1, 3)
            || '8' || substr(md5(n::text), 4, 15))::uuid
$$
"""
# Two thirds of all jobs are about one of 5,000 images; the hot one has 20,000 finished ones and a
# few that wait, the deep one 2,600 that wait. One tenant has most of everything.
LOAD = f"""
SET LOCAL session_replication_role = replica;
INSERT INTO workers (id, host, pid, version, lanes, types, slots)
SELECT id_of(n), 'h', 1, '0', '{{fast,general,quarantine}}',
       '{{noop,process_image,delete_image,cancel_job}}', '{{3,5,1}}'
  FROM generate_series(1, {WORKERS}) AS n;

INSERT INTO tenants (id, name)
SELECT 'tenant-' || n * 10, 'load' FROM generate_series(0, 4) AS n UNION ALL SELECT 'acme', 'load';

INSERT INTO jobs (id, tenant_id, type, state, lane, target, target_seq, claim_no, attempts,
                  correlation_id, parent_job_id, created_by, finished_at, result_reason,
                  failure_code, failure_message, created_at, payload)
SELECT id_of(n), CASE n % 10 WHEN 0 THEN 'tenant-' || n % 50 ELSE 'acme' END,
       CASE WHEN n % 40000 = 7 THEN 'rare' WHEN n % 3 = 0 THEN 'noop' ELSE 'process_image' END,
       CASE n % 20 WHEN 1 THEN 'failed' ELSE 'completed' END, 'general',
       CASE WHEN n % 10 = 3 THEN 'image:' || id_of({HOT})
            WHEN n % 3 > 0 THEN 'image:' || n % 5000 END,
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
       (ARRAY['fast', 'general', 'quarantine'])[1 + n % 3],
       (ARRAY[10, 50, 100, 100, 200])[1 + n % 5],
       CASE WHEN n % 7 = 0 THEN now() + interval '1 day' ELSE now() END,
       CASE WHEN n % 3 > 0 AND n % 5000 = 4909 THEN 'image:' || id_of({HOT})
            WHEN n % 17 = 3 THEN 'image:' || id_of({DEEP})
            WHEN n % 3 > 0 THEN 'image:' || n % 5000 END,
       CASE WHEN n % 17 = 3 OR n % 3 > 0 THEN n END, 'request-' || n / 4, 'load',
       CASE n % 3 WHEN 0 THEN '{{}}'::text[] ELSE '{{s3}}' END
  FROM generate_series({HISTORY} + 1, {HISTORY} + {QUEUED}) AS n;

INSERT INTO jobs (id, tenant_id, type, state, lane, target, target_seq, claim_no, attempts,
                  locked_by, locked_at, claimed_at, correlation_id, created_by)
SELECT id_of(n), 'acme', 'process_image', 'processing', 'general', 'image:run-' || n, 1, 1, 1,
       id_of(1 + n % {WORKERS}), now() - interval '4 minutes', now() - interval '4 minutes',
       'request-' || n / 4, 'load'
  FROM generate_series({HISTORY} + {QUEUED} + 1, {HISTORY} + {QUEUED} + {PROCESSING}) AS n;

INSERT INTO images (id, tenant_id, reference, recipe)
SELECT id_of(n), CASE n % 10 WHEN 0 THEN 'tenant-' || n % 50 ELSE 'acme' END,
       CASE WHEN n % 20000 = 7 THEN 'rare' WHEN n <= 10000 THEN 'old' ELSE 'new-' || n / 4 END,
       'default'
  FROM generate_series(1, {IMAGES}) AS n;

INSERT INTO image_sources (image_id, source_seq, tenant_id, key, bytes, content_type)
SELECT images.id, 1, images.tenant_id, 'o/' || images.id, 1, 'image/jpeg' FROM images;

-- Of a tenant of their own, with eight variants each.
INSERT INTO images (id, tenant_id, recipe, source_seq, revision, claim_no, job_id, published_at)
SELECT id_of({IMAGES} + n), 'shown', 'default', 1, 1, 1, id_of(n), now()
  FROM generate_series(1, {SHOWN}) AS n;

INSERT INTO variants (image_id, revision, name, format, key, content_type, width, height, bytes,
                      sha256)
SELECT id_of({IMAGES} + n), 1, 'v' || v / 2, CASE v % 2 WHEN 0 THEN 'jpeg' ELSE 'webp' END,
       'i/' || n || '/' || v, 'image/webp', 1, 1, 1, ''
  FROM generate_series(1, {SHOWN}) AS n, generate_series(0, 7) AS v;

INSERT INTO targets (tenant_id, target, next_seq)
SELECT images.tenant_id, 'image:' || images.id, 9 FROM images WHERE images.tenant_id = 'shown';

-- Of what was shown before, nothing is swept yet; a few forms were never used.
INSERT INTO image_revisions (image_id, revision, tenant_id, source_seq, claim_no, job_id, recipe,
                             format, width, height, bytes, sha256, encoder, superseded_at,
                             invalidation_id)
SELECT id_of(n), 1, 'acme', 1, 1, id_of(n), 'default', 'jpeg', 1, 1, 1, '', 'load',
       now() - interval '1 minute' * n, gen_random_uuid()
  FROM generate_series(1, {IMAGES}) AS n;

INSERT INTO uploads (id, tenant_id, image_id, key, content_type, max_bytes, created_by, expires_at,
                     job_id, used_at)
SELECT id_of(n), 'acme', id_of(n), 'o/upload/' || n, 'image/jpeg', 1, 'load',
       now() - interval '2 days', CASE WHEN n % 100 > 0 THEN id_of(n) END,
       CASE WHEN n % 100 = 0 THEN NULL WHEN n <= {OLDEST} THEN now()
            ELSE now() - interval '40 days' - interval '1 second' * n END
  FROM generate_series(1, {TOLD}) AS n;

-- What the edge was told, five images at a time, and a little that it has still to hear.
INSERT INTO invalidation_batches (id, items, paths, accepted_at, cloudfront_id, completed_at)
SELECT id_of(n), '["/i/1/*","/i/2/*","/i/3/*","/i/4/*","/i/5/*"]', 5, now(), 'I' || n,
       CASE WHEN n > 100 THEN now() WHEN n > 3 THEN now() - interval '40 days' END
  FROM generate_series(1, {TOLD}) AS n;

INSERT INTO invalidations (image_id, tenant_id, reason, batch_id)
SELECT id_of(n), 'acme', 'replaced', CASE WHEN n > {PAGE} THEN id_of(1 + n % {TOLD}) END
  FROM generate_series(1, 5 * {TOLD}) AS n;

-- Deleted long ago and emptied again; of a few that is still to come, and a few are not dark yet.
INSERT INTO image_tombstones (image_id, tenant_id, job_id, requested_by, requested_at,
                              objects_deleted_at, dark_at, emptied_again_at)
SELECT id_of({GONE} + n), 'acme', id_of(n), 'load', now() - interval '9 days',
       now() - interval '8 days' + interval '1 second' * n,
       CASE WHEN n > {OLDEST} THEN now() - interval '40 days' WHEN n > 20 THEN now() END,
       CASE WHEN n > 2 * {PAGE} THEN now() END
  FROM generate_series(1, {TOLD}) AS n;

INSERT INTO targets (tenant_id, target)
SELECT 'acme', 'image:' || id_of({GONE} + n) FROM generate_series({OLDEST}, {TOLD}) AS n;

INSERT INTO image_revisions (image_id, revision, tenant_id, source_seq, claim_no, job_id, recipe,
                             format, width, height, bytes, sha256, encoder, superseded_at, swept_at)
SELECT id_of({GONE} + n), 1, 'acme', 1, 1, id_of({GONE} + n), 'default', 'jpeg', 1, 1, 1, '',
       'load', now() - interval '50 days',
       now() - interval '20 days' - interval '1 hour' * (n % 500) - interval '1 second' * n
  FROM generate_series(1, {TOLD}) AS n;

-- Messages of no job, most of which were acknowledged lately.
INSERT INTO dead_letters (reason, fingerprint, message, snapshot, acknowledged_at, acknowledged_by)
SELECT 'unreadable', 'x', 'x', jsonb_build_object('sha256', n::text),
       CASE WHEN n % 100 = 1 THEN now() - interval '40 days' ELSE now() END, 'load'
  FROM generate_series(1, {TOLD} / 2) AS n;

-- By ten people on twenty breakers, and once by somebody else.
INSERT INTO audit (at, actor, key_id, action, kind, name, tenant_id, after)
SELECT '2020-01-01'::timestamptz + interval '5 minutes' * n,
       CASE n WHEN 7 THEN 'rare' ELSE 'person ' || n % 10 END, id_of(n % 10), 'open',
       'circuit_breaker', 's' || n % 20, CASE n % 10 WHEN 0 THEN 'tenant-10' END,
       '{{"state": "open"}}'
  FROM generate_series(1, {HISTORY}) AS n;

-- The general lane is all due, the quarantine is not at all, of the fast lane a hundred are.
INSERT INTO rings (job_id, lane, tenant_id, type, priority, next_at)
SELECT jobs.id, jobs.lane, jobs.tenant_id, jobs.type, jobs.priority,
       CASE WHEN jobs.lane = 'general' OR jobs.lane = 'fast' AND hashtext(jobs.id::text) % 170 = 0
            THEN now() - interval '1 minute' ELSE now() + interval '2 hours' END
  FROM jobs WHERE jobs.state = 'queued';

-- Beside them in the general lane: what was announced and never heard of, what a pause holds back,
-- what is parked behind targets, one tenant's flood, and a crowd of tenants with ten each.
INSERT INTO rings (job_id, lane, tenant_id, type, priority, next_at, sent_at, sends)
SELECT id_of(10 * {MANY} + n), 'general', 'flood', 'noop', 100, now() - interval '1 hour',
       now() - interval '1 minute' - interval '1 ms' * n, 1 + n % 8
  FROM generate_series(1, {MANY}) AS n;
INSERT INTO rings (job_id, lane, tenant_id, type, priority, next_at)
SELECT id_of(12 * {MANY} + n), 'general', 'flood', 'held', 100, now() - interval '1 hour'
  FROM generate_series(1, {MANY}) AS n
UNION ALL
SELECT id_of(n), 'general', 'flood', 'parked', 100, 'infinity'
  FROM generate_series(1, {MANY}) AS n
UNION ALL
SELECT id_of(16 * {MANY} + n), 'general', 'flood', 'noop', 100, now() - interval '1 hour'
  FROM generate_series(1, {MANY}) AS n
UNION ALL
SELECT id_of(18 * {MANY} + n), 'general', 'tenant-' || 1000 + n / 10, 'noop', 100,
       now() - interval '1 minute'
  FROM generate_series(1, 10 * {CROWD}) AS n;

INSERT INTO targets (tenant_id, target, next_seq, running_job)
SELECT jobs.tenant_id, jobs.target, max(jobs.target_seq) + 1,
       (array_agg(jobs.id) FILTER (WHERE jobs.state = 'processing'))[1]
  FROM jobs WHERE jobs.target IS NOT NULL GROUP BY jobs.tenant_id, jobs.target;

-- A month of the ledger's book, and what was not folded yet.
INSERT INTO ledger_counts (hour, type, lane, queued, processing, failed_retryable, completed,
                           failed)
SELECT n, type, lane, 0, 0, 0, 1, 1
  FROM generate_series(1, {HOURS}) AS n, unnest('{{noop,process_image}}'::text[]) AS type,
       unnest('{{fast,general,quarantine}}'::text[]) AS lane;

INSERT INTO ledger_entries (hour, type, lane, queued, processing, failed_retryable, completed,
                            failed)
SELECT hour_of(jobs.id), jobs.type, jobs.lane, count(*) FILTER (WHERE jobs.state = 'queued'),
       count(*) FILTER (WHERE jobs.state = 'processing'), 0,
       count(*) FILTER (WHERE jobs.state = 'completed'),
       count(*) FILTER (WHERE jobs.state = 'failed')
  FROM jobs GROUP BY 1, 2, 3;

INSERT INTO ledger_entries (hour, type, lane, queued, processing)
SELECT n % 5, 'noop', 'fast', -1, 1 FROM generate_series(1, {TOLD}) AS n;

INSERT INTO ledger (accepted) SELECT 1 FROM generate_series(1, {TOLD}) AS n;

INSERT INTO attempts (job_id, claim_no, tenant_id, type, lane, worker_id, claimed_at, duration,
                      queue_time, charged, outcome, why)
SELECT jobs.id, 1, jobs.tenant_id, jobs.type, jobs.lane, jobs.parent_job_id, jobs.created_at,
       '1 s', '1 s', true, 'completed', 'done'
  FROM jobs WHERE jobs.parent_job_id IS NOT NULL;

INSERT INTO idempotency_aliases (tenant_id, idempotency_key, fingerprint, job_id)
SELECT 'acme', 'merged-' || n, '', id_of(n) FROM generate_series(1, {TOLD}) AS n;

INSERT INTO dead_letters (job_id, tenant_id, type, reason, fingerprint, message, snapshot, died_at,
                          acknowledged_at, acknowledged_by)
SELECT jobs.id, jobs.tenant_id, jobs.type, 'corrupt', md5(jobs.type), 'It is damaged.', '{{}}',
       jobs.finished_at, CASE WHEN jobs.target_seq % 40 = 1 THEN now() END,
       CASE WHEN jobs.target_seq % 40 = 1 THEN 'load' END
  FROM jobs WHERE jobs.state = 'failed';
"""  # noqa: S608 - numbers of this file


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def loaded(postgres: Server, template: str) -> AsyncIterator[Database]:
    """A fleet with a long past and a large backlog; what a test changes in it, it undoes."""
    async with copied_database(postgres, template) as database:
        async with database.connect("superuser") as superuser:
            await superuser.execute("SET statement_timeout = 0")
            await superuser.execute(ID)
            async with superuser.transaction():
                await driver_of(superuser).execute(LOAD, timeout=60)
            await driver_of(superuser).execute("VACUUM ANALYZE", timeout=60)
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
    Renewal(job_id=job_id, claim_no=1, renewable_for=timedelta(hours=1))
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

    plans: list[Node] = field(default_factory=list, repr=False)

    def listen(self, _connection: object, message: asyncpg.PostgresLogMessage) -> None:
        _, _, plan = str(message.message).partition(" plan:")
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

    @property
    def told(self) -> str:
        """The plans in short, for whoever has to find out."""
        return "\n\n".join("\n".join(lines_of(plan["Plan"])) for plan in self.plans)


def lines_of(node: Node, depth: int = 0) -> Iterator[str]:
    named = [str(node[what]) for what in ("Index Name", "Relation Name") if what in node]
    rows = f"{node['Actual Rows']:.0f} rows x {node['Actual Loops']}"
    removed = "".join(f", {what} {node[what]}" for what in REMOVED if what in node)
    yield f"{'  ' * depth}{' '.join([node['Node Type'], *named])}: {rows}{removed}"
    for child in node.get("Plans", []):
        yield from lines_of(child, depth + 1)


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
) -> AsyncIterator[tuple[Connection, Work]]:
    """A connection of this role that tells of every statement what it cost; all is undone."""
    async with database.connect("superuser") as connection:
        await connection.execute(AUTO_EXPLAIN)
        await connection.execute(f"SET plan_cache_mode = {mode}")
        await connection.execute(f"SET ROLE {login(role)}")
        work = Work()
        undo = driver_of(connection).transaction()
        await undo.start()
        driver_of(connection).add_log_listener(work.listen)
        try:
            yield connection, work
            await connection.execute("RESET ROLE")  # ends the last statement, which tells its plan
            await asyncio.sleep(0)  # listeners are called by the loop, in their turn
        finally:
            driver_of(connection).remove_log_listener(work.listen)
            await undo.rollback()


async def claim(connection: Connection, job_ids: Sequence[JobId]) -> None:
    await claim_jobs(connection, job_ids, worker_id=A_WORKER, lanes=ALL_LANES, types=TYPES)


async def settle(connection: Connection, job_ids: Sequence[JobId], outcome: Outcome) -> None:
    settlements = [
        Settlement(job_id=job_id, claim_no=1, outcome=outcome, policy=RetryPolicy())
        for job_id in job_ids
    ]
    report = await settle_jobs(connection, A_WORKER, settlements)
    assert {Settled.WRITTEN} == {receipt.settled for receipt in report.receipts}


async def run_the_first_of_the_deep_target(connection: Connection) -> None:
    first = OF_THE_DEEP_TARGET[:1]
    await claim(connection, first)
    await settle(connection, first, Completed())


async def confirm(connection: Connection) -> None:
    taken = "SELECT job_id, lane, tenant_id, next_at FROM rings WHERE job_id = ANY ($1)"
    rows = await connection.fetch(taken, WITHOUT_TARGET)
    await confirm_rings(connection, [Ring(announced_at=LONG_AGO, **dict(row)) for row in rows])


async def rescue(connection: Connection) -> None:
    seen = await look_at_workers(connection)
    rescued = await rescue_worker(connection, seen[0])
    assert rescued is not None
    assert PROCESSING // WORKERS == len(rescued.retried)


async def prune(connection: Connection) -> None:
    page = await prune_jobs(connection, limit=100)
    assert (page.seen, page.pruned) == (100, 97), "of five failures two are acknowledged"


async def prune_behind_what_is_kept(connection: Connection) -> None:
    """As if the five hundred that are past retention had all been seen, and kept."""
    kept = await connection.fetchrow("SELECT finished_at, id FROM jobs WHERE id = $1", id_of(500))
    assert kept is not None
    page = await prune_jobs(connection, limit=100, after=(kept["finished_at"], kept["id"]))
    assert (page.seen, page.pruned) == (0, 0)


async def prune_idle_targets(connection: Connection) -> None:
    tenants, names = ["shown"] * PAGE, [f"image:{id_of(IMAGES + n)}" for n in range(1, PAGE + 1)]
    assert PAGE == len(await connection.fetch(LOCK_IDLE_TARGETS, tenants, names))
    assert f"DELETE {PAGE}" == await connection.execute(PRUNE_TARGETS, tenants, names)


async def live_settings_unchanged(connection: Connection) -> None:
    version = await connection.fetchval("SELECT version FROM live_version")
    assert await read_live(connection, version) is None


def prunes(prune: Prune, pruned: int) -> Callable[[Connection], Awaitable[object]]:
    async def prune_it(connection: Connection) -> None:
        assert pruned == (await prune(connection, limit=PAGE)).pruned

    return prune_it


async def prove_a_page(connection: Connection) -> None:
    """As the proof does, in a snapshot of its own; of an hour of a quarter of a million rows."""
    first, last = id_of(1), id_of(GONE)
    hour = await connection.fetchval("SELECT hour_of($1)", first)
    assert hour == await connection.fetchval(FIND_HOUR, hour - 1, first)
    await connection.fetch(READ_HOUR, hour)
    rows = await connection.fetch(COUNT_PAGE, first, last, PAGE)
    assert PAGE == sum(row["jobs"] for row in rows)


async def admit(connection: Connection) -> None:
    asked = [
        a_submission(idempotency_key=f"key-{n}", dedup_key=f"key-{n}", type=NOOP)
        for n in range(100)
    ]
    assert set() == await list_standing(connection, TENANT, asked)
    known = [id_of(n * 20 + 1) for n in range(100)]
    await list_parents(connection, TENANT, known)


async def submit(connection: Connection) -> None:
    await submit_jobs(
        connection,
        [
            a_submission(
                target=image_target(id_of(DEEP)),
                idempotency_key=f"key-{n}",
                dedup_key=f"key-{n}",
                replay_of=id_of(n * 20 + 1),
            )
            for n in range(10)
        ],
    )


async def pause_and_resume_a_target(connection: Connection) -> None:
    what = Pause(scope=PauseScope.TARGET, name="image:7", tenant_id=TENANT)
    await pause(connection, what, by="tests", reason="why")
    await resume(connection, what)


async def a_page_of_levels(connection: Connection) -> None:
    """The first levels are of the tenant with a flood, of which most is not due at all."""
    levels = await find_levels(connection, Lane.GENERAL, FIRST_PLACE, limit=PAGE)
    assert len(levels) == PAGE
    assert {("flood", "held", True), ("flood", "parked", False), ("flood", "noop", True)} <= {
        (level.tenant_id, level.type, level.due) for level in levels
    }


async def all_levels(connection: Connection) -> None:
    place, found = FIRST_PLACE, 0
    while page := await find_levels(connection, Lane.GENERAL, place, limit=256):
        place, found = page[-1].place, found + len(page)
    assert found > CROWD


async def take_of_each(connection: Connection) -> None:
    levels = await find_levels(connection, Lane.GENERAL, FIRST_PLACE, limit=PAGE)
    turns = [(level, 4) for level in levels if level.due and level.tenant_id == TENANT]
    taken = await take_rings(connection, Lane.GENERAL, turns)
    assert len(taken) == 4 * len(turns) > 0


async def count_what_is_announced(connection: Connection) -> None:
    span = timedelta(days=1)
    assert 100 == await count_announced(connection, Lane.GENERAL, within=span, limit=100)


async def forget_what_was_lost(connection: Connection) -> None:
    now = datetime.now(UTC)
    lost = await forget_lost(connection, Lane.GENERAL, silent=now, heard=now, limit=PAGE)
    assert 3 * PAGE <= lost <= 8 * PAGE


async def forget_none_lost(connection: Connection) -> None:
    old = datetime.now(UTC) - timedelta(hours=2)
    assert 0 == await forget_lost(connection, Lane.GENERAL, silent=old, heard=old, limit=PAGE)


async def walk_the_parked(connection: Connection) -> None:
    page = await ring_heads(connection, id_of(1), limit=PAGE)
    assert (page.rung, page.looked_at) == (0, PAGE)


async def pause_and_resume_a_type(connection: Connection) -> None:
    what = Pause(scope=PauseScope.TYPE, name="held")
    await pause(connection, what, by="tests", reason="why")
    assert await resume(connection, what)


async def pause_and_resume_a_tenant(connection: Connection) -> None:
    """Of the one that has nearly everything, a hundred thousand rings among it."""
    what = Pause(scope=PauseScope.TENANT, tenant_id="flood")
    await pause(connection, what, by="tests", reason="why")
    assert await resume(connection, what)


def page_of_cancelling(
    wanted: CancelJobs, *, before: int, flagged: int
) -> Callable[[Connection], Awaitable[object]]:
    async def flag_it(connection: Connection) -> None:
        until = datetime.now(UTC) + timedelta(days=1)
        walk = Cancelling(until=until, parents=False, before=id_of(before))
        page = await flag_page(connection, a_claim("cancel_jobs"), HOLDS[0], wanted, walk)
        assert (page.walk.seen, page.walk.flagged) == (CANCELLED, flagged)

    return flag_it


async def limit_a_tenant(connection: Connection) -> None:
    wanted = {"open_jobs": 7, "uploads": 1, "bytes": None}
    await set_limits(connection, TENANT, wanted, by="tests", reason="why")


async def rank(connection: Connection) -> None:
    ranking = await rank_tenants(connection, limit=20)
    assert ("flood", 1000, 20_000) in {
        (one.tenant, one.waiting, one.announced) for one in ranking.tenants
    }


async def trip_and_reset_a_breaker(connection: Connection) -> None:
    await force_open(connection, "s3", by="tests")
    assert await reset_breaker(connection, "s3", by="tests")


def listing(
    filters: JobFilter, *, before: int | None = None, tenant: TenantId = TENANT
) -> Callable[[Connection], Awaitable[object]]:
    last = None if before is None else id_of(before)
    return lambda connection: list_jobs(connection, tenant, filters, before=last, limit=PAGE)


def overseeing(
    filters: JobFilter, *, before: int | None = None, tenant: TenantId | None = None
) -> Callable[[Connection], Awaitable[object]]:
    last = None if before is None else id_of(before)
    return lambda connection: oversee_jobs(
        connection, filters, tenant_id=tenant, before=last, limit=PAGE
    )


def auditing(chosen: AuditFilter) -> Callable[[Connection], Awaitable[object]]:
    return lambda connection: list_audit(connection, chosen, limit=PAGE)


def images(
    reference: str | None = None, *, before: int | None = None
) -> Callable[[Connection], Awaitable[object]]:
    last = None if before is None else id_of(before)
    return lambda connection: list_images(
        connection, TENANT, reference=reference, before=last, limit=PAGE
    )


def a_claim(job_type: str) -> Claim:
    now = datetime.now(UTC)
    return Claim(
        job_id=HOLDS[0].job_id, claim_no=1, tenant_id=TENANT, type=job_type,
        lane=Lane.GENERAL, payload={}, target=None, target_seq=None, priority=100, attempts=1,
        max_attempts=5, crashes=0, cursor=None, progress_done=0, correlation_id="load",
        parent_job_id=None, replay_of=None, traceparent=None, tracestate=None, created_at=now,
        claimed_at=now, queue_time=timedelta(0), cancel_code=None,
    )  # fmt: skip


def page_of_a_set(
    wanted: ReprocessImages, *, before: int
) -> Callable[[Connection], Awaitable[object]]:
    async def submit_it(connection: Connection) -> None:
        walk = SetWalk(before=id_of(before))
        page = await submit_page(connection, a_claim("reprocess_images"), HOLDS[0], wanted, walk)
        assert page.walk.seen == page.walk.submitted == len(page.rings) == 25

    return submit_it


async def stable_address(connection: Connection) -> None:
    address = (id_of(IMAGES + 7), "v2", "webp")
    assert await find_current(connection, [address], within=10) == {address: "i/7/5"}


async def look_for_keys(connection: Connection) -> None:
    assert await seek_keys(connection, [digest_of(f"if_{n}") for n in range(500)]) == {}


async def one_more_form(connection: Connection) -> None:
    upload_id = uuid4()
    await create_upload(
        connection, upload_id=upload_id, tenant_id=TENANT, image_id=upload_id, key=str(upload_id),
        content_type="image/jpeg", max_bytes=1, created_by="load", valid_for=timedelta(minutes=15),
    )  # fmt: skip


async def flush(connection: Connection) -> None:
    """A look of the flusher, and a batch from what is unsent to its end."""
    debts = [one.debt for one in await look_at_owed(connection, limit=3000)]
    batch = await commit_batch(connection, debts, lambda image_id: f"#{image_id}", within=ROOMY)
    assert batch is not None
    assert PAGE == len(batch.items)
    assert [batch.id] == [one.id for one in await list_unsent(connection, limit=10)]
    await begin_send(connection, batch.id)
    await accept_batch(connection, batch.id, "I")
    assert Accepted(batch.id, "I") in await list_accepted(connection, limit=10)
    await complete_batch(connection, Accepted(batch.id, "I"))


async def edge_status(connection: Connection) -> None:
    assert 10 == len(await list_batches(connection, unfinished=PAGE, complete=7))
    await read_month(connection)
    await find_flusher(connection)


async def prune_edge(connection: Connection) -> None:
    assert PAGE == (await prune_batches(connection, limit=PAGE)).pruned


SHOWN_IMAGES: Final = [id_of(IMAGES + n) for n in range(1, 1001)]


async def judge_a_page_of_outputs(connection: Connection) -> None:
    found = [
        (f"i/{image_id}/7.1/x", LONG_AGO, OutputKey(image_id=image_id, revision=7, claim_no=1))
        for image_id in SHOWN_IMAGES
    ]
    judged = await judge_outputs(connection, found, older_than=timedelta(hours=1))
    assert (1000, 0) == (len(judged.litter), len(judged.unknown))


async def judge_a_page_of_originals(connection: Connection) -> None:
    found = [(f"o/{image_id}", LONG_AGO) for image_id in SHOWN_IMAGES]
    found += [(f"o/stray-{image_id}", LONG_AGO) for image_id in SHOWN_IMAGES[:10]]
    stray = await judge_originals(connection, found[-1000:], older_than=timedelta(hours=1))
    assert 10 == len([key for key in stray if "stray" in key])


def what_must_be_there(
    bucket: Bucket, first: int, found: int
) -> Callable[[Connection], Awaitable[object]]:
    async def list_it(connection: Connection) -> None:
        named, last = await list_named(connection, bucket, id_of(first), None, images=PAGE)
        assert (found, id_of(first + PAGE - 1)) == (len(named), last)

    return list_it


def superseded(*, has_edge: bool, after: int) -> Callable[[Connection], Awaitable[object]]:
    async def list_it(connection: Connection) -> None:
        moment = await connection.fetchval(
            "SELECT superseded_at FROM image_revisions WHERE image_id = $1", id_of(after)
        )
        place = Superseded(
            image_id=id_of(after), revision=1, superseded_at=moment, ripe=False, keys=(), bytes=0
        )
        page = await list_superseded(
            connection, kept_for=timedelta(hours=1), has_edge=has_edge, after=place, limit=PAGE
        )
        assert PAGE == len(page)
        await record_swept(connection, page[:10])

    return list_it


async def forget_unused_uploads(connection: Connection) -> None:
    assert PAGE == await forget_uploads(connection, expired_for=timedelta(days=1), limit=PAGE)


async def sweep_report(connection: Connection) -> None:
    await read_walk(connection)
    assert 100 == await count_superseded(connection, most=100)
    await list_sweep_runs(connection, limit=10)


async def flag_what_is_void(connection: Connection) -> None:
    assert HOT_OPEN == len(await flag_void(connection, id_of(HOT), TENANT))


def list_void(n: int, void: int) -> Callable[[Connection], Awaitable[object]]:
    """As the request does, beside the tombstone."""

    async def list_it(connection: Connection) -> None:
        target = image_target(id_of(n))
        assert void == len(await connection.fetch(LIST_VOID, TENANT, target, MOST_CANCELLED))

    return list_it


async def darken(connection: Connection) -> None:
    assert 20 == len(await darken_without_edge(connection))


async def list_what_to_empty(connection: Connection) -> None:
    due = await list_to_empty_again(connection, after=timedelta(days=1), limit=PAGE)
    assert [id_of(GONE + n) for n in range(1, PAGE + 1)] == due


async def an_original(connection: Connection) -> None:
    assert (await find_original(connection, id_of(HOT), TENANT)).key == f"o/{id_of(HOT)}"


def letters(
    filters: LetterFilter, *, after: int | None = None
) -> Callable[[Connection], Awaitable[object]]:
    async def list_them(connection: Connection) -> None:
        last = None if after is None else await get_dead_letter(connection, id_of(20 * after + 1))
        await list_dead_letters(connection, filters, after=last, limit=PAGE)

    return list_them


@dataclass(frozen=True)
class Case:
    """A function of the store, and what its statements may touch in all."""

    run: Callable[[Connection], Awaitable[object]]
    by: Role
    rows: int
    pages: int


SMALL: Final = TenantId("tenant-10")
NOOP: Final = "noop"
ROOMY: Final = BatchLimits(paths=3000, wildcards=15)
# About one and a half times what was measured. Writing a row costs a page or three an index.
CASES: Final[Mapping[str, Case]] = MappingProxyType(
    {
        "claim of ten": Case(lambda c: claim(c, WITHOUT_TARGET), "worker", 150, 800),
        "claim of ten targets": Case(lambda c: claim(c, WITH_TARGETS), "worker", 150, 900),
        "claim of ten of one deep target": Case(
            lambda c: claim(c, OF_THE_DEEP_TARGET), "worker", 150, 600
        ),
        "claim late in a deep target": Case(
            lambda c: claim(c, [LATE_OF_THE_DEEP_TARGET]), "worker", 20, 100
        ),
        "complete ten": Case(
            lambda c: settle(c, HELD_BY_A_WORKER, Completed()), "worker", 150, 1100
        ),
        "retry ten": Case(lambda c: settle(c, HELD_BY_A_WORKER, UNAVAILABLE), "worker", 150, 1100),
        "fail ten": Case(lambda c: settle(c, HELD_BY_A_WORKER, CORRUPT), "worker", 150, 1100),
        "release ten": Case(
            lambda c: settle(c, HELD_BY_A_WORKER, Released(why="drain")), "worker", 150, 1100
        ),
        "ring who is next of a deep target": Case(
            run_the_first_of_the_deep_target, "worker", 60, 300
        ),
        "beat": Case(lambda c: renew_claims(c, A_WORKER, HOLDS), "worker", 120, 100),
        "progress": Case(
            lambda c: report_progress(c, HOLDS[0], done=1, total=2, cursor=None), "worker", 2, 60
        ),
        "rescue of a worker with ten": Case(rescue, "maintenance", 270, 1200),
        "admit a hundred": Case(admit, "api", 150, 1600),
        "submit ten": Case(submit, "api", 60, 800),
        "page of a set": Case(
            page_of_a_set(ReprocessImages(all_images=True), before=20_000), "worker", 260, 2000
        ),
        "page of a set with one reference": Case(
            page_of_a_set(ReprocessImages(reference="old"), before=8_000), "worker", 260, 2000
        ),
        "confirm ten rings": Case(confirm, "api", 60, 300),
        "what waits, a page": Case(a_page_of_levels, "maintenance", 3 * PAGE, 400),
        "what waits, all of it": Case(all_levels, "maintenance", 3 * CROWD, 12_000),
        "take four of each level": Case(take_of_each, "maintenance", 400, 1200),
        "count what is announced": Case(count_what_is_announced, "maintenance", 200, 60),
        "forget what was lost": Case(forget_what_was_lost, "maintenance", 40 * PAGE, 160 * PAGE),
        "nothing was lost": Case(forget_none_lost, "maintenance", 20, 60),
        "walk what is parked": Case(walk_the_parked, "maintenance", 5 * PAGE, 700),
        "adopt what 0.2.0 wrote": Case(lambda c: adopt_rings(c, limit=PAGE), "maintenance", 4, 10),
        "hold the lanes": Case(lambda c: hold_lanes(c, A_WORKER), "maintenance", 12, 40),
        "look at the fleet": Case(look_at_fleet, "maintenance", 2 * PROCESSING + 4 * WORKERS, 800),
        "live settings, unchanged": Case(live_settings_unchanged, "worker", 2, 4),
        "of what types": Case(lambda c: find_types(c, HELD_BY_A_WORKER), "worker", 20, 60),
        "room of a type": Case(
            lambda c: look_at_types(c, {NOOP: 2}), "maintenance", 2 * PROCESSING + 2 * WORKERS, 800
        ),
        "look at what is held": Case(look_at_holds, "maintenance", 10, 10),
        "publish a room": Case(
            lambda c: publish_room(
                c, Lane.FAST, A_WORKER, 1, window=5, waited=timedelta(seconds=1)
            ),
            "maintenance",
            4,
            20,
        ),
        "read the rooms": Case(read_rooms, "api", 4, 4),
        "pause and resume a type of many": Case(pause_and_resume_a_type, "operator", 10, 60),
        "pause and resume a tenant of many": Case(pause_and_resume_a_tenant, "operator", 10, 60),
        # A quarter of the jobs are of the tenant, and most of those are over.
        "page of cancelling": Case(
            page_of_cancelling(CancelJobs(), before=HISTORY + 30_000, flagged=CANCELLED),
            "worker",
            12 * CANCELLED,
            60 * CANCELLED,
        ),
        "page of cancelling a type": Case(
            page_of_cancelling(
                CancelJobs(job_type=NOOP), before=HISTORY + 30_000, flagged=CANCELLED
            ),
            "worker",
            12 * CANCELLED,
            60 * CANCELLED,
        ),
        "page of cancelling a lane that has none": Case(
            page_of_cancelling(
                CancelJobs(job_type=NOOP, lane=Lane.GENERAL), before=HISTORY + 30_000, flagged=0
            ),
            "worker",
            3 * CANCELLED + 20,
            12 * CANCELLED,
        ),
        # Every open job of the tenant, as there are fewer than are counted.
        "what cancelling would flag": Case(
            lambda c: count_chosen(c, TENANT), "operator", 10_000 + PROCESSING + 10, 20_000
        ),
        "what cancelling a rare type would flag": Case(
            lambda c: count_chosen(c, TENANT, job_type="rare"), "operator", 10, 30
        ),
        "how long a walk is": Case(
            lambda c: count_walk(c, TENANT, None), "worker", QUEUED + PROCESSING, 1000
        ),
        "how long a walk of a type is": Case(
            lambda c: count_walk(c, TENANT, NOOP), "worker", QUEUED, 1000
        ),
        "tenants": Case(lambda c: list_tenants(c, limit=PAGE), "operator", 8_000, 3000),
        "a tenant": Case(
            lambda c: get_tenant(c, TENANT), "operator", QUEUED + PROCESSING + 20, 60_000
        ),
        "limit a tenant": Case(limit_a_tenant, "operator", 20, 150),
        # One probe a level, what was announced as far as it is counted, and what runs.
        "who waits longest": Case(
            rank, "operator", 2 * 20_000 + 3 * CROWD + 2 * PROCESSING + 25_000, 40_000
        ),
        "reset a breaker that held many": Case(trip_and_reset_a_breaker, "operator", 10, 60),
        "explain": Case(lambda c: explain_job(c, WITH_TARGETS[0]), "operator", 4 * WORKERS, 80),
        "explain late in a deep target": Case(
            lambda c: explain_job(c, LATE_OF_THE_DEEP_TARGET), "operator", 4 * WORKERS, 80
        ),
        "get": Case(lambda c: get_job(c, WITH_TARGETS[0], TENANT), "api", 2, 10),
        "get everything": Case(lambda c: get_operator_job(c, WITH_TARGETS[0]), "operator", 4, 20),
        "attempts": Case(lambda c: list_attempts(c, id_of(5)), "operator", 4, 20),
        "ring now": Case(lambda c: ring_now(c, WITH_TARGETS[0]), "operator", 6, 60),
        "resume a target": Case(pause_and_resume_a_target, "operator", 60, 200),
        "prune a hundred": Case(prune, "maintenance", 600, 1000),
        "prune behind what is kept": Case(prune_behind_what_is_kept, "maintenance", 10, 60),
        "prune idle targets": Case(prune_idle_targets, "maintenance", 4 * PAGE, 1200),
        "prune uploads": Case(prunes(prune_uploads, 0), "maintenance", 4 * PAGE, 800),
        "prune revisions": Case(prunes(prune_revisions, PAGE), "maintenance", 4 * PAGE, 800),
        "prune images": Case(prunes(prune_images, PAGE), "maintenance", 20 * PAGE, 4000),
        "prune letters of no job": Case(prunes(prune_strays, PAGE), "maintenance", 5 * PAGE, 1200),
        "how far upkeep is behind": Case(
            lambda c: sample_behind(c, walk_within=timedelta(hours=6)), "maintenance", 20, 60
        ),
        "list across tenants": Case(overseeing(JobFilter()), "operator", PAGE, 100),
        "list across tenants, deep": Case(
            overseeing(JobFilter(), before=100_000), "operator", PAGE, 100
        ),
        "list of one tenant, for operators": Case(
            overseeing(JobFilter(), tenant=SMALL), "operator", PAGE, 100
        ),
        # A page of each of the tenants, of which the newest are shown.
        "list across tenants by state": Case(
            overseeing(JobFilter(state=JobState.FAILED)), "operator", 8 * PAGE, 700
        ),
        "list across tenants by type, deep": Case(
            overseeing(JobFilter(type=NOOP), before=50_000), "operator", 20 * PAGE, 1500
        ),
        "list across tenants by a target with a long history": Case(
            overseeing(JobFilter(target=image_target(id_of(HOT))), before=50_000),
            "operator",
            8 * PAGE,
            700,
        ),
        "list across tenants by correlation": Case(
            overseeing(JobFilter(correlation_id="request-77")), "operator", PAGE, 60
        ),
        "pauses": Case(list_pauses, "operator", 2 * PROCESSING + 20, 400),
        "workers": Case(list_workers, "operator", 2 * PROCESSING + 2 * WORKERS, 800),
        "room for a job": Case(
            lambda c: room_for_job(c, Lane.GENERAL, NOOP),
            "operator",
            2 * PROCESSING + 2 * WORKERS,
            800,
        ),
        "audit": Case(auditing(AuditFilter()), "operator", 4 * PAGE, 300),
        "audit on one thing": Case(
            auditing(AuditFilter(kind="circuit_breaker", name="s7")), "operator", 4 * PAGE, 300
        ),
        "audit by somebody who was here once": Case(
            auditing(AuditFilter(actor="rare")), "operator", 20, 40
        ),
        "audit by a key": Case(auditing(AuditFilter(key_id=id_of(3))), "operator", 4 * PAGE, 300),
        "audit of a tenant, long ago": Case(
            auditing(AuditFilter(tenant_id=SMALL, until=LONG_AGO + timedelta(days=1))),
            "operator",
            4 * PAGE,
            300,
        ),
        # No index: a page reads so many lines and says where to go on.
        "audit of what nobody did": Case(
            auditing(AuditFilter(action="never")), "operator", 3 * MOST_LOOKED_AT, 6000
        ),
        "stuck": Case(lambda c: list_stuck(c, limit=PAGE), "operator", 3 * PROCESSING, 800),
        "failures of the last hour": Case(
            lambda c: list_failures(c, limit=PAGE), "operator", 1000, 1200
        ),
        "throughput of the last hour": Case(read_throughput, "operator", 6000, 1200),
        "what is prunable": Case(lambda c: count_prunable(c, most=100), "operator", 300, 700),
        # Every open job, every ring; nothing of the history.
        "queue health": Case(read_queue_health, "operator", 2 * (QUEUED + PROCESSING) + 1000, 4000),
        "expected messages": Case(expect_messages, "operator", 20_000 + 3 * PROCESSING + 200, 2500),
        "load of lanes": Case(load_of_lanes, "operator", 3 * PROCESSING + 2 * WORKERS + 200, 2500),
        "expired locks": Case(
            lambda c: find_expired(c, limit=PAGE), "maintenance", 2 * PROCESSING, 800
        ),
        # No job at all: a month of sums, and the entries since the last fold.
        "sample depths": Case(sample_depths, "maintenance", 6 * HOURS + TOLD + 100, 400),
        "sample the ledger": Case(read_ledger, "maintenance", 6 * HOURS + 3 * TOLD + 100, 600),
        "sample the oldest": Case(sample_oldest, "maintenance", 10, 100),
        "fold a hundred entries": Case(
            lambda c: fold_entries(c, limit=100), "maintenance", 400, 2000
        ),
        "fold a hundred submits": Case(
            lambda c: fold_ledger(c, limit=100), "maintenance", 400, 1000
        ),
        "prove a page": Case(prove_a_page, "maintenance", 2 * PAGE + 2 * TOLD + 6 * HOURS, 700),
        "list": Case(listing(JobFilter()), "api", PAGE, 100),
        "list, deep": Case(listing(JobFilter(), before=100_000), "api", PAGE, 100),
        "list of a small tenant": Case(listing(JobFilter(), tenant=SMALL), "api", PAGE, 100),
        "list by state": Case(listing(JobFilter(state=JobState.FAILED)), "api", PAGE, 100),
        "list by state, deep": Case(
            listing(JobFilter(state=JobState.FAILED), before=50_000), "api", PAGE, 100
        ),
        "list by a state that nobody is in": Case(
            listing(JobFilter(state=JobState.FAILED_RETRYABLE)), "api", 0, 20
        ),
        # A page of every state that the type has, of which the newest are shown.
        "list by type": Case(listing(JobFilter(type=NOOP)), "api", 5 * PAGE, 200),
        "list by type, deep": Case(
            listing(JobFilter(type=NOOP), before=50_000), "api", 5 * PAGE, 200
        ),
        "list by a rare type": Case(listing(JobFilter(type="rare")), "api", 5, 40),
        "list by type and state, deep": Case(
            listing(JobFilter(type=NOOP, state=JobState.FAILED), before=50_000), "api", PAGE, 100
        ),
        "list by correlation": Case(
            listing(JobFilter(correlation_id="request-77")), "api", PAGE, 20
        ),
        "list by a target with a long history": Case(
            listing(JobFilter(target=image_target(id_of(HOT)))), "api", PAGE, 100
        ),
        "list by a target with a long history, deep": Case(
            listing(JobFilter(target=image_target(id_of(HOT))), before=50_000), "api", PAGE, 100
        ),
        "list by an unknown target": Case(listing(JobFilter(target="image:?")), "api", 0, 10),
        "list children": Case(listing(JobFilter(parent_job_id=id_of(5000))), "api", PAGE, 40),
        "letters": Case(letters(LetterFilter(open_only=False)), "operator", 3 * PAGE, 300),
        "letters, deep": Case(
            letters(LetterFilter(open_only=False), after=8000), "operator", 3 * PAGE, 300
        ),
        "letters of a tenant, deep": Case(
            letters(LetterFilter(tenant_id=TENANT, open_only=False), after=8000),
            "operator",
            3 * PAGE,
            300,
        ),
        # People's work, so never many: all open letters and their replays may be read, but no jobs.
        "open letters": Case(letters(LetterFilter()), "operator", 2 * LETTERS, 60_000),
        "open letters, deep": Case(
            letters(LetterFilter(), after=8000), "operator", 2 * LETTERS, 60_000
        ),
        "letters by a reason that none has": Case(
            letters(LetterFilter(reason="poison")), "operator", 2 * LETTERS, 3000
        ),
        "groups of letters": Case(group_dead_letters, "operator", 2 * LETTERS, 60_000),
        # Of each image the newest job is read as well.
        "images": Case(images(), "api", 3 * PAGE, 600),
        "images, deep": Case(images(before=20_000), "api", 3 * PAGE, 600),
        "a stable address": Case(stable_address, "api", 4, 20),
        "five hundred unknown keys": Case(look_for_keys, "api", 4, 1500),
        "another form": Case(one_more_form, "api", TOLD // 100 + 10, 300),
        "a newest original": Case(an_original, "api", 3, 20),
        "open jobs of a deleted image with a long history": Case(
            list_void(HOT, HOT_OPEN), "api", 2 * HOT_OPEN, 60
        ),
        "open jobs of a deleted image with many": Case(
            list_void(DEEP, MOST_CANCELLED), "api", 2 * MOST_CANCELLED, 300
        ),
        "end the jobs of a deleted image with a long history": Case(
            flag_what_is_void, "worker", 10 * HOT_OPEN, 1000
        ),
        "call dark without an edge": Case(darken, "maintenance", 40, 400),
        "what to empty again": Case(list_what_to_empty, "maintenance", PAGE, 100),
        "next batch for the edge": Case(flush, "maintenance", 12 * PAGE, 1000),
        "how the edge stands, for operators": Case(edge_status, "operator", 200, 200),
        "forget what the edge was told": Case(prune_edge, "maintenance", 2000, 4000),
        "judge a thousand outputs": Case(judge_a_page_of_outputs, "maintenance", 2500, 14_000),
        "judge a thousand originals": Case(judge_a_page_of_originals, "maintenance", 1100, 8000),
        "outputs that must be there": Case(
            what_must_be_there("outputs", IMAGES + 5, 8 * PAGE), "maintenance", 20 * PAGE, 1000
        ),
        "originals that must be there": Case(
            what_must_be_there("originals", 20_000, PAGE), "maintenance", 3 * PAGE, 600
        ),
        "what was superseded, with an edge": Case(
            superseded(has_edge=True, after=30_000), "maintenance", 3 * PAGE, 1000
        ),
        "what was superseded, without an edge": Case(
            superseded(has_edge=False, after=30_000), "maintenance", 3 * PAGE, 1000
        ),
        "forget unused uploads": Case(forget_unused_uploads, "maintenance", 4 * PAGE, 600),
        "what is swept, for operators": Case(sweep_report, "operator", 200, 200),
        "how the edge stands": Case(sample_invalidations, "maintenance", 3 * PAGE, 100),
        "images by a rare reference": Case(images("rare"), "api", 10, 60),
        "images by an old reference, deep": Case(images("old", before=5000), "api", 3 * PAGE, 600),
    }
)


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("name", CASES)
async def test_no_more_is_read_than_is_asked_for(
    name: str, mode: PlanMode, loaded: Database
) -> None:
    case = CASES[name]

    async with watched(loaded, case.by, mode) as (connection, work):
        await case.run(connection)

    assert work.plans != []
    assert work.rows <= case.rows, work.told
    assert work.pages <= case.pages, work.told


async def test_a_statement_that_reads_through_the_history_is_noticed(loaded: Database) -> None:
    async with watched(loaded, "operator", "force_custom_plan") as (connection, work):
        await connection.fetch("SELECT FROM jobs WHERE result_reason = 'superseded'")

    assert work.rows >= HISTORY
    assert work.pages > 1000
