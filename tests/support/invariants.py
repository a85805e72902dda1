"""What is true of the database between any two transactions, whatever ran: asked after every test.

Each query returns the rows that break its rule, so that a failure shows them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from imagefleet.store.database import Connection
from imagefleet.store.fleet.ledger import READ_BALANCE, Ledger

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
        "a ring says whose job it rings for, and of which type": """
            SELECT rings.job_id, rings.tenant_id, rings.type, jobs.tenant_id AS owner
              FROM rings
              JOIN jobs ON jobs.id = rings.job_id
             WHERE (rings.tenant_id, rings.type) IS DISTINCT FROM (jobs.tenant_id, jobs.type)
        """,
        "a ring is as urgent as its job, and most urgent when that is flagged or cancels all": """
            SELECT rings.job_id, rings.priority, jobs.priority AS asked_for, jobs.cancel_code
              FROM rings
              JOIN jobs ON jobs.id = rings.job_id
             WHERE rings.priority <> CASE WHEN jobs.cancel_requested_at IS NULL THEN jobs.priority
                                          ELSE -1 END
               AND NOT (jobs.type = 'cancel_jobs' AND rings.priority = -1)
        """,
        "a ring that was sent says how often": """
            SELECT rings.job_id, rings.sent_at, rings.sends
              FROM rings
             WHERE rings.sent_at IS NOT NULL AND rings.sends NOT BETWEEN 1 AND 8
        """,
        "what is parked waits for a target, and has no message": """
            SELECT rings.job_id, jobs.target, rings.sent_at, jobs.cancel_code
              FROM rings
              JOIN jobs ON jobs.id = rings.job_id
             WHERE rings.next_at = 'infinity'
               AND (jobs.target IS NULL OR rings.sent_at IS NOT NULL
                    OR jobs.cancel_requested_at IS NOT NULL)
        """,
        # Whoever frees or resumes a target rings who stands first there. A job ahead of that one
        # which runs or was flagged ends soon, and its end rings it.
        "who stands first at a free target is not parked": """
            SELECT targets.tenant_id, targets.target, head.id, head.state, head.run_at
              FROM targets
              CROSS JOIN LATERAL (
                  SELECT jobs.*
                    FROM jobs
                   WHERE jobs.tenant_id = targets.tenant_id AND jobs.target = targets.target
                     AND jobs.state IN ('queued', 'failed_retryable')
                     AND jobs.cancel_requested_at IS NULL
                     AND (jobs.state = 'failed_retryable' OR jobs.run_at <= now())
                   ORDER BY jobs.preempts AND jobs.run_at <= now() DESC, jobs.target_seq
                   LIMIT 1) AS head
              JOIN rings ON rings.job_id = head.id
             WHERE rings.next_at = 'infinity'
               AND targets.running_job IS NULL
               AND (head.preempts
                    OR NOT EXISTS (SELECT FROM pauses
                                    WHERE pauses.scope = 'target'
                                      AND pauses.tenant_id = targets.tenant_id
                                      AND pauses.name = targets.target))
               AND NOT EXISTS (
                       SELECT FROM jobs AS elders
                        WHERE elders.tenant_id = targets.tenant_id
                          AND elders.target = targets.target
                          AND elders.target_seq < head.target_seq
                          AND (elders.state = 'processing'
                               OR (elders.state IN ('queued', 'failed_retryable')
                                   AND elders.cancel_requested_at IS NOT NULL)))
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
        "the ledger's book says of each hour what the rows say": """
            SELECT hour, type, lane, state, said.jobs AS said, there.jobs AS there
              FROM (SELECT book.hour, book.type, book.lane, states.state, sum(states.jobs) AS jobs
                      FROM ledger_book AS book
                      CROSS JOIN LATERAL (VALUES
                          ('queued', book.queued), ('processing', book.processing),
                          ('failed_retryable', book.failed_retryable),
                          ('completed', book.completed), ('failed', book.failed)
                      ) AS states (state, jobs)
                     GROUP BY 1, 2, 3, 4) AS said
              FULL JOIN (SELECT hour_of(jobs.id) AS hour, jobs.type, jobs.lane, jobs.state,
                                count(*) AS jobs
                           FROM jobs
                          GROUP BY 1, 2, 3, 4) AS there USING (hour, type, lane, state)
             WHERE coalesce(said.jobs, 0) <> coalesce(there.jobs, 0)
        """,
        "an attempts row is of a job": """
            SELECT attempts.job_id, attempts.claim_no
              FROM attempts
             WHERE NOT EXISTS (SELECT FROM jobs WHERE jobs.id = attempts.job_id)
        """,
    }
)


async def ledger_balances(connection: Connection) -> None:
    """By the rows, not by the book; that the book agrees with them is a rule of its own."""
    (row,) = await connection.fetch(READ_BALANCE)
    ledger = Ledger(**row)

    assert ledger.missing == 0, f"{ledger.missing} jobs are missing: {ledger}"


async def no_row_offends(connection: Connection) -> None:
    for rule, query in OFFENDERS.items():
        offending = [dict(row) for row in await connection.fetch(query)]

        assert offending == [], f"not true: {rule}"
