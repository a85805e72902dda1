"""`imagefleet breaker`, `workers`, `ledger`, `prune`, `sweep`, against a real API and Postgres."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from imagefleet.cli.output import ExitCode
from imagefleet.jobs.model import JobState
from imagefleet.jobs.shapes.sweeping import MissingView, SweepProgress
from imagefleet.store.database import Connection
from imagefleet.store.fleet.elections import begin_period, finish_period
from imagefleet.store.images.sweeping import WALK, save_walk
from tests.cli.conftest import Cli, document, failed
from tests.support.factories import a_job

IMAGE = uuid4()
KEY = f"i/{IMAGE}/1.1/thumb.jpg"


async def test_breakers_are_opened_and_reset(operate: Cli) -> None:
    why = ("--reason", "x")

    assert "s3 is open" in (await operate("breaker", "open", "s3", *why)).out
    assert "of tests" in (await operate("breaker", "list")).out
    assert "s3 is closed" in (await operate("breaker", "reset", "s3", *why)).out
    assert ExitCode.REFUSED == (await operate("breaker", "reset", "s4", *why)).code


async def test_tables_show_the_fleet(
    operate: Cli, worker: Connection, superuser: Connection
) -> None:
    job = await a_job(worker, superuser, state=JobState.PROCESSING)
    await failed(worker, superuser, 1)

    stats = await operate("queue", "stats")
    workers = await operate("workers", "list", "--jobs")
    prune = await operate("prune")

    assert "internal_error" in stats.out
    assert "acme" in stats.out
    assert "1 dead letters wait for somebody" in stats.out
    assert str(job.worker_id) in workers.out
    assert str(job.job_id) in workers.out
    assert "0 jobs are past 30 days" in prune.out


async def test_the_ledger_balances(operate: Cli, worker: Connection, superuser: Connection) -> None:
    await a_job(worker, superuser)

    balanced = await operate("ledger")

    assert ExitCode.DONE == balanced.code
    assert "missing" in balanced.out


@pytest.mark.breaks_invariants
async def test_a_ledger_that_does_not_balance_is_a_failure(
    operate: Cli, superuser: Connection
) -> None:
    await superuser.execute("INSERT INTO ledger (accepted) VALUES (1)")

    ended = await operate("ledger", "--json")

    assert ExitCode.FAILED == ended.code
    assert 1 == document(ended)["missing"]


async def a_walk(maintenance: Connection, progress: SweepProgress) -> None:
    start = await begin_period(maintenance, WALK, timedelta(hours=6), uuid4())
    assert start is not None
    await save_walk(maintenance, start, progress, is_through=True)


async def test_a_sweep_that_misses_nothing_is_a_success(
    operate: Cli, maintenance: Connection
) -> None:
    assert "no walk through the buckets yet" in (await operate("sweep")).out
    await a_walk(maintenance, SweepProgress(listed=7, litter=2, swept=2, held_back=3))
    start = await begin_period(maintenance, "sweep", timedelta(minutes=1), uuid4())
    assert start is not None
    await finish_period(maintenance, "sweep", start, {"did": True, "objects": 4321})

    ended = await operate("sweep")

    assert ExitCode.DONE == ended.code
    assert "7 objects, of which 2 litter, 2 swept, 0 unknown" in ended.out
    assert "3 originals are held back" in ended.out
    assert "4321" in ended.out


async def test_missing_objects_are_shown_with_what_helps_and_are_a_failure(
    operate: Cli, maintenance: Connection
) -> None:
    missing = MissingView(
        bucket="outputs",
        key=KEY,
        tenant_id="acme",
        image_id=IMAGE,
        found_at=datetime(2026, 1, 2, tzinfo=UTC),
        reprocess=True,
    )
    await a_walk(maintenance, SweepProgress(missing=(missing,)))

    ended = await operate("sweep")
    document = (await operate("sweep", "--json")).json()

    assert ExitCode.FAILED == ended.code
    assert KEY in ended.out
    assert "images reprocess" in ended.err
    assert [str(IMAGE)] == [missing["imageId"] for missing in document["missing"]]
