"""What is true of an image once its deletion is done, as anybody can see it."""

from typing import Any

import httpx

from tests.support.eventually import eventually
from tests.support.stack import Producer, Stack

DARK_WITHIN = 60.0  # seconds: a rescue, a retry, a flush, on two busy cores


def versions_of(stack: Stack, image_id: str) -> list[str]:
    """Every version and delete marker that S3 has of an image, in both buckets."""
    s3 = stack.place.client("s3")
    found = []
    for bucket, prefix in ((stack.place.outputs, "i"), (stack.place.originals, "o")):
        pages = s3.get_paginator("list_object_versions").paginate(
            Bucket=bucket, Prefix=f"{prefix}/{image_id}/"
        )
        for page in pages:
            for kind in ("Versions", "DeleteMarkers"):
                found += [entry["Key"] for entry in page.get(kind, ())]
    return found


def keep_versions(stack: Stack) -> None:
    """Both buckets keep what is deleted, from now on."""
    s3 = stack.place.client("s3")
    for bucket in (stack.place.outputs, stack.place.originals):
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})


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
    return [one[name] for one in shown["variants"] for name in ("url", "stableUrl")]
