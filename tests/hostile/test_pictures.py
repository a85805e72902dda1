"""Pictures that are not what they say, and the largest of those that are."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from PIL import Image

from tests.faults.crowding import another_tenant, claimed_in_between
from tests.hostile.flooding import counted
from tests.support.eventually import eventually
from tests.support.images import (
    claimed,
    grain,
    png_chunk,
    quadrants,
    saved,
    with_restart_interval,
)
from tests.support.stack import Producer, Stack


async def made(producer: Producer, body: bytes, content_type: str) -> dict[str, Any]:
    answer = await producer.upload(body, content_type)
    assert answer.status_code == 202, answer.text
    return await producer.ended(answer.json()["jobId"], within=50)


async def made_as_far_as_it_goes(producer: Producer, stack: Stack, jpeg: bytes) -> None:
    """It says that it is of the largest, and every variant that pixels of it are missing."""
    workers = stack.pids("worker")
    answer = await producer.upload(jpeg, "image/jpeg")
    assert answer.status_code == 202, answer.text

    ended = await producer.ended(answer.json()["jobId"], within=50)

    assert ended["status"] == "completed", ended
    shown = await producer.image(answer.json()["imageId"])
    assert (shown["source"]["width"], shown["source"]["height"]) == (7_000, 7_000)
    warnings = [set(each["warnings"]) - {"irregular_file"} for each in shown["variants"]]
    assert [{"truncated"}] * 10 == warnings
    await no_slot_is_lost(stack)
    assert workers == stack.pids("worker")


async def no_slot_is_lost(stack: Stack) -> None:
    (worker,) = stack.pids("worker")

    async def none_busy() -> bool:
        free, reserved, busy = [
            await counted(stack, "worker_slots", of=worker, state=state)
            for state in ("free", "reserved", "busy")
        ]
        return free + reserved > 0 == busy

    assert await eventually(none_busy, within=10)


@pytest.mark.parametrize("progressive", [False, True])
async def test_a_jpeg_with_fewer_pixels_than_its_size_is_made_and_said(
    producer: Producer, stack: Stack, *, progressive: bool
) -> None:
    photo = saved(grain(400, 300), progressive=progressive)

    await made_as_far_as_it_goes(producer, stack, claimed(photo, 7_000, 7_000))


@pytest.mark.parametrize(
    "end",
    [b"\xff\xff\xd9", b"\xff\x01\xff\xd9", b"\xff\xd0", b"\xff\xe0\xff\xff", b"\xff\xfe\0\x04ab"],
)
async def test_however_it_ends_such_a_jpeg_is_made_and_said(
    producer: Producer, stack: Stack, end: bytes
) -> None:
    photo = claimed(saved(grain(400, 300)), 7_000, 7_000).removesuffix(b"\xff\xd9")

    await made_as_far_as_it_goes(producer, stack, photo + end)


@pytest.mark.parametrize("progressive", [False, True])
async def test_a_jpeg_whose_last_piece_alone_is_whole_is_made_and_said(
    producer: Producer, stack: Stack, *, progressive: bool
) -> None:
    photo = saved(grain(400, 300), progressive=progressive, restart_marker_rows=1)
    source = with_restart_interval(claimed(photo, 7_000, 7_000), 63_947)

    await made_as_far_as_it_goes(producer, stack, source)


async def test_a_jpeg_without_a_bit_for_every_block_is_refused(producer: Producer) -> None:
    """Nobody has the largest decoded for a few hundred bytes."""
    answer = await producer.upload(claimed(saved(quadrants(16, 16)), 7_000, 7_000))

    assert (422, "corrupt") == (answer.status_code, answer.json()["code"])


async def test_a_png_with_fewer_pixels_than_its_size_fails_as_damaged(producer: Producer) -> None:
    """A few kilobytes that end in good order, and say that they are the largest."""
    flat = saved(Image.new("RGB", (7_000, 300), (10, 200, 90)), "PNG")
    header = flat[16:20] + (7_000).to_bytes(4, "big") + flat[24:29]

    ended = await made(producer, flat[:8] + png_chunk(b"IHDR", header) + flat[33:], "image/png")

    assert ended["failure"]["code"] == "corrupt"


async def test_what_is_published_is_never_sniffed(producer: Producer) -> None:
    """Nor what the edge says of what is not: missing, or no request at all."""
    answer = await producer.upload(saved(quadrants()), "image/jpeg")
    await producer.ended(answer.json()["jobId"], within=50)
    shown = await producer.image(answer.json()["imageId"])
    urls = [each[kind] for each in shown["variants"] for kind in ("url", "stableUrl")]
    edge = urlsplit(urls[0])

    async with httpx.AsyncClient(timeout=20) as browser:
        answers = [await browser.get(url) for url in (*urls, f"{urls[0]}.html")]
    reader, writer = await asyncio.open_connection(edge.hostname, edge.port)
    writer.write(b"<script>alert(1)</script>\r\n\r\n")
    async with asyncio.timeout(20):
        unparsed = await reader.read()
    writer.close()

    assert {200, 302, 404} == {each.status_code for each in answers}
    assert {"nosniff"} == {each.headers["x-content-type-options"] for each in answers}
    assert b"\r\nX-Content-Type-Options: nosniff\r\n" in unparsed


@pytest.mark.parametrize(
    ("declared", "body", "status", "code"),
    [
        ("image/png", saved(quadrants()), 415, "type_mismatch"),
        ("image/jpeg", saved(quadrants(), "PNG"), 415, "type_mismatch"),
        ("image/png", b"<svg xmlns='http://www.w3.org/2000/svg'/>", 415, "unsupported"),
    ],
)
async def test_what_is_posted_past_the_api_must_be_what_was_declared(
    producer: Producer, declared: str, body: bytes, status: int, code: str
) -> None:
    upload = (await producer.http.post("/v1/uploads", json={"contentType": declared})).json()
    async with httpx.AsyncClient(timeout=20) as browser:
        posted = await browser.post(upload["url"], data=upload["fields"], files={"file": body})
    assert posted.is_success, posted.text

    asked = {"uploadId": upload["uploadId"]}
    answer = await producer.post("/v1/images", None, "what was posted", json=asked)

    assert (answer.status_code, answer.json()["code"]) == (status, code)


async def test_the_largest_picture_of_the_hungriest_kind_is_made(
    producer: Producer, stack: Stack
) -> None:
    """Forty-nine megapixels in forty bytes; two at once, as two children would take too much."""
    workers = stack.pids("worker")
    flat = Image.new("RGB", (7_000, 7_000), (10, 200, 90))
    body = saved(flat, "WEBP", lossless=True, method=0, quality=0)
    answers = [await producer.upload(body, "image/webp") for _ in range(2)]

    ended = [await producer.ended(each.json()["jobId"], within=50) for each in answers]

    assert {each["status"] for each in ended} == {"completed"}, ended
    shown = await producer.image(answers[0].json()["imageId"])
    assert (shown["source"]["width"], len(shown["variants"])) == (7_000, 10)
    assert workers == stack.pids("worker")


MOST_BETWEEN = 10  # of sixteen: four and what ends in a second, and a turn for each of four


@pytest.mark.timeout(150)
async def test_the_largest_pictures_of_one_tenant_leave_slots_to_the_others(stack: Stack) -> None:
    """What was announced before others came is made before them; then they take turns."""
    flat = Image.new("RGB", (7_000, 7_000), (10, 200, 90))
    body = saved(flat, "WEBP", lossless=True, method=0, quality=0)
    async with (
        another_tenant(stack, "large") as large,
        another_tenant(stack, "bystander") as bystander,
    ):
        many = await asyncio.gather(*(large.upload(body, "image/webp") for _ in range(16)))
        jobs = [answer.json()["jobId"] for answer in many]
        small = [await bystander.upload(saved(quadrants(40 + n)), "image/jpeg") for n in range(4)]
        for answer in small:
            ended = await bystander.ended(answer.json()["jobId"], within=50)
            assert ended["status"] == "completed", ended

        async with stack.database() as owner:
            between = [await claimed_in_between(owner, each.json()["jobId"]) for each in small]
        assert max(between) <= MOST_BETWEEN, between
        ends = [await large.ended(job_id, within=90) for job_id in jobs]
        assert {each["status"] for each in ends} == {"completed"}, ends
