"""The dead-letter queue as the database sees it: what is to be sent there, what lies there.

The queue is a copy for people and for SQS's own redrive; the rows of `dead_letters` are the truth.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final
from uuid import UUID

from imagefleet.jobs.model import JobId, JsonObject, Ring, TenantId
from imagefleet.store.database import Connection
from imagefleet.store.jobs.rings import ring_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterSend:
    """One letter that is to be announced on the dead-letter queue."""

    letter_id: UUID
    job_id: JobId
    tenant_id: TenantId
    type: str
    reason: str
    attempts: int
    traceparent: str | None
    tracestate: str | None


TAKE_DUE_SENDS: Final = """
WITH due AS MATERIALIZED (
    SELECT sends.dead_letter_id
      FROM dead_letter_sends AS sends
     WHERE sends.due_at <= now()
     ORDER BY sends.due_at
     LIMIT $1
       FOR UPDATE SKIP LOCKED
),
pushed AS (
    UPDATE dead_letter_sends
       SET due_at = now() + least(
               interval '1 minute' * power(2, least(dead_letter_sends.sends, 20)),
               interval '1 hour'),
           sends = dead_letter_sends.sends + 1
     WHERE dead_letter_sends.dead_letter_id = ANY (ARRAY (SELECT due.dead_letter_id FROM due))
    RETURNING dead_letter_sends.dead_letter_id
)
SELECT letters.id AS letter_id, letters.job_id, letters.tenant_id, letters.type, letters.reason,
       (letters.snapshot ->> 'attempts')::integer AS attempts,
       letters.snapshot ->> 'traceparent' AS traceparent,
       letters.snapshot ->> 'tracestate' AS tracestate
  FROM pushed
  JOIN dead_letters AS letters ON letters.id = pushed.dead_letter_id
"""


async def take_due_sends(connection: Connection, *, limit: int) -> list[DeadLetterSend]:
    """Push due sends forward and return them to be sent; any number of senders may run."""
    return [DeadLetterSend(**dict(row)) for row in await connection.fetch(TAKE_DUE_SENDS, limit)]


FORGET_SENDS: Final = """
DELETE FROM dead_letter_sends WHERE dead_letter_id = ANY ($1::uuid[])
"""


async def forget_sends(connection: Connection, letter_ids: Sequence[UUID]) -> None:
    """SQS has taken these."""
    await connection.execute(FORGET_SENDS, list(letter_ids))


class Found(StrEnum):
    """What a message on the dead-letter queue turned out to be about."""

    WAITS = "waits"
    """A letter that nobody has dealt with: stays."""
    STRAY = "stray"
    """No job of ours: now it has a letter, and stays until somebody knows."""
    RUNNING = "running"
    """A job at work: rung in its lane, so that an expired lock finds its next owner."""
    RUNG = "rung"
    """An open job: its ring is due now."""
    FINISHED = "finished"
    """A job that completed, or that somebody stopped."""
    REPLAYED = "replayed"
    ACKNOWLEDGED = "acknowledged"
    WRITTEN = "written"
    """A failure without a letter: now it has one, and its own message will follow."""


STAYS: Final = frozenset({Found.WAITS, Found.STRAY})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadMessage:
    """A message as it lies on the dead-letter queue."""

    job_id: JobId | None
    """None when it is not a job message."""
    reason: str
    """What the letter says if there is no such job."""
    message: str
    detail: str
    sha256: str
    """Of the content, by which strays are told apart."""
    snapshot: JsonObject
    sent_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one message is about; for a running job, the ring to send."""

    found: Found
    ring: Ring | None = None


JUDGE_MESSAGES: Final = """
WITH asked AS MATERIALIZED (
    SELECT *
      FROM jsonb_to_recordset($1::jsonb) AS asked (
          n integer, job_id uuid, reason text, message text, detail text, sha256 text,
          snapshot jsonb, sent_at timestamptz)
),
judged AS MATERIALIZED (
    SELECT asked.*, job.id AS known_id, job.lane, job.run_at, job.tenant_id, job.traceparent,
           job.tracestate,
           CASE
               WHEN job.state IN ('queued', 'failed_retryable') THEN 'rung'
               WHEN job.state = 'processing' THEN 'running'
               WHEN job.state = 'completed'
                    OR job.failure_code IN ('cancelled', 'image_deleted') THEN 'finished'
               WHEN replay.id IS NOT NULL THEN 'replayed'
               WHEN letter.acknowledged_at IS NOT NULL THEN 'acknowledged'
               WHEN letter.id IS NOT NULL THEN 'waits'
               WHEN job.id IS NOT NULL THEN 'written'
               -- Somebody knew this content; what is sent after that is news again.
               WHEN stray.until >= asked.sent_at AND stray.until < 'infinity' THEN 'acknowledged'
               WHEN stray.until = 'infinity' THEN 'waits'
               ELSE 'stray'
           END AS found
      FROM asked
      -- How many there are the planner cannot know: a join without LIMIT could read whole tables.
      LEFT JOIN LATERAL (
          SELECT jobs.* FROM jobs WHERE jobs.id = asked.job_id LIMIT 1
      ) AS job ON true
      LEFT JOIN LATERAL (
          SELECT replays.id FROM jobs AS replays WHERE replays.replay_of = job.id LIMIT 1
      ) AS replay ON true
      LEFT JOIN LATERAL (
          SELECT letters.id, letters.acknowledged_at
            FROM dead_letters AS letters
           WHERE letters.job_id = job.id
           LIMIT 1
      ) AS letter ON true
      LEFT JOIN LATERAL (
          SELECT coalesce(strays.acknowledged_at, 'infinity'::timestamptz) AS until
            FROM dead_letters AS strays
           WHERE strays.job_id IS NULL AND strays.snapshot ->> 'sha256' = asked.sha256
           ORDER BY coalesce(strays.acknowledged_at, 'infinity'::timestamptz) DESC
           LIMIT 1
      ) AS stray ON true
),
bell AS MATERIALIZED (
    SELECT rings.job_id
      FROM rings
     WHERE rings.job_id = ANY (ARRAY (SELECT judged.known_id FROM judged
                                       WHERE judged.found = 'rung'))
     ORDER BY rings.job_id
       FOR UPDATE
),
rung AS (
    UPDATE rings
       SET next_at = CASE WHEN jobs.cancel_requested_at IS NULL THEN greatest(jobs.run_at, now())
                          ELSE now() END,
           sent_at = NULL, sends = 0
      FROM bell
      JOIN jobs ON jobs.id = bell.job_id
     WHERE rings.job_id = bell.job_id
),
written AS (
    INSERT INTO dead_letters (job_id, tenant_id, type, reason, fingerprint, message, detail,
                              snapshot, died_at)
    SELECT jobs.id, jobs.tenant_id, jobs.type, jobs.failure_code,
           fault_fingerprint(jobs.type, jobs.failure_code, jobs.failure_detail),
           jobs.failure_message, jobs.failure_detail, to_jsonb(jobs), jobs.finished_at
      FROM jobs
     WHERE jobs.id = ANY (ARRAY (SELECT judged.known_id FROM judged
                                  WHERE judged.found = 'written'))
     ORDER BY jobs.id
        ON CONFLICT DO NOTHING
    RETURNING dead_letters.id
),
announced AS (
    INSERT INTO dead_letter_sends (dead_letter_id) SELECT written.id FROM written
),
strays AS (
    INSERT INTO dead_letters (reason, fingerprint, message, detail, snapshot, died_at)
    SELECT DISTINCT ON (judged.sha256)
           judged.reason, fault_fingerprint(NULL, judged.reason, judged.detail), judged.message,
           judged.detail, judged.snapshot || jsonb_build_object('sha256', judged.sha256),
           judged.sent_at
      FROM judged
     WHERE judged.found = 'stray'
     ORDER BY judged.sha256, judged.sent_at
        ON CONFLICT DO NOTHING
)
SELECT judged.found, judged.known_id AS job_id, judged.lane, judged.run_at AS next_at,
       judged.tenant_id, now() AS announced_at, judged.traceparent, judged.tracestate
  FROM judged
 ORDER BY judged.n
"""


async def judge_messages(connection: Connection, messages: Sequence[DeadMessage]) -> list[Finding]:
    """Tell what each message is about, in order, and write what that calls for."""
    asked = [asdict(message) | {"n": n} for n, message in enumerate(messages)]
    rows = await connection.fetch(JUDGE_MESSAGES, asked)
    return [
        Finding(
            found=Found(row["found"]),
            ring=ring_of(row) if row["found"] == Found.RUNNING else None,
        )
        for row in rows
    ]
