"""Rolling up: what ended in a minute is counted once it is over, and added to its hour and day.

A minute is looked at as a whole, by the index of when attempts ended, and what it had that its
rollup lacks is added to the three. So a look does not depend on what others looked at, and how
often: one that is repeated adds nothing. Each is one transaction with how far this is, under the
lock of that row: of two who look at once, one waits, and takes the next minute.

Attempts bear the time at which their transaction began, and may be seen later than that. So each
minute is looked at a second time, LATE after the first, and not before everybody is through who
had a transaction with a number when the minute had been over for so long. One without a number has
not locked its claim by then, and will find that it has lost it: it writes no attempt. Hence none is
missed, and none is counted twice.

What no attempt tells comes by entries, which are deleted by the statement that adds them up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import zip_longest
from typing import Any, Final, TypeAlias

from asyncpg import Record

from imagefleet.jobs.lifecycle import OUR_FAILURES
from imagefleet.jobs.model import CancelCode
from imagefleet.jobs.shapes.rates import (
    GROWTH,
    KEPT,
    MAKES_IMAGES,
    MINUTE,
    MOST_BUCKETS,
    PROMISED_WITHIN,
)
from imagefleet.store.database import Connection

MARGIN: Final = timedelta(seconds=5)
"""A minute is looked at so long after it: what commits later waits for the second look."""
LATE: Final = timedelta(minutes=10)
"""As a claim's lock; and far more than any statement may take."""
ENDS: Final = (
    "completed", "failed", "stopped", "retried", "released", "lost", "published",
    "promised", "late",
)  # fmt: skip

_STOPS: Final = ", ".join(f"'{code}'" for code in CancelCode)
_OURS: Final = ", ".join(f"'{code}'" for code in sorted(OUR_FAILURES))


def _bucket(column: str) -> str:
    """Which of the buckets of `jobs/shapes/rates.py` a span is in."""
    milliseconds = f"greatest(extract(epoch FROM attempts.{column})::float * 1000, 1)"
    return f"least(ceil(ln({milliseconds}) / ln({GROWTH}::float)), {MOST_BUCKETS})::int"


LOCK_PROGRESS: Final = """
SELECT progress.counted_until, progress.settled_until,
       date_trunc('minute', now() - $1::interval) AS closed,
       CASE WHEN pg_snapshot_xmin(pg_current_snapshot()) >= progress.mark
            THEN date_trunc('minute', progress.marked_at - $2::interval)
            ELSE progress.settled_until END AS through
  FROM rollup_progress AS progress
   FOR UPDATE
"""

# As `COMPLETE_JOBS` tells a job's age: a first claim's by when it was due, which is gone after it.
# Null where nothing was promised: of other types, of what others submitted, of who sent no image.
_LATE: Final = f"""
           CASE WHEN attempts.type = '{MAKES_IMAGES}' THEN (
               SELECT CASE WHEN attempts.outcome = 'completed' AND attempts.why = 'done'
                           THEN CASE WHEN attempts.claim_no = 1
                                     THEN attempts.queue_time + attempts.duration
                                     ELSE attempts.ended_at - jobs.created_at
                                END > interval '{PROMISED_WITHIN[MAKES_IMAGES].seconds} s'
                           WHEN jobs.state = 'failed' AND jobs.claim_no = attempts.claim_no
                                AND attempts.why IN ({_OURS})
                           THEN true END
                 FROM jobs
                WHERE jobs.id = attempts.job_id AND jobs.parent_job_id IS NULL) END AS late
"""  # noqa: S608 - composed at import of the names of codes

FIND_MINUTE: Final = """
SELECT date_trunc('minute', attempts.ended_at) AS at
  FROM attempts
 WHERE attempts.ended_at >= $1 AND attempts.ended_at < $2
 ORDER BY attempts.ended_at
 LIMIT 1
"""

# Of each type and lane one row with all ends, one for each bucket of waits, one for each of
# durations, one for each word of an end: its attempts are read once. Of a lost worker nobody knows
# how long it worked.
COUNT_ENDS: Final = f"""
WITH ended AS MATERIALIZED (
    SELECT attempts.type, attempts.lane, attempts.queue_time, attempts.duration, attempts.why,
           attempts.outcome AS word,
           CASE WHEN attempts.outcome = 'exhausted' THEN 'failed'
                WHEN attempts.outcome IN ('rescued', 'taken_over') THEN 'lost'
                WHEN attempts.outcome = 'failed' AND attempts.why IN ({_STOPS}) THEN 'stopped'
                ELSE attempts.outcome END AS outcome,
           {_bucket("queue_time")} AS wait_in, {_LATE.strip()},
           CASE WHEN attempts.outcome IN ('completed', 'retried')
                  OR attempts.outcome = 'failed' AND attempts.why NOT IN ({_STOPS})
                THEN {_bucket("duration")} END AS duration_in
      FROM attempts
     WHERE attempts.ended_at >= $1 AND attempts.ended_at < $1 + interval '1 minute'
)
SELECT ended.type, ended.lane, ended.wait_in, ended.duration_in, ended.word, count(*) AS attempts,
       grouping(ended.wait_in) = 0 AS of_waits, grouping(ended.duration_in) = 0 AS of_durations,
       grouping(ended.word) = 0 AS of_flows, sum(ended.duration) AS duration,
       max(ended.duration) AS longest, sum(ended.queue_time) AS queue_time,
       count(*) FILTER (WHERE ended.outcome = 'completed') AS completed,
       count(*) FILTER (WHERE ended.outcome = 'failed') AS failed,
       count(*) FILTER (WHERE ended.outcome = 'stopped') AS stopped,
       count(*) FILTER (WHERE ended.outcome = 'retried') AS retried,
       count(*) FILTER (WHERE ended.outcome = 'released') AS released,
       count(*) FILTER (WHERE ended.outcome = 'lost') AS lost,
       count(*) FILTER (WHERE ended.outcome = 'completed' AND ended.why = 'done'
                          AND ended.type = '{MAKES_IMAGES}') AS published,
       count(ended.late) AS promised, count(*) FILTER (WHERE ended.late) AS late,
       max(ended.queue_time) AS longest_wait,
       coalesce(max(ended.duration) FILTER (WHERE ended.duration_in IS NOT NULL), interval '0')
           AS longest_duration
  FROM ended
 GROUP BY GROUPING SETS ((ended.type, ended.lane), (ended.type, ended.lane, ended.wait_in),
                         (ended.type, ended.lane, ended.duration_in),
                         (ended.type, ended.lane, ended.word))
"""  # noqa: S608 - composed at import of the names of codes

READ_MINUTE: Final = f"""
SELECT kept.type, kept.lane, kept.waits, kept.durations,
       {", ".join(f"kept.{end}" for end in ENDS)}
  FROM rollups AS kept
 WHERE kept.step = 'minute' AND kept.at = $1
"""  # noqa: S608 - composed at import of the names of columns


def _summed(column: str) -> str:
    # What was kept and what is new, bucket by bucket.
    return f"""ARRAY (SELECT coalesce(sums.kept, 0) + coalesce(sums.new, 0)
              FROM unnest(kept.{column}, excluded.{column})
                   WITH ORDINALITY AS sums (kept, new, place)
             ORDER BY sums.place)"""  # noqa: S608 - composed at import of the names of columns


# The three rows of each, in one order whoever writes. Flows are those of the whole minute in either
# look: they take the place of what was there.
ADD_ENDS: Final = f"""
INSERT INTO rollups AS kept (step, at, type, lane, {", ".join(ENDS)}, waits, durations,
                             longest_wait, longest_duration, flows)
SELECT steps.step, date_trunc(steps.step, $1::timestamptz, 'UTC'), new.type, new.lane,
       {", ".join(f"new.{end}" for end in ENDS)}, new.waits, new.durations,
       new.longest_wait * interval '1 second', new.longest_duration * interval '1 second',
       CASE steps.step WHEN 'minute' THEN new.flows ELSE '[]' END
  FROM jsonb_to_recordset($2::jsonb) AS new (
           type text, lane text, {", ".join(f"{end} bigint" for end in ENDS)}, flows jsonb,
           waits bigint[], durations bigint[], longest_wait float, longest_duration float)
 CROSS JOIN (VALUES ('minute'), ('hour'), ('day')) AS steps (step)
 ORDER BY steps.step, new.type, new.lane
    ON CONFLICT (step, at, type, lane) DO UPDATE
       SET {", ".join(f"{end} = kept.{end} + excluded.{end}" for end in ENDS)},
           waits = {_summed("waits")},
           durations = {_summed("durations")},
           longest_wait = greatest(kept.longest_wait, excluded.longest_wait),
           longest_duration = greatest(kept.longest_duration, excluded.longest_duration),
           flows = excluded.flows
"""  # noqa: S608 - composed at import of the names of columns

SAVE_COUNTED: Final = "UPDATE rollup_progress SET counted_until = $1"

SAVE_SETTLED: Final = "UPDATE rollup_progress SET settled_until = $1"

# Once all are through who were waited for: from now on for whoever has a number by now. It is our
# own, as the end of a snapshot is below numbers of those who have begun to write and not ended.
SET_MARK: Final = """
UPDATE rollup_progress SET marked_at = now(), mark = pg_current_xact_id()
 WHERE mark <= pg_snapshot_xmin(pg_current_snapshot())
   AND settled_until >= date_trunc('minute', marked_at - $1::interval)
   AND marked_at < now() - interval '30 seconds'
"""

Tallies: TypeAlias = dict[tuple[str, str], dict[str, Any]]
"""By type and lane: counts by the names of columns, and two lists of them by buckets."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What one look at a minute found."""

    added: int
    """Attempts that its rollup lacked."""
    again: bool = False
    """It was the second."""


async def roll_up(connection: Connection) -> Counted | None:
    """Look at the next minute that is over, else at one again; None: all are looked at by now."""
    async with connection.transaction():
        (row,) = await connection.fetch(LOCK_PROGRESS, MARGIN, LATE)
        counted, settled, closed = row["counted_until"], row["settled_until"], row["closed"]
        through = min(row["through"], counted)
        if counted < closed:
            added, until = await _look(connection, counted, closed)
            await connection.execute(SAVE_COUNTED, until)
            return Counted(added)
        if settled < through:
            added, until = await _look(connection, settled, through)
            await connection.execute(SAVE_SETTLED, until)
            return Counted(added, again=True)
        await connection.execute(SET_MARK, LATE)
        return None


async def _look(connection: Connection, since: datetime, until: datetime) -> tuple[int, datetime]:
    """Count the first minute in which anything ended; up to where all is counted now."""
    minute: datetime | None = await connection.fetchval(FIND_MINUTE, since, until)
    if minute is None:
        return 0, until
    there = _tallies(await connection.fetch(COUNT_ENDS, minute))
    kept = {
        (row["type"], row["lane"]): dict(row) for row in await connection.fetch(READ_MINUTE, minute)
    }
    lacking = [_less(tally, kept.get(kind, {})) for kind, tally in there.items()]
    lacking = [tally for tally in lacking if any(tally["waits"])]
    if lacking:
        await connection.execute(ADD_ENDS, minute, lacking)
    return sum(sum(tally["waits"]) for tally in lacking), minute + MINUTE


def _tallies(rows: Sequence[Record]) -> Tallies:
    tallies: Tallies = {}
    for row in rows:
        nothing: dict[str, Any] = {"type": row["type"], "lane": row["lane"]}
        nothing |= {"waits": [], "durations": [], "flows": []}
        tally = tallies.setdefault((row["type"], row["lane"]), nothing)
        if row["of_waits"]:
            _put(tally["waits"], row["wait_in"], row["attempts"])
        elif row["of_flows"]:
            spans = {
                name: row[name].total_seconds() for name in ("duration", "longest", "queue_time")
            }
            tally["flows"].append({"outcome": row["word"], "attempts": row["attempts"]} | spans)
        elif not row["of_durations"]:
            tally |= {end: row[end] for end in ENDS}
            longest = ("longest_wait", "longest_duration")
            tally |= {name: row[name].total_seconds() for name in longest}
        elif row["duration_in"] is not None:
            _put(tally["durations"], row["duration_in"], row["attempts"])
    return tallies


def _put(buckets: list[int], place: int, count: int) -> None:
    buckets.extend([0] * (place + 1 - len(buckets)))
    buckets[place] = count


def _less(tally: Mapping[str, Any], kept: Mapping[str, Any]) -> dict[str, Any]:
    """What of it is not in what was kept, which entries may have told more of."""
    lacking = {end: max(0, tally[end] - kept.get(end, 0)) for end in ENDS}
    for name in ("waits", "durations"):
        pairs = zip_longest(tally[name], kept.get(name, ()), fillvalue=0)
        lacking[name] = [there - counted for there, counted in pairs]
    return dict(tally) | lacking


# Two statements' worth of sums, of one page: what is deleted is added, or neither is.
ADD_ENTRIES: Final = """
WITH page AS MATERIALIZED (
    SELECT entries.id FROM rollup_entries AS entries ORDER BY entries.id LIMIT $1
),
taken AS (
    DELETE FROM rollup_entries WHERE id = ANY (ARRAY (SELECT page.id FROM page))
    RETURNING at, type, lane, submitted, promised, late, sqs_requests, s3_writes,
              invalidation_paths
),
steps AS (
    SELECT 'minute' AS step UNION ALL SELECT 'hour' UNION ALL SELECT 'day'
),
submits AS (
    INSERT INTO rollups AS kept (step, at, type, lane, submitted, promised, late)
    SELECT steps.step, date_trunc(steps.step, taken.at, 'UTC'), taken.type, taken.lane,
           sum(taken.submitted), sum(taken.promised), sum(taken.late)
      FROM taken CROSS JOIN steps
     WHERE taken.type IS NOT NULL
     GROUP BY 1, 2, 3, 4
     ORDER BY 1, 2, 3, 4
        ON CONFLICT (step, at, type, lane) DO UPDATE
           SET submitted = kept.submitted + excluded.submitted,
               promised = kept.promised + excluded.promised, late = kept.late + excluded.late
),
bills AS (
    INSERT INTO rollup_costs AS kept (step, at, sqs_requests, s3_writes, invalidation_paths)
    SELECT steps.step, date_trunc(steps.step, taken.at, 'UTC'), sum(taken.sqs_requests),
           sum(taken.s3_writes), sum(taken.invalidation_paths)
      FROM taken CROSS JOIN steps
     WHERE taken.type IS NULL
     GROUP BY 1, 2
     ORDER BY 1, 2
        ON CONFLICT (step, at) DO UPDATE
           SET sqs_requests = kept.sqs_requests + excluded.sqs_requests,
               s3_writes = kept.s3_writes + excluded.s3_writes,
               invalidation_paths = kept.invalidation_paths + excluded.invalidation_paths
)
SELECT count(*) FROM taken
"""


async def add_entries(connection: Connection, *, limit: int) -> int:
    """Add the oldest entries to the rollups, and how many. Of two at once one finds nothing."""
    return int(await connection.fetchval(ADD_ENTRIES, limit))


# Never a minute that is to be looked at again: all it had would be added once more.
PRUNE_ROLLUPS: Final = """
DELETE FROM rollups
 WHERE step = $1
   AND at < least(now() - $2::interval,
                  (SELECT progress.settled_until FROM rollup_progress AS progress))
"""

PRUNE_COSTS: Final = "DELETE FROM rollup_costs WHERE step = $1 AND at < now() - $2::interval"


async def prune_rollups(connection: Connection) -> None:
    """Forget minutes and hours that are older than such are kept; what they told, days tell."""
    for step, kept in KEPT.items():
        await connection.execute(PRUNE_ROLLUPS, step, kept)
        await connection.execute(PRUNE_COSTS, step, kept)


TELL_BILLED: Final = """
INSERT INTO rollup_entries (sqs_requests, s3_writes) VALUES ($1, $2)
"""


async def tell_billed(connection: Connection, *, sqs_requests: int, s3_writes: int) -> None:
    """Say what this process has sent since it said so last."""
    await connection.execute(TELL_BILLED, sqs_requests, s3_writes)
