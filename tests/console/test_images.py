"""Images: their pictures and their past, and a look at an original that shows no file."""

from typing import Final
from uuid import UUID

import httpx
import pytest

from imagefleet.aws.objects import Headers, Objects
from imagefleet.jobs.images import preview_key
from imagefleet.jobs.lifecycle import Completed, Failed
from imagefleet.store.database import Connection
from tests.console.conftest import Opened
from tests.support.api import published, uploaded
from tests.support.factories import hold_job, settle_job
from tests.support.http import claimed

WHY: Final = "an order of the tests"
A_WEBP: Final = b"RIFF\x1a\x00\x00\x00WEBPVP8L"


@pytest.fixture
async def image(acme: httpx.AsyncClient, worker: Connection) -> UUID:
    """One that is published."""
    accepted = await uploaded(acme, reference="order-7")
    await published(worker, accepted)
    return UUID(accepted["imageId"])


async def test_images_are_shown_by_their_smallest_variant(console: Opened, image: UUID) -> None:
    async with console.logged_in() as visitor:
        everything = (await visitor.get("/images")).text
        found = (await visitor.get(f"/images?tenant=acme&status=ready&id={str(image)[:13]}")).text
        nothing = (await visitor.get("/images?status=deleted")).text

    assert f'href="/images/{image}"' in everything
    assert f'href="/images/{image}"' in found
    assert "thumb" in everything
    assert 'data-color="#aabbcc"' in everything
    assert "order-7" in everything
    assert "No image fits this." in nothing


async def test_one_is_shown_with_its_variants_its_originals_and_its_revisions(
    console: Opened, image: UUID
) -> None:
    async with console.logged_in() as visitor:
        page = (await visitor.get(f"/images/{image}")).text
        unknown = await visitor.get(f"/images/{UUID(int=7)}")

    assert "Revision 1 is shown, made by default" in page
    assert page.count("<figure>") == 6
    assert "not enlarged" in page
    assert "image/jpeg" in page
    assert unknown.status_code == 404


async def test_it_is_rendered_again_and_deleted_on_behalf_of_its_tenant(
    console: Opened, image: UUID, superuser: Connection
) -> None:
    made = "SELECT tenant_id FROM jobs WHERE type = $1 ORDER BY id DESC LIMIT 1"
    async with console.logged_in() as visitor:
        again = await console.post(visitor, f"/images/{image}/reprocess", reason=WHY)
        of_again = await superuser.fetchval(made, "process_image")
        deleted = await console.post(
            visitor, f"/images/{image}/delete", reason=WHY, back=f"/images/{image}"
        )

    assert "It is rendered again" in again.text
    assert of_again == "acme"
    assert await superuser.fetchval(made, "delete_image") == "acme"
    assert "from now on nothing of it is published" in deleted.text
    assert "<figure>" not in deleted.text


async def test_a_focal_point_is_moved(console: Opened, image: UUID, superuser: Connection) -> None:
    point = "SELECT focal_x, focal_y FROM images WHERE id = $1"
    async with console.logged_in() as visitor:
        place = f"/images/{image}/focal"
        moved = await console.post(visitor, place, x="0.25", y="0.75", reason=WHY)
        row = await superuser.fetchrow(point, image)
        nonsense = await console.post(visitor, place, x="left", y="0.75", reason=WHY)

    assert "The point is moved" in moved.text
    assert row is not None
    assert tuple(row) == (0.25, 0.75)
    assert "two numbers from 0 to 1" in nonsense.text


async def test_an_original_is_seen_as_a_small_picture_that_a_worker_makes(
    console: Opened,
    image: UUID,
    worker: Connection,
    superuser: Connection,
    originals: Objects,
) -> None:
    place = f"/images/{image}/original"
    async with console.logged_in() as visitor:
        none = await visitor.get(place)
        making = await console.post(visitor, place)
        job_id = await superuser.fetchval("SELECT id FROM jobs WHERE type = 'preview_original'")
        still = await visitor.get(place, params={"job": str(job_id)})
        source = await superuser.fetchval("SELECT max(source_seq) FROM image_sources")
        await originals.put(
            preview_key(image, source),
            A_WEBP,
            Headers(content_type="image/webp", cache_control="no-store"),
        )
        held = await hold_job(worker, job_id)
        await settle_job(worker, held, Completed(result={"bytes": len(A_WEBP)}))
        made = await visitor.get(place, params={"job": str(job_id)})
        picture = await visitor.get(f"/images/{image}/preview")

    assert "Look at the original" in none.text
    assert f"job={job_id}" in making.text
    assert f"job={job_id}" in still.text
    assert f'src="/images/{image}/preview"' in made.text
    assert (picture.content, picture.headers["content-type"]) == (A_WEBP, "image/webp")


async def test_an_original_that_cannot_be_decoded_says_so_in_the_place_of_its_picture(
    console: Opened, image: UUID, worker: Connection, superuser: Connection
) -> None:
    place = f"/images/{image}/original"
    async with console.logged_in() as visitor:
        await console.post(visitor, place)
        job_id = await superuser.fetchval("SELECT id FROM jobs WHERE type = 'preview_original'")
        held = await hold_job(worker, job_id)
        said = {"code": "corrupt", "message": "The image cannot be decoded."}
        await settle_job(worker, held, Completed(result={"failure": said}))
        answer = await visitor.get(place, params={"job": str(job_id)})

    assert "The image cannot be decoded." in answer.text


async def test_a_fault_of_an_image_has_room_for_a_look_at_its_original(
    console: Opened, acme: httpx.AsyncClient, worker: Connection, superuser: Connection
) -> None:
    accepted = await uploaded(acme)
    job = await claimed(worker, accepted["jobId"])
    await settle_job(worker, job, Failed(code="corrupt", message="Broken.", detail="broken"))
    fault = await superuser.fetchval("SELECT fingerprint FROM dead_letters")
    async with console.logged_in() as visitor:
        page = (await visitor.get(f"/faults/{fault}")).text

    assert f'hx-get="/images/{accepted["imageId"]}/original?source=1"' in page


async def test_who_only_looks_orders_no_picture(console: Opened, image: UUID) -> None:
    async with console.logged_in(only_look="yes") as visitor:
        page = await visitor.get(f"/images/{image}/original")
        answer = await console.post(visitor, f"/images/{image}/original")

    assert "Nobody had a picture" in page.text
    assert answer.status_code == 403
