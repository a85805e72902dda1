"""The registry of workers: who is there, who drains, who has left, and what each holds."""

from collections.abc import Mapping
from typing import Final

from imagefleet.jobs.model import Lane, WorkerId
from imagefleet.jobs.shapes.fleet import HeldJobView, WorkerProcess, WorkerView
from imagefleet.store.database import Connection
from imagefleet.store.jobs.claims import LOCK_WORKER

REGISTER_WORKER: Final = """
INSERT INTO workers (id, host, pid, version, lanes, types, slots, type_slots, memory_bytes)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
"""


class WorkerCard(WorkerProcess):
    """What a worker process says of itself when it comes."""

    types: tuple[str, ...]
    slots: Mapping[Lane, int]
    """How many jobs at once in each lane it takes; general ones serve the fast lane too."""
    type_slots: Mapping[str, int]
    """Of which types it runs only so many of them at once."""
    memory_bytes: int | None = None
    """What its children may take together."""


async def register_worker(connection: Connection, card: WorkerCard) -> None:
    """Enter the registry; until then a worker can neither beat nor claim."""
    await connection.execute(
        REGISTER_WORKER,
        card.worker_id,
        card.host,
        card.pid,
        card.version,
        list(card.slots),
        list(card.types),
        list(card.slots.values()),
        [card.type_slots.get(name) for name in card.types],
        card.memory_bytes,
    )


# What a child of a worker of an earlier release has, which does not say it.
FIND_MOST_MEMORY: Final = """
SELECT max(coalesce(workers.memory_bytes, 1073741824)) AS most
  FROM workers
 WHERE workers.dead_at IS NULL AND workers.draining_since IS NULL
   AND $1 = ANY (workers.lanes) AND $2 = ANY (workers.types)
"""


async def find_most_memory(connection: Connection, lane: Lane, job_type: str) -> int:
    """What the living worker that has most of it gives to such a job; 0 where there is none."""
    row = await connection.fetchrow(FIND_MOST_MEMORY, lane, job_type)
    return 0 if row is None else row["most"] or 0


START_DRAIN: Final = """
UPDATE workers SET draining_since = coalesce(draining_since, now()) WHERE id = $1
"""


async def start_drain(connection: Connection, worker_id: WorkerId) -> None:
    """Say that this worker takes nothing new."""
    await connection.execute(START_DRAIN, worker_id)


# The worker's next beat brings it; the first who asked is the one that is kept.
REQUEST_DRAIN: Final = """
UPDATE workers SET drain_requested_at = now()
 WHERE id = $1 AND dead_at IS NULL AND draining_since IS NULL AND drain_requested_at IS NULL
RETURNING id
"""


async def request_drain(connection: Connection, worker_id: WorkerId) -> bool:
    """Ask a worker to end what it has, and itself; False where it is asked, or ends, already."""
    return await connection.fetchrow(REQUEST_DRAIN, worker_id) is not None


RETIRE_WORKER: Final = """
UPDATE workers SET dead_at = now(), dead_why = 'stopped'
 WHERE id = $1 AND dead_at IS NULL
   AND NOT EXISTS (SELECT FROM jobs WHERE jobs.locked_by = $1 AND jobs.state = 'processing')
RETURNING id
"""


async def retire_worker(connection: Connection, worker_id: WorkerId) -> bool:
    """Leave the registry; refused while claims are held, which the rescuer still looks after."""
    async with connection.transaction():
        await connection.execute(LOCK_WORKER, worker_id)
        return await connection.fetchrow(RETIRE_WORKER, worker_id) is not None


PRUNE_WORKERS: Final = """
DELETE FROM workers WHERE dead_at < now() - interval '7 days'
"""


async def prune_workers(connection: Connection) -> None:
    """Forget worker processes that ended long ago; there are never more than were ever started."""
    await connection.execute(PRUNE_WORKERS)


LIST_WORKERS: Final = """
SELECT workers.id AS worker_id, workers.host, workers.pid, workers.version, workers.lanes,
       workers.types, workers.slots, workers.started_at, workers.beat_at,
       greatest(now() - workers.beat_at, interval '0') AS silent_for, workers.drain_requested_at,
       workers.draining_since, workers.dead_at, workers.dead_why
  FROM workers
 WHERE (workers.dead_at IS NULL OR ($1 AND workers.dead_at > now() - interval '1 day'))
   AND ($2::uuid IS NULL OR workers.id = $2)
 ORDER BY workers.dead_at DESC NULLS FIRST, workers.started_at, workers.id
 LIMIT 1000
"""


LIST_HELD: Final = """
SELECT jobs.locked_by, jobs.id AS job_id, jobs.tenant_id, jobs.type, jobs.lane, jobs.claim_no,
       jobs.claimed_at, jobs.progress_done, jobs.progress_total,
       jobs.cancel_requested_at IS NOT NULL AS cancel_requested
  FROM jobs
 WHERE jobs.state = 'processing' AND jobs.locked_by = ANY ($1::uuid[])
 ORDER BY jobs.claimed_at, jobs.id
"""


async def list_workers(
    connection: Connection, *, with_dead: bool = False, worker_id: WorkerId | None = None
) -> list[WorkerView]:
    """The living workers, or this one; with `with_dead` also if it ended within the last day."""
    rows = await connection.fetch(LIST_WORKERS, with_dead, worker_id)
    held = await connection.fetch(LIST_HELD, [row["worker_id"] for row in rows])
    by_worker: dict[WorkerId, list[HeldJobView]] = {}
    for row in held:
        by_worker.setdefault(row["locked_by"], []).append(HeldJobView.of(row))
    return [
        WorkerView.of(
            dict(row)
            | {
                "slots": sum(row["slots"]),
                "lane_slots": dict(zip(row["lanes"], row["slots"], strict=True)),
                "held": by_worker.get(row["worker_id"], []),
            }
        )
        for row in rows
    ]
