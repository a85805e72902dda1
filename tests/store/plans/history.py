"""A fleet with a long past and a large backlog, on which plans are judged."""

import hashlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Final
from uuid import UUID

from imagefleet.jobs.model import JobId, WorkerId
from imagefleet.store.jobs.leases import Renewal

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


KINDS: Final = 6


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
SET LOCAL synchronous_commit = on; -- VACUUM calls no row visible whose commit is not written yet
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

INSERT INTO image_sources (image_id, source_seq, tenant_id, key, bytes, content_type)
SELECT images.id, 1, images.tenant_id, 'o/' || images.id, 1, 'image/jpeg'
  FROM images WHERE images.tenant_id = 'shown';

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

-- A year of edits an hour, of ten names.
INSERT INTO recipes (hash, name, content)
SELECT md5(n::text), 'recipe-' || n % 10, '{{}}' FROM generate_series(1, {TOLD}) AS n;

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

-- All others as they went, over four weeks.
INSERT INTO attempts (job_id, claim_no, tenant_id, type, lane, worker_id, claimed_at, ended_at,
                      duration, queue_time, charged, outcome, why)
SELECT jobs.id, 1, jobs.tenant_id, jobs.type, jobs.lane, jobs.id, jobs.created_at, jobs.finished_at,
       '1 s', '1 s', true, 'completed', 'done'
  FROM jobs WHERE jobs.finished_at IS NOT NULL AND jobs.parent_job_id IS NULL
 ORDER BY jobs.finished_at;

-- What six types did, in as many steps of each length as are kept.
INSERT INTO rollups (step, at, type, lane, submitted, completed, waits, durations, flows)
SELECT steps.step, at, 'type_' || n, 'fast', 9, 9, array_fill(9::bigint, ARRAY[40]),
       array_fill(9::bigint, ARRAY[40]),
       '[{{"outcome": "completed", "attempts": 9, "duration": 9, "longest": 1, "queue_time": 9}}]'
  FROM (VALUES ('minute', interval '2 days'), ('hour', interval '60 days'),
               ('day', interval '9 years')) AS steps (step, kept),
       generate_series(date_trunc(steps.step, now() - steps.kept, 'UTC'), now(),
                       ('1 ' || steps.step)::interval) AS at,
       generate_series(1, {KINDS}) AS n;

INSERT INTO rollup_costs (step, at, sqs_requests)
SELECT DISTINCT rollups.step, rollups.at, 9 FROM rollups;

INSERT INTO rollup_entries (type, lane, submitted, sqs_requests)
SELECT CASE n % 2 WHEN 1 THEN 'noop' END, CASE n % 2 WHEN 1 THEN 'fast' END, 1, 1
  FROM generate_series(1, {TOLD}) AS n;

-- As if nobody had looked for a fortnight, nor a second time for three weeks.
UPDATE rollup_progress
   SET counted_until = date_trunc('minute', now() - interval '14 days'),
       settled_until = date_trunc('minute', now() - interval '21 days');

INSERT INTO idempotency_aliases (tenant_id, idempotency_key, fingerprint, job_id)
SELECT 'acme', 'merged-' || n, '', id_of(n) FROM generate_series(1, {TOLD}) AS n;

INSERT INTO dead_letters (job_id, tenant_id, type, reason, fingerprint, message, snapshot, died_at,
                          acknowledged_at, acknowledged_by)
SELECT jobs.id, jobs.tenant_id, jobs.type, 'corrupt', md5(jobs.type), 'It is damaged.', '{{}}',
       jobs.finished_at, CASE WHEN jobs.target_seq % 40 = 1 THEN now() END,
       CASE WHEN jobs.target_seq % 40 = 1 THEN 'load' END
  FROM jobs WHERE jobs.state = 'failed';
"""  # noqa: S608 - numbers of this file


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
