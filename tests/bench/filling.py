"""A fleet of some size, written straight into its tables: a month of it, the busiest hour the last.

Rows first and indexes after, without triggers, which takes a fraction of the time; what triggers
would have counted is written down beside it. Of the tenants few have much and many have little, of
the faults as well. Nothing here is looked at by a worker: it is there to be read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from asyncpg import Connection as Driver

from tests.support.database import Database, driver_of

WITHIN: Final = 3_600.0  # seconds for one statement
AT_ONCE: Final = 250_000  # jobs of one statement, so that something moves on the terminal
TYPES: Final = (
    *["process_image"] * 5, "noop", "webhook", "webhook", "delete_image", "preview_original",
)  # fmt: skip
CODES: Final = (
    "corrupt", "storage", "timeout", "too_large", "bug", "unavailable", "worker_lost", "refused",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much there is, by how many jobs there are: as five million have it."""

    jobs: int

    @property
    def tenants(self) -> int:
        return min(2_000, max(50, self.jobs // 100))

    @property
    def open(self) -> int:
        """With a ring each, but for a few that run."""
        return self.jobs * 6 // 100

    @property
    def running(self) -> int:
        return min(240, self.open // 20)

    @property
    def images(self) -> int:
        return self.jobs // 10

    @property
    def faults(self) -> int:
        return min(400, max(20, self.jobs // 1_000))

    @property
    def lines(self) -> int:
        """Of the audit."""
        return self.jobs // 20

    @property
    def bytes(self) -> int:
        """What that takes, with what Postgres writes down of it meanwhile."""
        return 5 * 2**30 + self.jobs * 3_000

    def told(self, statement: str, **more: object) -> str:
        """With these numbers in it."""
        names = ("jobs", "tenants", "open", "running", "images", "faults", "lines")
        return statement.format(**{name: getattr(self, name) for name in names}, **more)


# Of a number: a part of one, a moment, an id that sorts by it, and whose it is.
HELPERS: Final = """
CREATE FUNCTION part_of(n bigint) RETURNS float8 LANGUAGE sql IMMUTABLE AS $$
    SELECT (hashint8(n) & 1048575) / 1048576.0::float8
$$;
CREATE FUNCTION moment_of(n bigint) RETURNS timestamptz LANGUAGE sql IMMUTABLE AS $$
    SELECT '{now}'::timestamptz - CASE WHEN n <= {jobs} - {open}
           THEN interval '28 days' * (1 - n / ({jobs} - {open})::float8) ^ 2
           ELSE interval '2 hours' * (({jobs} - n) / {open}::float8) END
$$;
CREATE FUNCTION id_of(n bigint, kind text, at timestamptz) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7'
            || substr(md5(kind || n), 1, 3) || '8' || substr(md5(kind || n), 4, 15))::uuid
$$;
CREATE FUNCTION image_of(n bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$
    SELECT id_of(n, 'image', moment_of(n * 10))
$$;
CREATE FUNCTION tenant_of(n bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT 'tenant-' || lpad(floor({tenants} * part_of(n) ^ 3)::text, 4, '0')
$$;
"""

# Half of them are about an image, which several have in turn; every fortieth has failed.
_MADE: Final = f"""
  FROM (SELECT numbers.n, moment_of(numbers.n) AS at, part_of(numbers.n * 7) AS chance,
               ('{{{{{",".join(TYPES)}}}}}'::text[])[1 + numbers.n / 7 % {len(TYPES)}] AS type,
               CASE WHEN numbers.n / 7 % {len(TYPES)} < 5
                    THEN (hashint8(numbers.n) & 2147483647) % {{images}} END AS image
          FROM generate_series({{first}}::bigint, {{last}}::bigint) AS numbers (n)) AS made
"""  # noqa: S608 - names of ours

_WHO: Final = """
       id_of(made.n, 'job', made.at), tenant_of(coalesce(made.image, made.n)), made.type,
       CASE WHEN made.image IS NOT NULL THEN 'image:' || image_of(made.image)
            WHEN made.n % 10 = 3 THEN 'sku:' || made.n % 100 END,
       CASE WHEN made.image IS NOT NULL OR made.n % 10 = 3 THEN made.n END,
       'request-' || made.n / 4, 'bench', made.at,
       jsonb_build_object('note', md5(made.n::text), 'number', made.n),
       CASE WHEN made.n % 3 = 0 THEN 'key-' || made.n END"""
_COLUMNS: Final = """
       id, tenant_id, type, target, target_seq, correlation_id, created_by, created_at, payload,
       idempotency_key"""

OVER: Final = f"""
INSERT INTO jobs ({_COLUMNS}, state, lane, claim_no, attempts, parent_job_id, run_at, claimed_at,
                  finished_at, updated_at, result_reason, failure_code, failure_message,
                  failure_detail)
SELECT {_WHO}, CASE made.n % 40 WHEN 1 THEN 'failed' ELSE 'completed' END,
       CASE WHEN made.chance < 0.7 THEN 'fast' ELSE 'general' END, 2, 2,
       CASE WHEN made.n % 100 = 5
            THEN id_of(made.n - made.n % 1000, 'job', moment_of(made.n - made.n % 1000)) END,
       made.at, made.at, made.at, made.at,
       CASE made.n % 40 WHEN 1 THEN NULL ELSE 'done' END,
       CASE made.n % 40 WHEN 1
            THEN ('{{{{{",".join(CODES)}}}}}'::text[])[1 + made.n / 40 % {len(CODES)}] END,
       CASE made.n % 40 WHEN 1 THEN 'It could not be done: premature end of a file.' END,
       CASE made.n % 40 WHEN 1 THEN 'broken data stream when reading byte ' || made.n END
{_MADE}"""

OPEN: Final = f"""
INSERT INTO jobs ({_COLUMNS}, state, lane, claim_no, attempts, locked_by, locked_at, claimed_at,
                  run_at, failure_code, failure_message, services)
SELECT {_WHO},
       CASE WHEN made.n > {{jobs}} - {{running}} THEN 'processing'
            WHEN made.n % 10 = 1 THEN 'failed_retryable' ELSE 'queued' END,
       CASE WHEN made.chance < 0.7 THEN 'fast' WHEN made.chance < 0.98 THEN 'general'
            ELSE 'quarantine' END, 1, 1,
       CASE WHEN made.n > {{jobs}} - {{running}}
            THEN (SELECT workers.id FROM workers WHERE workers.pid = 1 + made.n % 30) END,
       CASE WHEN made.n > {{jobs}} - {{running}} THEN now() END, now(),
       made.at + CASE WHEN made.n % 7 = 0 THEN interval '1 day' ELSE interval '0' END,
       CASE WHEN made.n % 10 = 1 THEN 'unavailable' END,
       CASE WHEN made.n % 10 = 1 THEN 'S3 did not answer.' END, '{{{{s3}}}}'
{_MADE}"""  # noqa: S608 - of this file

STEPS: Final = {
    "workers and tenants": """
INSERT INTO workers (id, host, pid, version, lanes, types, slots, dead_at, dead_why)
SELECT gen_random_uuid(), 'host-' || n, n, '0', '{{fast,general,quarantine}}',
       '{{noop,process_image,webhook,delete_image,preview_original}}', '{{3,5,1}}',
       CASE WHEN n > 30 THEN now() END, CASE WHEN n > 30 THEN 'stopped' END
  FROM generate_series(1, 300) AS n;
INSERT INTO tenants (id, name, max_open_jobs)
SELECT 'tenant-' || lpad(n::text, 4, '0'), 'bench', 10000000
  FROM generate_series(0, {tenants} - 1) AS n;
INSERT INTO pauses (scope, tenant_id, name, paused_by, reason)
SELECT 'target', 'tenant-' || lpad(n::text, 4, '0'), 'sku:' || n, 'bench', 'somebody looks at it'
  FROM generate_series(0, 49) AS n;
INSERT INTO circuit_breakers (service) VALUES ('s3'), ('sqs'), ('cloudfront'), ('webhooks');
""",
    "jobs that are over": OVER,
    "open jobs": OPEN,
    "rings": """
INSERT INTO rings (job_id, lane, tenant_id, type, priority, next_at, sent_at, sends)
SELECT jobs.id, jobs.lane, jobs.tenant_id, jobs.type, jobs.priority,
       CASE WHEN jobs.target_seq % 5 = 0 THEN 'infinity' ELSE jobs.run_at END,
       CASE WHEN sent.yes THEN now() END, sent.yes::int
  FROM jobs CROSS JOIN LATERAL (SELECT hashtext(jobs.id::text) % 200 = 0 AS yes) AS sent
 WHERE jobs.state IN ('queued', 'failed_retryable');
INSERT INTO targets (tenant_id, target, next_seq)
SELECT jobs.tenant_id, jobs.target, max(jobs.target_seq) + 1
  FROM jobs WHERE jobs.target IS NOT NULL AND jobs.finished_at IS NULL GROUP BY 1, 2;
UPDATE lanes SET looked_at = now(), window_size = 1000, oldest_at = now() - interval '1 minute';
""",
    "attempts": """
INSERT INTO attempts (job_id, claim_no, tenant_id, type, lane, worker_id, claimed_at, ended_at,
                      duration, queue_time, charged, outcome, why, detail, log_excerpt)
SELECT jobs.id, numbers.n, jobs.tenant_id, jobs.type, jobs.lane, jobs.id, jobs.claimed_at,
       jobs.finished_at - interval '7 seconds' * (claims.n - numbers.n),
       interval '1 ms' * (hashtext(jobs.id::text) & 4095), interval '1 ms' * (numbers.n * 40), true,
       CASE WHEN numbers.n < claims.n THEN 'retried' ELSE jobs.state END,
       CASE WHEN numbers.n < claims.n THEN 'unavailable'
            ELSE coalesce(jobs.failure_code, jobs.result_reason) END,
       jobs.failure_detail,
       CASE WHEN jobs.state = 'failed' THEN repeat('reading a marker of the file' || chr(10), 9) END
  FROM jobs
  CROSS JOIN LATERAL (SELECT 2 + (hashtext(jobs.id::text) & 7) / 7 AS n) AS claims
  CROSS JOIN LATERAL generate_series(1, claims.n) AS numbers (n)
 WHERE jobs.finished_at IS NOT NULL;
""",
    "dead letters": """
INSERT INTO dead_letters (job_id, tenant_id, type, reason, fingerprint, message, detail, snapshot,
                          died_at, acknowledged_at, acknowledged_by)
SELECT jobs.id, jobs.tenant_id, jobs.type, jobs.failure_code, faults.fingerprint,
       jobs.failure_message, jobs.failure_detail, to_jsonb(jobs), jobs.finished_at,
       CASE WHEN hashtext(jobs.id::text) % 2 = 0 THEN now() END,
       CASE WHEN hashtext(jobs.id::text) % 2 = 0 THEN 'dana' END
  FROM jobs
  CROSS JOIN LATERAL (
      SELECT encode(sha256(convert_to(
                 floor({faults} * part_of(hashtext(jobs.id::text)) ^ 3)::text, 'UTF8')), 'hex')
                 AS fingerprint) AS faults
 WHERE jobs.state = 'failed';
""",
    "images": """
INSERT INTO images (id, tenant_id, reference, recipe, source_seq, revision, claim_no, job_id,
                    published_at, created_at)
SELECT image_of(n), tenant_of(n), CASE WHEN n % 20 = 7 THEN 'front-page' ELSE 'order-' || n / 3 END,
       'default', made.seq, made.seq, made.seq, CASE WHEN made.seq = 1 THEN image_of(n) END,
       CASE WHEN made.seq = 1 THEN moment_of(n * 10) END, moment_of(n * 10)
  FROM generate_series(0::bigint, {images} - 1) AS n
  CROSS JOIN LATERAL (SELECT CASE WHEN n % 20 > 0 THEN 1 END AS seq) AS made;
INSERT INTO image_sources (image_id, source_seq, tenant_id, key, bytes, content_type, created_at)
SELECT images.id, 1, images.tenant_id, 'o/' || images.id, 1, 'image/jpeg', images.created_at
  FROM images;
INSERT INTO image_revisions (image_id, revision, tenant_id, source_seq, claim_no, job_id, recipe,
                             format, width, height, bytes, sha256, encoder, thumbhash, color)
SELECT images.id, 1, images.tenant_id, 1, 1, images.id, 'default', 'jpeg', 4000, 3000, 1, '',
       'bench', 'm4gFFwZ4eHCIh3h4d4iHeHiA', '#aabbcc'
  FROM images WHERE images.revision IS NOT NULL;
INSERT INTO variants (image_id, revision, name, format, key, content_type, width, height, bytes,
                      sha256)
SELECT images.id, 1, 'v' || v / 2, CASE v % 2 WHEN 0 THEN 'jpeg' ELSE 'webp' END,
       'i/' || images.id || '/' || v, 'image/webp', 100 * v, 75 * v, 1, ''
  FROM images, generate_series(1, 4) AS v WHERE images.revision IS NOT NULL;
INSERT INTO image_tombstones (image_id, tenant_id, job_id, requested_by, objects_deleted_at,
                              dark_at, emptied_again_at)
SELECT images.id, images.tenant_id, images.id, 'bench', now(), now(), now()
  FROM generate_series(0::bigint, {images} - 1, 50) AS n JOIN images ON images.id = image_of(n);
INSERT INTO invalidation_batches (id, items, paths, accepted_at, cloudfront_id, completed_at)
SELECT id_of(n, 'batch', now()), '[]', 5, now(), 'I' || n, CASE WHEN n > 20 THEN now() END
  FROM generate_series(1, {images} / 50) AS n;
INSERT INTO invalidations (image_id, tenant_id, reason, batch_id)
SELECT image_of(n), tenant_of(n), 'replaced',
       CASE WHEN n > 200 THEN id_of(1 + n % ({images} / 50), 'batch', now()) END
  FROM generate_series(1, {images} / 10) AS n;
""",
    "rollups": """
INSERT INTO rollups (step, at, type, lane, submitted, completed, failed, waits, durations, flows)
SELECT steps.step, at, types.type, lanes.lane, 900, 800, 20, array_fill(9::bigint, ARRAY[40]),
       array_fill(9::bigint, ARRAY[50]),
       (SELECT jsonb_agg(jsonb_build_object('outcome', word, 'attempts', 300, 'duration', 400,
                                            'longest', 9, 'queue_time', 70))
          FROM unnest('{{completed,retried,failed}}'::text[]) AS words (word))
  FROM (VALUES ('minute', interval '2 days'), ('hour', interval '60 days'),
               ('day', interval '2 years')) AS steps (step, kept),
       generate_series(date_trunc(steps.step, now() - steps.kept, 'UTC'), now(),
                       ('1 ' || steps.step)::interval) AS at,
       (SELECT DISTINCT jobs.type FROM jobs WHERE jobs.finished_at IS NULL) AS types, lanes;
INSERT INTO rollup_costs (step, at, sqs_requests, s3_writes, invalidation_paths)
SELECT DISTINCT rollups.step, rollups.at, 90, 900, 9 FROM rollups;
UPDATE rollup_progress SET counted_until = date_trunc('minute', now()),
                           settled_until = date_trunc('minute', now() - interval '10 minutes');
INSERT INTO ledger (accepted) VALUES ({jobs});
INSERT INTO ledger_counts (hour, type, lane, queued, processing, failed_retryable, completed,
                           failed)
SELECT hour_of(jobs.id), jobs.type, jobs.lane, count(*) FILTER (WHERE jobs.state = 'queued'),
       count(*) FILTER (WHERE jobs.state = 'processing'),
       count(*) FILTER (WHERE jobs.state = 'failed_retryable'),
       count(*) FILTER (WHERE jobs.state = 'completed'),
       count(*) FILTER (WHERE jobs.state = 'failed')
  FROM jobs GROUP BY 1, 2, 3;
""",
    "audit": """
INSERT INTO audit (at, actor, key_id, action, kind, name, tenant_id, before, after, reason)
SELECT moment_of(n * 20), 'person ' || n % 5,
       CASE n % 2 WHEN 0 THEN id_of(n % 10, 'key', 'epoch') END,
       ('{{pause,resume,replay,cancel,set}}'::text[])[1 + n % 5],
       CASE n % 3 WHEN 0 THEN 'circuit_breaker' ELSE 'tenant' END,
       CASE n % 3 WHEN 0 THEN 's3' ELSE tenant_of(n) END,
       CASE n % 3 WHEN 0 THEN NULL ELSE tenant_of(n) END, '{{"limit": 7}}', '{{"limit": 9}}', 'why'
  FROM generate_series(1::bigint, {lines}) AS n;
""",
}

FILLED: Final = ("jobs", "attempts", "dead_letters", "images", "variants", "audit", "rings")
INDEXES: Final = """
SELECT indexrelid::regclass::text AS name, pg_get_indexdef(indexrelid) AS definition
  FROM pg_index
 WHERE indrelid = ANY ($1::text[]::regclass[])
   AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
"""
ALONE: Final = """
SET statement_timeout = 0;
SET maintenance_work_mem = '512MB';
SET session_replication_role = replica;
SET synchronous_commit = off
"""

Tell = Callable[[str, float], None]
"""What is done now, and how much of all is."""


async def fill(database: Database, size: Size, tell: Tell) -> None:
    """Fill an empty database; what is told of it goes from 0 to 1."""
    async with database.connect("superuser") as superuser:
        driver = driver_of(superuser)
        await driver.execute(ALONE)
        now: datetime = await driver.fetchval("SELECT now()")
        await driver.execute(size.told(HELPERS, now=now.isoformat()))
        indexes = await driver.fetch(INDEXES, list(FILLED))
        for index in indexes:
            await driver.execute(f"DROP INDEX {index['name']}")
        for name, statement in STEPS.items():
            await _step(driver, size, name, statement, tell)
        for done, index in enumerate(indexes):
            tell(f"indexes: {index['name']}", 0.6 + 0.35 * done / len(indexes))
            await driver.execute(index["definition"], timeout=WITHIN)
        tell("vacuum", 0.95)
        await driver.execute("VACUUM ANALYZE", timeout=WITHIN)
        tell("filled", 1)


async def _step(driver: Driver, size: Size, name: str, statement: str, tell: Tell) -> None:
    """One of them, those of very many rows by parts; the jobs that are over are the oldest."""
    over = size.jobs - size.open
    if statement not in {OVER, OPEN}:
        tell(name, 0.35 if statement != STEPS["attempts"] else 0.25)
        await driver.execute(size.told(statement), timeout=WITHIN)
        return
    first, last = (1, over) if statement == OVER else (over + 1, size.jobs)
    for start in range(first, last + 1, AT_ONCE):
        tell(f"{name}: {start - 1:,}", 0.25 * start / size.jobs)
        end = min(last, start + AT_ONCE - 1)
        await driver.execute(size.told(statement, first=start, last=end), timeout=WITHIN)
