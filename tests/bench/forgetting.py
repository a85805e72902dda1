"""What it costs to forget a month of jobs: row by row as now, or by dropping a partition.

Three databases with the same rows, all with everything that the product does beside: `jobs` and
`attempts` as they are; `attempts` by month; both by month. Ids begin with the time of their making,
so a month is a range of them, and the primary keys stay what they are. A table by month can have no
unique index without its id, so what keeps idempotency keys unique there is a table of them beside
it, whose rows no partition takes along.

In each round every database accepts jobs, claims and settles them, and forgets its oldest month.
Told is what Postgres' backends computed and how much log they wrote, not the time of the clock.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Final, NamedTuple
from uuid import UUID

import asyncpg

from imagefleet.jobs.model import JobId
from imagefleet.store.database import Connection
from imagefleet.store.jobs.pruning import PRUNE_JOBS, Place
from imagefleet.store.jobs.submissions import submit_jobs
from tests.bench.claiming import ended, of_a_worker
from tests.bench.ground import Ground
from tests.bench.growing import FILLED_WITHIN
from tests.bench.images import seconds_of
from tests.bench.rounds import Asked, Figure, Measured, Row, Sides
from tests.support.database import Database, driver_of
from tests.support.factories import a_submission, a_worker

BATCH: Final = 10
PAGE: Final = 500  # as the pruner's
KEPT_MONTHS: Final = 10  # times what is forgotten in a round: what retention keeps
WARM: Final = 10  # batches, until a connection has planned what it will say
HOT: Final = 2_000  # jobs of a round that are accepted, claimed and settled
AS_IT_IS: Final = "as it is"
ATTEMPTS: Final = "attempts by month"
BOTH: Final = "jobs and attempts by month"
PARTED: Final = {AS_IT_IS: (), ATTEMPTS: ("attempts",), BOTH: ("attempts", "jobs")}
KEYS: Final = {"jobs": "id", "attempts": "job_id"}
STORED: Final = {
    "jobs": "fillfactor = 70, autovacuum_enabled = off",
    "attempts": "autovacuum_enabled = off",
}

ATTEMPTS_TOO: Final = """attempts_too AS (
    DELETE FROM attempts WHERE attempts.job_id = ANY (ARRAY (SELECT free.id FROM free))
),
"""
INDEXES: Final = """
SELECT pg_get_indexdef(indexrelid) AS definition, indexrelid::regclass::text AS name,
       indisunique AND NOT indisprimary AS is_unique
  FROM pg_index WHERE indrelid = $1::regclass AND NOT indisprimary
"""
PRIMARY: Final = """
SELECT format('CONSTRAINT %I %s', conname, pg_get_constraintdef(oid))
  FROM pg_constraint WHERE conrelid = $1::regclass AND contype = 'p'
"""
TRIGGERS: Final = """
SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = $1::regclass AND NOT tgisinternal
"""
# Beside a table by month: that nobody's key stands for two jobs, and whose keys go with a month.
JOB_KEYS: Final = """
CREATE TABLE job_keys (
    tenant_id text NOT NULL, idempotency_key text NOT NULL, job_id uuid NOT NULL,
    PRIMARY KEY (tenant_id, idempotency_key)) WITH (autovacuum_enabled = off);
INSERT INTO job_keys SELECT tenant_id, idempotency_key, id FROM jobs;
CREATE INDEX job_keys_of_a_job ON job_keys (job_id);
CREATE FUNCTION keep_keys() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO job_keys SELECT tenant_id, idempotency_key, id FROM new
     WHERE idempotency_key IS NOT NULL ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_keys_are_kept AFTER INSERT ON jobs REFERENCING NEW TABLE AS new
FOR EACH STATEMENT EXECUTE FUNCTION keep_keys();
"""
FILL: Final = """
INSERT INTO jobs (id, tenant_id, type, state, lane, target, target_seq, claim_no, attempts,
                  idempotency_key, correlation_id, created_by, created_at, run_at, claimed_at,
                  finished_at, updated_at, result_reason, payload)
SELECT (lpad(to_hex((extract(epoch FROM made.at) * 1000)::bigint), 12, '0') || '7'
        || substr(md5(made.n::text), 1, 3) || '8' || substr(md5(made.n::text), 4, 15))::uuid,
       'tenant-' || made.n % 50, 'process_image', 'completed', 'general', 'image:' || made.n, 1, 1,
       1, 'upload-' || made.n, 'request-' || made.n, 'bench', made.at, made.at, made.at, made.at,
       made.at, 'done', jsonb_build_object('image_id', md5(made.n::text), 'source_key',
       'o/' || md5(made.n::text) || '/' || md5((made.n + 1)::text),
       'source_bytes', 3100000 + made.n)
  FROM (SELECT numbers.n,
               $1::timestamptz + ($2::timestamptz - $1::timestamptz)
                   * ((numbers.n - $3::bigint)::float8 / ($4::bigint - $3::bigint)) AS at
          FROM generate_series($3::bigint, $4::bigint - 1) AS numbers (n)) AS made
"""
FILL_ATTEMPTS: Final = """
INSERT INTO attempts (job_id, claim_no, tenant_id, type, lane, worker_id, claimed_at, ended_at,
                      duration, queue_time, charged, outcome, why)
SELECT jobs.id, 1, jobs.tenant_id, jobs.type, jobs.lane, gen_random_uuid(), jobs.created_at,
       jobs.created_at, '1 s', '1 s', true, 'completed', 'done'
  FROM jobs
"""
# What the triggers of a DELETE count, of rows that no DELETE sees.
COUNT_OUT: Final = """
INSERT INTO ledger (pruned) SELECT count(*) FROM {month};
INSERT INTO ledger_entries (hour, type, lane, completed, failed)
SELECT hour_of(id), type, lane, -count(*) FILTER (WHERE state = 'completed'),
       -count(*) FILTER (WHERE state = 'failed')
  FROM {month} GROUP BY 1, 2, 3;
DELETE FROM job_keys WHERE job_id = ANY (ARRAY (SELECT id FROM {month}))
"""
SIZE: Final = """
SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_stat_user_tables
 WHERE relname ~ '^(jobs|attempts|job_keys)'
"""
LOG: Final = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::float8"
DEAD: Final = """
SELECT sum(n_dead_tup)::bigint FROM pg_stat_user_tables WHERE relname ~ '^(jobs|attempts|job_keys)'
"""


class Span(NamedTuple):
    """From when until when jobs were made, and their numbers."""

    since: datetime
    until: datetime
    first: int
    behind: int

    def month(self, table: str) -> str:
        return f"{table}_{self.first}"


def first_id(at: datetime) -> UUID:
    """No id of this moment is smaller."""
    return UUID(int=int(at.timestamp() * 1000) << 80)


def spans(months: int, rows: int) -> list[Span]:
    """Months past retention, the oldest first, and what is kept, of which more will come."""
    now, month = datetime.now(UTC), timedelta(days=30)
    begins = [now - timedelta(days=32) - month * (months - at) for at in range(months + 1)]
    old = [
        Span(since, until, at * rows, (at + 1) * rows)
        for at, (since, until) in enumerate(pairwise(begins))
    ]
    return [
        *old,
        Span(
            begins[-1] + timedelta(days=2, hours=1),
            now,
            months * rows,
            (months + KEPT_MONTHS) * rows,
        ),
    ]


@dataclass
class Filled:
    """A database, what of it is by month, and the months that it has not forgotten yet."""

    name: str
    database: Database
    old: list[Span]
    rows: int
    made: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def prune(self) -> str:
        """The product's statement, without what goes with a partition."""
        if self.name == AS_IT_IS:
            return PRUNE_JOBS
        assert ATTEMPTS_TOO in PRUNE_JOBS
        return PRUNE_JOBS.replace(ATTEMPTS_TOO, "")


async def remake(
    driver: asyncpg.Connection, table: str, months: Sequence[Span], *, parted: bool
) -> None:
    """The table anew, empty and without indexes, by month or not."""
    primary = await driver.fetchval(PRIMARY, table)
    await driver.execute(f"ALTER TABLE {table} RENAME TO {table}_before")
    columns = f"CREATE TABLE {table} (LIKE {table}_before INCLUDING ALL EXCLUDING INDEXES)"
    if not parted:
        await driver.execute(f"{columns} WITH ({STORED[table]})")
    else:
        await driver.execute(f"{columns} PARTITION BY RANGE ({KEYS[table]})")
        ends = [*(f"'{first_id(span.until)}'" for span in months[:-1]), "MAXVALUE"]
        for span, since, until in zip(months, ["MINVALUE", *ends], ends, strict=False):
            await driver.execute(
                f"CREATE TABLE {span.month(table)} PARTITION OF {table} "
                f"FOR VALUES FROM ({since}) TO ({until}) WITH ({STORED[table]})"
            )
    await driver.execute(f"DROP TABLE {table}_before CASCADE")
    await driver.execute(f"ALTER TABLE {table} ADD {primary}")


async def fill(database: Database, name: str, months: Sequence[Span]) -> None:
    """Tables as they are wanted, rows, then indexes and triggers, which takes a fraction."""
    async with database.connect("superuser") as superuser:
        driver = driver_of(superuser)
        await driver.execute("SET statement_timeout = 0; SET maintenance_work_mem = '256MB'")
        later = []
        for table in ("jobs", "attempts"):
            parted = table in PARTED[name]
            for index in await driver.fetch(INDEXES, table):
                plain = index["definition"].replace("CREATE UNIQUE", "CREATE")
                later.append(plain if parted else index["definition"])
            later += [row[0] for row in await driver.fetch(TRIGGERS, table)]
            await remake(driver, table, months, parted=parted)
        for span in months:
            await driver.execute(FILL, *span, timeout=FILLED_WITHIN)
        await driver.execute(FILL_ATTEMPTS, timeout=FILLED_WITHIN)
        for statement in later:
            await driver.execute(statement, timeout=FILLED_WITHIN)
        if "jobs" in PARTED[name]:
            await driver.execute(JOB_KEYS, timeout=FILLED_WITHIN)
        await driver.execute("VACUUM ANALYZE", timeout=FILLED_WITHIN)


async def computed_by(connection: Connection) -> float:
    """Processor seconds of the server's process behind it."""
    return seconds_of([await connection.fetchval("SELECT pg_backend_pid()")])


async def hot(filled: Filled) -> Measured:
    """Milliseconds of Postgres a batch of ten: accepted, and claimed and settled."""
    async with of_a_worker(filled.database, role="superuser") as pool, pool.connection() as worker:
        worker_id = await a_worker(worker)
        submissions = [
            a_submission(idempotency_key=f"hot-{filled.made + number}")
            for number in range(min(HOT, filled.rows) + WARM * BATCH)
        ]
        filled.made += len(submissions)
        batches = [submissions[at : at + BATCH] for at in range(0, len(submissions), BATCH)]
        ids: list[list[JobId]] = [[each.job_id for each in batch] for batch in batches]
        told, begin = {}, 0.0
        for what in ("submit", "claim and settle"):
            for number, batch in enumerate(batches):
                if number == WARM:
                    begin = await computed_by(worker)
                if what == "submit":
                    await submit_jobs(worker, batch)
                else:
                    assert len(batch) == await ended(worker, ids[number], worker_id=worker_id)
            told[what] = 1000 * (await computed_by(worker) - begin) / (len(batches) - WARM)
    return {f"{what}, {filled.name}": value for what, value in told.items()}


async def dead_rows(driver: asyncpg.Connection) -> int:
    """As the sessions that are over have told, and this one."""
    await driver.execute("SELECT pg_stat_force_next_flush(); SELECT pg_stat_clear_snapshot()")
    return int(await driver.fetchval(DEAD))


async def pruned(driver: asyncpg.Connection, filled: Filled) -> None:
    """Page by page, as maintenance does it, without its rests."""
    after: Place | None
    gone, after = 0, None
    while gone < filled.rows:
        row = await driver.fetchrow(
            filled.prune, min(PAGE, filled.rows - gone), *(after or (None, None))
        )
        assert row is not None
        assert row["pruned"] > 0
        gone += row["pruned"]
        after = (row["last_at"], row["last_id"])


async def forgotten(filled: Filled) -> Measured:
    """The oldest month goes, and what that leaves is cleaned up."""
    month = filled.old.pop(0)
    async with filled.database.connect("superuser") as superuser:
        driver = driver_of(superuser)
        await driver.execute("SET statement_timeout = 0")
        await driver.execute("CHECKPOINT")  # so that no side meets pages that another has logged
        dead = await dead_rows(driver)
        size, log = await driver.fetchval(SIZE), await driver.fetchval(LOG)
        begun, clock = await computed_by(superuser), perf_counter()
        if "jobs" not in PARTED[filled.name]:
            await pruned(driver, filled)
        async with driver.transaction():
            if "jobs" in PARTED[filled.name]:
                counting = COUNT_OUT.format(month=month.month("jobs"))
                await driver.execute(counting, timeout=FILLED_WITHIN)
            held = perf_counter()  # from here on nobody reads or writes the table
            for table in PARTED[filled.name]:
                await driver.execute(f"DROP TABLE {month.month(table)}")
        held = perf_counter() - held
        forgot, seconds = await computed_by(superuser) - begun, perf_counter() - clock
        wrote = await driver.fetchval(LOG) - log
        dead = await dead_rows(driver) - dead
        log, begun = await driver.fetchval(LOG), await computed_by(superuser)
        for table in (*KEYS, *(["job_keys"] if "jobs" in PARTED[filled.name] else [])):
            await driver.execute(f"VACUUM (PARALLEL 0) {table}", timeout=FILLED_WITHIN)
        cleaned = await computed_by(superuser) - begun
        wrote_cleaning = await driver.fetchval(LOG) - log
        given_back = size - await driver.fetchval(SIZE)
    thousands = filled.rows / 1000
    return {
        f"{what}, {filled.name}": float(value)
        for what, value in {
            "forget": 1000 * forgot / thousands,
            "rows a second": filled.rows / seconds,
            "log": wrote / filled.rows,
            "dead rows": dead / filled.rows,
            "vacuum": 1000 * cleaned / thousands,
            "log of vacuum": wrote_cleaning / filled.rows,
            "given back": given_back / filled.rows,
            "locked": 1000 * held,
        }.items()
    }


async def turn(filled: Filled) -> Measured:
    return {**await hot(filled), **await forgotten(filled)}


@asynccontextmanager
async def sides(ground: Ground, asked: Asked) -> AsyncIterator[Sides]:
    rows = max(PAGE, asked.jobs_of(ROW))
    async with AsyncExitStack() as stack:
        made = {}
        for name in PARTED:
            database = await stack.enter_async_context(ground.database())
            months = spans(asked.rounds, rows)
            await fill(database, name, months)
            filled = Filled(name=name, database=database, old=months[:-1], rows=rows)
            async with database.connect("superuser") as superuser:
                size = await superuser.fetchval(SIZE)
            whole = months[-1].behind
            ground.notes.append(
                f"forgetting, {name}: {whole:,} jobs of {size / whole:,.0f} bytes each."
            )
            made[name] = partial(turn, filled)
        yield made


def _beside(what: str, title: str, unit: str) -> list[Figure]:
    return [
        Figure(title=title, unit=unit, ours=f"{what}, {AS_IT_IS}", other=f"{what}, {other}")
        for other in (ATTEMPTS, BOTH)
    ]


ROW: Final = Row(
    name="forgetting",
    about="a month of jobs forgotten by DELETE, and by partitions that are dropped",
    figures=[
        *_beside("forget", "Postgres' CPU, a thousand jobs forgotten", "ms"),
        *_beside("rows a second", "jobs forgotten without rests", "jobs/s"),
        *_beside("log", "log a job forgotten", "B"),
        *_beside("vacuum", "Postgres' CPU, VACUUM after it, a thousand jobs", "ms"),
        *_beside("log of vacuum", "log of that VACUUM a job", "B"),
        *_beside("submit", "Postgres' CPU, a batch of 10 accepted", "ms"),
        *_beside("claim and settle", "Postgres' CPU, a batch of 10 claimed and settled", "ms"),
        *(
            Figure(title=f"{title}, {name}", unit=unit, ours=f"{what}, {name}")
            for what, title, unit in (
                ("dead rows", "dead rows a job forgotten", ""),
                ("given back", "disk given back a job forgotten", "B"),
            )
            for name in PARTED
        ),
        *(
            Figure(title=f"all locked out, {name}", unit="ms", ours=f"locked, {name}")
            for name in (ATTEMPTS, BOTH)
        ),
    ],
    open=sides,
    jobs=100_000,
    by_name=True,
)
