"""The tombstone: with its job or not at all, seen by all who are about to publish or submit."""

from datetime import timedelta
from uuid import UUID

import pytest

from imagefleet.errors import IdempotencyConflict, NotFound, RequestRejected
from imagefleet.jobs.kinds import BUILT_IN
from imagefleet.jobs.lifecycle import Completed, Released, ResultReason
from imagefleet.jobs.model import CancelCode, JobId, JobState, TenantId, Verdict, new_job_id
from imagefleet.jobs.replays import ReplayOrder, ReplayOutcome
from imagefleet.jobs.shapes.edge import DeletedObjects
from imagefleet.store.database import Connection
from imagefleet.store.edge.invalidations import (
    Accepted,
    BatchLimits,
    accept_batch,
    begin_send,
    commit_batch,
    complete_batch,
    look_at_owed,
)
from imagefleet.store.images.deleting import (
    darken_without_edge,
    flag_void,
    get_deletion,
    list_to_empty_again,
    record_emptied_again,
)
from imagefleet.store.images.images import get_image, submit_image
from imagefleet.store.jobs.cancelling import cancel_job
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.store.letters.letters import get_dead_letter
from imagefleet.store.letters.replays import replay_letters, replay_redriven
from tests.conftest import OpenConnection
from tests.store.images.deletions import (
    a_deletion,
    a_receipt,
    an_upload,
    deleted,
    failing,
    publication,
    uploaded,
)
from tests.support.database import driver_of
from tests.support.factories import CORRUPT, TENANT, a_worker, claim_job, hold_job, settle_job
from tests.support.rows import job_row, ring_row, the_ring

ORDER = ReplayOrder(by="ada", reason="fixed")
ROOMY = BatchLimits(paths=3000, wildcards=15)


async def counts(owner: Connection) -> tuple[int, ...]:
    tables = ("jobs", "rings", "image_tombstones")
    return tuple([await owner.fetchval(f"SELECT count(*) FROM {table}") for table in tables])  # noqa: S608 - ours


async def test_the_tombstone_its_job_and_the_ring_are_one(
    api: OpenConnection, superuser: OpenConnection, image_id: UUID
) -> None:
    before = await counts(superuser)

    undone = driver_of(api).transaction()
    await undone.start()
    await deleted(api, image_id)
    await undone.rollback()
    assert before == await counts(superuser)

    deleting = await deleted(api, image_id)
    assert deleting.answer.created
    assert deleting.answer.job_id == await superuser.fetchval("SELECT job_id FROM image_tombstones")
    assert await ring_row(superuser, deleting.answer.job_id) is not None
    assert (await get_image(api, image_id, TENANT)).status == "deleted"


async def test_a_second_deletion_is_answered_with_the_first_and_leaves_no_trace(
    api: OpenConnection, worker: OpenConnection, superuser: OpenConnection, image_id: UUID
) -> None:
    first = await deleted(api, image_id)
    job = await hold_job(worker, first.answer.job_id)
    await settle_job(worker, job, a_receipt(image_id))
    before = await counts(superuser)

    again = await deleted(api, image_id, idempotency_key="k")

    assert (first.answer.job_id, JobState.COMPLETED) == (again.answer.job_id, again.answer.state)
    assert again.submitted == ()
    assert before == await counts(superuser)


async def test_while_a_deletion_is_open_no_other_takes_its_place(
    api: OpenConnection, image_id: UUID
) -> None:
    first = await deleted(api, image_id)

    again = await deleted(api, image_id, dedup_key=None)

    assert first.answer.job_id == again.answer.job_id


async def test_a_key_that_stands_for_another_request_is_refused(api: OpenConnection) -> None:
    image_id = new_job_id()
    await submit_image(api, *an_upload(image_id, idempotency_key="k", fingerprint="upload"))

    with pytest.raises(IdempotencyConflict):
        await deleted(api, image_id, idempotency_key="k", fingerprint="deletion")
    assert (await get_image(api, image_id, TENANT)).status == "pending"


@pytest.mark.parametrize("whose", ["nobody's", "another tenant's"])
async def test_what_is_not_ours_is_not_found_and_not_deleted(
    api: OpenConnection, superuser: OpenConnection, whose: str
) -> None:
    image_id = new_job_id()
    if whose != "nobody's":
        await uploaded(api, image_id)
    before = await counts(superuser)

    with pytest.raises(NotFound):
        await deleted(api, image_id, tenant_id=TenantId("others"))
    assert before == await counts(superuser)


async def test_a_deletion_that_failed_is_asked_for_again_by_another_job(
    api: OpenConnection, worker: OpenConnection, superuser: OpenConnection, image_id: UUID
) -> None:
    first = await deleted(api, image_id)
    await settle_job(worker, await hold_job(worker, first.answer.job_id), CORRUPT)

    second = await deleted(api, image_id)
    third = await deleted(api, image_id)

    assert first.answer.job_id != second.answer.job_id == third.answer.job_id
    assert 1 == await superuser.fetchval("SELECT count(*) FROM image_tombstones")


async def test_cancelling_a_deletion_undoes_nothing_and_it_can_be_asked_for_again(
    api: OpenConnection, worker: OpenConnection, superuser: OpenConnection, image_id: UUID
) -> None:
    first = (await deleted(api, image_id)).answer.job_id
    await cancel_job(worker, first, code=CancelCode.CANCELLED, detail=None)
    await settle_job(worker, await hold_job(worker, first), Released(why="flagged"))

    with pytest.raises(RequestRejected, match="image_deleted"):
        await uploaded(api, image_id)
    second = await deleted(api, image_id)

    assert "cancelled" == (await job_row(superuser, first))["failure_code"]
    assert (True, False) == (second.answer.created, first == second.answer.job_id)


async def test_nothing_new_is_accepted_about_a_deleted_image_but_repeats_are_answered(
    api: OpenConnection, superuser: OpenConnection
) -> None:
    image_id = new_job_id()
    first = await submit_image(api, *an_upload(image_id, idempotency_key="k"))
    await deleted(api, image_id)
    before = await counts(superuser)

    with pytest.raises(RequestRejected) as refused:
        await uploaded(api, image_id)
    again = await submit_image(api, *an_upload(image_id, idempotency_key="k"))

    assert refused.value.code == "image_deleted"
    assert (again.job_id, again.created) == (first.job_id, False)
    assert before == await counts(superuser)


async def test_a_deletion_goes_first_and_what_it_overtakes_ends_as_image_deleted(
    api: OpenConnection, worker: OpenConnection, superuser: OpenConnection
) -> None:
    image_id = new_job_id()
    older = [(await uploaded(api, image_id)).job_id for _ in range(3)]

    deleting = await deleted(api, image_id)

    cancels = [cancel.payload["job_id"] for cancel, _ in deleting.submitted[1:]]
    assert [str(job_id) for job_id in older] == cancels
    assert all(answer.next_at is not None for _, answer in deleting.submitted)
    await hold_job(worker, deleting.answer.job_id)
    rings = await flag_void(worker, image_id, TENANT)
    assert {ring.job_id for ring in rings} == set(older)
    for job_id in older:
        job = await hold_job(worker, job_id)
        await settle_job(worker, job, Released(why="flagged"))
        row = await job_row(superuser, job_id)
        assert ("failed", "image_deleted") == (row["state"], row["failure_code"])
    assert 0 == await superuser.fetchval("SELECT count(*) FROM dead_letters")


async def test_a_deletion_waits_for_the_running_job_and_is_rung_by_its_end(
    api: OpenConnection, worker: OpenConnection, superuser: OpenConnection
) -> None:
    image_id = new_job_id()
    running = await hold_job(worker, (await uploaded(api, image_id)).job_id)
    deleting = await deleted(api, image_id)

    answer = await claim_job(worker, deleting.answer.job_id, await a_worker(worker))
    assert (answer.verdict, answer.why) == (Verdict.TARGET_BUSY, str(running.job_id))
    await settle_job(
        worker, running, Completed(publication=await publication(worker, image_id, running))
    )

    row = await job_row(superuser, running.job_id)
    assert ("completed", "superseded") == (row["state"], row["result_reason"])
    ring = await the_ring(superuser, deleting.answer.job_id)
    assert ring["next_in"].total_seconds() <= 0
    await hold_job(worker, deleting.answer.job_id)


async def dark_by_the_edge(maintenance: Connection) -> None:
    """One batch of all debts, complete."""
    debts = [owed.debt for owed in await look_at_owed(maintenance, limit=9)]
    batch = await commit_batch(maintenance, debts, lambda image_id: f"#{image_id}", within=ROOMY)
    assert batch is not None
    assert await begin_send(maintenance, batch.id)
    await accept_batch(maintenance, batch.id, "I1")
    dark = await complete_batch(maintenance, Accepted(batch.id, "I1"))
    assert dark is not None
    assert len(dark) == 1


async def published(worker: Connection, image_id: UUID, job_id: JobId) -> ResultReason | None:
    job = await hold_job(worker, job_id)
    outcome = Completed(publication=await publication(worker, image_id, job))
    receipt = await settle_job(worker, job, outcome)
    return receipt.outcome.reason if isinstance(receipt.outcome, Completed) else None


async def test_the_receipt_and_one_invalidation_come_with_the_completion_and_dark_with_the_edge(
    api: OpenConnection,
    worker: OpenConnection,
    maintenance: OpenConnection,
    superuser: OpenConnection,
) -> None:
    image_id = new_job_id()
    for _ in range(2):  # a replacement owes one already, with which the deletion's is merged
        await published(worker, image_id, (await uploaded(api, image_id)).job_id)
    deleting = await deleted(api, image_id)
    await settle_job(worker, await hold_job(worker, deleting.answer.job_id), a_receipt(image_id))

    gone = await get_deletion(api, image_id, TENANT)
    (debt,) = await superuser.fetch("SELECT id, reason FROM invalidations")
    assert gone is not None
    assert gone.objects == DeletedObjects(deleted=2, not_there=1, errors=0, keys=["a", "b"])
    assert (debt["id"], "deleted") == (gone.invalidation_id, debt["reason"])
    assert gone.objects_deleted_at is not None
    assert gone.dark_at is None

    await dark_by_the_edge(maintenance)
    dark = await get_deletion(api, image_id, TENANT)
    assert dark is not None
    assert dark.dark_at == await superuser.fetchval("SELECT completed_at FROM invalidation_batches")


async def test_a_second_receipt_changes_nothing(
    api: OpenConnection, worker: OpenConnection, superuser: OpenConnection, emptied: UUID
) -> None:
    before = await superuser.fetch("SELECT * FROM image_tombstones")
    debts = await superuser.fetch("SELECT * FROM invalidations")

    again = a_deletion(emptied, dedup_key=None)
    await submit_job(worker, again)
    await settle_job(worker, await hold_job(worker, again.job_id), a_receipt(emptied))

    assert before == await superuser.fetch("SELECT * FROM image_tombstones")
    assert debts == await superuser.fetch("SELECT * FROM invalidations")


async def test_a_restless_debt_hands_the_receipt_on_to_the_next(
    maintenance: OpenConnection, superuser: OpenConnection, emptied: UUID
) -> None:
    debts = [owed.debt for owed in await look_at_owed(maintenance, limit=9)]

    first = await commit_batch(
        maintenance, debts, lambda image_id: f"#{image_id}", within=ROOMY, again=debts
    )
    assert first is not None
    await accept_batch(maintenance, first.id, "I0")
    assert await complete_batch(maintenance, Accepted(first.id, "I0")) == []
    await dark_by_the_edge(maintenance)
    assert await superuser.fetchval("SELECT dark_at IS NOT NULL FROM image_tombstones")


async def test_without_an_edge_an_image_is_dark_when_its_objects_are_gone(
    api: OpenConnection, worker: OpenConnection, maintenance: OpenConnection, image_id: UUID
) -> None:
    deleting = await deleted(api, image_id)

    assert [] == await darken_without_edge(maintenance)
    await settle_job(worker, await hold_job(worker, deleting.answer.job_id), a_receipt(image_id))

    assert 1 == len(await darken_without_edge(maintenance))
    gone = await get_deletion(api, image_id, TENANT)
    assert gone is not None
    assert gone.dark_at == gone.objects_deleted_at is not None


async def test_an_image_is_emptied_once_more_a_day_later(
    maintenance: OpenConnection, superuser: OpenConnection, emptied: UUID
) -> None:
    day = timedelta(hours=24)

    assert [] == await list_to_empty_again(maintenance, after=day, limit=9)
    await superuser.execute(
        "UPDATE image_tombstones SET objects_deleted_at = now() - interval '25 hours'"
    )
    assert [emptied] == await list_to_empty_again(maintenance, after=day, limit=9)
    await record_emptied_again(maintenance, emptied, owes=True)

    assert [] == await list_to_empty_again(maintenance, after=day, limit=9)
    (debt,) = await superuser.fetch("SELECT debts FROM invalidations")
    assert 2 == debt["debts"]


async def test_what_failed_of_a_deleted_image_is_not_replayed_but_its_deletion_is(
    api: OpenConnection, worker: OpenConnection, operator: OpenConnection
) -> None:
    image_id = new_job_id()
    failed = await failing(worker, (await uploaded(api, image_id)).job_id)
    another = await failing(worker, (await uploaded(api, new_job_id())).job_id)
    deletion = await failing(worker, (await deleted(api, image_id)).answer.job_id)

    answers = await replay_letters(operator, [failed, another, deletion], ORDER, BUILT_IN)
    redriven = await replay_redriven(worker, failed, BUILT_IN)

    assert redriven is not None
    assert ReplayOutcome.IMAGE_DELETED is redriven.outcome
    assert {
        failed: (ReplayOutcome.IMAGE_DELETED, False),
        another: (ReplayOutcome.REPLAYED, True),
        deletion: (ReplayOutcome.REPLAYED, True),
    } == {answer.job_id: (answer.outcome, answer.replayed_as is not None) for answer in answers}
    assert (await get_dead_letter(operator, failed)).acknowledged_at is None
