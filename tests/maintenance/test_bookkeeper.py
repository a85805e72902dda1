"""The book is folded and proven by one process, while there is work, and not beyond the end."""

from uuid import UUID, uuid4

import pytest
from structlog.testing import capture_logs

from imagefleet.jobs.model import JobId
from imagefleet.maintenance import bookkeeper as bookkeeper_module
from imagefleet.maintenance.bookkeeper import Bookkeeper
from imagefleet.maintenance.duties import Rest
from imagefleet.store.database import Connection, Pool
from imagefleet.store.fleet.ledger import read_ledger
from imagefleet.store.jobs.submissions import submit_job
from imagefleet.telemetry.maintenance import MaintenanceMetrics
from tests.support.eventually import Resting
from tests.support.factories import a_submission

AN_HOUR = 3_600_000 << 80


def a_bookkeeper(pool: Pool, rest: Rest | None = None) -> Bookkeeper:
    return Bookkeeper(pool, uuid4(), MaintenanceMetrics(()), rest=rest or Resting())


async def submit(worker: Connection, *, hours_ago: int, jobs: int) -> None:
    for _ in range(jobs):
        submission = a_submission()
        job_id = JobId(UUID(int=submission.job_id.int - hours_ago * AN_HOUR))
        await submit_job(worker, a_submission(job_id=job_id))


async def test_entries_are_folded_batch_by_batch_until_none_is_left(
    pool: Pool, worker: Connection, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookkeeper_module, "ENTRIES", 3)
    await submit(worker, hours_ago=0, jobs=7)
    resting = Resting()

    await a_bookkeeper(pool, resting).fold()

    assert 0 == await superuser.fetchval("SELECT count(*) FROM ledger_entries")
    assert 1 == await superuser.fetchval("SELECT count(*) FROM ledger")
    assert len(resting.rests) >= 2, "others had their turn after each batch"


async def test_who_is_asked_to_end_folds_no_further_batch(
    pool: Pool, worker: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookkeeper_module, "ENTRIES", 3)
    await submit(worker, hours_ago=0, jobs=7)

    folded = await a_bookkeeper(pool, Resting(lambda _rests: True)).fold()

    assert 6 == folded, "three of each kind"


async def test_only_one_keeps_the_book(pool: Pool, worker: Connection) -> None:
    await submit(worker, hours_ago=5, jobs=2)
    first, other = a_bookkeeper(pool), a_bookkeeper(pool)
    await first.fold()
    await submit(worker, hours_ago=5, jobs=2)

    idle = [await other.fold(), await other.prove()]
    await first.office.resign()
    busy = [await other.fold() > 0, await other.prove()]

    assert [[0, 0], [True, 1]] == [idle, busy]


@pytest.mark.breaks_invariants
async def test_what_a_proof_finds_is_an_error_that_names_the_hour(
    pool: Pool, worker: Connection, superuser: Connection
) -> None:
    await submit(worker, hours_ago=5, jobs=2)
    async with superuser.transaction():
        await superuser.execute("SET LOCAL session_replication_role = replica")
        await superuser.execute("DELETE FROM jobs WHERE id = (SELECT id FROM jobs LIMIT 1)")

    with capture_logs() as logs:
        await a_bookkeeper(pool).prove()

    (error,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert ("ledger.disproven", "noop", "queued", -1) == (
        *(error["event"], error["type"], error["state"]),
        error["jobs"],
    )
    ledger = await read_ledger(superuser)
    assert ledger is not None
    assert 1 == ledger.missing


async def test_a_proof_under_way_is_left_when_the_process_ends(
    pool: Pool, worker: Connection, superuser: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bookkeeper_module, "PAGE", 2)
    await submit(worker, hours_ago=5, jobs=5)

    hours = await a_bookkeeper(pool, Resting(lambda _rests: True)).prove()

    assert (0, -1) == (hours, await superuser.fetchval("SELECT proven_until FROM ledger_proof"))
