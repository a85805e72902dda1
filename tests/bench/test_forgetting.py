"""The measurement must not rot: a month is forgotten in each way, and nothing is timed."""

from contextlib import AsyncExitStack
from typing import Final

import pytest

from imagefleet.store.database import Connection
from tests.bench.forgetting import BOTH, PARTED, Filled, fill, forgotten, hot, spans
from tests.support.database import Server, copied_database

ROWS: Final = 600
LEFT: Final = """
SELECT (SELECT count(*) FROM jobs) AS jobs, (SELECT min(id::text) FROM jobs) AS oldest,
       (SELECT count(*) FROM attempts) AS attempts, (SELECT sum(pruned) FROM ledger) AS pruned,
       (SELECT sum(completed) FROM ledger_entries) AS completed
"""


@pytest.mark.timeout(120)
@pytest.mark.breaks_invariants  # the ledger knows nothing of rows that were filled in
async def test_every_way_forgets_the_same_jobs_and_counts_them(
    postgres: Server, template: str
) -> None:
    left = {}
    months = spans(1, ROWS)
    async with AsyncExitStack() as stack:
        for name in PARTED:
            database = await stack.enter_async_context(copied_database(postgres, template))
            await fill(database, name, months)
            filled = Filled(name=name, database=database, old=months[:-1], rows=ROWS)
            measured = {**await hot(filled), **await forgotten(filled)}
            assert all(what.endswith(f", {name}") for what in measured)
            async with database.connect("superuser") as superuser:
                left[name] = dict(await superuser.fetchrow(LEFT) or {})
                if name == BOTH:
                    assert await keys_without_a_job(superuser) == 0

    assert left[BOTH]["pruned"] == ROWS
    assert [left[BOTH]] * len(PARTED) == [*left.values()]


async def keys_without_a_job(superuser: Connection) -> int:
    return int(
        await superuser.fetchval(
            "SELECT count(*) FROM job_keys WHERE job_id NOT IN (SELECT id FROM jobs)"
        )
    )
