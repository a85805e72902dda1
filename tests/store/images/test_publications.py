"""The pointer of an image moves forward only, whatever completes beside or after what it shows."""

from typing import NamedTuple
from uuid import UUID

import pytest

from imagefleet.jobs.images import Publication
from imagefleet.jobs.lifecycle import Completed, ResultReason
from imagefleet.jobs.model import JobState
from imagefleet.store.database import Connection
from tests.conftest import OpenConnection
from tests.support.database import driver_of
from tests.support.factories import MadeJob, a_job, settle_job
from tests.support.image_rows import a_publication, a_variant, an_image
from tests.support.races import meanwhile


class Version(NamedTuple):
    """Which original it was made of, and by which job of the image."""

    source_seq: int
    revision: int


def published_by(job: MadeJob, image_id: UUID, version: Version) -> Publication:
    thumb = a_variant(f"i/{image_id}/{version.revision}.{job.claim_no}/{job.job_id}.webp")
    return a_publication(job, image_id, version.revision, [thumb], source_seq=version.source_seq)


async def a_rendering(worker: Connection, superuser: Connection) -> MadeJob:
    """A claimed job of no target, so that two of one image may complete at once."""
    return await a_job(worker, superuser, state=JobState.PROCESSING)


async def publish(
    worker: Connection, job: MadeJob, image_id: UUID, version: Version
) -> ResultReason:
    receipt = await settle_job(
        worker, job, Completed(publication=published_by(job, image_id, version))
    )
    assert isinstance(receipt.outcome, Completed)
    return receipt.outcome.reason


async def shown(connection: Connection, image_id: UUID) -> Version:
    row = await connection.fetchrow(
        "SELECT source_seq, revision FROM images WHERE id = $1", image_id
    )
    assert row is not None
    return Version(*row)


async def written(connection: Connection) -> list[int]:
    """The revisions that have variants."""
    rows = await connection.fetch("SELECT revision FROM variants ORDER BY revision")
    return [row["revision"] for row in rows]


async def owed(connection: Connection) -> int:
    owed: int = await connection.fetchval("SELECT coalesce(sum(debts), 0) FROM invalidations")
    return owed


FIRST, REPLACED = Version(1, 1), Version(2, 2)


@pytest.mark.parametrize(
    ("current", "later"),
    [
        pytest.param(FIRST, REPLACED, id="a replacement"),
        pytest.param(FIRST, Version(1, 2), id="the same original rendered again"),
        pytest.param(Version(1, 3), REPLACED, id="a newer original, of an older job"),
    ],
)
async def test_what_is_newer_is_shown_and_owes_one_invalidation(
    api: OpenConnection,
    worker: OpenConnection,
    superuser: OpenConnection,
    current: Version,
    later: Version,
) -> None:
    image_id = await an_image(api)
    first = await publish(worker, await a_rendering(worker, superuser), image_id, current)
    debts = await owed(superuser)

    reason = await publish(worker, await a_rendering(worker, superuser), image_id, later)

    assert (first, reason, debts) == (ResultReason.DONE, ResultReason.DONE, 0)
    assert await shown(superuser, image_id) == later
    assert await owed(superuser) == 1


@pytest.mark.parametrize(
    ("current", "late"),
    [
        pytest.param(REPLACED, FIRST, id="what was replaced"),
        pytest.param(REPLACED, Version(1, 3), id="what was replaced, rendered again"),
        pytest.param(Version(1, 2), FIRST, id="an older rendering"),
        pytest.param(REPLACED, REPLACED, id="the same once more"),
    ],
)
async def test_what_is_older_is_never_shown_and_owes_nothing(
    api: OpenConnection,
    worker: OpenConnection,
    superuser: OpenConnection,
    current: Version,
    late: Version,
) -> None:
    image_id = await an_image(api)
    await publish(worker, await a_rendering(worker, superuser), image_id, current)

    reason = await publish(worker, await a_rendering(worker, superuser), image_id, late)

    assert reason is ResultReason.SUPERSEDED
    assert await shown(superuser, image_id) == current
    assert await written(superuser) == [current.revision]
    assert await owed(superuser) == 0


async def test_what_is_older_waits_for_the_newer_that_is_being_published_and_is_not_shown(
    api: OpenConnection, worker: OpenConnection, owner: OpenConnection, superuser: OpenConnection
) -> None:
    image_id = await an_image(api)
    old, new = [await a_rendering(worker, superuser) for _ in range(2)]

    transaction = driver_of(owner).transaction()
    await transaction.start()
    await publish(owner, new, image_id, REPLACED)
    late = publish(worker, old, image_id, FIRST)
    async with meanwhile(superuser, owner, worker, late) as task:
        await transaction.commit()

    assert task.result() is ResultReason.SUPERSEDED
    assert await shown(superuser, image_id) == REPLACED
    assert await written(superuser) == [2]


async def test_what_is_newer_waits_for_the_older_that_is_being_published_and_replaces_it(
    api: OpenConnection, worker: OpenConnection, owner: OpenConnection, superuser: OpenConnection
) -> None:
    """It must know what it replaces: the edge may have that already."""
    image_id = await an_image(api)
    old, new = [await a_rendering(worker, superuser) for _ in range(2)]

    transaction = driver_of(owner).transaction()
    await transaction.start()
    await publish(owner, old, image_id, FIRST)
    async with meanwhile(
        superuser, owner, worker, publish(worker, new, image_id, REPLACED)
    ) as task:
        await transaction.commit()

    assert task.result() is ResultReason.DONE
    assert await shown(superuser, image_id) == REPLACED
    assert await owed(superuser) == 1
