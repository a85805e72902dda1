"""The first upload of an image is one statement, and writes what two others would have."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final
from uuid import UUID

import pytest

from imagefleet.errors import StoreRejected
from imagefleet.jobs.images import image_target, original_key
from imagefleet.jobs.model import new_job_id
from imagefleet.store.database import Connection
from imagefleet.store.images.images import submit_image
from tests.conftest import OpenConnection
from tests.store.images.deletions import an_upload

WRITTEN: Final = {
    "jobs": "id = $1",
    "rings": "job_id = $1",
    "targets": "target = $2",
    "images": "id = $3",
    "image_sources": "image_id = $3",
}
# What is another's every time: ids, keys, times.
OWN: Final = {
    *("id", "job_id", "image_id", "target", "key", "payload", "correlation_id"),
    *("created_at", "updated_at", "run_at", "next_at", "since", "due_at"),
}


async def written(api: Connection, image_id: UUID, *, is_first: bool) -> Mapping[str, object]:
    submission, source = an_upload(image_id)
    answer = await submit_image(api, submission, source, is_first=is_first)
    assert (answer.created, answer.job_id) == (True, submission.job_id)
    assert answer.next_at is not None
    found: dict[str, object] = {}
    for table, which in WRITTEN.items():
        of = [submission.job_id, image_target(image_id), image_id]
        typed = "$1::uuid IS NOT NULL AND $2::text IS NOT NULL AND $3::uuid IS NOT NULL"
        (row,) = await api.fetch(f"SELECT * FROM {table} WHERE {which} AND {typed}", *of)  # noqa: S608 - names of ours
        found |= {f"{table}.{name}": row[name] for name in dict(row) if name not in OWN}
    return found


async def test_the_first_upload_of_an_image_writes_what_any_other_does(
    superuser: OpenConnection,
) -> None:
    one = await written(superuser, new_job_id(), is_first=True)
    other = await written(superuser, new_job_id(), is_first=False)

    assert one == other
    assert (one["targets.next_seq"], one["image_sources.source_seq"]) == (2, 1)


async def test_its_replacement_comes_after_it(api: Connection) -> None:
    image_id = new_job_id()
    submission, source = an_upload(image_id)
    await submit_image(api, submission, source, is_first=True)

    again, other = an_upload(image_id)
    await submit_image(api, again, replace(other, key=original_key(image_id, new_job_id())))

    places = "SELECT target_seq FROM jobs WHERE target = $1 ORDER BY target_seq"
    assert [1, 2] == [row[0] for row in await api.fetch(places, image_target(image_id))]


async def test_what_cannot_be_written_whole_is_not_written(api: OpenConnection) -> None:
    """The key of an original is the last thing that is looked at."""
    submission, source = an_upload(new_job_id())
    await submit_image(api, submission, source, is_first=True)
    more, other = an_upload(new_job_id())

    with pytest.raises(StoreRejected):
        await submit_image(api, more, replace(other, key=source.key), is_first=True)

    for table in ("jobs", "rings", "targets", "images", "image_sources"):
        assert 1 == await api.fetchval(f"SELECT count(*) FROM {table}"), table  # noqa: S608 - names of ours
