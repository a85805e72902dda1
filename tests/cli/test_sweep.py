"""`imagefleet sweep` against a real API and a real Postgres."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from imagefleet.cli.output import ExitCode
from imagefleet.jobs.images import Missing, SweepProgress
from imagefleet.store.database import Connection
from imagefleet.store.fleet.elections import begin_period, finish_period
from imagefleet.store.images.sweeping import WALK, save_walk
from tests.cli.conftest import Cli
from tests.support.emulators import CREDENTIALS

IMAGE = uuid4()
KEY = f"i/{IMAGE}/1.1/thumb.jpg"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", CREDENTIALS.key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CREDENTIALS.secret)
    with capture_logs():
        yield


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
    missing = Missing(
        bucket="outputs",
        key=KEY,
        tenant_id="acme",
        image_id=IMAGE,
        found_at=datetime(2026, 1, 2, tzinfo=UTC),
        reprocess=True,
    )
    await a_walk(maintenance, SweepProgress(missing=(missing,)))

    ended = await operate("sweep")
    document: Any = (await operate("sweep", "--json")).json()

    assert ExitCode.FAILED == ended.code
    assert KEY in ended.out
    assert "images reprocess" in ended.err
    assert [str(IMAGE)] == [one["imageId"] for one in document["missing"]]
