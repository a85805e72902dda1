"""The worker as it is run: a process with settings, signals and an end."""

from uuid import uuid4

from imagefleet.jobs.model import JobState
from imagefleet.store.database import Connection
from imagefleet.store.images import get_image
from tests.support.factories import a_submission
from tests.support.fleet import Place, running
from tests.support.images import quadrants, saved
from tests.support.rows import job_row


async def test_a_job_runs_from_its_message_to_its_end(
    place: Place, api: Connection, superuser: Connection
) -> None:
    submission = a_submission(payload={"note": "hello"})
    async with running(place, "worker") as worker:
        await place.submit(api, submission)
        line = await worker.tells("job.completed")
        assert await worker.drains() == 0, worker.story()

    row = await job_row(superuser, submission.job_id)

    assert JobState.COMPLETED == row["state"]
    assert str(submission.job_id) == line["job_id"]


async def test_an_uploaded_image_is_published(
    place: Place, api: Connection, superuser: Connection
) -> None:
    image_id = uuid4()
    submission = await place.upload(api, image_id, saved(quadrants(800, 500)))
    async with running(place, "worker") as worker:
        await worker.tells("job.completed")

        image = await get_image(api, image_id, submission.tenant_id)

        assert "ready" == image.status
        assert 8 == len(image.variants)
        outputs = await place.session.objects(place.settings.outputs_bucket)
        for variant in image.variants:
            facts = await outputs.head(str(variant["key"]))
            assert variant["bytes"] == facts.bytes
            assert {"cache-tag": f"img-{image_id}"} == facts.metadata
        assert await worker.drains() == 0, worker.story()
