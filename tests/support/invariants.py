"""What is true of the database between any two transactions, whatever ran: asked after every test.

Each query returns the rows that break its rule, so that a failure shows them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from imagefleet.store.database import Connection
from imagefleet.store.upkeep import read_ledger

OFFENDERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "a waiting job has a ring": """
            SELECT jobs.id, jobs.state
              FROM jobs
             WHERE jobs.state IN ('queued', 'failed_retryable')
               AND NOT EXISTS (SELECT FROM rings WHERE rings.job_id = jobs.id)
        """,
        "only a waiting job has a ring": """
            SELECT rings.job_id, jobs.state
              FROM rings
              LEFT JOIN jobs ON jobs.id = rings.job_id
             WHERE jobs.id IS NULL OR jobs.state NOT IN ('queued', 'failed_retryable')
        """,
        "a ring is in the lane of its job": """
            SELECT rings.job_id, rings.lane AS rung_in, jobs.lane AS runs_in
              FROM rings
              JOIN jobs ON jobs.id = rings.job_id
             WHERE rings.lane <> jobs.lane
        """,
        "a target names a job of its own that runs": """
            SELECT targets.tenant_id, targets.target, targets.running_job, jobs.state
              FROM targets
              LEFT JOIN jobs ON jobs.id = targets.running_job
             WHERE targets.running_job IS NOT NULL
               AND (jobs.state, jobs.tenant_id, jobs.target)
                   IS DISTINCT FROM ('processing', targets.tenant_id, targets.target)
        """,
        # A flagged job may have been claimed only to be settled, and such a claim takes no target.
        "a running job is named by its target": """
            SELECT jobs.id, jobs.tenant_id, jobs.target, targets.running_job
              FROM jobs
              LEFT JOIN targets
                     ON targets.tenant_id = jobs.tenant_id AND targets.target = jobs.target
             WHERE jobs.state = 'processing' AND jobs.target IS NOT NULL
               AND jobs.cancel_requested_at IS NULL
               AND targets.running_job IS DISTINCT FROM jobs.id
        """,
        "each claim that ended has one attempts row": """
            SELECT jobs.id, jobs.state, jobs.claim_no, count(attempts.job_id) AS attempts_rows
              FROM jobs
              LEFT JOIN attempts ON attempts.job_id = jobs.id
             GROUP BY jobs.id
            HAVING count(attempts.job_id) <> jobs.claim_no - (jobs.state = 'processing')::int
                OR max(attempts.claim_no) > jobs.claim_no - (jobs.state = 'processing')::int
        """,
        "a job is charged what its attempts rows say, and what it runs on": """
            SELECT jobs.id, jobs.state, jobs.attempts,
                   count(*) FILTER (WHERE attempts.charged) AS charged_rows
              FROM jobs
              LEFT JOIN attempts ON attempts.job_id = jobs.id
             GROUP BY jobs.id
            HAVING jobs.attempts <> count(*) FILTER (WHERE attempts.charged)
                   + (jobs.state = 'processing' AND jobs.claim_charged)::int
        """,
        "an attempts row is of a job": """
            SELECT attempts.job_id, attempts.claim_no
              FROM attempts
             WHERE NOT EXISTS (SELECT FROM jobs WHERE jobs.id = attempts.job_id)
        """,
    }
)


async def ledger_balances(connection: Connection) -> None:
    ledger = await read_ledger(connection)

    assert ledger.missing == 0, f"{ledger.missing} jobs are missing: {ledger}"


async def no_row_offends(connection: Connection) -> None:
    for rule, query in OFFENDERS.items():
        offending = [dict(row) for row in await connection.fetch(query)]

        assert offending == [], f"not true: {rule}"
