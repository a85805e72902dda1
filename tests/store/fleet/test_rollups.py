"""What ended is counted once, whenever it commits and whoever counts, and adds up at every step."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from math import ceil

import pytest

from imagefleet.jobs.lifecycle import Completed, Failed, Outcome, ResultReason
from imagefleet.jobs.model import Lane
from imagefleet.jobs.shapes.rates import RatesView, Step
from imagefleet.store.database import Connection
from imagefleet.store.edge.invalidations import accept_batch
from imagefleet.store.fleet.bookkeeping import fold_entries
from imagefleet.store.fleet.rates import When, read_costs, read_rates, read_throughput
from imagefleet.store.fleet.rollups import (
    ENDS,
    LATE,
    MARGIN,
    add_entries,
    prune_rollups,
    roll_up,
    tell_billed,
)
from imagefleet.store.images.deleting import darken_without_edge
from imagefleet.store.jobs.submissions import submit_job, submit_jobs
from tests.support.database import Database
from tests.support.factories import (
    CORRUPT,
    UNAVAILABLE,
    a_submission,
    hold_job,
    make_due,
    settle_job,
)
from tests.support.races import all_at_once, many_connections

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)

INSERT = """
INSERT INTO attempts (job_id, claim_no, tenant_id, type, lane, worker_id, claimed_at, ended_at,
                      duration, queue_time, charged, outcome, why)
SELECT gen_random_uuid(), 1, 'acme', $2, $3, gen_random_uuid(), now(),
       date_trunc('minute', now()) - $1::interval, took, waited, true, $4, $5
  FROM unnest($6::interval[], $7::interval[]) AS these (took, waited)
"""

pytestmark = pytest.mark.breaks_invariants  # attempts of no job


async def ended(
    connection: Connection,
    *,
    ago: timedelta,
    attempts: int = 1,
    type: str = "noop",  # noqa: A002 - the field's own name
    lane: Lane = Lane.FAST,
    outcome: str = "completed",
    why: str = "done",
    took: Sequence[timedelta] = (),
    waited: Sequence[timedelta] = (),
) -> None:
    """So many at once, that long before this minute."""
    spans = [list(spans) or [SECOND] * attempts for spans in (took, waited)]
    await connection.execute(INSERT, ago, type, lane, outcome, why, *spans)


async def count_from(superuser: Connection, ago: timedelta) -> None:
    """As if the office had been vacant since then."""
    await superuser.execute(
        "UPDATE rollup_progress SET counted_until = date_trunc('minute', now()) - $1::interval,"
        " settled_until = date_trunc('minute', now()) - $1::interval",
        ago,
    )


async def set_mark(superuser: Connection) -> None:
    await superuser.execute(
        "UPDATE rollup_progress SET marked_at = now(), mark = pg_current_xact_id()"
    )


async def rolled_up(connection: Connection) -> tuple[int, int]:
    """Every minute that can be looked at: what the first looks added, and what the second did."""
    first = second = 0
    while found := await roll_up(connection):
        first, second = first + found.added * (not found.again), second + found.added * found.again
    return first, second


async def kept(connection: Connection, step: str, counts: Sequence[str] = ENDS) -> dict[str, int]:
    sums = ", ".join(f"coalesce(sum({count}), 0)::bigint AS {count}" for count in counts)
    asked = f"SELECT {sums} FROM rollups WHERE step = $1"  # noqa: S608 - names of columns
    row = await connection.fetchrow(asked, step)
    assert row is not None
    return dict(row)


async def test_what_ended_is_counted_by_how_it_did(
    maintenance: Connection, superuser: Connection
) -> None:
    ends = {
        ("completed", "done"): "completed",
        ("completed", "superseded"): "completed",
        ("retried", "s3_unavailable"): "retried",
        ("failed", "corrupt"): "failed",
        ("failed", "cancelled"): "stopped",
        ("failed", "image_deleted"): "stopped",
        ("exhausted", "lock_expired"): "failed",
        ("released", "drain"): "released",
        ("rescued", "worker_lost"): "lost",
        ("taken_over", "lock_expired"): "lost",
    }
    await count_from(superuser, HOUR)
    for number, (outcome, why) in enumerate(ends):
        await ended(
            superuser, ago=HOUR / 2, attempts=2**number, type="process_image",
            outcome=outcome, why=why,
        )  # fmt: skip

    await rolled_up(maintenance)

    told = dict.fromkeys(ENDS, 0) | {"published": 1}
    for number, name in enumerate(ends.values()):
        told[name] += 2**number
    assert told == await kept(superuser, "minute")
    durations = await superuser.fetchval("SELECT durations FROM rollups WHERE step = 'day'")
    assert 1 + 2 + 4 + 8 == sum(durations), "of those that came to an end of their own"


ACCEPTED = """
UPDATE jobs SET created_at = now() - $2::interval, run_at = least(run_at, now()) - $3::interval
 WHERE id = $1
"""
FAMILY = "UPDATE jobs SET parent_job_id = gen_random_uuid() WHERE id = $1"


async def an_image(
    worker: Connection,
    superuser: Connection,
    *,
    accepted: float = 0,
    due: float = 0,
    before: Outcome | None = None,
    outcome: Outcome | None = None,
    of_a_set: bool = False,
) -> None:
    """One that ends now; seconds ago, and what an attempt before that came to."""
    asked = a_submission(type="process_image")
    await submit_job(worker, asked)
    seconds = [timedelta(seconds=ago) for ago in (accepted, due)]
    await superuser.execute(ACCEPTED, asked.job_id, *seconds)
    if of_a_set:
        await superuser.execute(FAMILY, asked.job_id)
    if before is not None:
        await settle_job(worker, await hold_job(worker, asked.job_id), before)
        await make_due(superuser, asked.job_id)
    await settle_job(worker, await hold_job(worker, asked.job_id), outcome or Completed())


PROMISED = {
    "in time": ({"accepted": 20, "due": 20}, (1, 0)),
    "too late": ({"accepted": 31, "due": 31}, (1, 1)),
    "in time of when it was to start": ({"accepted": 300, "due": 20}, (1, 0)),
    "repeated, in time of the request": ({"accepted": 20, "before": UNAVAILABLE}, (1, 0)),
    "repeated, too late": ({"accepted": 31, "before": UNAVAILABLE}, (1, 1)),
    "given up for a reason of ours": ({"outcome": Failed(code="poison", message="x")}, (1, 1)),
    "given up for the file's": ({"outcome": CORRUPT}, (0, 0)),
    "of a set": ({"accepted": 31, "due": 31, "of_a_set": True}, (0, 0)),
    "superseded": ({"outcome": Completed(reason=ResultReason.SUPERSEDED)}, (0, 0)),
}


@pytest.mark.parametrize("what", PROMISED)
async def test_of_an_image_it_is_counted_whether_it_was_published_in_time(
    worker: Connection, maintenance: Connection, superuser: Connection, what: str
) -> None:
    image, (promised, late) = PROMISED[what]
    await count_from(superuser, HOUR)
    await an_image(worker, superuser, **image)  # type: ignore[arg-type]
    async with superuser.transaction():  # what is over may not change, but by who has no triggers
        await superuser.execute("SET LOCAL session_replication_role = replica")
        await superuser.execute("UPDATE attempts SET ended_at = ended_at - interval '2 minutes'")
        await superuser.execute("UPDATE jobs SET created_at = created_at - interval '2 minutes'")

    await rolled_up(maintenance)

    for step in Step:
        assert {"promised": promised, "late": late} == await kept(
            superuser, step, ("promised", "late")
        )


DELETED = """
INSERT INTO image_tombstones (image_id, tenant_id, job_id, requested_by, requested_at,
                              objects_deleted_at, objects)
SELECT gen_random_uuid(), 'acme', gen_random_uuid(), 'tests', now() - $1::interval, now(), '{}'
"""


async def test_of_a_deletion_it_is_counted_whether_it_was_dark_in_time_and_never_again(
    maintenance: Connection, superuser: Connection
) -> None:
    for seconds in (1, 59, 61):
        await superuser.execute(DELETED, timedelta(seconds=seconds))

    assert 3 == len(await darken_without_edge(maintenance))
    assert [] == await darken_without_edge(maintenance)
    await superuser.execute("UPDATE rollup_entries SET at = at - interval '2 minutes'")
    assert 1 == await add_entries(maintenance, limit=100)
    await count_from(superuser, HOUR)
    await ended(superuser, ago=timedelta(minutes=2), type="delete_image")  # in the same minute
    await rolled_up(maintenance)

    for step in Step:
        assert {"promised": 3, "late": 1} == await kept(superuser, step, ("promised", "late"))


SPANS = """
SELECT type, lane, outcome, count(*) AS attempts, avg(duration) AS mean_duration,
       max(duration) AS longest_duration, avg(queue_time) AS mean_queue_time
  FROM attempts
 WHERE ended_at >= date_trunc('minute', now() - interval '1 hour')
 GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
"""


async def test_what_ran_lately_is_told_alike_before_it_is_counted_and_after(
    maintenance: Connection, superuser: Connection
) -> None:
    """By the word of each end, with those that committed late."""
    dice = random.Random(7)

    async def some(minutes: int) -> None:
        await ended(
            superuser, ago=timedelta(minutes=minutes), type=dice.choice(["noop", "webhook"]),
            outcome=dice.choice(["completed", "retried", "exhausted", "rescued"]), why="any",
            took=[SECOND * dice.uniform(0, 9) for _ in range(3)],
            waited=[SECOND * dice.uniform(0, 9) for _ in range(3)],
        )  # fmt: skip

    async def told() -> list[tuple[object, ...]]:
        return [
            (
                *(flow.job_type, flow.lane, flow.outcome, flow.attempts),
                *(round(each.total_seconds(), 4) for each in (
                    flow.mean_duration, flow.longest_duration, flow.mean_queue_time)),
            )
            for flow in await read_throughput(maintenance)
        ]  # fmt: skip

    await count_from(superuser, HOUR * 2)
    for minutes in (-1, 1, 2, 5, 20, 20, 20, 40, 59, 70, 90):
        await some(minutes)
    before = await told()
    await rolled_up(maintenance)
    await some(20)
    await set_mark(superuser)
    await superuser.execute(
        "UPDATE rollup_progress SET settled_until = counted_until - $1::interval", HOUR
    )
    await superuser.execute("UPDATE rollup_progress SET marked_at = now() + $1::interval", LATE)
    await rolled_up(maintenance)

    rows = [
        tuple(
            round(each.total_seconds(), 4) if isinstance(each, timedelta) else each for each in row
        )
        for row in await superuser.fetch(SPANS)
    ]
    assert rows == await told()
    assert sum(row[3] for row in rows) == 3 + sum(row[3] for row in before)  # type: ignore[misc]


async def test_of_what_nobody_counts_the_newest_is_told(
    maintenance: Connection, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("imagefleet.store.fleet.rates.MOST_UNCOUNTED", 5)
    await count_from(superuser, HOUR)
    await ended(superuser, ago=HOUR / 2, attempts=9, type="noop")
    await ended(superuser, ago=HOUR / 4, attempts=3, type="webhook")

    flows = await read_throughput(maintenance)

    assert [("noop", 2), ("webhook", 3)] == [(flow.job_type, flow.attempts) for flow in flows]


async def test_a_minute_adds_up_with_its_hour_and_its_day(
    maintenance: Connection, superuser: Connection
) -> None:
    dice = random.Random(7)
    await count_from(superuser, 50 * HOUR)
    for _ in range(120):
        await ended(
            superuser, ago=timedelta(minutes=dice.randrange(1, 49 * 60)),
            type=dice.choice(["noop", "process_image"]), lane=dice.choice([*Lane]),
            outcome=dice.choice(["completed", "failed", "retried"]), why="any",
            took=[SECOND * dice.lognormvariate(0, 2) for _ in range(3)],
            waited=[SECOND * dice.lognormvariate(0, 2) for _ in range(3)],
        )  # fmt: skip

    await rolled_up(maintenance)

    sums = await superuser.fetch(
        "SELECT step, type, lane, place, sum(wait) AS waits, sum(duration) AS durations,"
        " max(longest_wait) AS longest FROM rollups, unnest(waits, durations) WITH ORDINALITY"
        " AS buckets (wait, duration, place) GROUP BY 1, 2, 3, 4 ORDER BY 2, 3, 4"
    )
    minutes, hours, days = (
        [tuple(row)[1:6] for row in sums if row["step"] == step] for step in Step
    )
    assert minutes == hours == days
    assert 360 == sum(row[3] or 0 for row in minutes)
    assert await kept(superuser, "minute") == await kept(superuser, "hour")
    assert await kept(superuser, "hour") == await kept(superuser, "day")
    at = "SELECT count(*) FROM rollups WHERE at <> date_trunc(step, at, 'UTC')"
    assert 0 == await superuser.fetchval(at)


async def test_a_minute_is_left_alone_until_it_is_over(
    maintenance: Connection, superuser: Connection
) -> None:
    await count_from(superuser, HOUR)
    await ended(superuser, ago=-MARGIN)  # in this minute
    await ended(superuser, ago=timedelta(minutes=5))

    assert (1, 0) == await rolled_up(maintenance)

    until, closed = await superuser.fetchrow(
        "SELECT counted_until, date_trunc('minute', now() - $1::interval) FROM rollup_progress",
        MARGIN,
    )  # type: ignore[misc]
    assert until == closed


async def test_what_commits_late_is_counted_once_and_not_before_all_are_through(
    maintenance: Connection, superuser: Connection, database: Database
) -> None:
    await count_from(superuser, HOUR)
    await ended(superuser, ago=HOUR / 2, attempts=2)
    async with database.connect("superuser") as late, late.transaction():
        await ended(late, ago=HOUR / 2, attempts=3, took=[SECOND] * 3, waited=[SECOND * 9] * 3)
        await set_mark(superuser)
        before = await rolled_up(maintenance)
        again = await rolled_up(maintenance)
        settled = await superuser.fetchval("SELECT settled_until FROM rollup_progress")

    after = [await rolled_up(maintenance), await rolled_up(maintenance)]

    assert [(2, 0), (0, 0)] == [before, again]
    assert settled < datetime.now(UTC) - HOUR / 2, "it was waited for"
    assert [(0, 3), (0, 0)] == after
    for step in Step:
        assert 5 == (await kept(superuser, step))["completed"], step
    assert SECOND * 9 == await superuser.fetchval("SELECT max(longest_wait) FROM rollups")


async def test_who_began_later_is_not_waited_for(
    maintenance: Connection, superuser: Connection, database: Database
) -> None:
    await count_from(superuser, HOUR)
    await ended(superuser, ago=HOUR / 2)
    await set_mark(superuser)
    async with database.connect("superuser") as other, other.transaction():
        await ended(other, ago=-SECOND)

        assert (1, 0) == await rolled_up(maintenance)

        settled = await superuser.fetchval("SELECT settled_until FROM rollup_progress")
        assert settled > datetime.now(UTC) - HOUR / 3


async def test_a_mark_is_set_anew_once_all_are_through_and_not_before(
    maintenance: Connection, superuser: Connection, database: Database
) -> None:
    marked = "SELECT marked_at FROM rollup_progress"
    await superuser.execute("UPDATE rollup_progress SET marked_at = now() - interval '3 minutes'")
    async with database.connect("superuser") as late, late.transaction():
        await late.execute("SELECT pg_current_xact_id()")
        await superuser.execute("UPDATE rollup_progress SET mark = pg_current_xact_id()")
        first = await superuser.fetchval(marked)
        await rolled_up(maintenance)
        meanwhile = await superuser.fetchval(marked)

    await rolled_up(maintenance)

    assert first == meanwhile < await superuser.fetchval(marked)


async def test_a_crash_between_two_minutes_and_within_one_counts_nothing_twice(
    superuser: Connection, database: Database
) -> None:
    await count_from(superuser, HOUR)
    for minutes in (50, 40, 30):
        await ended(superuser, ago=timedelta(minutes=minutes), attempts=minutes)

    async with database.connect("maintenance") as first:
        await roll_up(first)
        undone = first.transaction()
        await undone.__aenter__()
        found = await roll_up(first)
        first.terminate()
    async with database.connect("maintenance") as second:
        rest = await rolled_up(second)

    assert found is not None
    assert 40 == found.added, "and it was never committed"
    assert (40 + 30, 0) == rest
    for step in Step:
        assert 120 == (await kept(superuser, step))["completed"]


async def test_of_two_who_hold_the_office_each_takes_other_minutes(
    superuser: Connection, database: Database
) -> None:
    await count_from(superuser, 2 * HOUR)
    for minutes in range(100):
        await ended(superuser, ago=timedelta(minutes=minutes + 3), attempts=2)

    async with many_connections(database, "maintenance", 4) as connections:
        added = await all_at_once([partial(rolled_up, connection) for connection in connections])

    assert 200 == sum(first + second for first, second in added)
    assert 200 == (await kept(superuser, "day"))["completed"]


async def test_minutes_in_which_nothing_ended_cost_nothing(
    maintenance: Connection, superuser: Connection
) -> None:
    await count_from(superuser, 24 * 30 * HOUR)

    looks = [await roll_up(maintenance), await roll_up(maintenance), await roll_up(maintenance)]

    assert [0, 0, None] == [look and look.added for look in looks]


async def test_submits_are_counted_as_the_book_is_folded(
    maintenance: Connection, worker: Connection, superuser: Connection
) -> None:
    asked = [*(a_submission() for _ in range(3)), a_submission(lane=Lane.GENERAL)]
    await submit_jobs(worker, asked)
    await hold_job(worker, asked[0].job_id)  # is counted as it moves, too

    await fold_entries(maintenance, limit=100)
    await fold_entries(maintenance, limit=100)
    added = [await add_entries(maintenance, limit=1) for _ in range(3)]

    assert [1, 1, 0] == added
    rows = await superuser.fetch("SELECT step, lane, submitted FROM rollups ORDER BY 2, 1")
    assert [
        (step, lane, jobs)
        for lane, jobs in (("fast", 3), ("general", 1))
        for step in ("day", "hour", "minute")
    ] == [tuple(row) for row in rows]


async def test_what_processes_and_the_edge_bill_is_added_up(
    maintenance: Connection, worker: Connection, api: Connection, superuser: Connection
) -> None:
    await tell_billed(worker, sqs_requests=5, s3_writes=40)
    await tell_billed(api, sqs_requests=2, s3_writes=1)
    batch = await superuser.fetchval(
        "INSERT INTO invalidation_batches (id, items, paths)"
        " VALUES (gen_random_uuid(), '[\"/i/1/*\"]', 3) RETURNING id"
    )
    await accept_batch(maintenance, batch, "I1")
    assert await accept_batch(maintenance, batch, "I1") is None

    assert 3 == await add_entries(maintenance, limit=100)

    rows = await superuser.fetch(
        "SELECT sqs_requests, s3_writes, invalidation_paths FROM rollup_costs"
    )
    assert [(7, 41, 3)] * 3 == [tuple(row) for row in rows]
    assert 0 == await superuser.fetchval("SELECT count(*) FROM rollup_entries")


async def test_old_minutes_and_hours_go_but_none_that_is_to_be_looked_at_again(
    maintenance: Connection, superuser: Connection
) -> None:
    await superuser.execute(
        "INSERT INTO rollups (step, at, type, lane) SELECT step, now() - age, 'noop', 'fast'"
        "  FROM unnest('{minute,hour,day}'::text[]) AS step,"
        "       unnest('{47 hours,49 hours,59 days,61 days,9 years}'::interval[]) AS age"
    )
    await superuser.execute(
        "INSERT INTO rollup_costs (step, at) SELECT DISTINCT step, at FROM rollups"
    )
    await count_from(superuser, 24 * 60 * HOUR)

    async def left(table: str) -> dict[str, int]:
        counts = f"SELECT step, count(*) FROM {table} GROUP BY step"  # noqa: S608 - of ours
        return {row["step"]: row["count"] for row in await superuser.fetch(counts)}

    await prune_rollups(maintenance)
    unsettled = await left("rollups")
    await count_from(superuser, HOUR)
    await prune_rollups(maintenance)

    assert {"day": 5, "hour": 3, "minute": 3} == unsettled
    for table in ("rollups", "rollup_costs"):
        assert {"day": 5, "hour": 3, "minute": 1} == await left(table), table


async def rates(
    connection: Connection,
    *,
    span: timedelta = HOUR,
    since: datetime | None = None,
    until: datetime | None = None,
    step: Step | None = Step.MINUTE,
) -> RatesView:
    when = When(span=span, since=since, until=until, step=step)
    return await read_rates(connection, when, job_type=None, lane=None)


def exactly(spans: Sequence[timedelta], share: float) -> timedelta:
    return sorted(spans)[ceil(share * len(spans)) - 1]


@pytest.mark.parametrize("step", Step)
async def test_percentiles_are_within_a_tenth_of_the_exact_ones(
    maintenance: Connection, operator: Connection, superuser: Connection, step: Step
) -> None:
    dice = random.Random(5)
    took = [SECOND * dice.lognormvariate(-0.5, 1) for _ in range(3000)]
    waited = [SECOND * dice.lognormvariate(-3, 2) for _ in range(3000)]
    await count_from(superuser, 3 * HOUR)
    for part in range(30):
        some = slice(part * 100, part * 100 + 100)
        ago = timedelta(minutes=part + 2)
        await ended(superuser, ago=ago, took=took[some], waited=waited[some])

    await rolled_up(maintenance)
    totals = (await rates(operator, span=2 * HOUR, step=step)).totals

    assert totals.duration is not None
    assert totals.wait is not None
    for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
        for told, spans in ((totals.duration, took), (totals.wait, waited)):
            exact = exactly(spans, share)
            assert abs(getattr(told, name) - exact) <= exact * 0.1, (name, told, exact)
    microsecond = timedelta(microseconds=1)
    assert abs(totals.duration.max - max(took)) <= microsecond
    assert abs(totals.wait.max - max(waited)) <= microsecond


async def test_rates_are_told_in_all_by_kind_and_step_by_step_without_gaps(
    maintenance: Connection, operator: Connection, superuser: Connection
) -> None:
    await count_from(superuser, 2 * HOUR)
    await ended(superuser, ago=timedelta(minutes=10), attempts=30)
    await ended(superuser, ago=timedelta(minutes=10), attempts=30, outcome="failed", why="corrupt")
    await ended(superuser, ago=timedelta(minutes=5), attempts=6, type="process_image")
    await ended(superuser, ago=timedelta(minutes=90), attempts=7)
    await rolled_up(maintenance)

    seen = await rates(operator)

    assert (36, 30, 1.1) == (
        seen.totals.completed,
        seen.totals.failed,
        seen.totals.jobs_a_minute,
    )
    assert [("noop", 30, 30), ("process_image", 6, 0)] == [
        (kind.job_type, kind.completed, kind.failed) for kind in seen.kinds
    ]
    assert [timedelta(minutes=1)] * 59 == [
        later.at - earlier.at for earlier, later in zip(seen.points, seen.points[1:], strict=False)
    ]
    moved = {point.at: point.jobs_a_minute for point in seen.points if point.wait}
    assert [60, 6] == [*moved.values()]
    assert (seen.since, seen.until) == (seen.points[0].at, seen.counted_until)
    chosen = await read_rates(
        operator, When(span=HOUR, step=Step.MINUTE), job_type="process_image", lane="fast"
    )
    assert 6 == chosen.totals.completed
    none = await read_rates(operator, When(span=HOUR), job_type=None, lane="quarantine")
    assert (0, None, []) == (none.totals.completed, none.totals.wait, none.kinds)


async def test_without_a_step_the_finest_is_taken_that_is_kept_and_gives_few(
    operator: Connection,
) -> None:
    now = datetime.now(UTC)
    days = timedelta(days=1)
    spans = (
        (3 * HOUR, 0 * HOUR), (23 * HOUR, 0 * HOUR), (4 * days, 4 * days - HOUR),
        (59 * days, 0 * days), (59 * days, 50 * days), (300 * days, 299 * days),
    )  # fmt: skip
    steps = [
        (await rates(operator, step=None, since=now - since, until=now - until)).step
        for since, until in spans
    ]

    assert [Step.MINUTE, Step.HOUR, Step.HOUR, Step.DAY, Step.HOUR, Step.DAY] == steps


async def test_what_is_not_kept_any_more_is_not_promised(operator: Connection) -> None:
    now = datetime.now(UTC)
    days = timedelta(days=1)

    seen = await rates(operator, step=Step.HOUR, since=now - 400 * days, until=now - 50 * days)

    assert timedelta(0) <= seen.since - (now - 60 * days - HOUR) < 2 * HOUR
    assert len(seen.points) in {240, 241, 242}


async def test_costs_are_told_for_a_thousand_images(
    maintenance: Connection, worker: Connection, operator: Connection, superuser: Connection
) -> None:
    await count_from(superuser, HOUR)
    when = When(span=HOUR, step=Step.HOUR)
    before = await read_costs(operator, when)
    await ended(superuser, ago=timedelta(minutes=2), attempts=4, type="process_image")
    await ended(superuser, ago=timedelta(minutes=2), attempts=9)
    await tell_billed(worker, sqs_requests=10, s3_writes=44)
    await superuser.execute("UPDATE rollup_entries SET at = at - interval '3 minutes'")
    await rolled_up(maintenance)
    await add_entries(maintenance, limit=9)

    seen = await read_costs(operator, when)

    assert (0, None) == (before.totals.images, before.totals.per_thousand_images)
    assert (4, 10, 44, 0) == (
        seen.totals.images,
        seen.totals.sqs_requests,
        seen.totals.s3_writes,
        seen.totals.invalidation_paths,
    )
    thousand = seen.totals.per_thousand_images
    assert thousand is not None
    assert (2500.0, 11_000.0, 0.0) == (
        thousand.sqs_requests,
        thousand.s3_writes,
        thousand.invalidation_paths,
    )
    assert 4 == sum(point.images for point in seen.points)
