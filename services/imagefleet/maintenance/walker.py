"""Walks through both buckets, page by page: sweeps litter, notices what is missing.

Only what lies below our two prefixes, under keys of our form, is ever deleted; and only what the
database calls litter after it was listed. What is missing is told, and never repaired.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import structlog

from imagefleet.aws.objects import Listed, Objects
from imagefleet.errors import NotFound
from imagefleet.jobs.images import (
    PREFIXES,
    Bucket,
    image_at,
    is_original_key,
    is_preview_key,
    parse_output_key,
)
from imagefleet.jobs.shapes.sweeping import MissingView, SweepProgress
from imagefleet.store.database import Pool
from imagefleet.store.images.originals import forget_originals
from imagefleet.store.images.sweeping import Named, judge_originals, judge_outputs, list_named
from imagefleet.telemetry.maintenance import MaintenanceMetrics

# No request is that long under way; clocks of S3 and Postgres may differ by the hour.
OLDER_THAN: Final = timedelta(hours=25)
ORIGINALS: Final = 25  # whose targets are locked at once
IMAGES: Final = 1500  # of one question: those of a page have an object each, or were deleted
MOST_QUESTIONS: Final = 100  # a page; the rest of it is for the next one
# An original cannot be made again. Where most of a page is unknown, it is the database that is
# wrong: another one, or one that was restored from before these were accepted.
SUSPICIOUS: Final = 100

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class PageJudgement:
    """What one page has to be rid of."""

    litter: Sequence[Listed]
    unknown: int
    held_back: int = 0


class Walker:
    """Takes one page after the other; whoever calls remembers how far it was."""

    def __init__(
        self,
        pool: Pool,
        originals: Objects,
        outputs: Objects,
        metrics: MaintenanceMetrics,
        *,
        deletes: Callable[[], bool] = lambda: True,
        originals_kept_for: Callable[[], timedelta | None] = lambda: None,
        older_than: timedelta = OLDER_THAN,
    ) -> None:
        self._pool = pool
        self._buckets: Mapping[Bucket, Objects] = {"originals": originals, "outputs": outputs}
        self._metrics = metrics
        self._deletes = deletes
        self._originals_kept_for = originals_kept_for
        self._older_than = older_than

    async def walk(self, progress: SweepProgress, ends_at: float) -> tuple[SweepProgress, bool]:
        """Go one page further, or less when it is late; whether that was the end of both buckets.

        A page that needs many questions is not taken whole.
        """
        bucket = progress.bucket
        page = await self._buckets[bucket].page(PREFIXES[bucket], after=progress.after)
        end = None if page.is_last else page.objects[-1].key
        needed, end = await self._needed(progress, end)
        there = {listed.key for listed in page.objects}
        lacking = [wanted for wanted in needed if wanted.key not in there]
        missing, end = await self._ask(bucket, lacking, end, ends_at)
        passed = [listed for listed in page.objects if end is None or listed.key <= end]
        walked = await self._clear(bucket, await self._judge(bucket, passed), progress)
        if bucket == "originals":
            walked = await self._let_go(passed, walked)
        told = {"listed": progress.listed + len(passed)}
        is_through = end is None and bucket == "originals"
        return walked.model_copy(update=told).passed(end, missing), is_through

    async def _needed(
        self, progress: SweepProgress, end: str | None
    ) -> tuple[list[Named], str | None]:
        """What must be there up to `end`, by key; and a nearer end where that is too much."""
        first = image_at(progress.after)
        last = None if end is None else image_at(end)
        named, too_many = await self._named(progress.bucket, first, last, images=IMAGES)
        if too_many is not None:
            nearer = f"{PREFIXES[progress.bucket]}{too_many}/"
            end = nearer if end is None else min(end, nearer)
        needed = [
            wanted
            for wanted in named
            if progress.after < wanted.key and (end is None or wanted.key <= end)
        ]
        return sorted(needed, key=lambda wanted: wanted.key), end

    async def _named(
        self, bucket: Bucket, first: UUID, last: UUID | None, *, images: int
    ) -> tuple[list[Named], UUID | None]:
        async with self._pool.use("list_named") as connection:
            return await list_named(connection, bucket, first, last, images=images)

    async def _ask(
        self, bucket: Bucket, lacking: Sequence[Named], end: str | None, ends_at: float
    ) -> tuple[list[MissingView], str | None]:
        """Ask S3 about what the listing lacked; what is missing, and a nearer end if it is late.

        What was published after the listing is not in it.
        """
        clock = asyncio.get_running_loop().time
        missing: list[MissingView] = []
        for asked, wanted in enumerate(lacking):
            if asked and (asked >= MOST_QUESTIONS or clock() >= ends_at):
                end = lacking[asked - 1].key
                break
            is_there = await self._is_there(bucket, wanted.key)
            if is_there or not await self._is_needed(bucket, wanted):
                continue
            missing.append(await self._lacking(bucket, wanted))
        if missing:
            told = missing[0].model_dump(mode="json", exclude={"found_at"})
            log.error("object.missing", objects=len(missing), **told)
        return missing, end

    async def _is_there(self, bucket: Bucket, key: str) -> bool:
        try:
            await self._buckets[bucket].head(key)
        except NotFound:
            return False
        return True

    async def _is_needed(self, bucket: Bucket, wanted: Named) -> bool:
        """Look once more: meanwhile it may have been replaced or deleted, and swept."""
        named, _ = await self._named(bucket, wanted.image_id, wanted.image_id, images=2)
        return wanted in named

    async def _lacking(self, bucket: Bucket, wanted: Named) -> MissingView:
        reprocess = False
        if bucket == "outputs":
            originals, _ = await self._named(
                "originals", wanted.image_id, wanted.image_id, images=2
            )
            there = [await self._is_there("originals", each.key) for each in originals]
            reprocess = there == [True]
        return MissingView(
            bucket=bucket,
            key=wanted.key,
            tenant_id=wanted.tenant_id,
            image_id=wanted.image_id,
            found_at=datetime.now(UTC),
            reprocess=reprocess,
        )

    async def _judge(self, bucket: Bucket, passed: Sequence[Listed]) -> PageJudgement:
        if bucket == "originals":
            return await self._judge_originals(passed)
        ours = [(listed, place) for listed in passed if (place := parse_output_key(listed.key))]
        if not ours:
            return PageJudgement(litter=(), unknown=len(passed))
        async with self._pool.use("judge_outputs") as connection:
            judged = await judge_outputs(
                connection,
                [(listed.key, listed.modified_at, place) for listed, place in ours],
                older_than=self._older_than,
            )
        return PageJudgement(
            litter=[listed for listed, _ in ours if listed.key in judged.litter],
            unknown=len(passed) - len(ours) + len(judged.unknown),
        )

    async def _judge_originals(self, passed: Sequence[Listed]) -> PageJudgement:
        ours = [
            listed for listed in passed if is_original_key(listed.key) or is_preview_key(listed.key)
        ]
        unknown = len(passed) - len(ours)
        if not ours:
            return PageJudgement(litter=(), unknown=unknown)
        async with self._pool.use("judge_originals") as connection:
            stray = await judge_originals(
                connection,
                [(listed.key, listed.modified_at) for listed in ours],
                older_than=self._older_than,
            )
        lost = {key for key in stray if is_original_key(key)}  # a preview is made again
        if len(lost) >= SUSPICIOUS and 2 * len(lost) > len(ours):
            log.error("sweep.held_back", originals=len(lost), of=len(ours), first=min(lost))
            return PageJudgement(litter=(), unknown=unknown, held_back=len(lost))
        return PageJudgement(
            litter=[listed for listed in ours if listed.key in stray], unknown=unknown
        )

    async def _clear(
        self, bucket: Bucket, judgement: PageJudgement, before: SweepProgress
    ) -> SweepProgress:
        """Delete the litter, if we may; the progress with what came of it."""
        litter = judgement.litter
        gone: list[Listed] = []
        if litter and self._deletes():
            refused = await delete_keys(self._buckets[bucket], [listed.key for listed in litter])
            gone = [listed for listed in litter if listed.key not in refused]
            kind = "litter" if bucket == "outputs" else "original"
            self._metrics.swept(kind, len(gone), sum(listed.bytes for listed in gone))
        return before.model_copy(
            update={
                "litter": before.litter + len(litter),
                "litter_bytes": before.litter_bytes + sum(listed.bytes for listed in litter),
                "swept": before.swept + len(gone),
                "swept_bytes": before.swept_bytes + sum(listed.bytes for listed in gone),
                "unknown": before.unknown + judgement.unknown,
                "held_back": before.held_back + judgement.held_back,
            }
        )

    async def _let_go(self, passed: Sequence[Listed], before: SweepProgress) -> SweepProgress:
        """Delete originals that were kept for as long as they are to be; the progress with that."""
        kept_for = self._originals_kept_for()
        if kept_for is None or not self._deletes():
            return before
        gone: list[Listed] = []
        for at in range(0, len(passed), ORIGINALS):
            page = {listed.key: listed for listed in passed[at : at + ORIGINALS]}
            async with self._pool.use("forget_originals") as connection:
                keys = await forget_originals(connection, list(page), kept_for=kept_for)
            if keys:
                refused = await delete_keys(self._buckets["originals"], sorted(keys))
                gone += [page[key] for key in keys - refused]
        size = sum(listed.bytes for listed in gone)
        self._metrics.swept("expired", len(gone), size)
        more = {"swept": before.swept + len(gone), "swept_bytes": before.swept_bytes + size}
        return before.model_copy(update=more)


async def delete_keys(bucket: Objects, keys: Sequence[str]) -> frozenset[str]:
    """Delete objects; the keys that S3 refused to delete, which are found again."""
    answer = await bucket.delete(keys)
    refused = {version.key: code for version, code in answer.failures.items()}
    if refused:
        key, code = min(refused.items())
        log.warning("sweep.refused", bucket=bucket.bucket, objects=len(refused), key=key, code=code)
    return frozenset(refused)
