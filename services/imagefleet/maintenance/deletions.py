"""Looks after deleted images: empties their prefixes once more, a day later.

A worker that lost its claim before the deletion, and has not noticed, may still store an object; a
form that was given out before takes a file for as long as it is valid. A day later nobody does any
more. Every minute is a period, and the first process to take it does a part of what is due.

Without an edge this is also who calls an image dark, as soon as its objects are gone.
"""

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Final
from uuid import UUID

import structlog

from imagefleet.aws.objects import Objects
from imagefleet.jobs.images import originals_prefix, outputs_prefix
from imagefleet.maintenance.duties import Period
from imagefleet.store.database import Pool
from imagefleet.store.images.deleting import (
    darken_without_edge,
    list_to_empty_again,
    record_emptied_again,
)
from imagefleet.telemetry.maintenance import MaintenanceMetrics

PERIOD: Final = timedelta(minutes=1)
AGAIN_AFTER: Final = timedelta(hours=24)
BATCH: Final = 50  # images of one question
LONGEST: Final = 20.0  # seconds of one period; the rest is for the next one

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EmptiedAgain:
    """What one look did; `taken` is false when another process has the period."""

    taken: bool
    images: int = 0
    found: int = 0
    """Versions that lay there, which the day before had not."""


class DeletionKeeper:
    """Empties again once a period, whoever of the fleet comes first."""

    def __init__(
        self,
        pool: Pool,
        originals: Objects,
        outputs: Objects,
        holder: UUID,
        metrics: MaintenanceMetrics,
        *,
        has_edge: bool,
        again_after: timedelta = AGAIN_AFTER,
    ) -> None:
        self._pool = pool
        self._originals = originals
        self._outputs = outputs
        self._period = Period("deletions", PERIOD, pool, holder)
        self._metrics = metrics
        self._has_edge = has_edge
        self._again_after = again_after

    async def run_once(self) -> EmptiedAgain:
        """Empty what is due if nobody has taken the period yet. Call it every few seconds."""
        if not self._has_edge:
            async with self._pool.use("darken_without_edge") as connection:
                self._metrics.darkened(await darken_without_edge(connection))
        return await self._period.once(self._empty_due) or EmptiedAgain(taken=False)

    async def _empty_due(self) -> EmptiedAgain:
        clock = asyncio.get_running_loop().time
        ends_at = clock() + LONGEST
        images = found = 0
        while clock() < ends_at:
            async with self._pool.use("list_to_empty_again") as connection:
                due = await list_to_empty_again(connection, after=self._again_after, limit=BATCH)
            for image_id in due:
                if clock() >= ends_at:
                    break
                found += await self._empty(image_id)
                images += 1
            if len(due) < BATCH:
                break
        return EmptiedAgain(taken=True, images=images, found=found)

    async def _empty(self, image_id: UUID) -> int:
        """Empty one image's prefixes; how many versions that deleted."""
        outputs = (await self._outputs.delete_all(outputs_prefix(image_id))).in_all()
        originals = (await self._originals.delete_all(originals_prefix(image_id))).in_all()
        async with self._pool.use("record_emptied_again") as connection:
            # What was public for a moment may have been kept by the edge.
            await record_emptied_again(connection, image_id, owes=outputs > 0)
        if outputs or originals:
            told = {"outputs": outputs, "originals": originals}
            log.warning("image.emptied_again", image_id=str(image_id), **told)
        return outputs + originals
