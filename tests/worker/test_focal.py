"""The focal point of an image in a whole worker."""

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from imagefleet.jobs.images import Focal
from imagefleet.store.database import Connection
from tests.support.fleet import Place, inside
from tests.support.images import BLUE, YELLOW, near, opened, pixel, quadrants, saved


@pytest.mark.parametrize(
    ("focal", "colour"), [(Focal(0.25, 0.75), BLUE), (Focal(1, 1), YELLOW)], ids=["left", "corner"]
)
async def test_what_is_cut_is_cut_around_the_point_of_its_upload(
    place: Place, api: Connection, tmp_path: Path, focal: Focal, colour: tuple[int, int, int]
) -> None:
    async with inside(place, "worker") as worker:
        await place.upload(api, uuid4(), saved(quadrants(2400, 1500)), focal=[*focal])
        await worker.tells("job.completed")

    row = await api.fetchrow("SELECT focal_x, focal_y FROM image_revisions")
    assert row is not None
    assert focal == (row["focal_x"], row["focal_y"])
    key = await api.fetchval("SELECT key FROM variants WHERE name = 'square' AND format = 'webp'")
    outputs = await place.session.objects(place.settings.outputs_bucket)
    await outputs.fetch_to_file(key, tmp_path / "square", max_bytes=2**20)
    square = opened(await asyncio.to_thread((tmp_path / "square").read_bytes))
    assert near(colour, pixel(square, 120, 150), 12)
