"""delete_image: empty S3 of an image, and write the receipt of what was there.

Everything below the image's two prefixes goes, in every version: what was published, what claims
left behind, the originals. It is over when a listing finds nothing. The receipt, and the one
invalidation that the edge is owed, are written by the statement that completes the job; until then
an attempt that fails, or dies, is followed by another one that finds less to do.
"""

from collections.abc import Iterable
from contextlib import aclosing
from typing import Final
from uuid import UUID

from pydantic import BaseModel

from imagefleet.aws.deletes import REMAINS
from imagefleet.aws.objects import Objects
from imagefleet.errors import Unavailable
from imagefleet.jobs.images import Emptied, originals_prefix, outputs_prefix
from imagefleet.jobs.kinds import BUILT_IN, DeleteImage
from imagefleet.jobs.lifecycle import Completed, ResultReason
from imagefleet.jobs.model import JsonObject, TenantId
from imagefleet.store.images.deleting import flag_void, get_deletion, list_named_keys
from imagefleet.worker.handling import Handler, JobContext

MOST_SHOWN: Final = 500  # keys of a receipt
MOST_REMEMBERED: Final = 5000  # keys in a cursor; beyond them only a number is kept
ROUNDS: Final = 4  # of which the last must find nothing; more is somebody who goes on writing


async def run(job: JobContext) -> Completed:
    """Delete; without a tombstone, which no statement takes back, there is nothing to do."""
    payload: DeleteImage = job.payload
    tenant_id = job.claim.tenant_id
    named = await _begin(job, payload.image_id, tenant_id)
    if named is None:
        return Completed(reason=ResultReason.NOTHING_LEFT)
    met = Met(job.cursor)
    for _ in range(ROUNDS):
        versions = await _empty(job, job.outputs, outputs_prefix(payload.image_id), met)
        versions += await _empty(job, job.originals, originals_prefix(payload.image_id), met)
        if not versions:
            break
    else:
        raise Unavailable("objects_remain", REMAINS, f"new ones in each of {ROUNDS} listings")
    emptied = met.emptied(payload.image_id, tenant_id, named)
    return Completed(
        result={"imageId": str(payload.image_id), "deleted": emptied.deleted}, emptied=emptied
    )


async def _begin(job: JobContext, image_id: UUID, tenant_id: TenantId) -> frozenset[str] | None:
    """End the image's other jobs; the keys that Postgres names, or None without a tombstone."""
    async with job.database("flag_void") as connection:
        if await get_deletion(connection, image_id, tenant_id) is None:
            return None
        rings = await flag_void(connection, image_id, tenant_id)
        named = await list_named_keys(connection, image_id)
    job.ring(rings)
    return named


async def _empty(job: JobContext, bucket: Objects, prefix: str, met: "Met") -> int:
    """Delete what a listing finds; how many versions that were."""
    versions = 0
    async with aclosing(bucket.versions(prefix)) as pages:
        async for page in pages:
            versions += len(page)
            # Written down before it is deleted: afterwards nobody could tell what was there.
            met.add(version.key for version in page)
            await job.progress(met.count, cursor=met.cursor())
            answer = await bucket.delete_versions(page)
            met.errors += answer.errors
            if answer.failures:
                await job.progress(met.count, cursor=met.cursor())
            answer.in_all()
    return versions


class _Cursor(BaseModel):
    keys: list[str] = []
    beyond: int = 0
    errors: int = 0


class Met:
    """What the listings of all attempts showed, in the order of their listing."""

    def __init__(self, cursor: JsonObject | None) -> None:
        """Go on from where earlier attempts left off."""
        left_off = _Cursor() if cursor is None else _Cursor.model_validate(cursor)
        self._keys = dict.fromkeys(left_off.keys)
        self._beyond = left_off.beyond
        self.errors = left_off.errors

    def cursor(self) -> JsonObject:
        """For the attempts to come."""
        return _Cursor(keys=list(self._keys), beyond=self._beyond, errors=self.errors).model_dump()

    @property
    def count(self) -> int:
        """How many keys."""
        return len(self._keys) + self._beyond

    def add(self, keys: Iterable[str]) -> None:
        """Take a page; many versions of a key are one."""
        for key in dict.fromkeys(keys):
            if len(self._keys) < MOST_REMEMBERED:
                self._keys[key] = None
            else:
                self._beyond += key not in self._keys

    def emptied(self, image_id: UUID, tenant_id: TenantId, named: frozenset[str]) -> Emptied:
        """The receipt, now that all of them are deleted."""
        return Emptied(
            image_id=image_id,
            tenant_id=tenant_id,
            deleted=self.count,
            not_there=None if self._beyond else len(named - self._keys.keys()),
            errors=self.errors,
            keys=tuple(self._keys)[:MOST_SHOWN],
        )


HANDLER: Final = Handler(kind=BUILT_IN["delete_image"], run=run)
