"""Pictures of one colour, what their published addresses show to anybody, and when nothing more."""

import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
from PIL import Image

from imagefleet.store.database import Connection
from tests.faults.facts import Post
from tests.support.eventually import eventually
from tests.support.images import near, opened, pixel, saved
from tests.support.stack import Producer, Stack

Colour = tuple[int, int, int]
FLUSHED_WITHIN = 20.0  # seconds: a debt settles for three, looks are two apart; two busy cores
LONGER_THAN_A_FLUSH = 9.0


def a_picture(colour: Colour) -> bytes:
    return saved(Image.new("RGB", (64, 48), colour))


@dataclass(frozen=True, slots=True)
class Shown:
    """An image that was published, and the addresses of one of its variants."""

    image_id: str
    url: str
    stable_url: str


async def publish(producer: Producer, colour: Colour) -> Shown:
    accepted = await producer.upload(a_picture(colour))
    assert accepted.status_code == 202, accepted.text
    ended = await producer.ended(accepted.json()["jobId"])
    assert ended["status"] == "completed", ended
    return await look_at(producer, accepted.json()["imageId"])


async def look_at(producer: Producer, image_id: str) -> Shown:
    variant = (await producer.image(image_id))["variants"][0]
    return Shown(image_id, variant["url"], variant["stableUrl"])


async def replace(
    producer: Producer, image_id: str, content: bytes, *, key: str | None = None
) -> str:
    """The job that makes the replacement. Raises what httpx raises."""
    headers = {"Content-Type": "image/jpeg"} | ({"Idempotency-Key": key} if key else {})
    answer = await producer.http.put(f"/v1/images/{image_id}", content=content, headers=headers)
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["jobId"]
    noted(producer, key, image_id, job_id, 202)
    return job_id


async def delete(producer: Producer, image_id: str) -> str:
    answer = await producer.http.delete(f"/v1/images/{image_id}")
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["jobId"]
    noted(producer, None, image_id, job_id, 202)
    return job_id


def noted(producer: Producer, key: str | None, asked: str, job_id: str, status: int) -> None:
    producer._posts.append(
        Post(tenant="demo", key=key, asked=asked, outcome="ok", status=status, job_id=job_id)
    )


class Viewer:
    """Somebody with a browser that keeps nothing."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self._http = http

    async def get(self, url: str) -> httpx.Response:
        return await self._http.get(url, follow_redirects=False)

    async def sees(self, url: str, colour: Colour) -> bool:
        """Whether the address leads to a picture of this colour."""
        answer = await self._http.get(url, follow_redirects=True)
        if answer.status_code != 200:
            return False
        return near(colour, pixel(opened(answer.content), 20, 20))

    async def will_see(self, url: str, colour: Colour, *, within: float = FLUSHED_WITHIN) -> None:
        await eventually(lambda: self.sees(url, colour), within=within)

    async def will_miss(self, url: str, *, within: float = FLUSHED_WITHIN) -> None:
        async def missing() -> bool:
            return (await self.get(url)).status_code == 404

        await eventually(missing, within=within)


@asynccontextmanager
async def a_viewer() -> AsyncIterator[Viewer]:
    async with httpx.AsyncClient(timeout=20) as http:
        yield Viewer(http)


async def stays(check: Callable[[], Awaitable[bool]], *, seconds: float) -> None:
    """Look for as long; what must not happen can only be watched for."""
    deadline = time.monotonic() + seconds

    async def over() -> bool:
        if not await check():
            message = f"no more, {deadline - time.monotonic():.1f} s before the end"
            raise RuntimeError(message)
        return time.monotonic() > deadline

    await eventually(over, within=seconds + 10)


async def kept_at_the_edge(viewer: Viewer, url: str) -> None:
    async def hit() -> bool:
        return (await viewer.get(url)).headers["x-cache"].startswith("Hit")

    await eventually(hit, within=10)


@contextmanager
def no_flusher(stack: Stack) -> Iterator[None]:
    """Maintenance stands still meanwhile."""
    (maintenance,) = stack.pids("maintenance").values()
    os.kill(maintenance, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(maintenance, signal.SIGCONT)


async def debts_of(owner: Connection, image_id: str) -> list[int]:
    """How many replacements each of the image's invalidations stands for, oldest first."""
    rows = await owner.fetch(
        "SELECT debts FROM invalidations WHERE image_id = $1::uuid ORDER BY owed_at", image_id
    )
    return [row["debts"] for row in rows]


async def all_flushed(stack: Stack) -> None:
    """Nothing is owed to the edge, and CloudFront has completed what it was asked for."""
    async with stack.database() as owner:

        async def settled() -> bool:
            left = await owner.fetchval(
                "SELECT count(*) FROM invalidations LEFT JOIN invalidation_batches AS batches"
                " ON batches.id = invalidations.batch_id WHERE batches.completed_at IS NULL"
            )
            assert left == 0
            return True

        await eventually(settled, within=2 * FLUSHED_WITHIN)


def invalidations_of(stack: Stack, image_id: str) -> int:
    """How many CloudFront was asked for that name the image."""
    cloudfront = stack.place.client("cloudfront")
    distribution = stack.facts["distribution_id"]
    listed = cloudfront.list_invalidations(DistributionId=distribution)["InvalidationList"]
    count = 0
    for item in listed.get("Items", ()):
        answer = cloudfront.get_invalidation(DistributionId=distribution, Id=item["Id"])
        items = answer["Invalidation"]["InvalidationBatch"]["Paths"]["Items"]
        count += any(image_id in path for path in items)
    return count


DARK_WITHIN = 60.0  # seconds: a rescue, a retry, a flush, on two busy cores


def versions_of(stack: Stack, image_id: str) -> list[str]:
    """Every version and delete marker that S3 has of an image, in both buckets."""
    s3 = stack.place.client("s3")
    keys = []
    for bucket, prefix in ((stack.place.outputs, "i"), (stack.place.originals, "o")):
        pages = s3.get_paginator("list_object_versions").paginate(
            Bucket=bucket, Prefix=f"{prefix}/{image_id}/"
        )
        for page in pages:
            for kind in ("Versions", "DeleteMarkers"):
                keys += [entry["Key"] for entry in page.get(kind, ())]
    return keys


async def until_dark(
    producer: Producer, image_id: str, *, within: float = DARK_WITHIN
) -> dict[str, Any]:
    """The receipt, once the edge has forgotten the image."""

    async def dark() -> dict[str, Any]:
        shown = await producer.image(image_id)
        assert shown["status"] == "deleted", shown
        assert "darkAt" in shown["deletion"], shown
        receipt: dict[str, Any] = shown["deletion"]
        return receipt

    return await eventually(dark, within=within)


async def expect_dark(urls: list[str]) -> None:
    """Nobody is shown anything at any of these addresses."""
    async with httpx.AsyncClient(timeout=20) as anybody:

        async def nothing() -> bool:
            answers = [(url, (await anybody.get(url)).status_code) for url in urls]
            shown = [answer for answer in answers if answer[1] not in {403, 404}]
            assert shown == []
            return True

        await eventually(nothing, within=15)  # a 404 that was kept just before is kept for ten


def addresses(shown: dict[str, Any]) -> list[str]:
    return [variant[name] for variant in shown["variants"] for name in ("url", "stableUrl")]
