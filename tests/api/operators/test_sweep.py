"""Operators and S3: what was swept, what waits, what is missing."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import httpx

from imagefleet.jobs.shapes.sweeping import MissingView, SweepProgress
from imagefleet.store.database import Connection
from imagefleet.store.fleet.elections import begin_period, finish_period
from imagefleet.store.images.sweeping import WALK, save_walk
from tests.conftest import OpenConnection
from tests.support.api import published, uploaded

IMAGE = uuid4()
KEY = f"i/{IMAGE}/1.1/thumb.jpg"
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RUN: dict[str, object] = {
    "taken": True,
    "did": True,
    "revisions": 1,
    "uploads": 2,
    "listed": 3,
    "objects": 4,
}


async def asked(client: httpx.AsyncClient) -> Any:  # noqa: ANN401 - JSON
    answer = await client.get("/v1/operator/sweep")
    assert answer.status_code == 200, answer.text
    return answer.json()


async def a_walk(maintenance: Connection, progress: SweepProgress, *, is_through: bool) -> None:
    start = await begin_period(maintenance, WALK, timedelta(hours=6), uuid4())
    assert start is not None
    await save_walk(maintenance, start, progress, is_through=is_through)


async def test_before_anything_was_swept_there_is_nothing_to_tell(
    operating: httpx.AsyncClient,
) -> None:
    nothing = {"superseded": 0, "supersededIsAtLeast": False, "missing": [], "missingInAll": 0}

    assert nothing | {"runs": []} == await asked(operating)


async def test_a_walk_under_way_tells_how_far_it_is(
    operating: httpx.AsyncClient, maintenance: Connection
) -> None:
    progress = SweepProgress(
        listed=9, litter=2, litter_bytes=20, swept=1, swept_bytes=10, unknown=3
    )
    await a_walk(maintenance, progress.passed(KEY, []), is_through=False)

    walk = (await asked(operating))["walk"]

    assert datetime.fromisoformat(walk.pop("startedAt")) <= datetime.now(UTC)
    assert {
        "bucket": "outputs",
        "after": KEY,
        "listed": 9,
        "litter": 2,
        "litterBytes": 20,
        "swept": 1,
        "sweptBytes": 10,
        "unknown": 3,
        "heldBack": 0,
    } == walk


async def test_what_is_missing_says_what_helps(
    operating: httpx.AsyncClient, maintenance: Connection
) -> None:
    missing = MissingView(
        bucket="outputs", key=KEY, tenant_id="acme", image_id=IMAGE, found_at=NOW, reprocess=True
    )
    progress = SweepProgress(missing=(missing,), unnamed=4, bucket="originals")
    await a_walk(maintenance, progress, is_through=True)

    sweep = await asked(operating)

    assert 5 == sweep["missingInAll"]
    assert [
        {
            "bucket": "outputs",
            "key": KEY,
            "tenant": "acme",
            "imageId": str(IMAGE),
            "foundAt": "2026-01-02T03:04:05Z",
            "reprocess": True,
        }
    ] == sweep["missing"]
    assert "finishedAt" in sweep["walk"]
    assert {"bucket", "after"}.isdisjoint(sweep["walk"])


async def test_runs_that_did_something_are_shown_and_versions_that_wait(
    operating: httpx.AsyncClient,
    acme: httpx.AsyncClient,
    worker: OpenConnection,
    maintenance: Connection,
    superuser: Connection,
) -> None:
    await published(worker, await uploaded(acme))
    await superuser.execute("UPDATE image_revisions SET superseded_at = now()")
    idle: dict[str, object] = {"taken": True, "did": False}
    for report in (RUN, idle):
        start = await begin_period(maintenance, "sweep", timedelta(microseconds=1), uuid4())
        assert start is not None
        await finish_period(maintenance, "sweep", start, report)

    sweep = await asked(operating)

    assert 1 == sweep["superseded"]
    (run,) = sweep["runs"]
    assert [1, 2, 3, 4, None] == [
        run.get(name) for name in ("revisions", "uploads", "listed", "objects", "bytes")
    ]


async def test_what_another_version_wrote_about_a_walk_breaks_nothing(
    operating: httpx.AsyncClient, maintenance: Connection, superuser: Connection
) -> None:
    await a_walk(maintenance, SweepProgress(), is_through=False)
    await superuser.execute("""UPDATE periods SET report = '{"listed": "many"}'""")

    assert 0 == (await asked(operating))["walk"]["listed"]
