"""A whole worker at work: from the message to the end of the job, and what it tells meanwhile."""

import json
from datetime import timedelta
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest
from asyncpg import Record

from imagefleet.jobs.model import JobState, Lane
from imagefleet.store.database import Connection
from imagefleet.store.images.images import get_image
from imagefleet.store.jobs.submissions import submit_jobs
from tests.support.eventually import eventually
from tests.support.factories import a_submission
from tests.support.fleet import (
    STARTS_WITHIN,
    Inside,
    Place,
    an_image_submission,
    inside,
    running,
)
from tests.support.images import damaged, quadrants, saved
from tests.support.otlp import collecting
from tests.support.rows import attempts_rows, job_row

TRACE = "0af7651916cd43dd8448eb211c80319c"


async def test_a_job_runs_from_its_message_to_its_end(
    place: Place, api: Connection, superuser: Connection
) -> None:
    submission = a_submission(payload={"note": "hello"})
    async with inside(place, "worker") as worker:
        await place.submit(api, submission)
        line = await worker.tells("job.completed")

    row = await job_row(superuser, submission.job_id)
    assert JobState.COMPLETED == row["state"]
    assert ("completed", "done", 0, 5) == (
        line["state"],
        line["why"],
        line["retries"],
        line["max_attempts"],
    )
    queue = await place.queue(Lane.FAST)
    depth = await queue.depth()
    assert (0, 0) == (depth.visible, depth.in_flight)


async def test_an_uploaded_image_is_published(place: Place, api: Connection) -> None:
    image_id = uuid4()
    picture = saved(quadrants(800, 500))
    async with inside(place, "worker") as worker:
        submission = await place.upload(api, image_id, picture)
        line = await worker.tells("job.completed")

    image = await get_image(api, image_id, submission.tenant_id)
    assert "ready" == image.status
    assert 10 == len(image.variants)
    made = sum(variant.bytes for variant in image.variants)
    assert (len(picture), made) == (line["read_bytes"], line["made_bytes"])
    assert 0 < cast("float", line["cpu_seconds"])
    assert 2**20 < cast("int", line["peak_bytes"])
    outputs = await place.session.objects(place.settings.outputs_bucket)
    for variant in image.variants:
        facts = await outputs.head(variant.url)
        assert variant.bytes == facts.bytes
        assert {"cache-tag": f"img-{image_id}"} == facts.metadata


@pytest.fixture
def card(tmp_path: Path) -> str:
    """A file of recipes."""
    card = {"name": "card", "fit": "cover", "width": 90, "height": 60, "format": "png"}
    file = tmp_path / "recipes.json"
    file.write_text(json.dumps({"recipes": {"default": {"variants": [card]}}}))
    return str(file)


@pytest.fixture
def marked(card: str) -> str:
    """The same with a watermark whose head alone is sound."""
    file = Path(card)
    recipes = json.loads(file.read_text())
    recipes["recipes"]["default"]["variants"][0]["watermark"] = {"image": "mark"}
    file.write_text(json.dumps(recipes))
    (file.parent / "mark").write_bytes(damaged(saved(quadrants(), "WEBP", lossless=True)))
    return card


async def test_a_worker_does_not_start_with_a_watermark_that_cannot_be_decoded(
    place: Place, marked: str
) -> None:
    """The API has no decoder: what only that can tell is for the worker to refuse."""
    settings = {"RECIPES_FILE": marked}
    async with running(place, "worker", started=False, environment=settings) as worker:
        assert await worker.ends(within=STARTS_WITHIN) == 2

    why = "imagefleet worker does not start: the recipe default cannot be used: a watermark that"
    assert why in worker.story()


async def test_an_image_is_made_by_the_recipe_of_the_file(
    place: Place, api: Connection, card: str
) -> None:
    image_id = uuid4()
    async with inside(place, "worker", environment={"RECIPES_FILE": card}) as worker:
        submission = await place.upload(api, image_id, saved(quadrants(800, 500)))
        await worker.tells("job.completed")

    (made,) = (await get_image(api, image_id, submission.tenant_id)).variants
    assert ("card", "png", 90, 60) == (made.name, made.format, made.width, made.height)


async def test_a_damaged_image_fails_and_is_counted(
    place: Place, api: Connection, superuser: Connection
) -> None:
    async with inside(place, "worker") as worker:
        submission = await place.upload(api, uuid4(), saved(quadrants())[:200])
        await worker.tells("job.failed")

        row = await job_row(superuser, submission.job_id)
        code = row["failure_code"]
        assert 1 == await worker.counted(f'image_processing_errors_total{{error_type="{code}"}}')

    assert JobState.FAILED == row["state"]
    assert row["failure_message"]


async def test_an_attempt_is_a_span_of_the_jobs_trace_and_its_s3_calls_are_children(
    place: Place, api: Connection
) -> None:
    with collecting() as collector:
        tracing = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint}
        async with inside(place, "worker", environment=tracing) as worker:
            parent = f"00-{TRACE}-b7ad6b7169203331-01"
            await place.upload(api, uuid4(), saved(quadrants()), traceparent=parent)
            await worker.tells("job.completed")

    attempt = collector.named("job process_image")
    assert (TRACE, "b7ad6b7169203331", "consumer") == (
        attempt.trace_id,
        attempt.parent_id,
        attempt.kind,
    )
    calls = [span for span in collector.spans if span.name.startswith("s3 ")]
    assert {"s3 GetObject", "s3 PutObject"} <= {span.name for span in calls}
    assert {TRACE} == {span.trace_id for span in calls}


async def test_it_says_how_it_is(place: Place, api: Connection) -> None:
    async with inside(place, "worker") as worker:
        await place.submit(api, a_submission())
        await worker.tells("job.completed")

        alive, vitals = await worker.ask("/healthz")
        ready, readiness = await worker.ask("/readyz")

        assert (200, 200) == (alive, ready), vitals + readiness
        assert {"beat", "attempts", "receive fast", "receive general", "receive quarantine"} == set(
            json.loads(vitals)["checks"]
        )
        assert {"database", "drain", "queue fast", "queue general", "queue quarantine"} == set(
            json.loads(readiness)["checks"]
        )
        for query in ("beat", "claim", "settle"):
            assert await worker.counted(
                f'db_query_duration_seconds_count{{query_type="{query}"}}'
            ), query
        assert 1 == await worker.counted('job_processed_total{job_type="noop",status="completed"}')
        assert 1 == await worker.counted('claim_verdict_total{verdict="claimed"}')
        slots = await worker.counted('worker_slots{lane="fast"')
        assert 16 == slots


async def test_a_worker_of_some_lanes_and_types_leaves_the_rest_alone(
    place: Place, api: Connection, superuser: Connection
) -> None:
    limited = {"WORKER_LANES": "fast", "WORKER_JOB_TYPES": "noop"}
    mine, other_lane = a_submission(), a_submission(lane=Lane.GENERAL)
    other_type = a_submission(type="cancel_job", payload={"job_id": str(uuid4())})
    async with inside(place, "worker", environment=limited) as worker:
        for one in (other_lane, other_type, mine):
            await place.submit(api, one)
        await worker.tells("job.completed")
        await eventually(
            lambda: worker.counted('claim_verdict_total{verdict="unroutable"}'), within=5
        )

    states = {
        one.job_id: (await job_row(superuser, one.job_id))["state"]
        for one in (mine, other_lane, other_type)
    }
    assert {
        mine.job_id: "completed",
        other_lane.job_id: "queued",
        other_type.job_id: "queued",
    } == states


async def test_a_general_slot_helps_with_fast_work(place: Place, api: Connection) -> None:
    """One slot each: two jobs of the fast lane can only run at once if the general one helps."""
    single = {
        "WORKER_FAST_SLOTS": "1",
        "WORKER_GENERAL_SLOTS": "1",
        "SHUTDOWN_GRACE_PERIOD_SECONDS": "0",
    }
    jobs = [a_submission(payload={"milliseconds": 60_000}) for _ in range(2)]
    await submit_jobs(api, jobs)
    await place.ring_all(jobs)
    async with inside(place, "worker", environment=single) as worker:
        await eventually(lambda: both_busy(worker), within=10)


async def both_busy(worker: Inside) -> bool:
    busy = [
        await worker.counted(f'worker_slots{{lane="{lane}",state="busy"}}')
        for lane in ("fast", "general")
    ]
    return [1, 1] == busy


def _state(row: Record) -> tuple[str, str]:
    return row["state"], row["failure_code"]


async def test_a_job_at_load_costs_few_requests_and_few_statements(
    place: Place, api: Connection
) -> None:
    jobs = [a_submission() for _ in range(200)]
    roomy = {"WORKER_FAST_SLOTS": "10", "WORKER_LANES": "fast"}
    await submit_jobs(api, jobs)
    await place.ring_all(jobs)
    async with inside(place, "worker", environment=roomy) as worker:
        await worker.tells("job.completed", times=200, within=20)
        await eventually(lambda: _all_deleted(place), within=5)
        requests = await worker.counted("sqs_requests_total")
        claims = await worker.counted('db_query_duration_seconds_count{query_type="claim"}')
        settles = await worker.counted('db_query_duration_seconds_count{query_type="settle"}')

    assert requests / 200 <= 0.45 - 0.1, "a tenth of a request is the sender's"
    assert claims <= 40
    assert settles <= 60


async def _all_deleted(place: Place) -> bool:
    depth = await (await place.queue(Lane.FAST)).depth()
    return depth.visible + depth.in_flight == 0


async def test_a_retried_job_says_when_it_is_due_and_how_often_it_ran(
    place: Place, api: Connection, superuser: Connection
) -> None:
    submission = an_image_submission(uuid4(), source_key="o/k", source_bytes=1, recipe="unheard-of")
    quick = {"BACKOFF_BASE_SECONDS": "600", "WORKER_LANES": "general"}
    originals = await place.session.objects(place.settings.originals_bucket)
    await place.store(originals, "o/k", saved(quadrants()))
    async with inside(place, "worker", environment=quick) as worker:
        await place.submit(api, submission)
        line = await worker.tells("job.retried")

    row = await job_row(superuser, submission.job_id)
    (attempt,) = await attempts_rows(superuser, submission.job_id)
    assert ("failed_retryable", "unavailable", 1) == (*_state(row), row["attempts"])
    assert ("unavailable", "failed_retryable") == (line["why"], line["state"])
    assert row["run_at"] - attempt["ended_at"] >= timedelta(seconds=599)
