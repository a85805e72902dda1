"""Reading rollups, for operators: a bounded number of steps, whatever the history behind them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

from imagefleet.errors import RequestRejected
from imagefleet.jobs.shapes.fleet import FlowView
from imagefleet.jobs.shapes.rates import (
    KEPT,
    LENGTHS,
    CostPoint,
    CostsView,
    CostTotals,
    KindRates,
    RatePoint,
    Rates,
    RatesView,
    Step,
)
from imagefleet.store.database import Connection

MOST_POINTS: Final = 750  # half a day of minutes, a month of hours, two years
FEW_POINTS: Final = 400  # of the step that is taken where none is asked for
EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)  # where an hour begins, and a day
NEVER: Final = datetime.min.replace(tzinfo=UTC)

_COUNTS: Final = (
    "submitted", "completed", "failed", "stopped", "retried", "released", "lost",
    "promised", "late",
)  # fmt: skip
_BILLED: Final = ("sqs_requests", "s3_writes", "invalidation_paths")

FIND_NOW: Final = """
SELECT now() AS now, progress.counted_until FROM rollup_progress AS progress
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class When:
    """Of which time, in which steps; what is not said is the time up to now."""

    span: timedelta
    since: datetime | None = None
    until: datetime | None = None
    step: Step | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """The steps that are read: whole ones, of which the last may not be over."""

    step: Step
    since: datetime
    until: datetime
    counted_until: datetime

    @property
    def starts(self) -> list[datetime]:
        """When each of them begins."""
        length = LENGTHS[self.step]
        return [self.since + length * place for place in range((self.until - self.since) // length)]

    def counted(self, since: datetime, until: datetime) -> timedelta:
        """How much of a time is counted by now."""
        return max(min(until, self.counted_until) - since, timedelta(0))

    @property
    def told(self) -> dict[str, object]:
        """As a `Stretch` has it."""
        return {name: getattr(self, name) for name in ("step", "since", "until", "counted_until")}


async def find_steps(connection: Connection, asked: When) -> Steps:
    """Which steps that are, by the database's clock; RequestRejected where they are too many."""
    (row,) = await connection.fetch(FIND_NOW)
    latest = row["counted_until"]
    until = min(asked.until or latest, latest)
    since = asked.since or until - asked.span
    step = asked.step or _fine_enough(row["now"] - since, until - since)
    length = LENGTHS[step]
    end = until + (EPOCH - until) % length
    start = max(since, row["now"] - KEPT[step]) if step in KEPT else since
    start = min(start - (start - EPOCH) % length, end)
    if (end - start) / length > MOST_POINTS:
        sentence = f"That is more than {MOST_POINTS} steps of a {step}: take longer ones."
        raise RequestRejected("invalid_filter", sentence)
    return Steps(step=step, since=start, until=end, counted_until=latest)


def _fine_enough(age: timedelta, span: timedelta) -> Step:
    for step, kept in KEPT.items():
        if age <= kept and span / LENGTHS[step] <= FEW_POINTS:
            return step
    return Step.DAY


# Each step by itself: most rollups are minutes of yesterday, so of a stretch of time the planner
# believes that a year of days is most of the table. By time and by kind in one go; who is not asked
# for in a set is the least there is.
_KEYS: Final = """
       coalesce(chosen.at, '-infinity') AS at, coalesce(chosen.type, '') AS type,
       coalesce(chosen.lane, '') AS lane"""

READ_RATES: Final = f"""
WITH chosen AS MATERIALIZED (
    SELECT rollups.* FROM rollups
     WHERE rollups.step = $1 AND rollups.at = ANY ($2::timestamptz[])
       AND ($3::text IS NULL OR rollups.type = $3) AND ($4::text IS NULL OR rollups.lane = $4)
),
counted AS (
    SELECT {_KEYS}, max(chosen.longest_wait) AS longest_wait,
           max(chosen.longest_duration) AS longest_duration,
           {", ".join(f"sum(chosen.{count})::bigint AS {count}" for count in _COUNTS)}
      FROM chosen
     GROUP BY GROUPING SETS ((chosen.at), (chosen.type, chosen.lane), ())
),
spread AS (
    SELECT {_KEYS}, buckets.place, sum(buckets.wait)::bigint AS wait,
           sum(buckets.duration)::bigint AS duration
      FROM chosen
     CROSS JOIN LATERAL unnest(chosen.waits, chosen.durations)
                        WITH ORDINALITY AS buckets (wait, duration, place)
     GROUP BY GROUPING SETS ((chosen.at, buckets.place), (chosen.type, chosen.lane, buckets.place),
                             (buckets.place))
),
gathered AS (
    SELECT spread.at, spread.type, spread.lane,
           array_agg(coalesce(spread.wait, 0) ORDER BY spread.place) AS waits,
           array_agg(coalesce(spread.duration, 0) ORDER BY spread.place) AS durations
      FROM spread
     GROUP BY spread.at, spread.type, spread.lane
)
SELECT counted.*, coalesce(gathered.waits, '{{}}') AS waits,
       coalesce(gathered.durations, '{{}}') AS durations
  FROM counted
  LEFT JOIN gathered ON gathered.at = counted.at AND gathered.type = counted.type
                    AND gathered.lane = counted.lane
 WHERE counted.submitted IS NOT NULL
"""  # noqa: S608 - composed at import of the names of columns

Figures: TypeAlias = Mapping[str, Any]

NOTHING: Final[Figures] = {
    **dict.fromkeys(_COUNTS, 0),
    "waits": (), "durations": (), "longest_wait": timedelta(0), "longest_duration": timedelta(0),
}  # fmt: skip


async def read_rates(
    connection: Connection, asked: When, *, job_type: str | None, lane: str | None
) -> RatesView:
    """How fast the fleet was: in all, by kind, and step by step without a gap."""
    steps = await find_steps(connection, asked)
    rows = await connection.fetch(READ_RATES, steps.step, steps.starts, job_type, lane)
    of_kinds = [row for row in rows if row["type"]]
    of_times = {row["at"].replace(tzinfo=UTC): row for row in rows if not row["type"]}
    whole, length = steps.counted(steps.since, steps.until), LENGTHS[steps.step]
    kinds = [KindRates.over(row, whole) for row in of_kinds]
    return RatesView(
        **steps.told,
        totals=Rates.over(of_times.get(NEVER, NOTHING), whole),
        kinds=sorted(kinds, key=lambda kind: (-kind.jobs_a_minute, kind.job_type, kind.lane)),
        points=[
            RatePoint.over({**of_times.get(at, NOTHING), "at": at}, steps.counted(at, at + length))
            for at in steps.starts
        ],
    )


READ_COSTS: Final = f"""
SELECT coalesce(bills.at, images.at) AS at, coalesce(images.published, 0)::bigint AS images,
       {", ".join(f"coalesce(bills.{billed}, 0) AS {billed}" for billed in _BILLED)}
  FROM (SELECT costs.* FROM rollup_costs AS costs
         WHERE costs.step = $1 AND costs.at = ANY ($2::timestamptz[])) AS bills
  FULL JOIN (SELECT rollups.at, sum(rollups.published) AS published
               FROM rollups
              WHERE rollups.step = $1 AND rollups.at = ANY ($2::timestamptz[])
              GROUP BY rollups.at) AS images ON images.at = bills.at
"""  # noqa: S608 - composed at import of the names of columns


async def read_costs(connection: Connection, asked: When) -> CostsView:
    """What was published and what was billed meanwhile: in all, and step by step."""
    steps = await find_steps(connection, asked)
    rows = await connection.fetch(READ_COSTS, steps.step, steps.starts)
    of_times = {row["at"]: dict(row) for row in rows}
    figures = ("images", *_BILLED)
    nothing = dict.fromkeys(figures, 0)
    totals = CostTotals(**{name: sum(row[name] for row in rows) for name in figures})
    return CostsView(
        **steps.told,
        totals=totals.model_copy(update={"per_thousand_images": totals.a_thousand()}),
        points=[CostPoint.of({**nothing, **of_times.get(at, {}), "at": at}) for at in steps.starts],
    )


MOST_UNCOUNTED: Final = 100_000  # attempts; as a rule there are those of a minute

# By the minutes that are counted, and of what came after them the newest: a minute as a rule, and
# no more than $1 where nobody has counted for long.
READ_THROUGHPUT: Final = """
WITH flows AS (
    SELECT rollups.type, rollups.lane, flow.outcome, flow.attempts, flow.duration, flow.longest,
           flow.queue_time
      FROM rollups
      CROSS JOIN LATERAL jsonb_to_recordset(rollups.flows) AS flow (
          outcome text, attempts bigint, duration float, longest float, queue_time float)
     WHERE rollups.step = 'minute' AND rollups.at >= date_trunc('minute', now() - interval '1 hour')
    UNION ALL
    SELECT newest.type, newest.lane, newest.outcome, count(*),
           extract(epoch FROM sum(newest.duration))::float,
           extract(epoch FROM max(newest.duration))::float,
           extract(epoch FROM sum(newest.queue_time))::float
      FROM (SELECT attempts.type, attempts.lane, attempts.outcome, attempts.duration,
                   attempts.queue_time
              FROM attempts
             WHERE attempts.ended_at >= greatest(
                       (SELECT progress.counted_until FROM rollup_progress AS progress),
                       date_trunc('minute', now() - interval '1 hour'))
             ORDER BY attempts.ended_at DESC
             LIMIT $1) AS newest
     GROUP BY newest.type, newest.lane, newest.outcome
)
SELECT flows.type, flows.lane, flows.outcome, sum(flows.attempts)::bigint AS attempts,
       sum(flows.duration) / sum(flows.attempts)::float * interval '1 second' AS mean_duration,
       max(flows.longest) * interval '1 second' AS longest_duration,
       sum(flows.queue_time) / sum(flows.attempts)::float * interval '1 second' AS mean_queue_time
  FROM flows
 GROUP BY flows.type, flows.lane, flows.outcome
 ORDER BY flows.type, flows.lane, flows.outcome
"""


async def read_throughput(connection: Connection) -> list[FlowView]:
    """What ended within the last hour, from its first whole minute on."""
    rows = await connection.fetch(READ_THROUGHPUT, MOST_UNCOUNTED)
    return [FlowView.of(row) for row in rows]
