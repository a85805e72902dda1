"""What the edge was told is forgotten after retention, but not before everybody has read it."""

from uuid import UUID, uuid4

import pytest

from imagefleet.store.database import Connection
from imagefleet.store.edge.invalidations import (
    Accepted,
    BatchLimits,
    accept_batch,
    commit_batch,
    complete_batch,
    look_at_owed,
)
from imagefleet.store.edge.reports import read_month
from imagefleet.store.images.pruning import prune_batches

OWE = "INSERT INTO invalidations (image_id, tenant_id, reason) VALUES ($1, 'acme', 'deleted')"
AGE = "UPDATE invalidation_batches SET completed_at = completed_at - interval '31 days'"
LEFT = "SELECT (SELECT count(*) FROM invalidation_batches), (SELECT count(*) FROM invalidations)"


async def told(worker: Connection, maintenance: Connection, *, complete: bool = True) -> UUID:
    """The image that a batch was about."""
    image_id = uuid4()
    await worker.execute(OWE, image_id)
    debts = [owed.debt for owed in await look_at_owed(maintenance, limit=9)]
    within = BatchLimits(paths=3000, wildcards=15)
    batch = await commit_batch(
        maintenance, debts, lambda image_id: f"#img-{image_id}", within=within
    )
    assert batch is not None
    await accept_batch(maintenance, batch.id, "I1")
    if complete:
        await complete_batch(maintenance, Accepted(batch.id, "I1"))
    return image_id


async def left(superuser: Connection) -> tuple[int, int]:
    batches, debts = await superuser.fetchrow(LEFT) or (0, 0)
    return batches, debts


async def test_complete_batches_are_forgotten_after_retention_and_stay_counted(
    worker: Connection, maintenance: Connection, superuser: Connection
) -> None:
    for _ in range(2):
        await told(worker, maintenance)
    await superuser.execute(AGE)
    await told(worker, maintenance)
    await told(worker, maintenance, complete=False)
    before = await read_month(maintenance)

    pruned = [(await prune_batches(maintenance, limit=1)).pruned for _ in range(3)]

    assert [1, 1, 0] == pruned
    assert (2, 2) == await left(superuser)
    assert before == await read_month(maintenance)
    assert (4, 4, 4) == (before.paths, before.debts, before.batches)


DELETED = """
INSERT INTO image_tombstones (image_id, tenant_id, job_id, requested_by, invalidation_id)
SELECT invalidations.image_id, 'acme', gen_random_uuid(), 'tests', invalidations.id
  FROM invalidations
"""
SUPERSEDED = """
INSERT INTO image_revisions (image_id, revision, tenant_id, source_seq, claim_no, job_id, recipe,
                             format, width, height, bytes, sha256, encoder, superseded_at,
                             invalidation_id)
SELECT invalidations.image_id, 1, 'acme', 1, 1, gen_random_uuid(), 'default', 'jpeg', 1, 1, 1, '',
       'tests', now(), invalidations.id
  FROM invalidations
"""


@pytest.mark.parametrize(
    ("reader", "reads"),
    [
        (DELETED, "UPDATE image_tombstones SET dark_at = now()"),
        (SUPERSEDED, "UPDATE image_revisions SET swept_at = now()"),
    ],
    ids=["receipt", "sweep"],
)
async def test_a_batch_stays_while_its_completion_is_still_to_be_read(
    worker: Connection, maintenance: Connection, superuser: Connection, reader: str, reads: str
) -> None:
    await told(worker, maintenance)
    await superuser.execute(AGE)
    await superuser.execute(reader)

    kept = (await prune_batches(maintenance, limit=9)).pruned
    await superuser.execute(reads)

    assert 0 == kept
    assert 1 == (await prune_batches(maintenance, limit=9)).pruned
    assert (0, 0) == await left(superuser)
