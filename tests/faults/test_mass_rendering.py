"""A mass re-rendering and an upload behind it: judged by the order of claims, not by a clock."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final
from uuid import UUID

import pytest

from imagefleet.imaging.samples import sample
from imagefleet.store.database import Connection
from tests.support.eventually import eventually
from tests.support.stack import Producer, Stack, running_stack

IMAGES: Final = 2_000
MOST_BETWEEN: Final = 40  # claims of the set: a window, and what the slots turn over

# As uploaded long ago, each with a copy of the one original that there is.
MORE_IMAGES: Final = """
WITH named AS (
    SELECT gen_random_uuid() AS id, images.id AS first, images.tenant_id, images.recipe,
           images.recipe_hash
      FROM images, generate_series(2, $1)
),
known AS (
    INSERT INTO images (id, tenant_id, recipe, recipe_hash)
    SELECT named.id, named.tenant_id, named.recipe, named.recipe_hash FROM named
),
aimed AS (
    INSERT INTO targets (tenant_id, target, next_seq)
    SELECT named.tenant_id, 'image:' || named.id, 2 FROM named
)
INSERT INTO image_sources (image_id, source_seq, tenant_id, key, etag, sha256, bytes, content_type,
                           width, height)
SELECT named.id, 1, named.tenant_id, 'o/' || named.id || '/' || named.id, sources.etag,
       sources.sha256, sources.bytes, sources.content_type, sources.width, sources.height
  FROM named
  JOIN image_sources AS sources ON sources.image_id = named.first
RETURNING key
"""
OF_THE_SET: Final = """
SELECT count(*) FILTER (WHERE jobs.lane = 'general') AS submitted,
       count(*) FILTER (WHERE jobs.state = 'queued') AS waiting,
       count(*) FILTER (WHERE rings.sent_at IS NOT NULL) AS announced
  FROM jobs
  LEFT JOIN rings ON rings.job_id = jobs.id
 WHERE jobs.parent_job_id = $1
"""
CLAIMED_IN_BETWEEN: Final = """
SELECT count(*)
  FROM jobs AS set, jobs AS upload
 WHERE upload.id = $2 AND set.parent_job_id = $1
   AND set.claimed_at BETWEEN upload.created_at AND upload.claimed_at
"""


@pytest.mark.timeout(240)
async def test_two_thousand_renderings_stand_before_no_upload_of_whichever_lane() -> None:
    async with running_stack() as stack, stack.producer() as producer, stack.database() as owner:
        await producer.ended(await uploaded(producer, "default"))
        first = await owner.fetchval("SELECT key FROM image_sources")
        keys = [row["key"] for row in await owner.fetch(MORE_IMAGES, IMAGES)]
        await asyncio.to_thread(copy, stack, first, keys)
        answer = await producer.submit("reprocess_images", {"all_images": True})
        set_id = UUID(answer.json()["jobId"])

        async def all_are_queued() -> bool:
            row = await owner.fetchrow(OF_THE_SET, set_id)
            assert row is not None
            assert IMAGES == row["submitted"]
            return True

        await eventually(all_are_queued, within=90)
        before = await owner.fetchrow(OF_THE_SET, set_id)
        assert before is not None
        uploads = {
            "fast": await uploaded(producer, "default"),
            "general": await uploaded(producer, "avif"),
        }

        for lane, job_id in uploads.items():
            assert "completed" == (await producer.ended(job_id, within=60))["status"]
            assert lane == await owner.fetchval("SELECT lane FROM jobs WHERE id = $1", UUID(job_id))
            assert MOST_BETWEEN >= await claimed_in_between(owner, set_id, job_id), lane
        after = await owner.fetchrow(OF_THE_SET, set_id)
        assert after is not None
        # SQS, which keeps its order, holds a window of them; all others wait in Postgres.
        assert MOST_BETWEEN >= before["announced"]
        assert IMAGES / 2 < after["waiting"], "and the set was still there"


def copy(stack: Stack, first: str, keys: Sequence[str]) -> None:
    s3, bucket = stack.place.client("s3"), stack.place.originals
    source = {"Bucket": bucket, "Key": first}
    with ThreadPoolExecutor(8) as threads:
        for key in keys:
            threads.submit(s3.copy_object, Bucket=bucket, Key=key, CopySource=source)


async def uploaded(producer: Producer, recipe: str) -> str:
    content, headers = sample(0).content, {"Content-Type": "image/jpeg"}
    answer = await producer.http.post(
        "/v1/images", content=content, headers=headers, params={"recipe": recipe}
    )
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["jobId"]
    return job_id


async def claimed_in_between(owner: Connection, set_id: UUID, job_id: str) -> int:
    """How many of the set were claimed while this one waited."""
    between: int = await owner.fetchval(CLAIMED_IN_BETWEEN, set_id, UUID(job_id))
    return between
