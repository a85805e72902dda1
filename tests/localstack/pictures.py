"""Images from the upload to what viewers get, and the invalidation that a replaced one owes."""

from typing import Any, Final

import httpx

from tests.faults.facts import Post
from tests.localstack.fleet import Fleet
from tests.support.eventually import eventually
from tests.support.images import BLUE, GREEN, RED, YELLOW, corners, near, opened, quadrants, saved
from tests.support.stack import Producer

IMAGES: Final = 20
MADE_WITHIN: Final = 120.0  # seconds
DARK_WITHIN: Final = 60.0
SHOWN: Final = (RED, GREEN, BLUE, YELLOW)
MAY_DIFFER: Final = 40  # after two lossy formats


async def pictures(fleet: Fleet) -> str:
    """All are made and can be had; what was replaced is invalidated, and nothing else."""
    fetched = 0
    async with fleet.producer() as producer, fleet.viewer() as viewer:
        posts = [
            await producer.upload(saved(quadrants(320 + number, 240)), key=f"picture-{number}")
            for number in range(IMAGES)
        ]
        for post in posts:
            await completed(producer, post.json()["jobId"])
            fetched += await had(viewer, await producer.image(post.json()["imageId"]))
        assert invalidated(fleet) == [], "a first publication was invalidated"

        image = posts[0].json()["imageId"]
        old = await producer.image(image)
        await replace(fleet, producer, image)
        new = await producer.image(image)
        assert (new["source"]["width"], new["revision"] > old["revision"]) == (400, True), new

        async def is_shown() -> bool:
            """The edge had kept the redirect, and is emptied by invalidations alone."""
            for variant in new["variants"]:
                led = await viewer.get(variant["stableUrl"])
                assert led.headers["location"] == variant["url"], led.headers
            return True

        await eventually(is_shown, within=DARK_WITHIN)
        fetched += await had(viewer, new)
    paths = invalidated(fleet)
    assert paths == [f"/i/{image}/*"], paths
    return f"{IMAGES} of {IMAGES}, {fetched} variants fetched and decoded; 1 replaced, invalidated"


async def completed(producer: Producer, job: str) -> None:
    shown = await producer.ended(job, within=MADE_WITHIN)
    assert shown["status"] == "completed", shown


async def replace(fleet: Fleet, producer: Producer, image: str) -> None:
    answer = await producer.http.put(
        f"/v1/images/{image}",
        content=saved(quadrants(400, 300)),
        headers={"Content-Type": "image/jpeg"},
    )
    assert answer.status_code == 202, answer.text
    job = answer.json()["jobId"]
    fleet.journal.posts.append(
        Post(tenant="demo", key=None, asked="replacement", outcome="ok", status=202, job_id=job)
    )
    await completed(producer, job)


async def had(viewer: httpx.AsyncClient, shown: dict[str, Any]) -> int:
    """Every variant, by its stable address, from the edge: it shows what was uploaded."""
    for variant in shown["variants"]:
        led = await viewer.get(variant["stableUrl"])
        assert (led.status_code, led.headers["location"]) == (302, variant["url"]), led.headers
        answer = await viewer.get(variant["url"])
        assert answer.status_code == 200, (variant, answer.text[:500])
        picture = opened(answer.content)
        assert picture.size == (variant["width"], variant["height"]), variant
        seen = corners(picture)
        assert all(near(*pair, MAY_DIFFER) for pair in zip(SHOWN, seen, strict=True)), seen
    return len(shown["variants"])


def invalidated(fleet: Fleet) -> list[str]:
    """Every path that CloudFront was asked to forget."""
    cloudfront = fleet.client("cloudfront")
    distribution = fleet.facts.topology["CLOUDFRONT_DISTRIBUTION_ID"]
    listed = cloudfront.list_invalidations(DistributionId=distribution)["InvalidationList"]
    paths: list[str] = []
    for one in listed.get("Items", ()):
        answer = cloudfront.get_invalidation(DistributionId=distribution, Id=one["Id"])
        paths += answer["Invalidation"]["InvalidationBatch"]["Paths"]["Items"]
    return paths
