"""`python -m tests.scaling.asking`: how long `work_in_lane` takes, whatever stands in the lane.

A million jobs in shapes that would be read through by anybody who counts: due, due tomorrow,
paused, announced, of ten thousand tenants, done. Asked as KEDA does, under its role, on one
connection that was open before any of them was there.
"""

import argparse
import asyncio
import statistics
import sys
import time
from typing import Final

import asyncpg

from tests.support.database import Database, copied_database, migrated_template, own_server

TIMES: Final = 20
FILLED_WITHIN: Final = 1_200.0  # seconds
ASK: Final = "SELECT work_in_lane('general')"

# As accepted long ago, by a superuser with triggers off.
JOBS: Final = """
INSERT INTO jobs (id, tenant_id, type, lane, correlation_id, created_by, state, claim_no, attempts,
                  finished_at, result_reason)
SELECT gen_random_uuid(), 'tenant-' || n % $2, 'noop', 'general', 'x', 'x', $3,
       CASE $3 WHEN 'queued' THEN 0 ELSE 1 END, CASE $3 WHEN 'queued' THEN 0 ELSE 1 END,
       CASE $3 WHEN 'queued' THEN NULL ELSE now() END,
       CASE $3 WHEN 'queued' THEN NULL ELSE 'done' END
  FROM generate_series(1, $1::int) AS n
"""
RINGS: Final = """
INSERT INTO rings (job_id, lane, tenant_id, type, priority, next_at, sent_at, sends)
SELECT id, lane, tenant_id, type, priority, now() + $1::text::interval,
       CASE WHEN $2::boolean THEN now() END, $2::boolean::int
  FROM jobs WHERE state = 'queued'
"""
# A month, as it is left when sums are folded.
BOOK: Final = """
INSERT INTO ledger_counts
SELECT hour, type, lane, 0, 0, 0, 10, 0
  FROM generate_series(1, 720) AS hour, unnest('{noop,process_image,delete_image}'::text[]) AS type,
       unnest('{fast,general,quarantine}'::text[]) AS lane
"""
PAUSE: Final = """
INSERT INTO pauses (scope, name, paused_by, reason) VALUES ('type', 'noop', 'x', 'x')
"""
SHAPES: Final = {
    "due": {},
    "due tomorrow": {"due_in": "1 day"},
    "due tomorrow, 10,000 tenants": {"due_in": "1 day", "tenants": 10_000},
    "due, 10,000 tenants": {"tenants": 10_000},
    "paused": {"paused": True},
    "announced": {"announced": True},
    "done": {"state": "completed"},
}


async def fill(
    database: Database,
    jobs: int,
    *,
    tenants: int = 1,
    state: str = "queued",
    due_in: str = "0",
    announced: bool = False,
    paused: bool = False,
) -> None:
    connection = await asyncpg.connect(database.url("superuser"))
    try:
        await connection.execute("SET statement_timeout = 0")
        await connection.execute("SET session_replication_role = replica")
        await connection.execute(BOOK)
        await connection.execute(JOBS, jobs, tenants, state, timeout=FILLED_WITHIN)
        await connection.execute(RINGS, due_in, announced, timeout=FILLED_WITHIN)
        if paused:
            await connection.execute(PAUSE)
        await connection.execute("VACUUM ANALYZE", timeout=FILLED_WITHIN)
    finally:
        await connection.close()


async def asked(jobs: int, only: str | None) -> None:
    with own_server() as server:
        async with migrated_template(server) as template:
            for name, shape in SHAPES.items():
                if only not in {None, name}:
                    continue
                async with copied_database(server, template) as database:
                    scaler = await asyncpg.connect(database.url("scaler"))
                    for _ in range(TIMES):  # whatever is planned once was planned for nothing
                        await scaler.fetchval(ASK)
                    await fill(database, jobs, **shape)  # type: ignore[arg-type] # its own names
                    seconds, answer = [], None
                    for _ in range(TIMES):
                        begun = time.perf_counter()
                        answer = await scaler.fetchval(ASK)
                        seconds.append(time.perf_counter() - begun)
                    await scaler.close()
                    median, most = statistics.median(seconds), max(seconds)
                    sys.stdout.write(
                        f"{jobs:>9,} {name:<30} {answer:>6} {1000 * median:>7.1f} ms, "
                        f"at most {1000 * most:.1f}\n"
                    )
                    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(prog="tests.scaling.asking", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--only", choices=SHAPES, help="one of the shapes instead of all")
    given = parser.parse_args()
    asyncio.run(asked(given.jobs, given.only))


if __name__ == "__main__":
    main()
