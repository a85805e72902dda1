"""Images: their pictures and their past, and a look at an original that shows no file."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_network
from typing import Final
from uuid import UUID

import httpx
import pytest
from playwright.async_api import Browser, FilePayload, expect

from imagefleet.aws.objects import Headers, Objects
from imagefleet.aws.session import open_session
from imagefleet.console import guarding
from imagefleet.embedded.bootstrap import InPlace
from imagefleet.embedded.edge.server import serve_edge
from imagefleet.embedded.machine import free_port
from imagefleet.embedded.processes import Facts
from imagefleet.jobs.images import preview_key
from imagefleet.jobs.lifecycle import Completed, Failed
from imagefleet.store.database import Connection
from tests.console.browsing import visiting
from tests.console.conftest import Opened, Opening
from tests.support.api import Serve, published, uploaded
from tests.support.aws import settings_for
from tests.support.emulators import CREDENTIALS, REGION, Emulator
from tests.support.factories import hold_job, settle_job
from tests.support.http import a_jpeg, claimed
from tests.support.images import quadrants, saved

WHY: Final = "an order of the tests"
A_THUMBHASH: Final = "IPgJNYxwh4eKeIh3eIh3iHiPCAd4"
ANOTHER: Final = saved(quadrants(80, 50))
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


async def test_it_is_given_another_original_through_the_console_by_the_key_of_who_does(
    console: Opened, image: UUID, superuser: Connection
) -> None:
    jobs = "SELECT count(*) FROM jobs WHERE type = 'process_image'"
    async with console.logged_in() as visitor:
        answer = await sent(console, visitor, image, ANOTHER)
        told = (await visitor.get(answer.headers["hx-redirect"])).text

    source = "SELECT tenant_id, sha256 FROM image_sources ORDER BY source_seq DESC LIMIT 1"
    stored = await superuser.fetchrow(source)
    assert stored is not None
    assert tuple(stored) == ("acme", hashlib.sha256(ANOTHER).hexdigest())
    assert "It is replaced; what is shown stays" in told
    assert await superuser.fetchval(jobs) == 2
    (line,) = await superuser.fetch("SELECT actor, reason FROM audit WHERE action = 'replace'")
    assert tuple(line) == ("of tests", WHY)


async def sent(
    console: Opened, visitor: httpx.AsyncClient, image: UUID, file: bytes, **headers: str
) -> httpx.Response:
    """As `console.js` sends it."""
    usual = {"X-CSRF-Token": console.session.csrf, "HX-Request": "true"}
    return await visitor.post(
        f"/images/{image}/replace",
        params={"reason": WHY, "back": f"/images/{image}"},
        content=file,
        headers=console.origin | {"Content-Type": "application/octet-stream"} | usual | headers,
    )


async def test_what_the_api_says_of_a_file_is_told_on_the_page(
    console: Opened, image: UUID, superuser: Connection
) -> None:
    async with console.logged_in() as visitor:
        answer = await sent(console, visitor, image, b"no image\n" * 100)
        page = (await visitor.get(answer.headers["hx-redirect"])).text

    assert 'class="notice refused"' in page
    assert await superuser.fetchval("SELECT count(*) FROM image_sources") == 1


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X-CSRF-Token": "another"}, 403),
        ({"Origin": "https://elsewhere.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
    ],
)
async def test_a_file_that_no_page_of_ours_sends_goes_nowhere(
    console: Opened, image: UUID, superuser: Connection, headers: dict[str, str], status: int
) -> None:
    async with console.logged_in() as visitor:
        answer = await sent(console, visitor, image, ANOTHER, **headers)
        token = {"csrf": console.session.csrf, "reason": WHY}
        beside = await visitor.post(
            f"/images/{image}/replace", params=token, content=b"x", headers=console.origin
        )

    assert (answer.status_code, beside.status_code) == (status, 403)
    assert await superuser.fetchval("SELECT count(*) FROM image_sources") == 1


async def test_a_file_is_bounded_before_it_is_read_and_who_only_looks_sends_none(
    console: Opened, image: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guarding, "MOST_OF_A_FILE", 100)
    async with console.logged_in() as visitor:
        large = await sent(console, visitor, image, b"x" * 101)
        endless = await visitor.post(
            f"/images/{image}/replace",
            content=pieces(),
            headers=console.origin | {"X-CSRF-Token": console.session.csrf},
        )
    console.sessions.end(console.session, "asked")
    async with console.logged_in(only_look="yes") as visitor:
        page = await visitor.get(f"/images/{image}")
        refused = await sent(console, visitor, image, b"x")

    assert (large.status_code, endless.status_code, refused.status_code) == (413, 411, 403)
    assert "data-sends-file" not in page.text


async def pieces() -> AsyncIterator[bytes]:
    yield b"x"


async def test_what_was_done_tells_where_the_browser_is_to_an_api_that_believes_the_console(
    opening: Opening, serve: Serve, superuser: Connection
) -> None:
    here, elsewhere = ip_network("127.0.0.1/32"), "203.0.113.9"
    addresses = []
    for believed in ((here,), ()):
        async with (
            serve(trusted_proxies=believed) as running,
            opening(running, trusted_proxies=(here,)) as console,
            console.logged_in() as visitor,
        ):
            visitor.headers["X-Forwarded-For"] = f"198.51.100.7, {elsewhere}"
            await console.post(visitor, "/breakers/force", service="s3", reason=WHY)
        addresses.append(
            await superuser.fetchval("SELECT address FROM audit ORDER BY id DESC LIMIT 1")
        )

    assert addresses == [elsewhere, "127.0.0.1"]


@asynccontextmanager
async def an_edge(
    emulator: Emulator, applied: InPlace, api_url: str, port: int
) -> AsyncIterator[None]:
    """The embedded one, before the bucket of these tests."""
    facts = Facts(
        database_urls={},
        aws={
            "AWS_ENDPOINT_URL": emulator.url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": CREDENTIALS.key_id,
            "AWS_SECRET_ACCESS_KEY": CREDENTIALS.secret,
        },
        topology={"OUTPUTS_BUCKET": applied.buckets["outputs"], "CLOUDFRONT_DISTRIBUTION_ID": "E1"},
        public_base_url="",
    )
    async with serve_edge(port, facts=lambda: facts, api_url=api_url):
        yield


async def test_variants_are_seen_as_pictures_and_before_that_as_their_placeholders(
    opening: Opening,
    serve: Serve,
    browser: Browser,
    emulator: Emulator,
    applied: InPlace,
    worker: Connection,
    superuser: Connection,
) -> None:
    """They come from where they are published, which the page's policy lets through."""
    port = free_port()
    public = f"http://127.0.0.1:{port}"
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(serve(public_base_url=public))
        console = await stack.enter_async_context(opening(running, public_base_url=public))
        await stack.enter_async_context(an_edge(emulator, applied, running.url, port))
        acme = await stack.enter_async_context(running.client("acme"))
        accepted = await uploaded(acme)
        await published(worker, accepted)
        await superuser.execute("UPDATE image_revisions SET thumbhash = $1", A_THUMBHASH)
        await of_variants(emulator, applied, superuser)
        page, seen = await stack.enter_async_context(visiting(browser, console, at=public))
        await page.goto(console.url + "/images")
        await expect(page.locator(".tile .placeholder")).to_have_js_property("naturalWidth", 16)
        tile = page.locator(".tile img:not(.placeholder)")
        await expect(tile).to_have_js_property("naturalWidth", 64)
        await page.goto(f"{console.url}/images/{accepted['imageId']}")
        pictures = page.locator("figure img:not(.placeholder)")
        await expect(pictures).to_have_count(6)
        for picture in await pictures.all():
            await picture.scroll_into_view_if_needed()
            await expect(picture).to_have_js_property("naturalWidth", 64)
        file = FilePayload(name="new.jpg", mimeType="image/jpeg", buffer=ANOTHER)
        await page.click("[data-opens=replace]")
        await page.set_input_files("[data-file]", file)
        await page.fill("#replace [name=reason]", WHY)
        await page.click("#replace button.main")
        await expect(page.locator(".notice.done")).to_contain_text("It is replaced")
        assert [address for address in seen.asked if address.startswith(public)]


async def of_variants(emulator: Emulator, applied: InPlace, superuser: Connection) -> None:
    """A picture under the key of each."""
    settings = settings_for(emulator.url, applied)
    async with open_session(settings, credentials=CREDENTIALS) as session:
        outputs = await session.objects(applied.buckets["outputs"])
        for row in await superuser.fetch("SELECT DISTINCT key FROM variants"):
            await outputs.put(row["key"], a_jpeg(), Headers(content_type="image/jpeg"))
