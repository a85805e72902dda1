"""An image that was uploaded, and one of which a deletion has left nothing."""

from uuid import UUID

import pytest

from imagefleet.jobs.model import new_job_id
from imagefleet.store.database import Connection
from tests.store.images.deletions import a_receipt, deleted, uploaded
from tests.support.factories import hold_job, settle_job


@pytest.fixture
async def image_id(api: Connection) -> UUID:
    """It was uploaded once, and nobody has begun to render it."""
    made = new_job_id()
    await uploaded(api, made)
    return made


@pytest.fixture
async def emptied(api: Connection, worker: Connection, image_id: UUID) -> UUID:
    """The same, deleted: its objects are gone, and the edge is owed one invalidation."""
    deletion = (await deleted(api, image_id)).answer.job_id
    await settle_job(worker, await hold_job(worker, deletion), a_receipt(image_id))
    return image_id
