"""What a run leaves behind, read with means of its own: SQL as the owner, S3 and SQS as AWS.

Nothing of the product is imported here either. A trigger that the run brings along writes down
every change of a job's state, claim or owner, with the role that made it: the product keeps no
such history, and a judge that had to believe the last row could not tell how it came about.
"""

import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict, Unpack

import asyncpg
import boto3  # type: ignore[import-untyped]
from botocore.config import Config
from PIL import Image

from tests.faults.facts import Attempt, Event, Facts, Job, Object, Post, Variant

# boto3 comes without types; what is asked of it here is little.
Client = Any

KEEP_EVENTS: Final = """
CREATE SCHEMA journal;
GRANT USAGE ON SCHEMA journal TO PUBLIC;
CREATE FUNCTION journal.ending(job public.jobs) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog AS $$
    SELECT CASE WHEN job.state IN ('completed', 'failed') THEN md5(concat_ws('|', job.state,
        job.claim_no, job.attempts, job.finished_at, job.result, job.result_reason,
        job.failure_code, job.failure_message, job.failure_detail)) END
$$;
CREATE TABLE journal.events (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id uuid NOT NULL,
    old text,
    new text NOT NULL,
    claim_no bigint NOT NULL,
    worker uuid,
    role text NOT NULL,
    at timestamptz NOT NULL,
    lock_age double precision,
    run_at timestamptz,
    ending text
);
CREATE FUNCTION journal.note() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, public AS $$
BEGIN
    INSERT INTO journal.events
        (job_id, old, new, claim_no, worker, role, at, lock_age, run_at, ending)
    VALUES (
        coalesce(NEW.id, OLD.id), OLD.state, coalesce(NEW.state, 'deleted'),
        coalesce(NEW.claim_no, OLD.claim_no), NEW.locked_by,
        -- The definer's name is the owner's; who is logged in is who did it.
        replace(session_user, 'imagefleet_', ''), clock_timestamp(),
        extract(epoch FROM now() - OLD.locked_at), NEW.run_at, journal.ending(NEW)
    );
    RETURN NULL;
END
$$;
CREATE TRIGGER journal_of_births AFTER INSERT OR DELETE ON public.jobs
FOR EACH ROW EXECUTE FUNCTION journal.note();
CREATE TRIGGER journal_of_changes AFTER UPDATE ON public.jobs
FOR EACH ROW WHEN (
    OLD.state IN ('completed', 'failed')
    OR (OLD.state, OLD.claim_no, OLD.locked_by)
       IS DISTINCT FROM (NEW.state, NEW.claim_no, NEW.locked_by)
)
EXECUTE FUNCTION journal.note();
"""

READ_JOBS: Final = """
SELECT jobs.id::text, jobs.tenant_id AS tenant, jobs.type, jobs.state, jobs.claim_no, jobs.attempts,
       jobs.max_attempts, jobs.run_at <= now() AS due, jobs.idempotency_key,
       jobs.replay_of IS NOT NULL OR jobs.parent_job_id IS NOT NULL
           OR jobs.type IN ('cancel_job', 'delete_image') AS has_origin,
       substring(jobs.target FROM 'image:(.*)') AS image, jobs.target_seq, jobs.result_reason,
       jobs.failure_code, journal.ending(jobs) AS ending,
       EXISTS (SELECT FROM dead_letters WHERE dead_letters.job_id = jobs.id) AS has_dead_letter,
       jobs.cancel_requested_at IS NOT NULL AS flagged
  FROM jobs
 ORDER BY jobs.id
"""
READ_EVENTS: Final = """
SELECT job_id::text, old, new, claim_no, worker::text, role, extract(epoch FROM at)::float8 AS at,
       lock_age, extract(epoch FROM run_at)::float8 AS run_at, ending
  FROM journal.events
 ORDER BY seq
"""
READ_ATTEMPTS: Final = """
SELECT job_id::text, claim_no, worker_id::text AS worker,
       extract(epoch FROM claimed_at)::float8 AS claimed_at,
       extract(epoch FROM ended_at)::float8 AS ended_at, charged, outcome, why
  FROM attempts
"""
READ_VARIANTS: Final = """
SELECT revisions.job_id::text, revisions.claim_no, variants.key, variants.width, variants.height,
       variants.bytes, variants.sha256
  FROM variants
  JOIN image_revisions AS revisions USING (image_id, revision)
"""
# Overdue is what has no message, and waits for nothing but its turn.
READ_RINGS: Final = """
SELECT job_id::text,
       CASE WHEN sent_at IS NULL AND next_at < 'infinity'
            THEN extract(epoch FROM now() - next_at)::float8 ELSE -1.0 END
  FROM rings
"""
READ_TARGETS: Final = "SELECT target, running_job::text FROM targets WHERE running_job IS NOT NULL"
READ_SOURCES: Final = "SELECT key, image_id::text FROM image_sources"
READ_LEDGER: Final = """
SELECT coalesce(sum(accepted), 0)::bigint AS accepted, coalesce(sum(pruned), 0)::bigint AS pruned
  FROM ledger
"""
READ_DELETED: Final = """
SELECT image_id::text FROM image_tombstones WHERE objects_deleted_at IS NOT NULL
"""
READ_LETTERS: Final = "SELECT job_id::text FROM dead_letters WHERE job_id IS NOT NULL"
READ_LOCK_TIMEOUT: Final = "SELECT extract(epoch FROM lock_timeout)::float8 FROM fleet"

FETCHES_AT_ONCE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a run happened."""

    owner_url: str
    aws: Mapping[str, str]
    """The variables with which an AWS SDK finds it."""
    queue_urls: Mapping[str, str]
    originals: str
    outputs: str

    def client(self, service: str) -> Client:
        return boto3.client(
            service,
            endpoint_url=self.aws["AWS_ENDPOINT_URL"],
            region_name=self.aws["AWS_REGION"],
            aws_access_key_id=self.aws["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.aws["AWS_SECRET_ACCESS_KEY"],
            config=Config(
                s3={"addressing_style": "path"},
                max_pool_connections=2 * FETCHES_AT_ONCE,
                connect_timeout=5,
                read_timeout=30,
            ),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One process that was ended outright."""

    phase: str
    process: str
    pid: int
    jobs: Sequence[str]
    """What it held, as far as it had said so."""
    at: float


@dataclass(slots=True)
class Journal:
    """What only those know who drove the run."""

    posts: list[Post] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)

    def by_phase(self) -> dict[str, int]:
        phases = [kill.phase for kill in self.kills]
        return {phase: phases.count(phase) for phase in sorted(set(phases))}


async def keep_events(place: Place) -> None:
    """Write down every change from now on; to be called before the first job."""
    connection = await asyncpg.connect(place.owner_url)
    try:
        await connection.execute(KEEP_EVENTS)
    finally:
        await connection.close()


class Limits(TypedDict, total=False):
    """What a stack was started with, where that is not the product's default."""

    backoff_base: float
    backoff_cap: float
    variants_each: int
    waited: bool


async def read_facts(place: Place, posts: Sequence[Post], **limits: Unpack[Limits]) -> Facts:
    """Everything there is, read once nothing changes any more."""
    connection = await asyncpg.connect(place.owner_url)
    try:
        ledger = await connection.fetchrow(READ_LEDGER)
        assert ledger is not None
        facts = Facts(
            posts=tuple(posts),
            jobs=[Job(**row) for row in await connection.fetch(READ_JOBS)],
            events=[Event(**row) for row in await connection.fetch(READ_EVENTS)],
            attempts=[Attempt(**row) for row in await connection.fetch(READ_ATTEMPTS)],
            variants=[Variant(**row) for row in await connection.fetch(READ_VARIANTS)],
            rings={row[0]: row[1] for row in await connection.fetch(READ_RINGS)},
            targets={row[0]: row[1] for row in await connection.fetch(READ_TARGETS)},
            sources={row[0]: row[1] for row in await connection.fetch(READ_SOURCES)},
            ledger=dict(ledger),
            deleted=[row[0] for row in await connection.fetch(READ_DELETED)],
            letters=[row[0] for row in await connection.fetch(READ_LETTERS)],
            lock_timeout=await connection.fetchval(READ_LOCK_TIMEOUT),
            objects=read_objects(place),
            originals=[key for key, _ in listing(place.client("s3"), place.originals)],
            messages=read_depths(place),
            **limits,
        )
    finally:
        await connection.close()
    return facts


def read_objects(place: Place) -> list[Object]:
    """Every object of the outputs, decoded."""
    s3 = place.client("s3")
    keys_and_times = list(listing(s3, place.outputs))

    def read(key_and_time: tuple[str, float]) -> Object:
        return fetched(s3, place.outputs, *key_and_time)

    with ThreadPoolExecutor(FETCHES_AT_ONCE) as pool:
        return list(pool.map(read, keys_and_times))


def listing(s3: Client, bucket: str) -> Iterator[tuple[str, float]]:
    for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
        for entry in page.get("Contents", ()):
            yield entry["Key"], entry["LastModified"].timestamp()


def fetched(s3: Client, bucket: str, key: str, modified_at: float) -> Object:
    answer = s3.get_object(Bucket=bucket, Key=key)
    body = answer["Body"].read()
    size, talks = decoded(body)
    return Object(
        key=key,
        bytes=len(body),
        sha256=hashlib.sha256(body).hexdigest(),
        modified_at=modified_at,
        width=size[0] if size else None,
        height=size[1] if size else None,
        talks=talks,
        cache_control=answer.get("CacheControl", ""),
    )


def decoded(body: bytes) -> tuple[tuple[int, int] | None, bool]:
    """Its size, if every pixel can be had, and whether it tells of anything but pixels."""
    try:
        with Image.open(io.BytesIO(body)) as picture:
            picture.load()
            told = {"exif", "xmp", "comment", "XML:com.adobe.xmp"} & picture.info.keys()
            return picture.size, bool(told) or bool(picture.getexif())
    except (OSError, SyntaxError, ValueError):
        return None, False


def read_depths(place: Place) -> dict[str, int]:
    """Messages in every queue, seen and unseen."""
    sqs = place.client("sqs")
    depths = {}
    for name, url in place.queue_urls.items():
        attributes = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]
        for kind in ("", "NotVisible", "Delayed"):
            depths[f"{name}{kind}"] = int(attributes[f"ApproximateNumberOfMessages{kind}"])
    return depths
