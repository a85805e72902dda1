"""Sweeps S3: versions that were superseded, what lost claims left, uploads that nobody used.

Every minute is a period, and the first process to take it does a part. A walk through both buckets
begins every six hours; its place is written down after every page, so that whoever has the next
period goes on there. Every order is: the database forgets, or says that it is litter; then S3
deletes. A deletion that did not happen is found again.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

import structlog

from imagefleet.aws.objects import Objects
from imagefleet.jobs.images import REDIRECT_MAX_AGE
from imagefleet.jobs.shapes.sweeping import SweepProgress
from imagefleet.live import Live
from imagefleet.maintenance.duties import Period, Rest, keep_at
from imagefleet.maintenance.walker import OLDER_THAN, Walker, delete_keys
from imagefleet.settings.live import ORIGINALS
from imagefleet.store.database import Pool
from imagefleet.store.fleet.elections import begin_period
from imagefleet.store.images.pruning import Superseded, list_superseded, record_swept
from imagefleet.store.images.sweeping import WALK, forget_uploads, read_walk, save_walk
from imagefleet.telemetry.maintenance import MaintenanceMetrics

PERIOD: Final = timedelta(minutes=1)
WALK_EVERY: Final = timedelta(hours=6)
LONGEST: Final = timedelta(seconds=45)  # of one period, but for a call that is under way
LONGEST_ON_VERSIONS: Final = timedelta(seconds=15)
LONGEST_ON_UPLOADS: Final = timedelta(seconds=5)
REVISIONS: Final = 100  # of one question; each has a few dozen objects at most
UPLOADS: Final = 1000

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What one look did; `taken` is false when another process has the period."""

    taken: bool
    did: bool = False
    """Whether anything was swept or looked at."""
    revisions: int = 0
    uploads: int = 0
    """That nobody used; their objects are litter from now on."""
    listed: int = 0
    objects: int = 0
    """Deleted: of those revisions, and of litter."""
    bytes: int = 0


class Sweeper:
    """Sweeps once a period, whoever of the fleet comes first."""

    def __init__(
        self,
        pool: Pool,
        originals: Objects,
        outputs: Objects,
        holder: UUID,
        metrics: MaintenanceMetrics,
        *,
        has_edge: bool,
        rest: Rest,
        grace: timedelta,
        deletes: bool,
        originals_kept_days: int = 0,
        older_than: timedelta = OLDER_THAN,
        period: timedelta = PERIOD,
        walk_every: timedelta = WALK_EVERY,
        live: Live | None = None,
    ) -> None:
        """Without `deletes` it only looks."""
        self._live = live or Live()
        self._pool = pool
        self._outputs = outputs
        self._holder = holder
        self._metrics = metrics
        self._rest = rest
        self._has_edge = has_edge
        self._configured_grace = grace
        self._configured_deletes = deletes
        self._configured_days = originals_kept_days
        self._older_than = older_than
        self._period = Period("sweep", period, pool, holder)
        self._walk_every = walk_every
        self._walker = Walker(
            pool,
            originals,
            outputs,
            metrics,
            deletes=lambda: self._deletes,
            originals_kept_for=lambda: self._originals_kept_for,
            older_than=older_than,
        )
        self._after: Superseded | None = None

    @property
    def _deletes(self) -> bool:
        return self._live.now.switch("retention.sweep_deletes", default=self._configured_deletes)

    @property
    def _kept_for(self) -> timedelta:
        name = "retention.superseded_seconds"
        grace = self._live.now.seconds(name, self._configured_grace)
        return grace + REDIRECT_MAX_AGE if self._has_edge else grace

    @property
    def _originals_kept_for(self) -> timedelta | None:
        """None: for as long as their images."""
        return timedelta(days=self._live.now.count(ORIGINALS, self._configured_days)) or None

    async def run_once(self) -> Swept:
        """Sweep a part if nobody has taken the period yet. Call it about as often."""
        return await self._period.once(self._sweep) or Swept(taken=False)

    async def _sweep(self) -> Swept:
        ends_at = asyncio.get_running_loop().time() + LONGEST.total_seconds()
        swept = Swept(taken=True)
        if self._deletes:
            swept = await self._sweep_versions()
        swept = await self._walk(swept, ends_at)
        if swept.objects or swept.uploads:
            log.info("object.swept", **asdict(swept))
        return swept

    async def _sweep_versions(self) -> Swept:
        """What was superseded, and the gates of uploads that nobody went through."""
        revisions = objects = size = uploads = 0

        async def batch_of_revisions() -> bool:
            nonlocal revisions, objects, size
            if not self._deletes:  # turned off since this sweep began
                return False
            page = await self._next_superseded()
            gone = await self._delete([revision for revision in page if revision.ripe])
            revisions += len(gone)
            objects += sum(len(revision.keys) for revision in gone)
            size += sum(revision.bytes for revision in gone)
            return len(page) == REVISIONS

        async def batch_of_uploads() -> bool:
            nonlocal uploads
            async with self._pool.use("forget_uploads") as connection:
                forgotten = await forget_uploads(
                    connection, expired_for=self._older_than, limit=UPLOADS
                )
            uploads += forgotten
            return forgotten == UPLOADS

        await keep_at(batch_of_revisions, within=LONGEST_ON_VERSIONS, rest=self._rest)
        await keep_at(batch_of_uploads, within=LONGEST_ON_UPLOADS, rest=self._rest)
        return Swept(
            taken=True,
            did=revisions + uploads > 0,
            revisions=revisions,
            uploads=uploads,
            objects=objects,
            bytes=size,
        )

    async def _next_superseded(self) -> Sequence[Superseded]:
        """The next page, in turn: one whose invalidation does not get on holds up no other."""
        async with self._pool.use("list_superseded") as connection:
            page = await list_superseded(
                connection,
                kept_for=self._kept_for,
                has_edge=self._has_edge,
                after=self._after,
                limit=REVISIONS,
            )
        self._after = page[-1] if len(page) == REVISIONS else None
        return page

    async def _delete(self, ripe: Sequence[Superseded]) -> Sequence[Superseded]:
        """Delete the objects of revisions, then forget them; those of which all are deleted."""
        if not ripe:
            return ()
        keys = [key for revision in ripe for key in revision.keys]
        refused = await delete_keys(self._outputs, keys) if keys else frozenset()
        gone = [revision for revision in ripe if refused.isdisjoint(revision.keys)]
        async with self._pool.use("record_swept") as connection:
            await record_swept(connection, gone)
        objects = sum(len(revision.keys) for revision in gone)
        self._metrics.swept("superseded", objects, sum(revision.bytes for revision in gone))
        return gone

    async def _walk(self, swept: Swept, ends_at: float) -> Swept:
        """Go on with the walk that is under way, or begin the one that is due."""
        begun = await self._walk_under_way()
        if begun is None:
            return swept
        start, before = begun
        progress, is_through = before, False

        async def page() -> bool:
            nonlocal progress, is_through
            listed = progress.listed
            progress, is_through = await self._walker.walk(progress, ends_at)
            async with self._pool.use("save_walk") as connection:
                await save_walk(connection, start, progress, is_through=is_through)
            self._metrics.upkept("walk", progress.listed - listed)
            return not is_through

        left = timedelta(seconds=ends_at - asyncio.get_running_loop().time())
        await keep_at(page, within=left, rest=self._rest)
        if is_through:
            told = progress.model_dump(
                mode="json", exclude={"bucket", "after", "missing", "unnamed"}
            )
            log.info("sweep.walked", missing=progress.all_missing, **told)
        return replace(
            swept,
            did=True,
            listed=progress.listed - before.listed,
            objects=swept.objects + progress.swept - before.swept,
            bytes=swept.bytes + progress.swept_bytes - before.swept_bytes,
        )

    async def _walk_under_way(self) -> tuple[datetime, SweepProgress] | None:
        async with self._pool.use("read_walk") as connection:
            last = await read_walk(connection)
            if last is not None and last.finished_at is None:
                return last.start, last.progress
            start = await begin_period(connection, WALK, self._walk_every, self._holder)
        if start is None:
            return None
        return start, SweepProgress() if last is None else last.progress.again()
